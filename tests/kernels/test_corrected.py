"""Latencies of a measured GPU, whose correction may be anything that a fit can make: order, bounds, and who gets it."""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelsight.fitting.correction import WIDTHS, Fit, correction_rows
from kernelsight.fitting.pack_rows import correction_arrays, nearby_rows
from kernelsight.kernels.call_kinds import dtype_of
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.features import names_of
from kernelsight.kernels.nearby import Nearby
from kernelsight.kernels.network import MOST, Network
from kernelsight.kernels.pack import pack_table
from tests.kernels.calls import DECLARED, STREAMING, call_table, price, random_calls, with_column, work
from tests.kernels.test_properties import RATES, ROUNDING, column, faster

MEASURED, OTHER = "h100_sxm", "l40s"
CALCULATING = [family for family in FAMILIES if family not in STREAMING]


def calls_of(family: str, seed: int, rows: int, gpu: str = MEASURED) -> pa.Table:
    """Return random calls of vLLM on one GPU, in BF16 where they calculate."""
    calls = with_column(random_calls(family, seed, rows), "gpu", [gpu] * rows)
    return with_column(calls, "math", ["bf16"] * rows) if "math" in calls.column_names else calls


@cache
def corrected_pack(family: str, seed: int) -> pa.Table:
    """Return the declared constants, and a correction drawn at random of the kernel that vLLM runs on one GPU."""
    random = np.random.default_rng([seed, zlib.crc32(family.encode())])
    size = len(names_of(family))
    dtype = dtype_of(family, {"math": "bf16"})
    network = Network(
        low=np.full(size, 0.0), high=np.full(size, 20.0), matter=np.ones(size),
        centre=random.normal(8.0, 2.0, size), scale=random.uniform(1.0, 4.0, size),
        first=random.normal(0.0, 1.0, (size, WIDTHS[0])), first_bias=random.normal(0.0, 1.0, (1, WIDTHS[0])),
        second=random.normal(0.0, 0.5, WIDTHS), second_bias=random.normal(0.0, 1.0, WIDTHS[1]),
        last=random.normal(0.0, 0.4, WIDTHS[1]), last_bias=random.normal(0.0, 1.0, 1), strength=np.ones(1),
    )  # fmt: skip
    rows = correction_rows(family, MEASURED, Fit(network, [f"vllm|own|{dtype}"], np.zeros(1)), "a test")
    chosen = {
        "family": family, "part": "choice", "level": "gpu", "engine": "vllm", "gpu": MEASURED, "dtype": dtype,
        "implementation": "own", "coefficient": "rows", "value": 1.0, "unit": "1", "source": "a test",
    }  # fmt: skip
    return pa.concat_tables([DECLARED, pack_table([*correction_arrays(rows), chosen])])


def times(family: str, calls: pa.Table, seed: int, name: str = "latency_us", **more: object) -> np.ndarray:
    return column(price(family, calls, **{"eta_coefficients": corrected_pack(family, seed), **more}), name)


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(CALCULATING),
    rate=st.sampled_from(RATES),
    factor=st.one_of(st.floats(1.0, 1.5), st.floats(1.0, 1e4)),
    seed=st.integers(0, 2**16),
)
def test_inv_10_a_faster_gpu_slows_no_corrected_kernel(family: str, rate: str, factor: float, seed: int) -> None:
    calls = calls_of(family, seed, 100)
    before, after = times(family, calls, seed % 4), times(family, calls, seed % 4, **faster(rate, factor))
    assert (after <= before * ROUNDING).all()


@pytest.mark.parametrize("family", CALCULATING)
def test_points_of_a_small_sweep_count_in_what_is_served(family: str) -> None:
    calls, size = calls_of(family, 3, 500), len(names_of(family))
    kernel = f"vllm|own|{dtype_of(family, {'math': 'bf16'})}"
    # one point that reaches everywhere: all calls take a fifth longer
    near = {kernel: Nearby(np.zeros((1, size)), np.array([np.log(1.2)]), 1e9)}
    pack = pa.concat_tables([corrected_pack(family, 3), pack_table(nearby_rows(family, MEASURED, near, "a test"))])
    without = times(family, calls, 3)
    found = column(price(family, calls, eta_coefficients=pack), "latency_us")
    # a bound that held the call before may take up some of it
    assert np.quantile(found / without, 0.5) == pytest.approx(1.2, rel=1e-4)
    assert (found / without <= 1.2 * ROUNDING).all()
    assert (found >= without / ROUNDING).all()


@pytest.mark.parametrize("family", CALCULATING)
def test_a_correction_stays_within_its_bounds_and_never_beats_the_roofline(family: str) -> None:
    calls = calls_of(family, 3, 2000)
    expected = times(family, calls, 3, tier="cross-generation")
    found = times(family, calls, 3)
    ratio = found / expected
    # enough of these calls lie within what was measured for the correction to show
    assert np.quantile(np.abs(np.log(ratio)), 0.9) > 0.01
    assert (np.abs(np.log(ratio)) <= MOST * ROUNDING).all()
    assert (found >= times(family, calls, 3, "roofline_us")).all()
    assert np.isfinite(found).all()


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_a_correction_multiplies_what_the_expression_says(factor: float) -> None:
    """A network that answers the same everywhere: whoever measured slower kernels predicts slower ones."""
    family, calls = "gemm", calls_of("gemm", 3, 500)
    rows = [
        {**row, "array": [np.log(factor) if row["coefficient"] == "last_bias" else 0.0] * len(row["array"])}
        if row["coefficient"] in ("last", "last_bias", "matter") else row
        for row in corrected_pack(family, 3).to_pylist()
    ]  # fmt: skip
    level = pa.Table.from_pylist(rows, schema=DECLARED.schema)
    head = times(family, calls, 3, tier="cross-generation")
    found, roofline = times(family, calls, 3, eta_coefficients=level), times(family, calls, 3, "roofline_us")
    assert found == pytest.approx(np.maximum(factor * head, roofline), rel=1e-5)
    assert np.quantile(found / head, 0.5) == pytest.approx(factor, rel=1e-5)


@pytest.mark.parametrize("family", CALCULATING)
def test_only_the_kernels_that_the_sweep_ran_are_corrected(family: str) -> None:
    own = calls_of(family, 4, 50)
    other = calls_of(family, 4, 50, OTHER)
    both = pa.concat_tables([own, other])
    together = times(family, both, 4)
    assert (together[:50] == times(family, own, 4)).all()
    expected = column(price(family, other, eta_coefficients=DECLARED), "latency_us")
    assert together[50:] == pytest.approx(expected, rel=3e-7)
    tiers = price(family, both, eta_coefficients=corrected_pack(family, 4))["tier"].to_pylist()
    # some of the sizes that are drawn lie beyond those of the sweep
    assert set(tiers[:50]) <= {"target-measured", "gpu-measured"} and tiers[50:] == ["cross-generation"] * 50


def test_only_sizes_like_those_of_the_sweep_are_called_measured() -> None:
    """The sweep reaches from 1 to 2**20 tokens: one octave further is like it, two are not."""
    rows = [
        {**row, "array": [float(name == "m") for name in names_of("gemm")]} if row["coefficient"] == "matter" else row
        for row in corrected_pack("gemm", 3).to_pylist()
    ]
    by_tokens = pa.Table.from_pylist(rows, schema=DECLARED.schema)
    sizes = {"m": np.array([16.0, 2.0**21, 2.0**22]), "n": np.full(3, 512.0), "k": np.full(3, 512.0)}
    calls = call_table({**sizes, **work("gemm", sizes), "format": ["bf16"] * 3}, MEASURED, "bf16")
    found = price("gemm", calls, eta_coefficients=by_tokens)
    assert found["tier"].to_pylist() == ["target-measured", "target-measured", "gpu-measured"]
    inside, beyond = f"sweep of {MEASURED}: own", f"sweep of {MEASURED}: own, at sizes beyond its own"
    assert found["evidence"].to_pylist() == [inside, inside, beyond]


@pytest.mark.parametrize("family", CALCULATING)
def test_far_outside_its_sweep_a_correction_fades(family: str) -> None:
    """Sizes a million million times those of the sweep: less than one part in a hundred of the bound is left."""
    calls = calls_of(family, 5, 300)
    pack = corrected_pack(family, 5)
    rows = [
        {**row, "array": [-60.0] * len(row["array"])} if row["coefficient"] == "low" else
        {**row, "array": [-40.0] * len(row["array"])} if row["coefficient"] == "high" else row
        for row in pack.to_pylist()
    ]  # fmt: skip
    far = pa.Table.from_pylist(rows, schema=pack.schema)
    expected = times(family, calls, 5, tier="cross-generation")
    assert np.abs(np.log(times(family, calls, 5, eta_coefficients=far) / expected)).max() < 0.01 * MOST
