"""Logs of simulated worlds with a planted difference: what is named, how large, and that parts add up."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.comparison.comparison import Comparison
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.prediction_vs_production import PARTS
from kernelsight.comparison.replay import LOAD, Replayed, Variant, conformed
from kernelsight.errors import InvalidInput
from kernelsight.present.show import lines_of
from kernelsight.session import Session, connect
from tests.cli.conftest import run_command
from tests.logs.written import DATA, matrix, save

FLAGS = {"model": "llama-3.1-8b", "gpu": "h100_sxm", "max_num_batched_tokens": 8192}
N = 500
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")


def drawn(n: int = N, rate: float = 8.0) -> pa.Table:
    dice = np.random.default_rng(5)
    arrival = np.cumsum(dice.exponential(1.0 / rate, n))
    prompts, outputs = dice.integers(200, 2500, n), dice.integers(20, 300, n)
    columns = {"load_id": [LOAD] * n, "request_id": np.arange(n), "arrival_s": arrival - arrival[0]}
    return conformed({**columns, "prompt_tokens": prompts, "output_tokens": outputs})


@cache
def as_stated(n: int = N, rate: float = 8.0) -> Replayed:
    """Return how the deployment itself serves a drawn load."""
    with connect() as session:
        return LogReplayer(session, drawn(n, rate)).serve([Variant(FLAGS)])[0]


def log_of(load: pa.Table, served: Replayed, client_ms: float = 0.0) -> pa.Table:
    """What a benchmark client would have written of a world."""
    n = load.num_rows
    return pa.table(
        {name: load[name] for name in ("arrival_s", "prompt_tokens", "output_tokens")}
        | {"ttft_ms": served.ttft_ms + client_ms, "e2e_ms": served.e2e_ms + client_ms}
        | {"ttft_clock": ["client_send"] * n}
    )


def compared(session: Session, truth: Variant, *, client_ms: float = 0.0, **asked) -> Comparison:
    load = drawn()
    served = as_stated() if truth == Variant(FLAGS) else LogReplayer(session, load).serve([truth])[0]
    return session.compare(requests=log_of(load, served, client_ms), deployment=FLAGS, **asked)


def test_a_log_of_the_deployment_itself_agrees_and_accuses_nobody(session: Session) -> None:
    found = compared(session, Variant(FLAGS))
    answer = found.summary
    # single requests scatter by which others share their steps; means do not
    ends = found.sql("select request_low / low as low, request_high / high as high from log_intervals").fetchall()
    assert all(0.9 < low < 1.0 < high < 1.1 for low, high in ends) and len(ends) == 3
    assert (answer["requests"], answer["causes"], answer["suspects"]) == (N, [], [])
    assert all(answer[name]["median_ape"] == 0.0 for name in METRICS)
    assert answer["verdict"].startswith("log and prediction agree: mean E2E measured")
    assert answer["cause"]["kind"] == "none"
    assert answer["percentiles"]["e2e_ms"]["p99"]["measured"] == answer["percentiles"]["e2e_ms"]["p99"]["predicted"] > 0
    assert answer["occupancy"]["running_max"]["measured"] == answer["occupancy"]["running_max"]["predicted"] > 0
    assert [row["part"] for row in answer["parts"] if row["miss_ms"]] == []


@pytest.mark.parametrize(
    ("truth", "client_ms", "name", "size"),
    [
        (Variant(FLAGS, step_us=2000.0), 0.0, "host", 2.0),
        (Variant(FLAGS), 50.0, "client", 50.0),
        (Variant(FLAGS, {"prefill_gemm": 1.3, "decode_gemm": 1.3}), 0.0, "gemm", 1.3),
    ],
)
def test_a_planted_cause_is_named_with_its_size(
    session: Session, truth: Variant, client_ms: float, name: str, size: float
) -> None:
    found = compared(session, truth, client_ms=client_ms, suspects="none")
    cause = found.summary["causes"][0]
    assert cause["name"] == name
    if cause["kind"] == "part" and name != "host":
        assert np.log(cause["value"]) == pytest.approx(np.log(size), rel=0.2)
    else:
        # requests alone do not separate host time from kernels that take as long in every step: only their sum is sure
        assert cause["value"] == pytest.approx(size, rel=0.4 if name == "host" else 0.2)
    first = found.summary["parts"][0]
    assert first["part"] in (name, f"decode_{name}", f"prefill_{name}")
    assert first["miss_ms"] * (1.0 if size > 1.0 or name in ("host", "client") else -1.0) > 0.0
    check_parts_add_up(found)


def check_parts_add_up(found: Comparison) -> None:
    """Check that the parts of every request add up to its miss, in whole nanoseconds."""
    rows = found.table("prediction_vs_production")
    whole = {name: rows[f"{name}_ms"].to_numpy() * 1e6 for name in (*PARTS, "e2e_miss")}
    assert all(np.abs(values - np.rint(values)).max() < 1e-3 for values in whole.values())
    assert np.array_equal(sum(np.rint(whole[part]) for part in PARTS), np.rint(whole["e2e_miss"]))
    assert rows.num_rows == N
    mean = sum(row["miss_ms"] for row in found.summary["parts"])
    assert mean == pytest.approx(rows["e2e_miss_ms"].to_numpy().mean(), abs=1e-6)


def with_noise(log: pa.Table, share: float, seed: int) -> pa.Table:
    """Return a log whose TTFTs and decode times scatter by a share."""
    noise = np.exp(share * np.random.default_rng(seed).standard_normal((2, log.num_rows)))
    ttft, e2e = log["ttft_ms"].to_numpy(), log["e2e_ms"].to_numpy()
    for name, values in (("ttft_ms", ttft * noise[0]), ("e2e_ms", ttft * noise[0] + (e2e - ttft) * noise[1])):
        log = log.set_column(log.column_names.index(name), name, pa.array(values))
    return log


@pytest.mark.parametrize(("share", "seed"), [(0.05, 3), (0.03, 4), (0.02, 5)])
def test_noise_of_single_requests_accuses_nobody(session: Session, share: float, seed: int) -> None:
    log = with_noise(log_of(drawn(), as_stated()), share, seed)
    found = session.compare(requests=log, deployment=FLAGS, suspects="none").summary
    assert found["causes"] == [] and found["verdict"].startswith(("log and", "mean E2E"))


def test_seats_that_only_metrics_of_the_server_show_are_named(session: Session, tmp_path: Path) -> None:
    served = LogReplayer(session, drawn()).serve([Variant({**FLAGS, "max_num_seqs": 16})])[0]
    log = with_noise(log_of(drawn(), served), 0.03, 1)
    pq.write_table(log.drop_columns(["ttft_ms", "ttft_clock"]), tmp_path / "log.parquet")
    scrapes = {("vllm:num_requests_running", "a"): [9, 16, 16, 12], ("vllm:num_requests_waiting", "a"): [0, 2, 3, 0]}
    scrapes["vllm:request_success_total", "a"] = [1, 2, 3, 4]
    metrics = save(tmp_path / "range.json", matrix(scrapes))
    compared = session.compare(log=tmp_path / "log.parquet", metrics=metrics, deployment=FLAGS)
    found = compared.summary
    assert [(cause["name"], cause["value"]) for cause in found["causes"]] == [("max_num_seqs", 16)]
    unused = "dropped: 1 x series of metrics that compare does not use, first vllm:request_success_total"
    assert unused in "\n".join(lines_of(compared.page()))


@pytest.mark.parametrize(("seats", "seed"), [(16, 1), (18, 2)])
def test_seats_that_only_the_tail_waits_for_are_named_despite_noise(session: Session, seats: int, seed: int) -> None:
    served = LogReplayer(session, drawn()).serve([Variant({**FLAGS, "max_num_seqs": seats})])[0]
    log = with_noise(log_of(drawn(), served), 0.03, seed)
    found = session.compare(requests=log, deployment=FLAGS, suspects="all").summary
    assert [(cause["name"], cause["value"]) for cause in found["causes"]] == [("max_num_seqs", seats)]
    assert found["verdict"].startswith("TTFT p9") and f"max_num_seqs {seats}" in found["verdict"]
    assert abs(found["e2e_ms"]["bias"]) < 0.3


def test_a_log_of_e2e_alone_is_enough(session: Session) -> None:
    """Without TTFT host time and small products of every step are one: either explains what was measured."""
    load = drawn()
    log = log_of(load, LogReplayer(session, load).serve([Variant(FLAGS, step_us=3000.0)])[0]).drop(["ttft_ms"])
    found = session.compare(requests=log, deployment=FLAGS, suspects="none")
    assert found.summary["causes"][0]["name"] in ("host", "decode_gemm")
    ((explained,),) = found.sql("select avg(finish_ns - sent_ns) / 1e6 from explained_replays").fetchall()
    assert explained == pytest.approx(found.summary["e2e_ms"]["measured"], rel=0.03)
    assert found.summary["e2e_ms"]["bias"] < -0.1


def test_a_setting_that_differs_is_suspected(session: Session) -> None:
    answer = compared(session, Variant({**FLAGS, "max_num_batched_tokens": 2048})).summary
    suspect = answer["suspects"][0]
    assert (suspect["setting"], suspect["stated"], suspect["value"]) == ("max_num_batched_tokens", "8192", "2048")
    assert suspect["evidence"] == "likely" and suspect["gain"] > 0.5
    assert "max_num_batched_tokens 2048 instead of what was stated" in answer["verdict"]


def test_a_load_that_is_not_as_described_is_a_part(session: Session) -> None:
    stated = {"request_rate": 8.0, "num_prompts": N, "input_len": 1350, "output_len": 80}
    answer = compared(session, Variant(FLAGS), stated=stated, suspects="none").summary
    first = answer["parts"][0]
    assert first["part"] == "workload" and first["miss_ms"] > 100.0
    cause = answer["cause"]
    assert (cause["kind"], cause["name"], answer["causes"]) == ("load", "output_tokens", [cause])
    assert cause["value"] == pytest.approx(drawn()["output_tokens"].to_numpy().mean() / 80.0)
    assert "answers are 2.0" in answer["verdict"]


@pytest.mark.whole
def test_corrections_hold_on_later_time_and_for_this_deployment_alone(session: Session, tmp_path: Path) -> None:
    found = compared(session, Variant(FLAGS, step_us=900.0), suspects="none")
    fit = found.summary["fit"]
    for metric in ("tpot", "e2e"):
        assert fit["corrected"][metric]["median_ape"] < 0.02 < fit["uncorrected"][metric]["median_ape"]
    file = tmp_path / "correction.parquet"
    pq.write_table(found.table("fitted_corrections"), file)
    load = {"request_rate": 4.0, "num_prompts": 30, "input_len": 500, "output_len": 50}
    plain = session.simulate(**FLAGS, **load).summary["tpot_ms"]["mean"]
    corrected = session.simulate(correction=file, **FLAGS, **load).summary
    assert corrected["tpot_ms"]["mean"] - plain == pytest.approx(0.9, rel=0.2)
    assert any("corrected by correction.parquet" in text for text in corrected["assumed"])
    assert corrected["tier"] == "log-corrected"
    # in a sweep the rows of this deployment, and no others, as alone
    rows = [{**FLAGS, **load}, {**FLAGS, **load, "gpu": "a100_sxm"}]
    plain, swept = (
        {row["gpu"]: row for row in session.sweep(rows, correction=path).summary.to_pylist()} for path in (None, file)
    )
    own, other = swept[FLAGS["gpu"]], swept["a100_sxm"]
    assert own["e2e_mean_ms"] == corrected["e2e_ms"]["mean"] != plain[FLAGS["gpu"]]["e2e_mean_ms"]
    assert own["tier"] == "log-corrected" and other["e2e_mean_ms"] == plain["a100_sxm"]["e2e_mean_ms"]
    with pytest.raises(InvalidInput, match="was fitted for another deployment"):
        session.sweep(rows[1:], correction=file)
    # a slower engine keeps the objectives at a lower rate
    asked = {name: value for name, value in FLAGS.items() if name != "gpu"} | {"input_len": 200, "output_len": 20}
    asked |= {"gpus": [FLAGS["gpu"]], "max_gpus": 1, "tune": False, "rate": 1.0, "slo": {"tpot_p90_ms": 60.0}}
    sized, before = (session.size(**asked, correction=path).chosen for path in (file, None))
    assert sized["tier"] == "log-corrected" and sized["rate"] != before["rate"]
    with pytest.raises(InvalidInput, match="was fitted for another deployment"):
        session.simulate(correction=file, **FLAGS | {"gpu": "a100_sxm"}, **load)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    with pytest.raises(InvalidInput, match="holds no corrections; write one with `kernelsight compare -o FILE`"):
        session.simulate(correction=other, **FLAGS, **load)
    with pytest.raises(InvalidInput, match="does not exist; write one with `kernelsight compare -o FILE`"):
        session.simulate(correction=tmp_path / "none.parquet", **FLAGS, **load)


def test_a_change_in_the_middle_of_the_log_is_dated(session: Session) -> None:
    load = drawn()
    before, after = LogReplayer(session, load).serve([Variant(FLAGS), Variant(FLAGS, step_us=2000.0)])
    half = load["arrival_s"].to_numpy() < 30.0
    log = log_of(load, before)
    for name, values in (("ttft_ms", after.ttft_ms), ("e2e_ms", after.e2e_ms)):
        at = log.column_names.index(name)
        log = log.set_column(at, name, pa.array(np.where(half, log[name].to_numpy(), values)))
    found = session.compare(requests=log, deployment=FLAGS, fit="none")
    changes = found.summary["drift"]
    assert len(changes) == 1 and changes[0]["start_s"] == pytest.approx(30.0, abs=6.0)
    assert changes[0]["before"] == pytest.approx(1.0, abs=0.02) and changes[0]["after"] > 1.1


def test_what_the_log_contradicts_comes_first(session: Session) -> None:
    load = drawn(60, 2.0)
    log = log_of(load, as_stated(60, 2.0)).append_column("cached_tokens", pa.array([16] * 60))
    answer = session.compare(requests=log, deployment={**FLAGS, "enable_prefix_caching": False}, fit="none").summary
    assert answer["suspects"][0]["evidence"] == "impossible"
    assert "the log contradicts enable_prefix_caching False" in answer["verdict"]


@pytest.mark.parametrize(
    ("name", "gpu", "contradicted"),
    [
        ("Qwen/Qwen3-14B", "h100_sxm", "model llama-3.1-8b: Qwen/Qwen3-14B in model_id"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "NVIDIA H100 80GB HBM3", None),
        ("our-chat", "H100", None),  # a served name, and a GPU by its short name
        ("meta-llama/Llama-3.1-8B-Instruct", "NVIDIA A100-SXM4-80GB", "gpu h100_sxm: NVIDIA A100-SXM4-80GB in"),
    ],
)
def test_another_model_or_gpu_in_the_log_is_a_contradiction(
    session: Session, tmp_path: Path, name: str, gpu: str, contradicted: str | None
) -> None:
    first = json.loads((DATA / "vllm_bench.json").read_text().splitlines()[0])
    file = tmp_path / "result.json"
    file.write_text(json.dumps(first | {"model_id": name, "gpu": gpu, "tensor_parallel_size": 1}))
    found = session.compare(log=file, deployment=FLAGS, fit="none")
    if contradicted is None:
        assert not found.summary["suspects"]
    else:
        assert f"the log contradicts {contradicted}" in found.summary["verdict"]
    stated = {row["setting"]: row["stated"] for row in found.table("production_settings").to_pylist()}
    assert stated == {"model": "llama-3.1-8b", "gpu": "h100_sxm", "tensor_parallel_size": None}
    assert "<th>measured (ms)</th>" in found._repr_html_() and found.summary["verdict"][1:20] in found._repr_html_()


@pytest.mark.parametrize(("factor", "unit"), [(1e-3, "seconds"), (1e3, "microseconds")])
def test_times_in_another_unit_are_called_so(session: Session, factor: float, unit: str) -> None:
    load = drawn(60, 2.0)
    log = log_of(load, as_stated(60, 2.0))
    for name in ("ttft_ms", "e2e_ms"):
        log = log.set_column(log.column_names.index(name), name, pa.array(log[name].to_numpy() * factor))
    answer = session.compare(requests=log, deployment=FLAGS, fit="none", suspects="none").summary
    assert f"its times look like {unit} that were read as ms" in answer["verdict"]


def test_flags_are_arguments_or_a_deployment_and_metrics_are_spoken_of(session: Session) -> None:
    texts = [DATA / "metrics_before.txt", DATA / "metrics_after.txt"]
    found = session.compare(log=DATA / "vllm_bench.json", metrics=texts, fit="none", **FLAGS)
    assert found.log.settings["model"] == FLAGS["model"]
    assert found.summary["evidence"]["not_used"][0].startswith("metrics of the server are held against max_num_seqs")
    with pytest.raises(InvalidInput, match="^gpu is an argument, and in deployment too; give it once"):
        session.compare(log=DATA / "vllm_bench.json", deployment=FLAGS, gpu="l4")
    with pytest.raises(InvalidInput, match="^no model is given"):
        session.compare(log=DATA / "vllm_bench.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda log: log.set_column(0, "arrival_s", pa.nulls(N, pa.float64())),
            "the log has no time of sending of any request",
        ),
        (
            lambda log: log.set_column(5, "ttft_clock", pa.array(["client_send"] * (N - 1) + ["gateway"])),
            "the log mixes TTFT clocks \\(client_send, gateway\\)",
        ),
        (
            lambda log: log.append_column("model", pa.array(["llama"] * (N - 1) + ["qwen"])),
            "the log holds requests of 2 models \\(llama, qwen\\), which no single deployment serves",
        ),
        (
            lambda log: log.drop_columns(["ttft_ms", "e2e_ms"]),
            "has no column one of ttft_ms, tpot_ms, e2e_ms",
        ),
    ],
)
def test_logs_that_cannot_be_compared_are_refused(session: Session, change, words: str) -> None:
    load = drawn()
    log = change(log_of(load, as_stated()))
    with pytest.raises(InvalidInput, match=words):
        session.compare(requests=log, deployment=FLAGS)


def test_the_command_prints_the_cause_and_saves_every_table(session: Session, tmp_path: Path) -> None:
    load = drawn(200, 6.0)
    pq.write_table(
        log_of(load, LogReplayer(session, load).serve([Variant(FLAGS, step_us=2000.0)])[0]), tmp_path / "log.parquet"
    )
    words = ["compare", "--log", tmp_path / "log.parquet", "--launch", "vllm serve meta-llama/Llama-3.1-8B-Instruct"]
    words += ["--gpu", "H100", "--suspects", "none"]
    page = run_command(*words, "-o", tmp_path / "cmp.duckdb")
    assert page.status == 0, page
    assert "host" in page.out and "a step in host time" in page.out
    query = "select * from prediction_vs_production order by abs(e2e_miss_ms) desc limit 20"
    asked = run_command("sql", query, "--db", tmp_path / "cmp.duckdb", "--format", "json")
    assert asked.status == 0 and len(json.loads(asked.out)) == 20
    wrong = run_command(*words, "--stated", "--gpu x")
    assert wrong.status == 2
    assert "--stated has '--gpu', which is no flag of a load; `simulate --help` lists them." in wrong.err


def test_every_flag_of_the_command_reaches_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(_: Session, **asked: object) -> None:
        given.update(asked)
        raise InvalidInput("seen.")

    given: dict[str, object] = {}
    monkeypatch.setattr(Session, "compare", compare)
    words = [
        "--log",
        "a",
        "b",
        "--baseline",
        "f",
        "--log-format",
        "table",
        "--columns",
        "ttft_ms=first",
        "--steps",
        "c",
        "--metrics",
        "d",
    ]
    words += ["--kernels", "e", "--stated", "--request-rate 4", "--fit", "host", "--hold-out", "0.2"]
    words += ["--suspects", "none", "--model", "llama-3.1-8b", "--gpu", "h100_sxm"]
    assert run_command("compare", *words).err == "kernelsight: seen.\n"
    files = {
        "log": ["a", "b"],
        "baseline": ["f"],
        "log_format": "table",
        "columns": {"ttft_ms": "first"},
        "steps": ["c"],
        "metrics": ["d"],
    }
    how = {"kernels": ["e"], "stated": {"request_rate": 4.0}, "fit": "host", "hold_out": 0.2, "suspects": "none"}
    assert given == {"deployment": {"model": "llama-3.1-8b", "gpu": "h100_sxm"}, **files, **how}


def test_a_log_of_ttft_alone_is_judged_and_says_what_it_does_not_measure(session: Session) -> None:
    load, served = drawn(), as_stated()
    for later_ms in (0.0, 80.0):
        log = log_of(load, served, later_ms).drop_columns(["e2e_ms"])
        answer = session.compare(requests=log, deployment=FLAGS, suspects="none").summary
        assert [answer[name]["n"] for name in METRICS] == [N, 0, 0]
        assert answer["not_separated"][0] == (
            "this log does not measure TPOT and E2E: slower times, pauses and requests at once are not judged"
        )
        if later_ms:
            assert (answer["cause"]["kind"], answer["cause"]["name"]) == ("front_end", "client")
            assert answer["cause"]["value"] == pytest.approx(later_ms, rel=0.02)
            assert answer["verdict"].startswith("mean TTFT is ")
        else:
            assert answer["cause"]["kind"] == "none"
            assert answer["verdict"].startswith("log and prediction agree: mean TTFT measured ")


def test_files_of_the_command_line_are_read_for_what_their_flag_says_and_the_answer_is_json() -> None:
    texts = [DATA / "metrics_before.txt", DATA / "metrics_after.txt"]
    beside = ("--steps", DATA / "fpm.jsonl.gz", "--metrics", *texts, "--kernels", DATA / "forward.rank0.kernels.json")
    words = ("--log", DATA / "vllm_bench.json", *beside, "--model", "llama-3.1-8b", "--gpu", "h100_sxm")
    answer = run_command("compare", *words, "--fit", "none", "--format", "json")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)
    assert {"requests", "dropped", *METRICS, "parts", "suspects", "fit", "verdict"} <= found.keys()
    assert {"measured", "predicted", "median_ape", "bias"} <= found["e2e_ms"].keys()
    assert {row["part"] for row in found["parts"]} == set(PARTS)
    assert {Path(row["path"]).name: row["role"] for row in found["files"]} == {
        "vllm_bench.json": "requests",
        "fpm.jsonl.gz": "steps",
        "metrics_before.txt": "metrics",
        "metrics_after.txt": "metrics",
        "forward.rank0.kernels.json": "kernels",
    }
