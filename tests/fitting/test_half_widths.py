"""Intervals cover what they were calibrated on, and count every fold the same."""

import numpy as np
import pytest

from kernelsight.fitting.half_widths import LEAST_HALF, USUAL_HALF, fit_intervals
from kernelsight.fitting.pack_rows import correction_arrays, interval_rows
from kernelsight.kernels.intervals import ALL, KNOTS_US, MOST_HALF, half_widths_for, spread


def _errors(rows: int = 6000) -> tuple[np.ndarray, np.ndarray]:
    """Errors that shrink from 0.3 at short kernels to 0.05 at long ones."""
    random = np.random.default_rng(0)
    latency = 2.0 ** random.uniform(1.0, 11.0, rows)
    return random.normal(0.0, 1.0, rows) * (0.05 + 0.5 / np.sqrt(latency)), latency


def test_nine_in_ten_rows_are_covered_and_short_kernels_scatter_more():
    error, latency = _errors()
    halves = fit_intervals(error, latency, ["bf16"] * error.size)["bf16"]
    inside = np.abs(error) <= np.log(spread(np, latency, halves))
    assert 0.88 <= inside.mean() <= 0.93
    for low, high in ((0, 16), (16, 256), (256, 5000)):
        assert 0.85 <= inside[(latency >= low) & (latency < high)].mean() <= 0.96
    assert halves[0] > 2.0 * halves[-1]


def test_every_fold_counts_the_same_however_many_rows_it_has():
    error, latency = _errors()
    folds = np.where(np.arange(error.size) % 2 == 0, "ada", "hopper")
    worse = np.where(folds == "ada", 3.0 * error, error)
    even = fit_intervals(worse, latency, ["bf16|seen"] * error.size, folds)["bf16|seen"]
    rare = (folds == "hopper") | (np.arange(error.size) % 20 == 0)
    uneven = fit_intervals(worse[rare], latency[rare], ["bf16|seen"] * rare.sum(), folds[rare])["bf16|seen"]
    assert uneven == pytest.approx(even, rel=0.08)
    # as many rows of each count as they are where they are exchangeable
    assert fit_intervals(worse[rare], latency[rare], ["bf16"] * rare.sum())["bf16"][2] < 0.8 * uneven[2]


def test_few_folds_are_drawn_to_what_is_usual_and_more_folds_less():
    def half(error: float, kind: str, *folds: str) -> float:
        rows = 2000 * len(folds)
        names = np.repeat(folds, 2000)
        return fit_intervals(np.full(rows, error), np.full(rows, 20.0), [f"fp8|{kind}"] * rows, names)[f"fp8|{kind}"][1]

    for kind, usual in USUAL_HALF.items():
        assert half(0.05, kind, "ada") == pytest.approx(0.05**0.2 * usual**0.8)
        assert half(0.05, kind, "ada", "hopper") == pytest.approx(0.05 ** (2 / 6) * usual ** (4 / 6))
        assert half(1.5, kind, "ada") == pytest.approx(1.5**0.2 * usual**0.8)


def test_a_group_without_rows_takes_those_of_kernels_alike_seen():
    error, latency = np.repeat([0.1, 1.0], 5000), np.full(10_000, 20.0)
    names, folds = np.repeat(["bf16|seen", "bf16|unseen"], 5000), ["ada", "hopper"] * 5000
    curves = fit_intervals(error, latency, names, folds)
    seen, unseen = half_widths_for(curves, ["fp8|seen", "fp8|unseen"])
    assert seen == pytest.approx(curves["bf16|seen"], rel=0.1) and unseen == pytest.approx(
        curves["bf16|unseen"], rel=0.1
    )
    assert (half_widths_for(curves, ["other"])[0] == curves[ALL]).all()


def test_a_group_of_few_rows_stays_near_all_groups():
    error, latency = np.full(500, 0.1), np.full(500, 20.0)
    error[:2] = 1.0
    halves = fit_intervals(error, latency, ["rare"] * 2 + ["common"] * 498)
    assert halves["rare"].max() < 0.2
    assert halves["common"] == pytest.approx(np.full(len(KNOTS_US), 0.1))


def test_nothing_measured_gives_the_widest_interval_and_perfect_predictions_a_narrow_one():
    assert (fit_intervals(np.array([np.nan]), np.array([1.0]), ["bf16"])[ALL] == MOST_HALF).all()
    assert (fit_intervals(np.zeros(100), np.full(100, 9.0), ["bf16"] * 100)["bf16"] == LEAST_HALF).all()


def test_rows_of_a_pack_hold_the_curves():
    error, latency = _errors()
    halves = fit_intervals(error, latency, ["bf16"] * error.size)
    rows = correction_arrays(interval_rows("gemm", halves, "a test")[::-1])
    assert {row["dtype"]: row["array"] for row in rows} == {
        name: pytest.approx(curve.tolist()) for name, curve in halves.items()
    }
