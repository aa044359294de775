"""What holds for every family, shape and GPU: bounds, order, and independence of backend and company."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.kernels import blocks
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.latency import kernel_of
from kernelsight.kernels.network import BY_NODE, FADE_OCTAVES
from kernelsight.kernels.prepared_calls import prepare_calls
from kernelsight.kernels.pricing_tables import PricingTables
from tests.conftest import random_worlds
from tests.kernels.calls import (
    FACTS,
    LINKED,
    STREAMING,
    call_table,
    drawn_constants,
    price,
    random_calls,
    settings,
    with_column,
    with_format,
    work,
)

RATES = (
    "memory_bandwidth_bytes_per_s", "link_bytes_per_s", "fp32_flops_per_s", "fp16_flops_per_s", "bf16_flops_per_s",
    "fp8_flops_per_s", "fp4_flops_per_s", "int8_flops_per_s", "sm_clock_hz", "network",
)  # fmt: skip
ROUNDING = 1.0 + 2e-7  # two steps of float32


def near(value: float, share: float) -> object:
    return pytest.approx(value, rel=share, abs=0.0)


def column(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy(zero_copy_only=False)


def faster(rate: str, factor: float) -> dict[str, pa.Table]:
    """Return the facts with one rate of every GPU, or of the network between nodes, raised."""
    table, name = ("fabrics", "bytes_per_s") if rate == "network" else ("gpus", rate)
    facts = FACTS[table]
    raised = pc.multiply(facts[name], factor)
    if rate == "network":
        raised = pc.if_else(pc.equal(facts["kind"], "infiniband"), raised, facts[name])
    return {table: with_column(facts, name, raised.combine_chunks())}


@random_worlds(250)
@given(
    family=st.sampled_from(list(FAMILIES)),
    rate=st.sampled_from(RATES),
    factor=st.one_of(st.floats(1.0, 1.5), st.floats(1.0, 1e4)),
    seed=st.integers(0, 2**32 - 1),
    tier=st.sampled_from(["auto", "roofline"]),
    fitted=st.one_of(st.none(), st.integers(0, 2**32 - 1)),
)
def test_inv_10_a_faster_gpu_slows_no_kernel(
    family: str, rate: str, factor: float, seed: int, tier: str, fitted: int | None
) -> None:
    """With the shipped constants, and with any that a fit may find within their bounds."""
    calls = random_calls(family, seed, 200, gpus=4)
    constants = {} if fitted is None else {"eta_coefficients": drawn_constants(fitted)}
    before = price(family, calls, tier=tier, **constants)
    after = price(family, calls, tier=tier, **constants, **faster(rate, factor))
    assert (column(after, "latency_us") <= column(before, "latency_us") * ROUNDING).all()
    assert (column(after, "roofline_us") <= column(before, "roofline_us") * ROUNDING).all()


def test_some_rate_matters_to_each_family() -> None:
    """Raising every rate tenfold halves at least large kernels, so that the test above compares something."""
    for family in FAMILIES:
        calls = random_calls(family, 7, 300, gpus=4)
        before = column(price(family, calls), "latency_us")
        raised = (column(price(family, calls, **faster(rate, 10.0)), "latency_us") for rate in RATES)
        assert any(np.max(before / after) > 2.0 for after in raised), family


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", [11, 12])
def test_any_shape_gives_a_finite_positive_time_within_its_interval(family: str, seed: int) -> None:
    rows = price(family, random_calls(family, seed, 20_000))
    low, time, high = (column(rows, name) for name in ("latency_p05_us", "latency_us", "latency_p95_us"))
    for values in (low, time, high, column(rows, "roofline_us"), column(rows, "eta")):
        assert np.isfinite(values).all()
        assert (values > 0.0).all()
    assert (low <= time).all()
    assert (time <= high).all()
    if family not in STREAMING:
        assert (time >= column(rows, "roofline_us")).all()
        assert (low >= column(rows, "roofline_us")).all()


@pytest.mark.parametrize(
    "family", [family for family in STREAMING if family not in ("quantize", "hyper_connection")]
)  # passes are fitted
def test_streaming_kernels_beat_the_dram_roofline_only_out_of_l2(family: str) -> None:
    calls = random_calls(family, 13, 20_000)
    rows = price(family, calls)
    gpus = FACTS["gpus"]
    position = pc.index_in(calls["gpu"], gpus["gpu"].combine_chunks()).to_numpy()
    of_gpu = {name: column(gpus, name)[position] for name in ("sm_count", "sm_clock_hz", "l2_bytes")}
    beaten = column(rows, "latency_us") < column(rows, "roofline_us")
    l2_us = column(calls, "bytes") / (64.0 * of_gpu["sm_count"] * of_gpu["sm_clock_hz"]) * 1e6
    # past twice the share of L2 that counts, one byte in seventeen is still found there: less than DRAM loses
    assert (column(calls, "bytes")[beaten] < of_gpu["l2_bytes"][beaten]).all()
    assert (column(rows, "latency_us") >= np.minimum(l2_us, column(rows, "roofline_us"))).all()


def grown(family: str, name: str, values: np.ndarray, seed: int, **facts: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return latencies, of shape (shapes, values), of random shapes in which one size takes each of the values.

    Without the corrections of measured GPUs, which follow what their sweeps show.
    """
    shapes = random_calls(family, seed, 60)
    known = set(shapes.column_names) - {"deployment_id", "step_shape_id", "call", "name", "gpu", "math", "count"}
    sizes = {key: np.repeat(column(shapes, key), values.size) for key in known - {"flops", "bytes", "visible_pairs"}}
    sizes[name] = np.tile(values, shapes.num_rows)
    labels = {key: np.repeat(column(shapes, key), values.size) for key in ("gpu", "math") if key in shapes.column_names}
    calls = call_table({**sizes, **work(family, sizes)}, labels["gpu"], labels.get("math"))
    times = column(price(family, calls, tier="cross-generation", **facts), "latency_us").reshape(-1, values.size)
    return times, np.diff(times, axis=1)


GROWING = [
    ("decode_attention", "context"), ("decode_attention", "batch"), ("mla_decode", "context"),
    ("mla_decode", "batch"), ("prefill_attention", "cached_tokens"), ("prefill_attention", "new_tokens"),
    ("prefill_attention", "batch"), ("mla_prefill", "cached_tokens"), ("encoder_attention", "new_tokens"),
    ("sparse_attention", "keys"), ("sparse_attention", "queries"), ("linear_attention", "tokens"),
    ("linear_attention", "sequences"), ("moe", "tokens"), ("gemm", "n"), ("gemm", "k"),
    *((family, "rows") for family in STREAMING), *((family, "elements") for family in LINKED),
]  # fmt: skip
SIZES = np.unique(np.floor(1.13 ** np.arange(110)))


def sizes_of(family: str, name: str) -> np.ndarray:
    """Linear attention runs another kernel, with constants of its own, for single tokens."""
    return SIZES[1:] if (family, name) == ("linear_attention", "tokens") else SIZES


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_work_is_never_faster(seed: int) -> None:
    for family, name in GROWING:
        times, steps = grown(family, name, sizes_of(family, name), seed)
        assert (steps >= -2e-7 * times[:, 1:]).all(), (family, name)
        assert (times[:, -1] > 1.5 * times[:, 0]).any(), (family, name)


@pytest.mark.parametrize("seed", [4, 5])
def test_more_work_is_never_faster_whatever_is_fitted(seed: int) -> None:
    for family, name in GROWING:
        times, steps = grown(family, name, sizes_of(family, name), seed, eta_coefficients=drawn_constants(seed))
        assert (steps >= -2e-7 * times[:, 1:]).all(), (family, name)


def test_a_larger_decode_batch_is_never_faster_where_splitting_ends() -> None:
    for gpu, context in itertools.product(("h100_sxm", "b200_sxm", "l4"), (255.0, 300.0, 511.0, 700.0, 1023.0)):
        sizes = {"batch": np.arange(1.0, 1200.0), "context": context, "heads": 8.0, "kv_heads": 1.0, "head_dim": 64.0}
        calls = {**sizes, "window": np.zeros(1199), **work("decode_attention", {**sizes, "window": np.zeros(1199)})}
        times = column(price("decode_attention", call_table(calls, gpu, "bf16"), tier="cross-generation"), "latency_us")
        assert (np.diff(times) >= -2e-7 * times[1:]).all(), (gpu, context)


# the expressions that most of a step's time is priced by
ALWAYS = ("gemm", "moe", "decode_attention")
# corrections of two vendors
CORRECTED_AS = ("h100_sxm", "mi300x")


def one_of_each_expression() -> list[str]:
    """Return a family of each distinct expression and set of features: JAX takes seconds to compile one."""
    first = {}
    for name, family in FAMILIES.items():
        first.setdefault((family.latency_model[:3], family.features, family.wire_share, family.vector_work), name)
    return list(first.values())


@pytest.mark.parametrize(
    "family",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.whole) for name in one_of_each_expression()],
)
def test_numpy_and_jax_give_the_same_bytes(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every GPU and arithmetic, with the corrections of measured GPUs on all of them."""
    calls = random_calls(family, 17, 20_000)
    ready = prepare_calls(family, with_format(calls), PricingTables(settings(), *FACTS.values()))
    random = np.random.default_rng(17)
    columns, at = {**ready.columns, "kind": ready.kind_of_row}, dict(ready.at)
    networks = [ready.networks[gpu][0] for gpu in CORRECTED_AS if gpu in ready.networks]
    most_nodes = max((len(network.strength) for network in networks), default=0)
    for network in networks or [None]:
        if network is not None:
            # as many kernels in each: shapes that JAX has compiled
            nodes = np.arange(most_nodes) % len(network.strength)
            at["network"] = network._replace(**{name: getattr(network, name)[nodes] for name in BY_NODE})
            columns["node"] = random.integers(-1, most_nodes, calls.num_rows)
        given = (f"test of {family}", kernel_of(family), calls.num_rows, columns, {}, ready.hardware, at)
        by_jax = blocks.evaluate(*given)
        monkeypatch.setattr(blocks, "BLOCK_ROWS", calls.num_rows + 1)
        by_numpy = blocks.evaluate(*given)
        monkeypatch.undo()
        assert by_numpy.keys() == by_jax.keys()
        for results in (by_numpy, by_jax):
            if network is not None:
                results["outside_octaves"] = results["outside_octaves"] > FADE_OCTAVES  # no more of it is read
        for name, values in by_numpy.items():
            assert np.array_equal(values, by_jax[name]), name


def test_what_lies_half_way_by_its_arithmetic_is_rounded_to_one_side() -> None:
    half_way = 1.0 + 2.0**-24
    beside = np.array([np.nextafter(half_way, 0.0), half_way, np.nextafter(half_way, 2.0)])
    assert blocks.to_grid(beside).tolist() == [1.0 + 2.0**-23] * 3
    assert blocks.to_grid(np.array([0.0, 1.0, 2.5, 1e30])).tolist() == [0.0, 1.0, 2.5, float(np.float32(1e30))]


@cache
def calls_of_many_gpus(family: str) -> pa.Table:
    """Return 20,000 calls on every GPU that takes one of the corrections of ``CORRECTED_AS``, or none."""
    calls = random_calls(family, 17, 40_000)
    ready = prepare_calls(family, with_format(calls), PricingTables(settings(), *FACTS.values()))
    compared = np.array([kind["corrected"] in (None, *CORRECTED_AS) for kind in ready.kinds])[ready.kind_of_row]
    return calls.filter(pa.array(compared)).slice(0, 20_000)


ALONE = ("gemm", "prefill_attention", "decode_attention", "moe", "norm", "all_reduce")


@pytest.mark.parametrize(
    ("family", "block_rows"),
    [*((family, 1 << 40) for family in ALONE), ("norm", 512)],
)
def test_a_row_alone_equals_the_row_among_others(family: str, block_rows: int) -> None:
    # alone, its GPU and arithmetic are numbers, not columns
    calls = calls_of_many_gpus(family)
    among = price(family, calls, block_rows)
    assert block_rows > calls.num_rows or among.equals(price(family, calls))
    for row in (0, 7, 511, 512, 16_383, 19_999):
        [alone], [expected] = price(family, calls.slice(row, 1)).to_pylist(), among.slice(row, 1).to_pylist()
        # the exponential of an array and of a number differ in their last bit
        assert alone == {n: near(v, 1e-13) if isinstance(v, float) else v for n, v in expected.items()}


def test_import_of_latencies_leaves_jax_alone() -> None:
    import subprocess
    import sys

    words = "import sys, kernelsight.kernels.latency; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words]).returncode == 0
