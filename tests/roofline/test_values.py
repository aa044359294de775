"""Rooflines, bounds and latencies worked out by hand, in their units, for one call of each kind."""

from __future__ import annotations

from math import exp
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.eta.pack import pack_table
from kernelsight.roofline.families import FORMS as FAMILIES
from kernelsight.roofline.latency import SERVED
from tests.roofline.calls import DECLARED, FACTS, call_table, price, random_calls, with_column, work

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
    ("family", "sizes", "flops", "least_bytes"),
    [
        ("gemm", {"m": 4096.0, "n": 4096.0, "k": 4096.0}, 2 * 4096**3, 3 * 2 * 4096**2),
        ("gemm", {"m": 1.0, "n": 4096.0, "k": 4096.0}, 2 * 4096**2, 2 * (4096**2 + 2 * 4096)),
        ("batched_gemm", {"batch": 16.0, "m": 64.0, "n": 512.0, "k": 128.0}, 134_217_728, 16 * 2 * 106_496),
        ("decode_attention", {**PAIR, "window": 0.0}, 4 * 2 * 4096 * 100, 2 * (4 * 4096 + 4 * 1024 * 100)),
        ("decode_attention", {**PAIR, "window": 10.0}, 4 * 2 * 4096 * 10, 2 * (4 * 4096 + 4 * 1024 * 10)),
        # four new tokens see six cached ones each, and 1 + 2 + 3 + 4 of themselves
        ("prefill_attention", CHUNK, 4 * 4096 * 34, 2 * (2 * 4 * 4096 + 2 * 10 * 1024)),
        ("mla_decode", LATENT, 2 * 4 * 128 * 1088 * 1000, 4 * 2 * (1000 * 576 + 128 * 1088)),
    ],
)
def test_roofline_is_the_larger_of_dense_compute_and_least_bytes(
    family: str, sizes: dict[str, float], flops: float, least_bytes: float
) -> None:
    row = one(family, sizes)
    compute, memory = flops / BF16_PER_US, least_bytes / BYTES_PER_US
    assert row["roofline_us"] == near(max(compute, memory))
    assert row["bound"] == ("compute" if compute > memory else "memory")
    assert row["eta"] == near(row["latency_us"] / row["roofline_us"])


@pytest.mark.parametrize("math", ["bf16", "fp8"])
def test_gemm_roofline_takes_the_rate_of_its_arithmetic(math: str) -> None:
    row = one("gemm", {"m": 8192.0, "n": 8192.0, "k": 8192.0}, math=math)
    assert row["roofline_us"] == near(2.0 * 8192.0**3 / {"bf16": 989.4e6, "fp8": 1978.9e6}[math])


def test_vector_kernels_take_the_vector_rate() -> None:
    calls = call_table({"rows": 1.0, "columns": 1.0, "flops": 66.9e6, "bytes": 4.0})
    row = price("norm", calls).to_pylist()[0]
    assert (row["roofline_us"], row["bound"]) == (near(1.0), "compute")


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
    row = one(family, {"group_size": float(gpus), "elements": MIB}, math=None)
    assert (row["roofline_us"], row["bound"]) == (near(2.0 * MIB * share / LINK_PER_US), "link")


def starts(family: str) -> dict[str, float]:
    """Return the constants that a family's expression declares, but for what serving does not pay."""
    declared = {one.name: one.start for one in FAMILIES[family].coefficients}
    return {**declared, **{name: value for name, value in SERVED.items() if name in declared}}


def by_hand(family: str, sizes: dict[str, float], math: str | None = "bf16", gpu: str = "h100_sxm") -> dict:
    """Return the latency row of one call by the constants that the expressions declare, whatever pack is shipped."""
    return one(family, sizes, gpu, math, eta_coefficients=DECLARED)


def test_gemm_by_hand() -> None:
    at, side = starts("gemm"), 8192.0
    # 64 x 32 tiles of 128 x 256 on 132 multiprocessors: 15.5 waves, of whose rest a split sum takes the place
    waves = 64 * 32 / 132
    tile_flops = p_norm(2 * 128 * 256 / at["compute_efficiency"], (128 + 256) * at["feed_flops"])
    tile_us = side * 132 / BF16_PER_US * tile_flops + at["tile_clocks"] / CLOCK_PER_US
    compute_us = tile_us * waves + at["split_clocks"] / CLOCK_PER_US * (16 - waves)
    depth = side * at["split_depth"] / (side + at["split_depth"])
    pace_us = (128 + 256) * depth / (at["stream_rate"] * CLOCK_PER_US)
    memory_us = 3 * 2 * side**2 / (BYTES_PER_US * at["memory_efficiency"]) + pace_us
    time_us = (compute_us**4 + memory_us**4 + at["overlap"] * (compute_us * memory_us) ** 2) ** 0.25
    # 700 W; energy falls with the root of a multiprocessor's tensor rate, against an A100's
    limit_us = 2 * side**3 * at["energy_pj"] * 1e-6 * (3e6 * 132 / BF16_PER_US) ** 0.5 / 700
    assert limit_us > time_us
    time_us += (limit_us - time_us) * time_us / (time_us + at["throttle_us"])
    row = by_hand("gemm", {"m": side, "n": side, "k": side})
    assert row["latency_us"] == near(at["floor_us"] + at["floor_clocks"] / CLOCK_PER_US + time_us)
    assert row["tiles"] == 64 * 32


def test_a_batch_of_products_is_one_product_of_as_many_tiles() -> None:
    sizes = {"m": 512.0, "n": 512.0, "k": 4096.0}
    batched, single = by_hand("batched_gemm", {"batch": 1.0, **sizes}), by_hand("gemm", sizes)
    assert batched["latency_us"] == single["latency_us"]
    assert by_hand("batched_gemm", {"batch": 16.0, **sizes})["tiles"] % 16 == 0


def split_kv(family: str, lanes: float, keys: float, kv_bytes: float, query_bytes: float, padded: float) -> float:
    """Decode attention on an H100: ``lanes`` streams of cold keys and values, each read once, ``padded`` FLOP."""
    at = starts(family)
    slots = at["blocks_per_unit"] * 132
    pieces = p_norm(1.0, keys / at["smallest_split"])
    splits = p_norm(1.0, 1 / p_norm(p_norm(lanes / slots, 1 / pieces), 1 / at["most_splits"]))
    blocks = lanes * splits
    waves = p_norm(1.0, blocks / 132)
    dram_us = 1.08 / BYTES_PER_US
    stream_us = kv_bytes * p_norm(1.0, slots / blocks) / (slots * CLOCK_PER_US * at["stream_bytes_per_clock"])
    tensor_us = at["tensor_factor"] * padded / BF16_PER_US / (blocks / 132 / waves)
    core_us = p_norm(p_norm(kv_bytes * dram_us, stream_us, 6), tensor_us, 6)
    combine_us = at["combine_us"] * (1 - exp((1 - pieces) / 4))
    own_us = 1800 / CLOCK_PER_US * p_norm(at["block_us"] * waves, combine_us, 2)
    return at["floor_us"] + query_bytes * dram_us + p_norm(core_us, own_us, at["overlap"])


@pytest.mark.parametrize(("batch", "context"), [(64.0, 4095.0), (1.0, 127.0)])
def test_decode_attention_by_hand(batch: float, context: float) -> None:
    sizes = {"batch": batch, "context": context, **GROUPED, "window": 0.0}
    # groups of four query heads fill the 16 rows of an instruction
    flops = 4 * batch * 32 * 128 * (context + 1) * 16 / 4
    kv_bytes, query_bytes = 4 * batch * 8 * 128 * (context + 1), 4 * batch * 32 * 128
    expected = split_kv("decode_attention", 8 * batch, context + 1, kv_bytes, query_bytes, flops)
    assert by_hand("decode_attention", sizes)["latency_us"] == near(expected)


def test_mla_decode_reads_one_latent_vector_for_all_heads() -> None:
    sizes = {"batch": 256.0, "context": 2047.0, "heads": 128.0, "kv_lora_rank": 512.0, "rope_dim": 64.0}
    flops = 2 * 256 * 128 * 1088 * 2048
    expected = split_kv("mla_decode", 256, 2048, 256 * 2 * 2048 * 576, 256 * 2 * 128 * 1088, flops)
    assert by_hand("mla_decode", sizes)["latency_us"] == near(expected)


def test_prefill_attention_by_hand() -> None:
    at = starts("prefill_attention")
    sizes = {"batch": 1.0, "new_tokens": 8192.0, "cached_tokens": 0.0, **GROUPED, "window": 0.0}
    # four query heads share the rows of a tile, half a tile of keys lies beyond the edge of each
    query_tile, key_tile = at["query_tile"], at["key_tile"]
    waves = 8 * (8192 * 4 / query_tile + at["row_padding"]) / 132
    keys = 8193 / 2 + max(query_tile / 4, key_tile) / 2
    exponential_us = at["exponential_factor"] / (16 * 132 * CLOCK_PER_US)
    pair_us = at["tensor_factor"] * 4 * 128 / BF16_PER_US + exponential_us
    piece = 512 + 8192 * waves
    longest = 8192 * piece / p_norm(8192, piece, 2)
    work_us = (waves * keys + at["longest_factor"] * longest) * pair_us * 132 * query_tile
    block_us = at["tile_overhead_us"] * p_norm(waves, 1.0, 2) * 1800 / CLOCK_PER_US
    query_bytes, kv_bytes = 4 * 8192 * 32 * 128, 4 * 8192 * 8 * 128
    # its tensors were written just before, 168 MB of which 0.7 of L2 keep hardly any
    hits = 1 / (1 + ((query_bytes + kv_bytes) / (at["l2_share"] * 52428800)) ** 6)
    dram_us = at["memory_factor"] / BYTES_PER_US
    byte_us = (1 - hits) * dram_us + hits / (64 * 132 * CLOCK_PER_US)
    copied_bytes = at["query_passes"] * query_bytes + at["kv_passes"] * kv_bytes
    copies_us = copied_bytes * (byte_us + 1 / (10 * 132 * CLOCK_PER_US))
    expected = at["floor_us"] + p_norm(work_us + block_us, (query_bytes + kv_bytes) * byte_us, 2) + copies_us
    assert by_hand("prefill_attention", sizes)["latency_us"] == near(expected)


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
    told = FACTS["kernel_implementations"]
    quantizes = pa.Table.from_pylist(
        [{"family": "gemm", "implementation": "unknown", "lineage": "unknown", "coefficient": "quantizes", "value": 1.0,
          "source": "test"}], schema=told.schema
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


@pytest.mark.parametrize(
    ("gpu", "math", "same_as"), [("a100_sxm", "fp8", "bf16"), ("h100_sxm", "fp4", "bf16"), ("v100_sxm", "bf16", "fp16")]
)
def test_a_dtype_that_the_gpu_lacks_runs_at_its_16_bit_rate(gpu: str, math: str, same_as: str) -> None:
    sizes = {"m": 4096.0, "n": 4096.0, "k": 4096.0}
    assert one("gemm", sizes, gpu, math) == one("gemm", sizes, gpu, same_as)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_roofline_tier_answers_with_the_roofline(family: str) -> None:
    rows = price(family, random_calls(family, 3, 50), tier="roofline")
    for name in ("latency_us", "latency_p05_us", "latency_p95_us"):
        assert rows[name].equals(rows["roofline_us"])
    assert pc.unique(rows["eta"]).to_pylist() == [1.0]
    assert pc.unique(rows["tier"]).to_pylist() == ["roofline"]


def test_deployments_of_two_tiers_share_a_table() -> None:
    calls = random_calls("gemm", 5, 2)
    both = with_column(calls, "deployment_id", ["d", "e"])
    from kernelsight.roofline.latency import latencies

    settings = pa.table({"deployment_id": ["d", "e"], "tier": ["roofline", "auto"]})
    rows = latencies("gemm", both, settings, *FACTS.values(), backend="numpy").to_pylist()
    assert [row["tier"] for row in rows] == ["roofline", "cross-generation"]
    assert rows[0]["latency_us"] == rows[0]["roofline_us"]
    assert rows[1]["latency_us"] == price("gemm", calls).to_pylist()[1]["latency_us"]


def test_the_target_measured_tier_refuses_until_a_sweep_is_fitted() -> None:
    with pytest.raises(InvalidInput, match=r"target-measured tier was asked for.*use --tier auto"):
        price("gemm", random_calls("gemm", 1, 3), tier="target-measured")


def test_an_empty_table_gives_an_empty_table() -> None:
    rows = price("gemm", random_calls("gemm", 1, 3).slice(0, 0))
    assert (rows.num_rows, rows.schema.field("tier").type) == (0, pa.string())
