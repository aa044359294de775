"""Rooflines, bounds and latencies worked out by hand, in their units, for one call of each kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.kernels.call_kinds import SERVED, SUSTAINED
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.hardware import BY_MATH, MATH, hardware_columns
from kernelsight.kernels.latency import COLD_BYTES
from kernelsight.kernels.pack import pack_table
from tests.kernels.calls import DECLARED, FACTS, STREAMING, call_table, price, random_calls, with_column, work

MIB = 2.0**20
# h100_sxm: 132 multiprocessors at 1.83 GHz, 3.35 TB/s, 989.4 TFLOP/s in bf16, 66.9 in vector FP32, links of 450 GB/s
BF16_PER_US, BYTES_PER_US, LINK_PER_US, CLOCK_PER_US = 989.4e6, 3.35e6, 450e3, 1830.0


def near(value: float) -> Any:
    """Results are rounded to the 24 significant bits of float32."""
    return pytest.approx(value, rel=1e-7)


def one(family: str, sizes: dict[str, float], gpu: str = "h100_sxm", math: str | None = "bf16", **more: Any) -> dict:
    """Return the latency row of one call, its work from its sizes."""
    calls = call_table({**sizes, **work(family, sizes)}, gpu, math)
    return price(family, calls, **more).to_pylist()[0]


def p_norm(first: float, second: float, exponent: float = 4.0) -> float:
    return (first**exponent + second**exponent) ** (1.0 / exponent)


GROUPED = {"heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0}
PAIR = {"batch": 2.0, "context": 99.0, **GROUPED}
LATENT = {"batch": 4.0, "context": 999.0, "heads": 128.0, "kv_lora_rank": 512.0, "rope_dim": 64.0}
CHUNK = {"batch": 1.0, "new_tokens": 4.0, "cached_tokens": 6.0, **GROUPED, "window": 0.0}


@pytest.mark.parametrize(
    ("family", "sizes", "flops", "least_bytes", "floor_us"),
    [
        ("gemm", {"m": 4096.0, "n": 4096.0, "k": 4096.0}, 2 * 4096**3, 3 * 2 * 4096**2, 2.6),
        ("gemm", {"m": 1.0, "n": 4096.0, "k": 4096.0}, 2 * 4096**2, 2 * (4096**2 + 2 * 4096), 2.6),
        ("batched_gemm", {"batch": 16.0, "m": 64.0, "n": 512.0, "k": 128.0}, 134_217_728, 16 * 2 * 106_496, 2.6),
        ("decode_attention", {**PAIR, "window": 0.0}, 4 * 2 * 4096 * 100, 2 * (4 * 4096 + 4 * 1024 * 100), 1.5),
        ("decode_attention", {**PAIR, "window": 10.0}, 4 * 2 * 4096 * 10, 2 * (4 * 4096 + 4 * 1024 * 10), 1.5),
        # four new tokens see six cached ones each, and 1 + 2 + 3 + 4 of themselves
        ("prefill_attention", CHUNK, 4 * 4096 * 34, 2 * (2 * 4 * 4096 + 2 * 10 * 1024), 2.0),
        ("mla_decode", LATENT, 2 * 4 * 128 * 1088 * 1000, 4 * 2 * (1000 * 576 + 128 * 1088), 1.5),
    ],
)
def test_roofline_is_the_larger_of_dense_compute_and_least_bytes_and_a_longer_launch_bounds_the_call(
    family: str, sizes: dict[str, float], flops: float, least_bytes: float, floor_us: float
) -> None:
    row = one(family, sizes)
    compute, memory = flops / BF16_PER_US, least_bytes / BYTES_PER_US
    assert row["roofline_us"] == near(max(compute, memory))
    assert row["bound"] == ("launch" if floor_us > row["roofline_us"] else "compute" if compute > memory else "memory")
    assert row["eta"] == near(row["latency_us"] / row["roofline_us"])


@pytest.mark.parametrize("math", ["bf16", "fp8"])
def test_gemm_roofline_takes_the_rate_of_its_arithmetic(math: str) -> None:
    row = one("gemm", {"m": 8192.0, "n": 8192.0, "k": 8192.0}, math=math)
    assert row["roofline_us"] == near(2.0 * 8192.0**3 / {"bf16": 989.4e6, "fp8": 1978.9e6}[math])


def test_vector_kernels_take_the_vector_rate() -> None:
    calls = call_table({"rows": 1.0, "columns": 1.0, "flops": np.array([66.9e6, 669e6]), "bytes": 4.0})
    rows = price("norm", calls).to_pylist()
    # a norm's launch takes 1.8 us
    assert [(row["roofline_us"], row["bound"]) for row in rows] == [(near(1.0), "launch"), (near(10.0), "compute")]
    (bare,) = price("norm", calls.slice(0, 1), tier="roofline").to_pylist()
    assert bare["bound"] == "compute"


@pytest.mark.parametrize(
    ("family", "gpus", "share"),
    [
        ("all_reduce", 8, 2 * 7 / 8),
        ("all_gather", 8, 7 / 8),
        ("reduce_scatter", 4, 3 / 4),
        ("all_to_all", 2, 1 / 2),
        ("p2p", 2, 1),
    ],
)
def test_collective_roofline_is_the_busiest_link_at_its_peak(family: str, gpus: int, share: float) -> None:
    for elements, bound in ((MIB / 64.0, "launch"), (64.0 * MIB, "link")):
        row = one(family, {"group_size": float(gpus), "elements": elements}, math=None)
        assert (row["roofline_us"], row["bound"]) == (near(2.0 * elements * share / LINK_PER_US), bound)


def starts(family: str, math: str | None = "bf16") -> dict[str, float]:
    """Return the constants that a family's expression declares, but for what serving does not pay."""
    hot = {"throttle_us": 0.0} if math in SUSTAINED else {}
    declared = {one.name: one.start for one in FAMILIES[family].latency_model.coefficients}
    return {**declared, **{name: value for name, value in (SERVED | hot).items() if name in declared}}


def by_hand(family: str, sizes: dict[str, float], math: str | None = "bf16", gpu: str = "h100_sxm") -> dict:
    """Return the latency row of one call by the constants that the expressions declare, whatever pack is shipped."""
    return one(family, sizes, gpu, math, eta_coefficients=DECLARED)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("gpu", ["h100_sxm", "l40s"])
def test_a_latency_is_the_expression_at_the_hardware_and_the_served_constants(family: str, gpu: str) -> None:
    """Of cold calls one at a time, without a table or a gather; never below the bound of what DRAM or links stream."""
    calls = random_calls(family, 23, 40)
    calls = with_column(calls, "gpu", [gpu] * 40)
    row = FACTS["gpus"]["gpu"].to_pylist().index(gpu)
    of_gpu = {name: values[row] for name, values in hardware_columns(FACTS["gpus"], FACTS["fabrics"]).items()}
    rates, latency_model = {name: of_gpu.pop(name) for name in BY_MATH}, FAMILIES[family].latency_model
    found = price(family, calls, eta_coefficients=DECLARED, kernel_implementations=FACTS["kernel_implementations"][:0])
    for call, priced in zip(calls.to_pylist(), found.to_pylist(), strict=True):
        vector = of_gpu["vector_flops_per_us"]
        rate = {name: of[MATH.index(call["math"])] if "math" in call else vector for name, of in rates.items()}
        read = {name: float(call[name]) for name in (*latency_model.reads, "flops", "bytes")}
        read["working_set_bytes"] = read["bytes"] if "new_tokens" in read or family in STREAMING else COLD_BYTES
        view = latency_model.view(np, {name: np.array([value]) for name, value in read.items()})
        latency_us = latency_model.expression(np, view, {**of_gpu, **rate}, starts(family, call.get("math")))[0].item()
        bound = 0.0 if family in STREAMING else priced["roofline_us"]
        assert priced["latency_us"] == near(max(latency_us, bound))


@pytest.mark.parametrize(
    ("family", "sizes", "slack"),
    [
        ("gemm", {"m": 16384.0, "n": 16384.0, "k": 8192.0}, 1.6),
        ("gemm", {"m": 1.0, "n": 65536.0, "k": 8192.0}, 1.3),
        ("batched_gemm", {"batch": 128.0, "m": 4096.0, "n": 512.0, "k": 512.0}, 2.5),
        ("prefill_attention", {**CHUNK, "new_tokens": 65536.0, "cached_tokens": 0.0}, 3.0),
        ("decode_attention", {**PAIR, "batch": 128.0, "context": 32767.0, "window": 0.0}, 1.3),
        ("mla_decode", {**LATENT, "batch": 256.0, "context": 16383.0}, 3.5),
        (
            "moe",
            {"tokens": 65536.0, "hidden": 4096.0, "intermediate": 14336.0, "experts": 8.0, "top_k": 2.0, "moe_ep": 1.0},
            3.0,
        ),
    ],
)
def test_large_kernels_take_a_little_more_than_their_bound(family: str, sizes: dict[str, float], slack: float) -> None:
    row = by_hand(family, sizes)
    assert 1.0 < row["eta"] < slack
    # twice the work takes at least 1.9 times as long
    grown = {"gemm": "n", "prefill_attention": "batch", "moe": "tokens"}.get(family, "batch")
    twice = by_hand(family, {**sizes, grown: 2.0 * sizes[grown]})
    assert 1.9 < twice["latency_us"] / row["latency_us"] < 2.1


@pytest.mark.parametrize("rows", [64.0, 2048.0, 65536.0])
def test_streaming_kernels_by_hand(rows: float) -> None:
    # a mebibyte out of L2, 32 MiB at its edge, 1 GiB out of DRAM
    sizes, bytes_moved = {"rows": rows, "columns": 4096.0}, 4 * rows * 4096
    for family in ("norm", "sampling", "quantize"):
        at = starts(family)
        hits = 1 / (1 + (bytes_moved / (at["l2_share"] * 52428800)) ** 8)
        dram, cache = BYTES_PER_US * at["memory_efficiency"], at["l2_bytes_per_clock"] * 132 * CLOCK_PER_US
        time_us = bytes_moved * ((1 - hits) / dram + hits / cache)
        if family == "quantize":
            # a block a row is dispatched meanwhile
            time_us = p_norm(at["passes"] * time_us, rows * at["row_clocks"] / CLOCK_PER_US, 2)
        assert by_hand(family, sizes, None)["latency_us"] == near(at["floor_us"] + time_us)


def test_a_served_call_pays_neither_the_gap_between_replays_nor_quantisation() -> None:
    sizes = {"batch": 8.0, "context": 999.0, **GROUPED, "window": 0.0}
    stated = FACTS["kernel_implementations"]
    quantizes = pa.Table.from_pylist(
        [{"family": "gemm", "implementation": "unknown", "lineage": "unknown", "coefficient": "quantizes", "value": 1.0,
          "source": "test"}], schema=stated.schema
    )  # fmt: skip
    gap = pc.equal(DECLARED["coefficient"], "gap_us")
    longer = with_column(DECLARED, "value", pc.if_else(gap, 20.0, DECLARED["value"]).combine_chunks())
    assert one("decode_attention", sizes, eta_coefficients=longer) == by_hand("decode_attention", sizes)
    square = {"m": 512.0, "n": 512.0, "k": 512.0}
    found = one("gemm", square, eta_coefficients=DECLARED, kernel_implementations=quantizes)
    assert found == by_hand("gemm", square)


def test_constants_of_a_kernel_reach_its_calls_alone() -> None:
    """A pack in which vLLM's kernel starts 4 us late: its calls are later by as much, those of SGLang are not."""
    node = {"family": "gemm", "part": "constant", "coefficient": "floor_us", "unit": "1", "source": "test"}
    chosen = {"family": "gemm", "part": "choice", "level": "gpu", "coefficient": "rows", "unit": "1", "source": "test"}
    where = {"gpu": "h100_sxm", "dtype": "bf16", "value": 9.0}
    rows = pack_table(
        [
            {**node, "level": "family", "value": 1.0, "unit": "us"},
            {**node, "level": "lineage", "lineage": "slow", "value": 5.0},
            {**node, "level": "gpu", "gpu": "h100_sxm", "implementation": "another", "value": 2.0},  # it was fitted
            {**chosen, **where, "engine": "vllm", "implementation": "slow"},
            {**chosen, **where, "engine": "sglang", "implementation": "plain"},
        ]
    )
    sizes = {"m": 64.0, "n": 64.0, "k": 64.0}
    calls = call_table({**sizes, **work("gemm", sizes)}, math="bf16")
    calls = pa.concat_tables([calls, with_column(calls, "engine", ["sglang"])])
    slow, plain = price("gemm", calls, eta_coefficients=rows).to_pylist()
    assert slow["latency_us"] - plain["latency_us"] == pytest.approx(4.0, rel=1e-5)
    assert slow["evidence"].endswith(": slow")
    assert plain["evidence"].endswith(": plain")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_roofline_tier_answers_with_the_roofline(family: str) -> None:
    rows = price(family, random_calls(family, 3, 50), tier="roofline")
    for name in ("latency_us", "latency_p05_us", "latency_p95_us"):
        assert rows[name].equals(rows["roofline_us"])
    assert pc.unique(rows["eta"]).to_pylist() == [1.0]
    assert pc.unique(rows["tier"]).to_pylist() == ["roofline"]


def test_deployments_of_two_tiers_share_a_table() -> None:
    calls = random_calls("gemm", 5, 2)
    calls = with_column(calls, "gpu", ["l4", "l4"])  # no sweep of it ships
    calls = calls.append_column("format", [["bf16", "bf16"]])
    both = with_column(calls, "deployment_id", ["d", "e"])
    from kernelsight.kernels.latency import latencies
    from kernelsight.kernels.pricing_tables import PricingTables

    settings = pa.table({"deployment_id": ["d", "e"], "tier": ["roofline", "auto"]})
    rows = latencies("gemm", both, PricingTables(settings, *FACTS.values())).to_pylist()
    assert [row["tier"] for row in rows] == ["roofline", "cross-generation"]
    assert rows[0]["latency_us"] == rows[0]["roofline_us"]
    assert rows[1]["latency_us"] == price("gemm", calls).to_pylist()[1]["latency_us"]


def test_the_target_measured_tier_refuses_until_a_sweep_is_fitted() -> None:
    with pytest.raises(
        InvalidInput, match=r"tier target-measured needs a fitted sweep of .*, and there is none.*use --tier auto"
    ):
        price("gemm", random_calls("gemm", 1, 3), tier="target-measured")


def test_an_empty_table_gives_an_empty_table() -> None:
    rows = price("gemm", random_calls("gemm", 1, 3).slice(0, 0))
    assert (rows.num_rows, rows.schema.field("tier").type) == (0, pa.string())
