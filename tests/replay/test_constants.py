"""Host constants: interpolated between simulated points, found again where they are known, and for whom they stand."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.replay.constants import (
    NONE,
    REQUEST_GRID_MS,
    STEP_GRID_MS,
    Constants,
    Response,
    constants_of,
    fit,
    loss,
    means_at,
)

TRUTH = Constants(1.25, 0.6, 20.0)


def response(base_ms: float, launches: float) -> Response:
    """Return a run whose TPOT is the step, and whose TTFT is three steps and the request."""
    step, request = np.meshgrid(STEP_GRID_MS, REQUEST_GRID_MS, indexing="ij")
    return Response(3 * (base_ms + step) + request, base_ms + step, launches)


def run_of(found: Response, at: Constants, **names: object) -> dict:
    """Return the measurements of a run with host time ``at``."""
    ttft, tpot = means_at(found, at)
    group = {"model": "m", "gpu": "h100_sxm", "engine": "vllm", "quantization": None}
    return {**group, "ttft_ms": ttft, "tpot_ms": tpot, **names}


def world(at: Constants, **names: object) -> list[tuple[dict, Response]]:
    """Return runs of models of different size and number of kernels."""
    found = [response(base, launches) for base in (3.0, 8.0, 20.0) for launches in (300.0, 700.0, 1100.0)]
    return [(run_of(one, at, **names), one) for one in found]


def test_means_are_read_between_the_simulated_points() -> None:
    found = response(5.0, 1000.0)
    assert means_at(found, NONE) == pytest.approx((15.0, 5.0))
    # 1000 kernels with 1 us between them, and half a millisecond: 1.5 ms a step
    assert means_at(found, Constants(1.0, 0.5, 7.5)) == pytest.approx((3 * 6.5 + 7.5, 6.5))
    # beyond the grid nothing is known: its last point
    assert means_at(found, Constants(0.0, 99.0, 999.0)) == pytest.approx((3 * 13.0 + 120.0, 13.0))


def test_known_constants_are_found_again() -> None:
    pairs = world(TRUTH)
    assert loss(pairs, TRUTH) == pytest.approx(0.0, abs=1e-9)
    found = fit(pairs)
    assert loss(pairs, found) < 0.02 < loss(pairs, NONE)
    assert fit(pairs, gap_us=1.25) == TRUTH


def test_one_run_that_is_far_off_moves_nothing() -> None:
    pairs = world(TRUTH)
    strange = {**pairs[0][0], "ttft_ms": 1e6, "tpot_ms": 1e-3}
    assert fit([*pairs, (strange, pairs[0][1])], gap_us=1.25) == TRUTH


def test_each_level_takes_the_runs_that_it_may() -> None:
    other = Constants(1.25, 3.0, 60.0)
    pairs = world(TRUTH, model="a") + world(other, model="b") + world(TRUTH, model="c", engine="trtllm")[:2]
    fitting, found = [run for run, _ in pairs], [one for _, one in pairs]
    groups = {"a": ("a", "h100_sxm", "vllm", None), "b": ("b", "h100_sxm", "vllm", None)}
    few = ("c", "h100_sxm", "trtllm", None)
    assert set(constants_of("none", fitting, [], []).values()) == {NONE}
    engine = constants_of("engine", fitting, fitting, found)
    assert engine[groups["a"]] == engine[groups["b"]] != engine[few]
    group = constants_of("group", fitting, fitting, found)
    assert group[groups["a"]].step_ms < 1.0 < group[groups["b"]].step_ms
    assert group[few] == engine[few]  # two runs are too few for constants of its own
    transfer = constants_of("transfer", fitting, fitting, found)
    # what was fitted on the other group alone
    assert loss(world(other, model="b"), transfer[groups["a"]]) < 0.02
    assert loss(world(TRUTH, model="a"), transfer[groups["b"]]) < 0.02
