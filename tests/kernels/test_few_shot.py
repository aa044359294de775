"""A few measured calls: what they say of constants, of calls like them and of others, and that a pack keeps it."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.kernels.coefficients import Coefficient
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.few_shot import (
    PRIOR,
    CallInputs,
    FewShotCalibration,
    call_inputs,
    covariance,
    expected_residual,
    moved_constants,
    prior_variance,
    residual_covariance,
    size_count,
)

CUBLAS = {"engine": "vllm", "implementation": "cublas", "dtype": "bf16"}
SIZES = np.linspace(5.0, 12.0, 15)
# a floor that counts less the longer a call takes, and a rate that counts more
SLOPES = np.stack([np.linspace(0.3, 0.0, 15), np.linspace(0.0, 0.5, 15)], axis=1)


def at(sizes: np.ndarray = SIZES, slopes: np.ndarray | None = None, **words: str) -> CallInputs:
    """Return calls of products whose sizes are all alike."""
    features = np.repeat(sizes[:, None], size_count("gemm"), axis=1)
    return call_inputs(CUBLAS | words, features, slopes)


def joined(*parts: CallInputs) -> CallInputs:
    return CallInputs(*map(np.concatenate, zip(*parts, strict=True)))


def kriged(points: CallInputs, log_error: float) -> FewShotCalibration:
    """Return points that all leave as much of constants that did not move."""
    noise = PRIOR.noise**2 * np.eye(points.size)
    weights = np.linalg.solve(residual_covariance(points, points) + noise, np.full(points.size, log_error))
    return FewShotCalibration({}, points, weights)


def test_the_covariance_is_one() -> None:
    words = [{}, {"dtype": "fp8"}, {"engine": "trtllm"}, {"implementation": "marlin"}]
    inputs = joined(*(at(slopes=SLOPES, **one) for one in words))
    found = covariance(inputs, inputs)
    assert np.allclose(found, found.T)
    assert np.linalg.eigvalsh(found).min() > -1e-9
    assert (covariance(inputs.at([0]), inputs) == found[[0]]).all()
    assert np.diag(found) == pytest.approx(prior_variance(inputs))
    without = inputs._replace(slopes=np.zeros_like(inputs.slopes))
    assert np.allclose(covariance(without, without), residual_covariance(inputs, inputs))


def test_calls_share_the_more_the_more_they_have_in_common() -> None:
    first = at(SIZES[:1], SLOPES[:1])
    shared = [
        covariance(first, one)[0, 0]
        for one in (
            first,
            at(SIZES[:1], SLOPES[:1], engine="trtllm"),
            at(SIZES[:1] + 4.0, SLOPES[:1], engine="trtllm"),
            at(SIZES[:1], SLOPES[:1], implementation="marlin"),
            at(SIZES[:1], SLOPES[-1:], implementation="marlin"),
        )
    ]
    assert shared == sorted(shared, reverse=True) and len(set(shared)) == len(shared)
    assert shared[-1] == pytest.approx(PRIOR.family**2)


def test_points_move_calls_near_them_most() -> None:
    points = kriged(at(), 0.4)
    near, far, other = (
        expected_residual(one, points)[0]
        for one in (at(SIZES[7:8]), at(SIZES[7:8] + 30.0), at(SIZES[7:8], implementation="m"))
    )
    assert 0.3 < near < 0.4 and 0.0 < other < far < near


def test_constants_move_by_family_implementation_and_kernel_within_their_bounds() -> None:
    coefficients = FAMILIES["gemm"].latency_model.coefficients
    floor, fixed = (next(one for one in coefficients if (one.owner == "fixed") is owned) for owned in (False, True))
    moves = {(): {floor.name: 0.1}, ("cublas",): {floor.name: 0.2}, ("vllm", "cublas", "fp8"): {floor.name: 9.0}}
    points = FewShotCalibration(moves, at(), np.zeros(15))
    constants = {floor.name: floor.start, fixed.name: fixed.start}
    found = moved_constants(points, coefficients, CUBLAS, constants)
    assert found[floor.name] == pytest.approx(_bounded(floor, floor.start * np.exp(0.3)))
    assert found[fixed.name] == fixed.start
    assert moved_constants(points, coefficients, CUBLAS | {"dtype": "fp8"}, constants)[floor.name] == floor.high
    other = moved_constants(points, coefficients, CUBLAS | {"implementation": "marlin"}, constants)
    assert other[floor.name] == pytest.approx(_bounded(floor, floor.start * np.exp(0.1)))
    # what is stated outside of the bounds of a fit, such as no gap between replays, stays
    assert moved_constants(points, coefficients, CUBLAS, constants | {floor.name: 0.0})[floor.name] == 0.0


def _bounded(one: Coefficient, value: float) -> float:
    return min(max(value, one.low), one.high)
