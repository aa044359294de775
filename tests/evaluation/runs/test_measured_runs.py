"""Measured end-to-end runs: what is left out, counted by reason in order, and the file of aiconfigurator-core 0.12."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import polars as pl
import pyarrow.compute as pc
import pytest

from kernelsight.errors import ContractBroken, InvalidInput
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.laboratory.runs.sources.aiconfigurator import COLUMNS, FILTERS, UNRECORDED

REASONS = [reason for reason, _ in FILTERS]
SOUND = {
    "silicon_data_source": "source_file=2026-03-25.csv; silicon_concurrency=8; measured=2026-03-20; wip=False",
    "backend": "vllm",
    "backend_version": "0.18.0",
    "model_path": "Qwen/Qwen3-32B",
    "system": "h100_sxm",
    "precision": "fp8",
    "mode": "agg",
    "isl": 1024,
    "osl": 128,
    "batch_size": 8,
    "tp_size": 2,
    "pp_size": 1,
    "attention_dp_size": 1,
    "moe_tp_size": 1,
    "moe_ep_size": 1,
    "silicon_ttft_ms": 100.0,
    "silicon_tpot_ms": 10.0,
}


def write(path: Path, rows: list[dict]) -> str:
    """Write rows of the package's columns, each beside what every sound row has; times differ unless stated."""
    filled = [
        {**SOUND, "id": f"run{number}", "silicon_ttft_ms": 100.0 + number, **row} for number, row in enumerate(rows)
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(filled)
    return str(path)


def test_each_row_is_kept_or_left_out_for_the_first_reason_that_holds(tmp_path: Path) -> None:
    moe = {"model_path": "Qwen/Qwen3-235B-A22B-FP8", "tp_size": 4}
    path = write(
        tmp_path / "runs.csv",
        [
            {"attention_dp_size": None},
            {"mode": "disagg", "system": "gb300"},
            {"silicon_data_source": "source_file=x.csv"},
            {"silicon_data_source": "source_file=2026-03-25.csv; silicon_concurrency=8; wip=True"},
            {"attention_dp_size": 4},
            {"tp_size": 16},
            {"pp_size": 2},
            {**moe, "moe_ep_size": 2},
            {**moe, "moe_ep_size": 2, "moe_tp_size": 2},
            {"model_path": "deepseek-ai/DeepSeek-R1-0528", "tp_size": 1},
            {"silicon_ttft_ms": 100.0},
            {"system": "b300_sxm"},
        ],
    )
    found = read_runs(path)
    assert found.table["run_id"].to_pylist() == ["run0", "run8"]
    assert found.table["ep"].to_pylist() == [1, 2]
    assert found.read == 12
    apart = ("disaggregated: number of workers unknown", 1)
    assert found.excluded == [*((reason, 2 if "node" in reason else 1) for reason in REASONS), apart]


def test_of_two_runs_that_differ_in_tpot_alone_the_quicker_proposed_tokens(tmp_path: Path) -> None:
    unrecorded = {"model_path": "deepseek-ai/DeepSeek-R1", "tp_size": 1}
    times = [(200.0, 5.0), (180.0, 8.0), (200.001, 5.000001), (190.0, 6.0), (150.0, 5.2)]
    pair = [{**unrecorded, "silicon_ttft_ms": ttft, "silicon_tpot_ms": tpot} for ttft, tpot in times[:4]]
    alone = {**unrecorded, "osl": 64, "silicon_tpot_ms": 4.0}
    close = [{**unrecorded, "isl": 8192, "silicon_tpot_ms": tpot} for tpot in (5.0, 5.2)]
    held_back = [{**unrecorded, "system": "b300_sxm", "silicon_tpot_ms": tpot} for tpot in (5.0, 9.0)]
    found = read_runs(write(tmp_path / "runs.csv", [{}, *pair, alone, *close, *held_back]))
    told = {row["run_id"]: row["speculative"] for row in found.table.to_pylist()}
    assert told == {"run0": None, "run1": True, "run2": False}
    assert found.table["model"].to_pylist()[1:] == ["deepseek-ai/DeepSeek-V3"] * 2
    assert found.excluded == [(UNRECORDED, 9)]


def test_prompts_and_decoding_on_workers_of_their_own(tmp_path: Path) -> None:
    sides = {
        **{"mode": "disagg", "tp_size": None, "pp_size": None, "batch_size": None},
        **{"prefill_num_workers": 2, "prefill_tp_size": 4, "prefill_pp_size": 1, "prefill_attention_dp_size": 1},
        **{"decode_num_workers": 3, "decode_tp_size": 8, "decode_pp_size": 1, "decode_attention_dp_size": None},
        **{"prefill_moe_ep_size": None, "decode_moe_ep_size": 8},
    }
    rows = [sides, {**sides, "prefill_attention_dp_size": 4}, {**sides, "decode_tp_size": 16}, {}]
    dynamo = {**sides, "backend": "trtllm", "backend_version": "0.8.1.post2", "decode_attention_dp_size": 32}
    found = read_runs(write(tmp_path / "runs.csv", [*rows, {**sides, "system": "gb300"}, dynamo]))
    sizes = ("prefill_workers", "prefill_tp", "prefill_dp", "prefill_ep", "decode_workers", "tp", "dp", "ep")
    names = ("run_id", *sizes, "engine_version", "scored_separately")
    ranks = "disaggregated, data-parallel attention"
    assert [tuple(row[name] for name in names) for row in found.table.to_pylist()] == [
        ("run3", None, None, None, None, None, 2, 1, 1, "0.18.0", None),
        ("run0", 2, 4, 1, 1, 3, 8, 1, 8, "0.18.0", None),
        ("run1", 2, 4, 4, 1, 3, 8, 1, 8, "0.18.0", ranks),
        # of TensorRT-LLM the image states Dynamo's version
        ("run5", 2, 4, 1, 1, 3, 8, 32, 8, None, ranks),
    ]
    assert [count for _, count in found.excluded] == [1, 1]
    assert [reason.split(":")[1][:12] for reason, _ in found.excluded] == [
        " workers of ",
        " GPU held ou",
    ]


def test_a_concurrency_of_several_engines_is_told_by_their_batch(tmp_path: Path) -> None:
    several = "source_file=gap.csv; silicon_concurrency=416; measured=2026-03-07"
    path = write(tmp_path / "runs.csv", [{}, {"silicon_data_source": several, "batch_size": 13}])
    rows = read_runs(path).table.to_pylist()
    assert [(row["max_concurrency"], row["workers"], row["campaign"]) for row in rows] == [
        (8, 1, "inferencex"),
        (416, 32, "gap_analysis"),
    ]
    assert [row["measured_on"] for row in rows] == ["2026-03-20", "2026-03-07"]


def test_files_of_gap_analysis_that_repeat_inferencex_are_its_runs(tmp_path: Path) -> None:
    sources = [
        "source_file=qwen3.5-397b-gap-analysis.csv; silicon_concurrency=8; aic_database_mode=SILICON",
        "source_file=/Users/one/aic-auto-gap-analysis/data/h100_sxm/vllm/Qwen_Qwen3-32B.csv; silicon_concurrency=8",
        "db-dump/2026-04-27; config_id=708; silicon_concurrency=8; measured=2026-04-08T00:00:00.000Z",
    ]
    rows = [{"silicon_data_source": source, "silicon_ttft_ms": 30.0 + at} for at, source in enumerate(sources)]
    found = read_runs(write(tmp_path / "runs.csv", rows)).table.to_pylist()
    assert [row["campaign"] for row in found] == ["inferencex", "gap_analysis", "inferencex"]


def test_a_file_of_measured_runs_is_taken_but_for_held_back_gpus(tmp_path: Path) -> None:
    lines = [
        "run_id,campaign,model,gpu,tp,pp,dp,ep,engine,isl,osl,max_concurrency,workers,ttft_ms,tpot_ms,source",
        "a,given,qwen3-0.6b,l4,1,1,1,1,vllm,100,10,2,1,30,5,mine",
        "b,given,qwen3-0.6b,gb300,1,1,1,1,vllm,100,10,2,1,30,5,mine",
    ]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines))
    found = read_runs(str(path))
    assert (found.table["run_id"].to_pylist(), found.excluded) == (["a"], [(REASONS[-1], 1)])


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_columns_that_a_deployment_need_not_state_have_defaults(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"mine{ending}"
    (tmp_path / "rows.csv").write_text(
        "run_id,model,gpu,tp,engine,isl,osl,max_concurrency,ttft_ms,tpot_ms\na,qwen3-0.6b,l4,2,vllm,100,10,2,30,5\n"
    )
    write_rows = {".csv": pl.DataFrame.write_csv, ".parquet": pl.DataFrame.write_parquet}[ending]
    write_rows(pl.read_csv(tmp_path / "rows.csv"), path)
    (run,) = read_runs(str(path)).table.to_pylist()
    assert [run[name] for name in ("tp", "pp", "dp", "ep", "workers")] == [2, 1, 1, 1, 1]
    assert (run["campaign"], run["source"]) == ("mine", path.name)
    pl.read_csv(tmp_path / "rows.csv").drop("tp").write_csv(tmp_path / "none.csv")
    with pytest.raises(ContractBroken, match="missing column tp"):
        read_runs(str(tmp_path / "none.csv"))


def test_times_in_seconds_are_refused(tmp_path: Path) -> None:
    columns = "run_id,campaign,model,gpu,tp,pp,dp,ep,engine,isl,osl,max_concurrency,workers,ttft_ms,tpot_ms,source"
    path = tmp_path / "mine.csv"
    for ttft, tpot, column, value in (("30", "0.005", "tpot_ms", "0.005"), ("0.3", "", "ttft_ms", "0.3")):
        path.write_text(f"{columns}\na,given,qwen3-0.6b,l4,1,1,1,1,vllm,100,10,2,1,{ttft},{tpot},mine\n")
        with pytest.raises(ContractBroken, match=rf"column {column}: .* \(row 1: {value} ms\)"):
            read_runs(str(path))


@pytest.mark.parametrize("lengths", ["300,50,", "300,,2000", ",50,2000", "300,400,2000", "300,50,200"])
def test_an_interval_of_lengths_has_two_ends_around_its_length(tmp_path: Path, lengths: str) -> None:
    columns = "run_id,campaign,model,gpu,tp,pp,dp,ep,engine,isl,isl_low,isl_high,osl,max_concurrency,workers,ttft_ms"
    line = "a,given,qwen3-0.6b,l4,1,1,1,1,vllm,{},10,2,1,30,mine"
    path = tmp_path / "mine.csv"
    path.write_text(f"{columns},source\n{line.format('300,50,2000')}\n")
    assert read_runs(str(path)).table["isl_low"].to_pylist() == [50]
    path.write_text(f"{columns},source\n{line.format(lengths)}\n")
    with pytest.raises(ContractBroken, match="isl_"):
        read_runs(str(path))


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"file .* does not exist; --runs takes aiconfigurator, or a \.csv or \.parquet"
    ):
        read_runs(str(tmp_path / "none.csv"))
    (tmp_path / "runs.txt").write_text("")
    with pytest.raises(InvalidInput, match="ends in '.txt'"):
        read_runs(str(tmp_path / "runs.txt"))
    (tmp_path / "half.csv").write_text("id,silicon_ttft_ms\na,1\n")
    with pytest.raises(InvalidInput, match="is missing the columns silicon_data_source, backend"):
        read_runs(str(tmp_path / "half.csv"))
    (tmp_path / "other.csv").write_text("run_id,model\na,b\n")
    with pytest.raises(ContractBroken, match="missing column"):
        read_runs(str(tmp_path / "other.csv"))


@pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed"
)
def test_the_counts_of_the_file_that_ships_with_aiconfigurator_core() -> None:
    found = read_runs("aiconfigurator")
    assert found.read == 5221
    left = [3619]  # prompts and decoding in the same engines
    together = [count for reason, count in found.excluded if not reason.startswith("disaggregated")]
    for count in together:
        left.append(left[-1] - count)
    assert left[1:] == [3607, 3420, 3381, 3326, 3307, 2848, 2566, 2384]
    separate = found.table["scored_separately"].value_counts().to_pylist()
    assert sorted(row["counts"] for row in separate if row["values"]) == [21, 127, 140]
    apart = pc.or_(found.table["prefill_workers"].is_valid(), found.table["scored_separately"].is_valid())
    told = found.table["speculative"].is_valid()
    assert found.read - sum(count for _, count in found.excluded) == 2236 + 148 + 57 + 140
    assert found.table.num_rows == 2236 + 148 + 57 + 140 + 70
    assert (sum(apart.to_pylist()), sum(told.to_pylist())) == (148 + 57 + 140, 70)
    assert found.table["speculative"].to_pylist().count(True) == 35
    gpus = found.table.filter(pc.invert(pc.or_(apart, told)))["gpu"].value_counts().to_pylist()
    counts = {row["values"]: row["counts"] for row in gpus}
    assert counts == {"b200_sxm": 892, "h100_sxm": 774, "h200_sxm": 567, "gb200": 3}


def test_columns_may_have_the_names_of_flags_and_of_clients_results(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    sizes = {"model": "qwen3-8b", "gpu": "l4", "engine": "vllm", "tensor_parallel_size": 2, "input_len": 100}
    row = {"run_id": "a", **sizes, "output_len": 10, "ttft_mean_ms": 60.0, "tpot_mean_ms": 7.5, "max_concurrency": 8}
    path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
    [found] = read_runs(str(path)).table.to_pylist()
    names = ("tp", "isl", "osl", "ttft_ms", "tpot_ms", "campaign")
    assert [found[name] for name in names] == [2, 100, 10, 60.0, 7.5, "mine"]
