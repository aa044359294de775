"""What a notebook does by mistake is answered with one sentence: values of a wrong kind, endings, lost columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kernelsight import launch_command
from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.session import Session, connect
from tests.asked import refusals

STEP = {"model": "qwen3-0.6b", "gpu": "l4", "context_len": 100}
LOAD = {"max_concurrency": 4, "num_prompts": 8, "input_len": 64, "output_len": 8}
FLAGS = {"model": "qwen3-0.6b", "gpu": "l4"} | LOAD


@pytest.mark.parametrize(
    ("name", "value"), [("gpu", ["l4", "t4"]), ("max_num_seqs", (8, 16)), ("model", {}), ("seed", np.arange(2))]
)
def test_a_list_is_no_value_of_one_scenario(session: Session, name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"^{name} is .*; one scenario takes one value, a grid of what_if takes"):
        session.simulate(**FLAGS | {name: value})


@pytest.mark.parametrize(
    ("wrong", "said"),
    refusals("test_notebook::test_a_step_of_a_wrong_kind_or_size"),
)
def test_a_step_of_a_wrong_kind_or_size(session: Session, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        session.predict(**STEP | wrong)


def test_whole_numbers_of_other_libraries_are_sizes(session: Session) -> None:
    one = session.predict(**STEP, batch_size=4).total_us
    assert session.predict(**STEP, batch_size=np.int32(4)).total_us == session.predict(**STEP, batch_size=4.0).total_us
    assert session.predict(**STEP, batch_size=np.int64(4)).total_us == one


def test_objectives_are_a_mapping_or_the_words_of_the_command_line(session: Session) -> None:
    grid = FLAGS | {"max_concurrency": [1, 2]}
    found = [
        session.sweep(grid, slo=slo).summary["meets_slo"].to_pylist()
        for slo in ({"ttft_p95_ms": 1000.0}, "ttft_p95:1000", ["ttft_p95:1000"])
    ]
    assert found[0] == found[1] == found[2] == [True, True]
    asked = {"gpus": "l4", "rate": 1.0, "model": "qwen3-0.6b", "input_len": 64, "output_len": 8}
    with pytest.raises(UnknownName, match=r"unknown latency statistic 'ttft_p95'. Did you mean ttft_p95_ms\?"):
        session.size(slo={"ttft_p95": 1000.0}, **asked)
    for wrong, said in ((5, "5"), (["ttft_p95:1000", 5], r"\['ttft_p95:1000', 5\]")):
        with pytest.raises(InvalidInput, match=f"the objectives are {said}; give a mapping"):
            session.size(slo=wrong, **asked)


@pytest.mark.parametrize(
    ("verb", "wrong", "said"),
    refusals("test_notebook::test_arguments_of_a_wrong_kind"),
)
def test_arguments_of_a_wrong_kind(session: Session, verb: str, wrong: dict[str, Any], said: str) -> None:
    given = {
        "sweep": {"grid": FLAGS},
        "compare": {"log": ()},
        "size": {"gpus": "l4", "slo": "ttft_p95:1000", "rate": 1.0, "model": "qwen3-0.6b"},
    }
    with pytest.raises(InvalidInput, match=said):
        getattr(session, verb)(**given[verb] | wrong)


def test_paths_and_single_values_are_understood(session: Session, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,3\n1,10,3\n")
    assert session.simulate(model="qwen3-0.6b", gpu="l4", trace=trace).summary["completed"] == 2
    found = session.sweep(FLAGS, goodput="ttft:5000").summary.to_pylist()[0]
    assert found["goodput"] == found["request_throughput"]
    with pytest.raises(InvalidInput, match="unknown quantization 'fp88'"):
        session.size(
            gpus="l4", slo="ttft_p95:1000", rate=1.0, model="qwen3-0.6b", input_len=8, output_len=8,
            search={"quantization": "fp88"},
        )  # fmt: skip
    assert "--tensor-parallel-size 4" in launch_command({"model": "qwen3-32b", "tensor_parallel_size": 4}).line
    with pytest.raises(InvalidInput, match="names no model"):
        launch_command({})


def test_one_gpu_of_a_sizing_may_be_a_word(session: Session) -> None:
    asked = {"slo": "ttft_p95:1000", "rate": 1.0, "model": "qwen3-0.6b", "input_len": 64, "output_len": 8}
    with pytest.raises(UnknownName, match="unknown GPU 'l44'"):
        session.size(gpus="l4,l44", **asked)


def test_corrections_may_be_a_table(session: Session) -> None:
    row = {"part": "host", "factor": 1.0, "exposed_us": 500.0, "n": 40, "fitted_on": "first 70% of the log"}
    with pytest.raises(InvalidInput, match="^the table of corrections was fitted for another deployment"):
        session.simulate(correction=pa.Table.from_pylist([row | {"fingerprint": "0" * 16}]), **FLAGS)
    with pytest.raises(InvalidInput, match="^the table of corrections holds no corrections"):
        session.simulate(correction=pa.table({"part": ["host"]}), **FLAGS)


def test_a_file_of_another_format_is_not_written(session: Session, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"run.csv ends in .csv, but a DuckDB file is saved; name it run.duckdb"):
        session.simulate(**FLAGS).save(tmp_path / "run.csv")
    assert not list(tmp_path.iterdir())


def test_pages_and_timelines_have_their_own_endings(session: Session, tmp_path: Path) -> None:
    run, found = session.simulate(**FLAGS), session.what_if(FLAGS | {"gpu": ["l4", "t4"]})
    for write, name in ((run.report, "a.pdf"), (run.timeline, "a.txt"), (found.report, "a"), (run.timeline, "a.html")):
        with pytest.raises(InvalidInput, match=f"{name} ends in .*; what is written is"):
            write(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.whole
def test_a_gpu_like_another_is_a_dict() -> None:
    with connect() as session:
        session.extend("gpus", [{"gpu": "wide", "like": "h100_sxm", "memory_bandwidth_bytes_per_s": 6.7e12}])
        row = session.table("gpus").to_pylist()[-1]
        assert (row["gpu"], row["measured_as"], row["sm_count"]) == ("wide", "h100_sxm", 132)
        assert row["source"] == "given in Python"
        assert (
            session.predict(**STEP | {"gpu": "wide"}).total_us < session.predict(**STEP | {"gpu": "h100_sxm"}).total_us
        )
        for wrong, said in (
            (
                {"gpu": "x", "like": "h100_sxm", "memory_bandwidth_bytes_per_s": 8},
                "is 8; give bytes a second as a number",
            ),
            ({"gpu": "x"}, "rows of extend, GPU x: missing fields sm_count, sm_clock_hz"),
            ({"gpu": "x", "like": "h100"}, "unknown GPU 'h100'"),
        ):
            with pytest.raises((InvalidInput, UnknownName), match=said):
                session.extend("gpus", [wrong])


def test_a_file_that_is_open_elsewhere_is_named_so(tmp_path: Path) -> None:
    with connect(tmp_path / "a.duckdb"), pytest.raises(InvalidInput, match="another session of this program has it"):
        connect(tmp_path / "a.duckdb")


def test_a_lost_column_names_the_table_that_has_it(session: Session) -> None:
    found = session.what_if(FLAGS | {"gpu": ["l4", "t4"]})
    # flags of the grid stand in the summary, as in its table; other columns of deployments do not
    assert sorted(found.sql("select gpu from scenario_summary").fetchall()) == [("l4",), ("t4",)]
    log = pa.table({"draft_deployment_id": ["a"], "measured_ms": [9.0]})  # noqa: F841 - the queries name it
    said = r"; draft_deployment_id is in tables? deployment.*: join it using \(deployment_id\)"
    for query in (
        "select draft_deployment_id, ttft_p50_ms from scenario_summary",
        "from scenario_summary join log using (draft_deployment_id)",
        "select s.draft_deployment_id from scenario_summary s",
    ):
        with pytest.raises(InvalidInput, match=said):
            found.sql(query)
    joined = found.sql("select deployments.gpu from scenario_summary join deployments using (deployment_id)").fetchall()
    assert sorted(joined) == [("l4",), ("t4",)]
    with pytest.raises(InvalidInput) as refused:
        found.sql("select nowhere from scenario_summary")
    assert "join" not in str(refused.value)


def test_show_tables_lists_what_can_be_asked() -> None:
    with connect() as session:
        session.give("mine", [{"a": 1}])
        states = dict(session.sql("show tables").fetchall())
        assert (states["mine"], states["gpus"]) == ("own", "of the catalogue")
        assert "request_metrics" not in states  # nothing was simulated
        assert "given mine" in repr(session)
        run = session.simulate(**FLAGS)
        states = dict(run.sql("show tables;").fetchall())
        assert states["deployments"] == "given"
        assert states["request_metrics"] == "computed when it is asked for"
        for name in ("kernel_breakdown", "bottlenecks"):
            assert name in states and run.table(name).num_rows
