"""`predict --calls`: the same latencies as a step's, in the file's order; files that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kernelsight as ks
from kernelsight.cli.main import main
from kernelsight.forward.call_files import read_calls
from kernelsight.forward.forward_step import predict_calls, predict_step
from kernelsight.kernels.calls import family_table, sizes_of

GEMM = {
    "family": "gemm",
    "shape": {"m": 16, "n": 1024, "k": 512},
    "math": "bf16",
    "flops": 2.0 * 16 * 1024 * 512,
    "bytes": 2.0 * 1024 * 512,
}
SIZES = {"batch_size": 3, "input_len": 300, "context_len": 1000}


def write(path: Path, rows: list[dict]) -> Path:
    """Write rows as a Parquet file of kernel calls."""
    pq.write_table(pa.Table.from_pylist(rows), path / "calls.parquet")
    return path / "calls.parquet"


@pytest.mark.parametrize(
    ("model", "tp"), [("qwen3-30b-a3b", 2), ("deepseek-v3", 8), ("gpt-oss-120b", 2), ("qwen3-next-80b-a3b", 4)]
)
def test_a_step_s_calls_have_the_step_s_latencies_in_the_file_s_order(model: str, tp: int, tmp_path: Path) -> None:
    with ks.connect() as session:
        # calls know no deployment: theirs is the kernel of most rows of the sweep, not the one that sources name
        stated = {"moe_backend": "cutlass_moe"} if model == "deepseek-v3" else {}
        predict_step(session, {"model": model, "gpu": "h200_sxm", "tp": tp} | stated, "mixed", SIZES)
        calls = session.table("kernel_calls").to_pylist()[::-1]
        expected = {row["call"]: row for row in session.table("kernel_latencies").to_pylist()}
        pq.write_table(
            session.table("kernel_calls").take(pa.array(range(len(calls) - 1, -1, -1))), tmp_path / "calls.parquet"
        )
        found = predict_calls(session, str(tmp_path / "calls.parquet"), "h200_sxm", None).to_pylist()
    assert [row["call"] for row in found] == [row["call"] for row in calls]
    for row in found:
        wanted = expected[row["call"]]
        for name in ("roofline_us", "latency_us", "latency_p05_us", "latency_p95_us", "eta"):
            assert row[name] == pytest.approx(wanted[name], rel=1e-5), (row["call"], name)
        assert (row["bound"], row["family"], row["count"]) == (wanted["bound"], wanted["family"], wanted["count"])


def laid_out(family: str, calls: pa.Table, *rows: int) -> pa.Table:
    """Return rows of a file, all of one family, with the columns that its expression reads."""
    places = np.array(rows)
    return family_table(family, calls.take(places), sizes_of(family, calls["shape"].combine_chunks(), places))


CHUNK = {"batch": 2, "new_tokens": 300, "cached_tokens": 50, "heads": 32, "kv_heads": 8, "head_dim": 128}
TOKEN = {"batch": 8, "context": 1000, "heads": 32, "kv_heads": 8, "head_dim": 128}
EXPERTS = {"tokens": 16, "hidden": 512, "intermediate": 256, "experts": 8, "top_k": 2, "moe_ep": 2}
WORK = {"math": "bf16", "flops": 1e9, "bytes": 1e6}


def latency(tmp_path: Path, *rows: dict) -> list[float]:
    """Return the latencies of rows of a file on an H100."""
    with ks.connect() as session:
        return predict_calls(session, str(write(tmp_path, list(rows))), "h100_sxm", None)["latency_us"].to_pylist()


@pytest.mark.parametrize(("family", "shape"), [("prefill_attention", CHUNK), ("decode_attention", TOKEN)])
def test_attention_without_a_window_sees_all_and_its_cache_has_the_format_of_its_arithmetic(
    family: str, shape: dict, tmp_path: Path
) -> None:
    row = {"family": family, **WORK, "shape": shape, "format": None}
    stated = {**row, "shape": {**shape, "window": 0}, "format": "bf16"}
    narrow = {**stated, "shape": {**shape, "window": 16}}
    left_out, full, window = latency(tmp_path, row, stated, narrow)
    assert left_out == full
    assert window != full


def test_the_pairs_of_a_prompt_are_those_of_its_triangle_and_window(tmp_path: Path) -> None:
    """300 new tokens over 50 cached ones see 2 x (300 x 50 + 300 x 301 / 2); with a window of 100, 50 of them grow."""
    for window, pairs in ((0, 2 * (300 * 50 + 300 * 301 // 2)), (100, 2 * (50 * 50 + 50 * 51 // 2 + 250 * 100))):
        shape = {**CHUNK, "window": window}
        with ks.connect() as session:
            calls = read_calls(
                write(tmp_path, [{"family": "prefill_attention", **WORK, "shape": shape}]),
                "h100_sxm",
                session.graph.known("kernel_calls"),
            )
        assert laid_out("prefill_attention", calls, 0)["visible_pairs"].to_pylist() == [pairs]


def test_an_encoder_sees_every_pair_and_needs_neither_cache_nor_window(tmp_path: Path) -> None:
    shape = {"batch": 2, "new_tokens": 300, "heads": 16, "head_dim": 64}
    row = {"family": "encoder_attention", **WORK, "shape": shape}
    with ks.connect() as session:
        calls = read_calls(write(tmp_path, [row]), "h100_sxm", session.graph.known("kernel_calls"))
    assert laid_out("encoder_attention", calls, 0)["visible_pairs"].to_pylist() == [2 * 300 * 300]
    few, many = latency(tmp_path, row, {**row, "shape": {**shape, "batch": 200}, "flops": 1e11, "bytes": 1e8})
    assert 0.0 < few < many


def test_sparse_attention_states_its_pairs_and_moe_the_experts_of_one_gpu(tmp_path: Path) -> None:
    shape = {"queries": 100, "pairs": 100_000, "heads": 64, "width": 128}
    sparse = {"family": "sparse_attention", **WORK, "shape": shape}
    moe = {"family": "moe", **WORK, "shape": EXPERTS}
    with ks.connect() as session:
        calls = read_calls(write(tmp_path, [sparse, moe]), "h100_sxm", session.graph.known("kernel_calls"))
    assert laid_out("sparse_attention", calls, 0)["visible_pairs"].to_pylist() == [100_000]
    [row] = laid_out("moe", calls, 1).to_pylist()
    assert row["local_experts"] == 8
    assert row["active_experts"] == pytest.approx(8 * (1 - (1 - 2 / 16) ** 16))
    more_pairs = {**sparse, "shape": {**shape, "pairs": 10_000_000}, "flops": 1e11}
    less, more = latency(tmp_path, sparse, more_pairs)
    assert less < more


def test_what_may_be_left_out_is_filled(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write(
        tmp_path, [GEMM, {**GEMM, "shape": {"m": 4096, "n": 1024, "k": 512}, "flops": 2.0 * 4096 * 1024 * 512}]
    )
    assert main(["predict", "--calls", str(path), "--gpu", "h100_sxm", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["call"], row["count"], row["name"]) for row in rows] == [("0", 1, "gemm"), ("1", 1, "gemm")]
    assert rows[0]["latency_us"] < rows[1]["latency_us"]


def test_a_file_is_written_whole_and_the_number_of_rows_noted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write(tmp_path, [GEMM] * 3)
    target = tmp_path / "latencies.parquet"
    assert main(["predict", "--calls", str(path), "--gpu", "h100_sxm", "-o", str(target)]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("gemm") == 3
    assert printed.err == f"wrote 3 rows to {target}\n"
    assert pq.read_table(target)["latency_us"].to_pylist()[0] > 0


def on(tmp_path: Path, gpu: str, *rows: dict) -> list[dict]:
    """Return the latencies of rows of a file on a GPU."""
    with ks.connect() as session:
        return predict_calls(session, str(write(tmp_path, list(rows))), gpu, None).to_pylist()


def test_a_kernel_that_is_asked_for_by_name_answers(tmp_path: Path) -> None:
    large = {**GEMM, "shape": {"m": 512, "n": 4096, "k": 4096}, "format": "fp8_block", "math": "fp8"}
    asked = [large | {"implementation": name} for name in (None, "deepgemm", "cutlass_block_fp8")]
    left_out, deepgemm, cutlass = on(tmp_path, "h100_sxm", *asked)
    assert "deepgemm" in deepgemm["evidence"] and "cutlass_block_fp8" in cutlass["evidence"]
    assert left_out["evidence"] == on(tmp_path, "h100_sxm", large)[0]["evidence"]
    assert cutlass["latency_us"] != deepgemm["latency_us"]


def test_fp32_runs_at_the_rate_of_matrix_cores_where_there_are_any(tmp_path: Path) -> None:
    sizes = {"m": 4096, "n": 4096, "k": 4096}
    row = GEMM | {"shape": sizes, "math": "fp32", "format": "fp32", "flops": 2.0 * 4096**3, "bytes": 12.0 * 4096**2}
    rooflines = {gpu: on(tmp_path, gpu, row)[0]["roofline_us"] for gpu in ("mi210", "h100_sxm")}
    assert rooflines["mi210"] == pytest.approx(2e6 * 4096**3 / 45.3e12)
    assert rooflines["h100_sxm"] == pytest.approx(2e6 * 4096**3 / 66.9e12)


def test_words_may_be_dictionaries_and_a_file_in_pieces(tmp_path: Path) -> None:
    """Words that no row uses are not read; rows of all pieces stay in order."""
    rows = [
        GEMM | {"engine": engine, "format": format_, "flops": 1e6 * flops}
        for flops, (engine, format_) in enumerate([("vllm", None), ("sglang", "fp8"), ("vllm", "bf16"), ("vllm", None)])
    ]
    table = pa.Table.from_pylist(rows)
    unused = {"family": ["lost", "gemm"], "engine": ["none", "sglang", "vllm"], "format": ["fp9", "fp8", "bf16"]}
    for name, words in unused.items():
        place = pa.array([None if row[name] is None else words.index(row[name]) for row in rows], pa.int8())
        column = pa.DictionaryArray.from_arrays(place, pa.array(words))
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, tmp_path / "encoded.parquet", row_group_size=3)
    with ks.connect() as session:
        plain = predict_calls(session, str(write(tmp_path, rows)), "h100_sxm", None)
        assert predict_calls(session, str(tmp_path / "encoded.parquet"), "h100_sxm", None).equals(plain)
    assert len(set(plain["latency_us"].to_pylist())) == 4
    assert plain.schema.field("evidence").type == pa.string()


PRODUCTS = "M,N,K,dtype,duration_us\n64,28672,4096,bf16,310\n4096,4096,4096,bf16,640\n1,4096,14336,bf16,0\n"
MAPPED = ("--columns", "m=M", "n=N", "k=K", "latency_us=duration_us")


def compared(path: Path, capsys: pytest.CaptureFixture, *words: str) -> list[dict]:
    assert main(["predict", "--calls", str(path), "--gpu", "l40s", "--format", "json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_measured_products_are_compared_with_prediction_and_roofline(tmp_path: Path, capsys: pytest.CaptureFixture):
    """The largest loss is first, and a row without a time is left out, whatever the form of the file."""
    (path := tmp_path / "gemm.csv").write_text(PRODUCTS)
    rows = compared(path, capsys, *MAPPED)
    assert [row["measured_us"] for row in rows] == [640.0, 310.0]
    assert rows[0]["flops"] == 2.0 * 4096**3
    for row in rows:
        assert row["loss_us"] == pytest.approx(row["measured_us"] - row["roofline_us"])
        assert row["loss_share"] == pytest.approx(row["loss_us"] / 950.0)
        assert row["ratio"] == pytest.approx(row["measured_us"] / row["latency_us"])
    [single] = on(tmp_path, "l40s", GEMM | {name: rows[0][name] for name in ("shape", "flops", "bytes", "format")})
    assert (single["latency_us"], single["roofline_us"]) == (rows[0]["latency_us"], rows[0]["roofline_us"])
    import polars as pl

    table = pl.read_csv(path)
    table.write_parquet(tmp_path / "gemm.parquet")
    table.write_json(tmp_path / "gemm.json")
    for other in ("gemm.parquet", "gemm.json"):
        assert compared(tmp_path / other, capsys, *MAPPED) == rows


def test_a_table_of_kernels_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (path := tmp_path / "gemm.csv").write_text(PRODUCTS)
    words = ["predict", "--calls", str(path), "--gpu", "l40s", *MAPPED, "-o"]
    assert main([*words, str(tmp_path / "rows.csv")]) == 0
    assert "m=4096 n=4096 k=4096 loses most" in capsys.readouterr().out
    assert (tmp_path / "rows.csv").read_text().splitlines()[0].startswith("name,family,shape")
    pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
    assert main([*words, str(tmp_path / "page.html")]) == 0
    assert "Roofline" in (tmp_path / "page.html").read_text()


def test_an_import_is_read_and_calls_need_no_latency(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (path := tmp_path / "experts.csv").write_text(
        "family,implementation,dtype,tokens,hidden,intermediate,experts,top_k,moe_tp,moe_ep,expert_matrices,latency_us\n"
        "moe,mine,bf16,64,2048,768,128,8,1,1,3,900\n"
    )
    target = tmp_path / "mine.parquet"
    assert main(["calibrate", "import", "profile", str(path), "--gpus", "l40s", "-o", str(target)]) == 0
    capsys.readouterr()
    [row] = compared(target, capsys)
    assert row["shape"]["expert_matrices"] == 3 and row["flops"] == 2.0 * 64 * 8 * 3 * 2048 * 768
    (path := tmp_path / "calls.csv").write_text("m,n,k,dtype\n64,28672,4096,bf16\n4096,4096,4096,bf16\n")
    latencies = compared(path, capsys)
    assert [row["call"] for row in latencies] == ["0", "1"] and "loss_us" not in latencies[0]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_foreign_columns_are_named_with_a_flag_that_works(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    import polars as pl

    (tmp_path / "gemm.csv").write_text(PRODUCTS)
    pl.read_csv(tmp_path / "gemm.csv").write_parquet(tmp_path / "gemm.parquet")
    path = str(tmp_path / f"gemm.{ending}")
    assert main(["predict", "--calls", path, "--gpu", "l40s"]) == 2
    refusal = capsys.readouterr().err
    assert all(word in refusal for word in MAPPED)
    assert main(["calibrate", "fit", "--few", path, "--onto", "default", "-o", str(tmp_path / "p.parquet")]) == 2
    assert "gpu==NAME" in capsys.readouterr().err


def test_points_of_a_gpu_with_a_sweep_are_said_to_wait(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (path := tmp_path / "gemm.csv").write_text(PRODUCTS)
    pack = str(tmp_path / "pack.parquet")
    assert main(["calibrate", "fit", "--few", str(path), "--onto", "default", "-o", pack, *MAPPED, "gpu==l40s"]) == 0
    assert "has its sweep of gemm, which answers before these points" in capsys.readouterr().err
    for words, waits in (((), True), (("--tier", "points-measured"), False)):
        row = compared(path, capsys, *MAPPED, "--pack", pack, *words)[0]
        assert ("before its points (--tier points-measured)" in row["evidence"]) == waits
        assert ("points of l40s, beside" in row["evidence"]) != waits


def test_rows_that_are_all_rejected_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (path := tmp_path / "gemm.csv").write_text("M,N,K,dtype,duration_us\n64,64,64,bf16,0\n")
    target = tmp_path / "out.parquet"
    assert main(["calibrate", "import", "profile", str(path), *MAPPED, "gpu==l40s", "-o", str(target)]) == 2
    assert "all rows are rejected (1 of gemm no_latency)" in capsys.readouterr().err and not target.exists()
    assert main(["predict", "--calls", str(path), "--gpu", "l40s", *MAPPED]) == 2
    assert "has no row to predict" in capsys.readouterr().err


def test_a_step_s_kernels_say_what_they_lose(capsys: pytest.CaptureFixture) -> None:
    words = ["--model", "llama-3.1-8b", "--gpu", "l40s", "--batch-size", "8", "--context-len", "1024"]
    assert main(["predict", *words, "--format", "json"]) == 0
    step = json.loads(capsys.readouterr().out)
    for kernel in step["kernels"]:
        lost_us = kernel["count"] * (kernel["latency_us"] - kernel["roofline_us"])
        assert kernel["loss_us"] == pytest.approx(lost_us)
        assert kernel["loss_share"] == pytest.approx(lost_us / step["total_us"])


def test_a_missing_log_or_training_gpu_says_what_to_use(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--kernels", "gemm.csv"])
    assert "predict --calls FILE" in capsys.readouterr().err
    (path := tmp_path / "own.csv").write_text("gpu,dtype,m,n,k,latency_us\nl40s,bf16,64,28672,4096,310\n")
    assert main(["calibrate", "evaluate", "--sweep", str(path), "--test-gpus", "l40s"]) == 2
    assert "one of --train-gpus a100_sxm,l40s" in capsys.readouterr().err


def test_the_fields_of_a_struct_are_lines_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["tables", "kernel_calls", "-o", str(tmp_path / "columns.csv")]) == 0
    assert "struct<m: int64" in (tmp_path / "columns.csv").read_text()
    lines = capsys.readouterr().out.splitlines()
    assert not any("struct<" in line for line in lines)
    assert any(line.split()[:2] == [".head_dim", "int64"] for line in lines)


@pytest.mark.parametrize("size", [{"z": 1}, [64], "many", None])
def test_a_json_table_with_other_things_than_sizes_is_refused(
    size: object, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    row = {"m": size, "n": 64, "k": 64, "dtype": "bf16", "latency_us": 50}
    (path := tmp_path / "kernels.json").write_text(json.dumps([row]))
    assert main(["predict", "--calls", str(path), "--gpu", "l40s"]) == 2
    assert capsys.readouterr().err.startswith(f"kernelsight: {path}")
