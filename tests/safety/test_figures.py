"""Figures that overflow, mean nothing or are spelled in another way: refused with the figure, or read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.errors import InvalidInput
from kernelsight.scenario.flag_values import typed_value
from kernelsight.scenario.flags import FLAGS
from kernelsight.scenario.grid import read_grid
from kernelsight.serving.load.recorded_loads import read_trace
from kernelsight.session import connect
from tests.asked import refusals
from tests.conftest import random_worlds

LOAD = {"request_rate": 5, "num_prompts": 5, "input_len": 100, "output_len": 5}
ROW = {"model": "qwen3-0.6b", "gpu": "l4", **LOAD}
HUGE = 9007199254740992


@pytest.mark.parametrize(
    "version", "0 0.9.2 v0.6 1.0.0rc3 1.3.0rc10 0.5.6.post2 0.1.dev19262 0.11.1.dev12+g1a2b3c.cu129 1.2-rc.5".split()
)
def test_versions_of_engines_are_read(version: str) -> None:
    assert typed_value("engine_version", version) == version


@pytest.mark.parametrize(
    "version",
    ["-1.0", "latest", "99999999999999999999.1", "1..2", "1.", ".5", "1,5", "0.5 or so", "1; drop", "1.0+", "v", 1.0],
)
def test_what_is_no_version_is_refused(version: object) -> None:
    with pytest.raises(InvalidInput, match=r"give a version such as 0.11.0, or leave it unset"):
        typed_value("engine_version", version)


def test_a_row_that_cannot_be_simulated_leaves_the_others() -> None:
    flags = ("max_num_batched_tokens", "max_num_seqs", "kv_cache_tokens", "block_size", "max_model_len")
    rows = [ROW, *(ROW | {flag: HUGE} for flag in flags), ROW | dict.fromkeys(flags, HUGE)]
    with connect() as session:
        status = session.what_if(rows).table("scenario_summary").sort_by("status")["status"].to_pylist()
    assert status.count("served") == 1 and sum(str(HUGE) in each for each in status) == len(flags) + 1


def test_a_load_that_cannot_be_served_leaves_the_others(tmp_path: Path) -> None:
    trace = tmp_path / "day.jsonl"
    rows = [
        {"arrival_s": 0, "prompt_tokens": 40, "output_tokens": 2, "hash_ids": [1], "hash_block_tokens": size}
        for size in (64, 48)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    deployment = {"model": "qwen3-0.6b", "gpu": "l4"}
    bad = deployment | {"trace": str(trace)}
    with connect() as session:
        with pytest.raises(InvalidInput, match="hash blocks of 48, 64 tokens are in one load; use one size"):
            session.what_if([bad]).table("scenario_summary")
        found = session.what_if([ROW, bad, ROW | {"request_rate": 6}, bad | {"max_num_seqs": 7}]).table(
            "scenario_summary"
        )
    status = sorted(found["status"].to_pylist())
    assert status == ["hash blocks of 48, 64 tokens are in one load; use one size"] * 2 + ["served"] * 2


def test_a_config_with_a_byte_order_mark_is_read_and_a_field_twice_is_refused(
    tiny_config: Callable, command: Callable, refusal: Callable
) -> None:
    path = tiny_config(rope_scaling={"rope_type": "llama3", "factor": 8.0})
    words = ("predict", "--model", path, "--gpu", "l4", "--context-len", 10, "--format", "json")
    plain = command(*words).json["total_us"]
    text = path.read_text()
    path.write_text("\ufeff" + text, encoding="utf-8")
    assert command(*words).json["total_us"] == plain
    path.write_text(text[:-1] + ', "hidden_size": 1024}')
    assert "'hidden_size' occurs twice; keep one" in refusal(*words)


def test_whole_numbers_of_sql_are_whole_numbers() -> None:
    query = (
        "select 'qwen3-0.6b' as model, 'l4' as gpu, sum(n)::hugeint as num_prompts, 64.0::decimal(9, 1) as input_len, "
    )
    query += "8::hugeint as output_len, 2.5::decimal(3, 2) as request_rate from range(4) as r(n)"
    with connect() as session:
        rows = read_grid(session, query)
        assert session.what_if(rows).table("scenario_summary")["completed"].to_pylist() == [6]
        with pytest.raises(InvalidInput, match=r"num_prompts is 6\.5; give a whole number"):
            session.what_if([rows[0] | {"num_prompts": session.query("select 6.5 as n")["n"][0].as_py()}])


def test_a_trace_of_decimals_is_read(tmp_path: Path) -> None:
    with connect() as session:
        pq.write_table(
            session.query(
                "select i::decimal(9, 2) as arrival_s, sum(10)::hugeint as prompt_tokens, 4.0 as output_tokens "
                "from range(3) as r(i) group by i order by i"
            ),
            tmp_path / "day.parquet",
        )
    trace = read_trace(tmp_path / "day.parquet")
    assert trace["prompt_tokens"].to_pylist() == [10, 10, 10] and trace["output_tokens"].to_pylist() == [4, 4, 4]
    pq.write_table(
        pa.table(
            {
                "arrival_s": [0],
                "prompt_tokens": [pa.scalar(1.5).cast(pa.decimal128(5, 1)).as_py()],
                "output_tokens": [1],
            }
        ),
        tmp_path / "day.parquet",
    )
    with pytest.raises(InvalidInput, match="prompt_tokens is .*1.5.*, but must be a whole number"):
        read_trace(tmp_path / "day.parquet")


@pytest.mark.parametrize(
    "name",
    refusals("safety/test_figures::test_an_output_that_cannot_be_written_is_refused_before_the_work"),
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    name: str, refusal: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the work was begun")

    monkeypatch.setattr("kernelsight.sweeps.runs.Run.of", never)
    load = ("--request-rate", 5, "--num-prompts", 5, "--isl", 100, "--osl", 5)
    assert refusal("simulate", "--model", "qwen3-0.6b", "--gpu", "l4", *load, "-o", name).startswith("-o '")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


@random_worlds(200)
@given(
    name=st.sampled_from(sorted(FLAGS)),
    value=st.one_of(
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=5),
        st.decimals(),
        st.booleans(),
        st.binary(max_size=3),
        st.just(float("1e300")),
        st.lists(st.integers(), max_size=2),
    ),
)
def test_any_value_of_a_flag_is_taken_or_refused(name: str, value: object) -> None:
    try:
        typed_value(name, value)
    except InvalidInput as error:
        assert name in str(error)


def test_a_step_that_the_host_bounds_has_an_interval(tiny_config: Callable, command: Callable, tmp_path: Path) -> None:
    words = ("predict", "--model", tiny_config(num_hidden_layers=1), "--gpu", "h100_sxm", "--context-len", 8)
    words += ("--format", "json")
    step = command(*words).json
    [host] = [row for row in step["kernels"] if row["family"] == "host"]
    assert step["host_us"] > 0.9 * step["total_us"], "the host does not bound this step"
    assert 1.2 * step["p05_us"] < step["total_us"] < step["p95_us"] / 1.2
    assert host["p05_us"] < host["latency_us"] < host["p95_us"]
    figures = dict.fromkeys(("step_exposed_us", "step_base_us", "request_us", "exposed_per_request_us"), 100.0)
    figures |= dict.fromkeys(("per_request_us", "per_token_us", "per_captured_launch_us"), 0.0)
    figures |= {"per_eager_launch_us": 0.0, "launch_gap_us": 0.0, "per_prompt_token_us": 0.0, "overlapped": True}
    rows = tmp_path / "host.json"
    for spread, exact in ((None, True), (0.5, False)):
        rows.write_text(json.dumps({"engine": "vllm", **figures, "step_log_sd": spread}))
        [host] = [row for row in command(*words, "--host-overheads", rows).json["kernels"] if row["family"] == "host"]
        assert (host["p05_us"] == host["latency_us"] == host["p95_us"]) is exact
