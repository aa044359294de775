"""Vendors: none answers for another; one without a fit takes general constants, and says how far off they may be."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.intervals import UNMEASURED_HALF
from kernelsight.kernels.kernel_constants import UNKNOWN, family_facts
from kernelsight.kernels.kernel_selection import choose, engine_of_vendor, measured_dtype
from kernelsight.kernels.pack import pack_table
from tests.kernels.calls import FACTS, GPUS, LINKED, STREAMING, call_table, price, work

CHOICE = {"family": "gemm", "part": "choice", "level": "gpu", "coefficient": "rows", "value": 5.0, "source": "s"}
COUNTED = pack_table(
    [
        {**CHOICE, "engine": "vllm", "gpu": "a100_sxm", "dtype": "bf16", "implementation": "cublas"},
        {**CHOICE, "engine": "aiter", "gpu": "mi300x", "dtype": "fp8_block", "implementation": "aiter"},
        {**CHOICE, "engine": "aiter", "gpu": "mi308x", "dtype": "int8", "implementation": "aiter_preshuffled"},
    ]
)
KNOWN = family_facts("gemm", FACTS["kernel_implementations"], FACTS["gpus"])
KIND_OF = dict(zip(GPUS, FACTS["gpus"]["kind"].to_pylist(), strict=True))
VENDOR_OF = dict(zip(GPUS, FACTS["gpus"]["vendor"].to_pylist(), strict=True))


def calls_on(gpus: list[str], family: str, math: str | None, **sizes: float) -> pa.Table:
    """Return the same call on each GPU."""
    shape = {name: np.repeat(float(size), len(gpus)) for name, size in sizes.items()}
    return call_table({**shape, **work(family, shape)}, gpus, math)


def ask(gpu: str, dtype: str, engine: str = "vllm") -> tuple[str, bool]:
    return choose(KNOWN, COUNTED, "gemm", [{"engine": engine, "gpu": gpu, "dtype": dtype}])[0]


def test_a_vendor_s_kernels_run_on_its_own_gpus_alone():
    assert ask("mi300x", "bf16")[0].startswith("aiter")
    assert ask("mi355x", "int8") == ("aiter_preshuffled", False)
    assert ask("h100_sxm", "fp8_block", engine="aiter") == ("cublas", False)
    assert ask("gaudi3", "bf16") == (UNKNOWN, False)


def test_an_engine_that_never_ran_on_a_vendor_is_answered_by_the_one_that_did():
    assert engine_of_vendor(KNOWN, COUNTED, "gemm", "vllm", "mi355x") == "aiter"
    assert engine_of_vendor(KNOWN, COUNTED, "gemm", "vllm", "h100_sxm") == "vllm"
    assert engine_of_vendor(KNOWN, COUNTED, "gemm", "vllm", "gaudi3") == "vllm"


def test_fp16_and_bf16_are_one_choice_of_kernels():
    assert measured_dtype(COUNTED, "gemm", "fp16") == "bf16"
    gathered = pack_table([{**CHOICE, "family": "all_gather", "gpu": "h100_sxm", "dtype": "fp16"}])
    assert measured_dtype(gathered, "all_gather", "bf16") == "fp16"
    assert measured_dtype(gathered, "all_gather", "int8") == "int8"
    sizes = {"m": 512, "n": 4096, "k": 4096}
    one, other = (
        price("gemm", calls_on(["h100_sxm"], "gemm", math, **sizes)).to_pylist()[0] for math in ("bf16", "fp16")
    )
    assert one["latency_us"] == other["latency_us"] and one["latency_p95_us"] == other["latency_p95_us"]


def test_general_constants_are_those_of_the_family_and_wide():
    sizes = {"batch": 64, "context": 4095, "heads": 16, "kv_lora_rank": 512, "rope_dim": 64}
    calls = calls_on(["b60", "mi300x"], "mla_decode", "bf16", **sizes)
    for row in price("mla_decode", calls).to_pylist():
        assert row["tier"] == "unmeasured-vendor" and "general constants" in row["evidence"]
        assert row["latency_p95_us"] / row["latency_us"] == pytest.approx(np.exp(UNMEASURED_HALF))


def test_no_launch_is_priced_where_there_is_none():
    """A tiny norm takes a launch on a GPU; on hardware that launches no kernel its bytes, and at most a launch."""
    calls = calls_on(["b60", "gaudi3", "groq_lpu", "cerebras_wse3"], "norm", None, rows=8, columns=1024)
    gpu, *others = price("norm", calls).to_pylist()
    assert gpu["bound"] == "launch" and gpu["latency_us"] > 1.0
    for row in others:
        assert row["bound"] != "launch" and row["latency_us"] < 0.1 < gpu["latency_us"] < row["latency_p95_us"]
    assert "without the floor" in others[0]["evidence"] and "4 times its roofline" in others[1]["evidence"]
    bound = price("norm", calls, tier="roofline").to_pylist()
    assert all(row["latency_us"] == row["latency_p95_us"] == row["roofline_us"] for row in bound)


def test_what_was_measured_of_a_vendor_answers_by_its_own_fit():
    shape = {"m": 4096, "n": 4096, "k": 4096}
    calls = calls_on(["mi300x", "mi355x", "h100_sxm"], "gemm", "bf16", **shape)
    amd, sibling, first = price("gemm", calls).to_pylist()
    # MI300X has no rows of BF16 products, but its sibling has
    assert amd["tier"] == sibling["tier"] == "cross-generation" and "aiter" in amd["evidence"]
    assert first["tier"] == "target-measured"
    block = calls_on(["mi300x"], "gemm", "fp8", **shape).append_column("format", pa.array(["fp8_block"]))
    row = price("gemm", block).to_pylist()[0]
    assert row["tier"] == "target-measured" and row["latency_p95_us"] < 1.5 * row["latency_us"]
    rest = price("gemm", block, tier="cross-generation").to_pylist()[0]
    assert rest["tier"] == "cross-generation" and rest["latency_us"] != row["latency_us"]


# shapes that take far longer than a launch on any GPU, and how much slower than its roofline a sound kernel may be:
# accumulation at half rate, exponentials, sums that are not overlapped
LARGE = {
    "gemm": ({"m": 8192, "n": 8192, "k": 8192}, 5.0),
    "batched_gemm": ({"batch": 64, "m": 2048, "n": 512, "k": 512}, 4.0),
    "prefill_attention": (
        {"batch": 4, "new_tokens": 8192, "cached_tokens": 0, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0},
        5.0,
    ),
    "encoder_attention": (
        {"batch": 8, "new_tokens": 4096, "cached_tokens": 0, "heads": 16, "kv_heads": 16, "head_dim": 64}, 7.0,
    ),
    # SGLang's Triton kernel on Ada and sm_120 runs at 21 TFLOP/s
    "mla_prefill": (
        {"batch": 4, "new_tokens": 4096, "cached_tokens": 0, "heads": 16, "kv_heads": 16, "head_dim": 192, "window": 0},
        25.0,
    ),
    "decode_attention": (
        {"batch": 128, "context": 8191, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0},
        3.0,
    ),
    "mla_decode": ({"batch": 128, "context": 8191, "heads": 128, "kv_lora_rank": 512, "rope_dim": 64}, 5.0),
    "sparse_attention": ({"queries": 8192, "keys": 8192, "heads": 64, "width": 128}, 5.0),
    "linear_attention": ({"sequences": 8, "tokens": 2048, "columns": 4096, "taps": 0}, 25.0),
    "moe": (
        {"tokens": 8192, "hidden": 4096, "intermediate": 1536, "experts": 128, "top_k": 8, "moe_ep": 1}, 9.0,
    ),
    **dict.fromkeys(STREAMING, ({"rows": 8192, "columns": 8192}, 2.0)),
    # streams are mixed in 32 bit: 2.2 to 2.9 times the roofline on Hopper and Blackwell, 4.3 on Ada
    "hyper_connection": ({"rows": 8192, "columns": 8192}, 5.0),
    **dict.fromkeys(LINKED, ({"group_size": 2, "elements": 64e6}, 6.0)),
    "all_to_all": ({"group_size": 2, "elements": 64e6}, 10.0),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_no_gpu_is_faster_than_its_roofline_or_absurdly_slow(family):
    for math in (None,) if family in STREAMING + LINKED else ("bf16", "fp8"):
        rows = price(family, calls_on(GPUS, family, math, **LARGE[family][0])).to_pylist()
        found = {gpu: row["eta"] for gpu, row in zip(GPUS, rows, strict=True)}
        most = LARGE[family][1]
        on_chip = {gpu: found.pop(gpu) for gpu in GPUS if KIND_OF[gpu] == "on_chip_accelerator"}
        assert all(eta == pytest.approx(np.exp(UNMEASURED_HALF), rel=1e-6) for eta in on_chip.values())
        # what moves activations may find them in the cache
        least = 0.5 if family in STREAMING else 0.999
        assert {gpu: eta for gpu, eta in found.items() if not least <= eta <= most} == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_intervals_of_other_vendors_are_no_narrower_than_those_of_nvidia(family):
    math = None if family in STREAMING + LINKED else "bf16"
    rows = price(family, calls_on(GPUS, family, math, **LARGE[family][0]))
    width = (rows["latency_p95_us"].to_numpy() / rows["latency_us"].to_numpy()).tolist()
    tiers = rows["tier"].to_pylist()
    for gpu, factor, tier in zip(GPUS, width, tiers, strict=True):
        if VENDOR_OF[gpu] in ("intel", "groq", "cerebras"):
            # what has no launch may cost as much as one
            assert tier == "unmeasured-vendor" and factor > (1.0 - 1e-6) * np.exp(UNMEASURED_HALF), gpu
            if KIND_OF[gpu] == "gpu" or family in LINKED:
                assert factor == pytest.approx(np.exp(UNMEASURED_HALF)), gpu
        if VENDOR_OF[gpu] == "nvidia":
            assert tier != "unmeasured-vendor", gpu
