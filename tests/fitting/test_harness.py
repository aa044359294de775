"""What harnesses differ by: learnt from equal calls of several engines, added where a call names no engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kernelsight.cli.main import main
from kernelsight.fitting.harness import equal_calls, harness_curves, harness_rows
from kernelsight.fitting.pack_rows import write_pack
from kernelsight.kernels.intervals import ALL, HARNESS, group_of_harness
from kernelsight.kernels.pack import pack_table, shipped_pack
from tests.fitting.measured import gemm, write

SHAPES = [(m, n, k) for m in (1, 64, 4096) for n in (2048, 4096, 6144, 8192) for k in (1024, 4096, 8192)]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SGLang takes 1.2 times as long as vLLM on H100, 1.5 times on A100, TensorRT-LLM twice; L40S has one engine."""
    rows = [gemm(gpu, *shape, 30.0) for gpu in ("h100_sxm", "a100_sxm", "l40s") for shape in SHAPES]
    rows += [gemm("h100_sxm", *shape, 36.0, engine="sglang") for shape in SHAPES]
    rows += [gemm("a100_sxm", *shape, 45.0, engine="sglang") for shape in SHAPES[:20]]
    rows += [gemm("h100_sxm", *shape, 60.0, engine="trtllm", implementation="other") for shape in SHAPES]
    return write(tmp_path_factory.mktemp("sweeps") / "sweep.parquet", rows)


def test_equal_calls_are_those_of_one_kernel_by_two_engines_in_both_orders(sweep: Path) -> None:
    calls = equal_calls([sweep], ["gemm"], ["h100_sxm", "a100_sxm", "l40s"])
    assert calls.log_ratio.size == 2 * (len(SHAPES) + 20)
    assert {tuple(pair) for pair in zip(calls.engine, calls.other, strict=True)} == {
        ("vllm", "sglang"),
        ("sglang", "vllm"),
    }
    forth = (calls.engine == "vllm") & (calls.gpu == "h100_sxm")
    assert np.exp(calls.log_ratio[forth]) == pytest.approx(1.2)
    assert calls.log_ratio.sum() == pytest.approx(0.0)


def test_every_generation_counts_alike_and_families_without_equal_calls_take_the_mean(sweep: Path) -> None:
    calls = equal_calls([sweep], ["gemm"], ["h100_sxm", "a100_sxm"])
    curves = harness_curves(calls, np.ones(calls.log_ratio.size, bool))
    # nine tenths of the weight of two generations of equal weight reach the one that differs more
    assert curves["gemm", "bf16"] == pytest.approx(np.log(1.5), rel=0.01)
    rows = harness_rows([sweep], ["gemm", "norm"], ["h100_sxm", "a100_sxm"])
    groups = {(row["family"], row["dtype"]) for row in rows}
    assert groups == {("gemm", group_of_harness("bf16")), *((name, group_of_harness(ALL)) for name in ("gemm", "norm"))}
    assert harness_rows([sweep], ["gemm"], ["l40s"]) == []


def test_a_call_of_no_engine_has_the_same_latency_and_an_interval_that_holds_for_any(
    sweep: Path, tmp_path: Path
) -> None:
    """The sweep has no product of 8 bits: the mean of all cells is added."""
    pack, shape = tmp_path / "pack.parquet", pa.array([{"m": 512, "n": 4096, "k": 4096}])
    others = shipped_pack()
    others = others.filter(pc.invert(pc.fill_null(pc.ends_with(others["dtype"], f"|{HARNESS}"), False)))
    write_pack(pa.concat_tables([others, pack_table(harness_rows([sweep], ["gemm"], ["h100_sxm", "a100_sxm"]))]), pack)
    calls = {"family": ["gemm"], "shape": shape, "flops": [2.0 * 512 * 4096**2], "bytes": [42e6]}
    calls |= {"format": ["fp8"], "math": ["fp8"]}
    found = []
    for number, more in enumerate(({}, {"engine": ["vllm"]})):
        path, target = tmp_path / f"{number}.parquet", tmp_path / f"{number}-priced.parquet"
        pq.write_table(pa.table(calls | more), path)
        words = ["--calls", str(path), "--gpu", "h100_sxm", "--pack", str(pack), "-o", str(target)]
        assert main(["predict", *words]) == 0
        found += pq.read_table(target).to_pylist()
    any_harness, own = found
    assert any_harness["latency_us"] == own["latency_us"] and any_harness["tier"] == own["tier"] == "target-measured"
    halves = [np.log(row["latency_p95_us"] / row["latency_us"]) for row in found]
    assert halves[0] == pytest.approx(np.hypot(halves[1], np.log(1.5)), rel=0.01)
