"""A few measured calls: what they say of calls like them, of others, and that a pack keeps it."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.fitting.few_points import Measured, fit_points, point_rows
from kernelsight.kernels.points import (
    MOST_DELTA,
    PARTS,
    Places,
    covariance,
    joined,
    mean_of,
    places,
    points_of,
    size_count,
)

CUBLAS = {"family": "gemm", "engine": "vllm", "implementation": "cublas", "dtype": "bf16"}
LINE = np.linspace(1.0, 8.0, 15)


def at(log_us: np.ndarray, size: float = 10.0, **words: str) -> Places:
    """Return calls at some times, all of one size."""
    named = CUBLAS | words
    return places(named, log_us, np.full((log_us.size, size_count(named["family"])), size))


def mean_after(points: Places, log_error: float, of: Places) -> np.ndarray:
    """Return the mean of some calls after points that all err by as much."""
    return mean_of(of, fit_points(Measured(points, np.full(points.size, log_error)))[of.family[0]])


def test_the_covariance_is_one() -> None:
    words = [{}, {"dtype": "fp8"}, {"engine": "trtllm"}, {"implementation": "marlin"}, {"family": "batched_gemm"}]
    where = joined([at(LINE, **one) for one in words])
    found = covariance(where, where)
    assert np.allclose(found, found.T)
    assert np.linalg.eigvalsh(found).min() > -1e-9
    assert (covariance(where.at([0]), where) == found[[0]]).all()


def test_calls_share_the_more_the_more_they_have_in_common() -> None:
    first, now = at(LINE[:1]), LINE[:1]
    shared = [
        covariance(first, one)[0, 0]
        for one in (
            at(now),
            at(now, engine="trtllm"),
            at(now, size=14.0),
            at(now, implementation="marlin"),
            at(now, family="moe"),
            at(now + 6.0, family="moe"),
        )
    ]
    assert shared == sorted(shared, reverse=True) and len(set(shared)) == len(shared)
    assert shared[-1] == pytest.approx(PARTS.gpu**2, rel=0.01)


def test_points_move_calls_near_them_most_and_other_families_least() -> None:
    near = mean_after(at(LINE), 0.4, at(LINE[7:8]))[0]
    other = mean_after(at(LINE), 0.4, at(LINE[7:8], implementation="marlin"))[0]
    assert 0.3 < near < 0.4 and 0.0 < other < near
    both = joined([at(LINE), at(LINE[:1], family="moe")])
    fitted = fit_points(Measured(both, np.append(np.full(LINE.size, 0.4), 0.0)))
    assert 0.0 < mean_of(at(LINE[7:8], family="moe"), fitted["moe"])[0] < other


def test_no_points_move_a_call_by_more_than_a_factor_of_twenty() -> None:
    assert mean_after(at(LINE), 50.0, at(LINE)).max() == MOST_DELTA


def test_a_pack_keeps_what_points_say() -> None:
    where = joined([at(LINE), at(LINE, engine="trtllm"), at(LINE, family="moe")])
    fitted = fit_points(Measured(where, np.sin(np.arange(where.size))))
    again = points_of(point_rows("gemm", "l4", fitted["gemm"], "a test"))
    asked = at(LINE + 0.3, size=11.0)
    assert np.allclose(mean_of(asked, again), mean_of(asked, fitted["gemm"]), atol=1e-5)
    assert [again.count(kernel) for kernel in ("vllm|cublas|bf16", "trtllm|cublas|bf16", "sglang|cublas|bf16")] == [
        LINE.size, LINE.size, 0
    ]  # fmt: skip
