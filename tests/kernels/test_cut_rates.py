"""A tensor unit of which the vendor has cut a part: what large kernels lose beside its peak fades, and never grows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.kernels.hardware import MATH, hardware_columns
from tests.kernels.calls import FACTS, call_table, price, work

FORMATS = ("fp16", "bf16", "fp8", "fp4", "int8")
# shares of the rate of an H100 that are left: all, an H20's quarter, a tenth, and between them
LEFT = (1.0, 0.5, 0.25, 1.0 / 7.0, 0.1)
PRODUCT = {"m": 8192.0, "n": 8192.0, "k": 8192.0}
PROMPT = {"batch": 4.0, "new_tokens": 8192.0, "cached_tokens": 0.0, "heads": 64.0, "kv_heads": 8.0, "head_dim": 128.0}
LATENT = {**PROMPT, "heads": 128.0, "kv_heads": 128.0, "head_dim": 160.0}
TOKENS = {"batch": 128.0, "context": 8191.0, "heads": 128.0, "kv_lora_rank": 512.0, "rope_dim": 64.0}
EXPERTS = {"tokens": 32768.0, "hidden": 4096.0, "intermediate": 14336.0, "experts": 8.0, "top_k": 2.0, "moe_ep": 1.0}
CALLS = [
    ("gemm", PRODUCT, "bf16", "bf16", "vllm", 1.1),
    ("gemm", {**PRODUCT, "m": 4096.0, "n": 14336.0, "k": 4096.0}, "bf16", "bf16", "trtllm", 1.1),
    ("gemm", PRODUCT, "fp8", "fp8", "vllm", 1.12),
    ("gemm", PRODUCT, "fp8", "fp8_block", "sglang", 1.1),
    ("prefill_attention", {**PROMPT, "window": 0.0}, "bf16", "bf16", "vllm", 1.2),
    ("prefill_attention", {**PROMPT, "window": 0.0}, "bf16", "bf16", "trtllm", 1.2),
    ("mla_prefill", LATENT, "bf16", "bf16", "trtllm", 1.2),
    ("mla_decode", TOKENS, "bf16", "bf16", "trtllm", 1.2),
    # rows that are moved around the experts take memory time at any tensor rate
    ("moe", EXPERTS, "bf16", "bf16", "trtllm", 1.2),
    ("moe", EXPERTS, "bf16", "bf16", "vllm", 1.5),
]


def cut_gpus(gpu: str, measured_as: str | None) -> pa.Table:
    """Return the catalogue with parts of a GPU that have a share of its tensor rates, ample power, all else alike."""
    known = FACTS["gpus"]
    [whole] = [row for row in known.to_pylist() if row["gpu"] == gpu]
    rows = [
        {**whole, "gpu": f"{gpu} {left}", "measured_as": measured_as, "tdp_w": 10 * whole["tdp_w"]}
        | {f"{name}_flops_per_s": rate and left * rate for name in FORMATS for rate in (whole[f"{name}_flops_per_s"],)}
        for left in LEFT
    ]
    return pa.concat_tables([known, pa.Table.from_pylist(rows, schema=known.schema)])


def ratios(family: str, sizes: dict[str, float], math: str, form: str, engine: str, gpu: str) -> np.ndarray:
    """Return latency / roofline of a call on each of the cut parts, as GPUs that no sweep holds."""
    sizes = {name: np.full(len(LEFT), value) for name, value in sizes.items()}
    calls = call_table({**sizes, **work(family, sizes)}, [f"{gpu} {left}" for left in LEFT], math)
    calls = calls.append_column("format", pa.array([form] * len(LEFT)))
    calls = calls.set_column(calls.column_names.index("engine"), "engine", pa.array([engine] * len(LEFT)))
    return price(family, calls, gpus=cut_gpus(gpu, None))["eta"].to_numpy()


@pytest.mark.parametrize("gpu", ["h100_sxm", "l40s"])
@pytest.mark.parametrize(("family", "sizes", "math", "form", "engine", "quarter"), CALLS)
def test_the_slower_the_tensor_unit_the_nearer_its_peak_is_a_large_kernel(
    family: str, sizes: dict[str, float], math: str, form: str, engine: str, quarter: float, gpu: str
) -> None:
    eta = ratios(family, sizes, math, form, engine, gpu)
    assert (np.diff(eta) <= 1e-9).all()
    assert eta[2] <= quarter
    assert eta[4] <= 1.0 + 0.6 * (quarter - 1.0)
    # half of what is lost is no share of the rate, of which a tenth would lose ten times as much; masked pairs remain
    if gpu == "h100_sxm":
        assert eta[4] - 1.0 <= 0.5 * (eta[0] - 1.0)


def test_a_cut_part_reaches_its_power_limit_as_measured() -> None:
    """A prompt of 27,960 tokens of Qwen2.5-14B takes 7.95 s on L40 under SGLang: 98.6 TFLOPS in its products."""
    sizes = {"m": np.array([27960.0]), "n": np.array([27648.0]), "k": np.array([5120.0])}
    calls = call_table({**sizes, **work("gemm", sizes), "format": ["bf16"]}, "l40", "bf16")
    calls = calls.set_column(calls.column_names.index("engine"), "engine", pa.array(["sglang"]))
    tflops = work("gemm", sizes)["flops"] / price("gemm", calls)["latency_us"].to_numpy() / 1e6
    assert 98.6 < tflops[0] < 125.0


def test_the_uncut_rate_is_that_of_the_whole_die() -> None:
    gpus = facts("gpus")
    columns, names = hardware_columns(gpus, facts("fabrics")), gpus["gpu"].to_pylist()
    share = columns["math_flops_per_us"] / columns["uncut_flops_per_us"]
    whole = ("v100_sxm", "t4", "a10", "a100_sxm", "a100_pcie", "l4", "l40s", "h100_sxm", "h100_pcie", "h200_nvl")
    for gpu in (*whole, "b200_sxm", "gb200", "rtx_pro_6000_server", "mi300x", "gaudi3"):
        assert (share[names.index(gpu)] == 1.0).all(), gpu
    for gpu, left in (("h20", 0.25), ("rtx_4090", 0.5), ("rtx_5090", 0.5), ("l40", 0.5), ("a10g", 0.5)):
        assert share[names.index(gpu), MATH.index("bf16")] == pytest.approx(left, rel=0.04), gpu
    # INT8 was not cut on consumer parts
    assert share[names.index("rtx_4090"), MATH.index("int8")] == 1.0
    assert share[names.index("rtx_4090"), MATH.index("fp8")] == pytest.approx(0.5, rel=0.04)
