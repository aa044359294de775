"""Prediction errors by latency metric: bias, absolute percentage errors, coverage of 90 % intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed

METRICS = ("ttft", "tpot", "e2e")
# 90 % intervals count as calibrated if they cover this share of the measured times of every metric
AS_CLAIMED = 0.85


def predicted_of(replayed: Replayed, output_tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return predicted TTFT, TPOT and E2E by metric, ms, shape [requests] each; NaN where a request has none."""
    decode = (replayed.finish_ns - replayed.first_ns) / 1e6
    tpot = np.divide(decode, output_tokens - 1.0, out=np.full(decode.size, np.nan), where=output_tokens > 1.0)
    return {"ttft": replayed.ttft_ms, "tpot": np.where(replayed.served, tpot, np.nan), "e2e": replayed.e2e_ms}


def measured_by_metric(measured: Measured) -> dict[str, np.ndarray]:
    """Return measured TTFT, TPOT and E2E by metric, ms, shape [requests] each; NaN where a request failed."""
    times = {"ttft": measured.ttft_ms, "tpot": measured.tpot_ms, "e2e": measured.e2e_ms}
    return {name: np.where(measured.ok, values, np.nan) for name, values in times.items()}


def errors_of(
    measured: np.ndarray, predicted: np.ndarray, interval: tuple[float, float] | None = None
) -> dict[str, Any]:
    """Return means, absolute percentage errors (median, 90th percentile) and bias of one metric's predictions.

    ``measured``, ``predicted``: times of each request, in one unit; pairs with NaN are skipped.
    ``bias``: predicted over measured mean, less 1. ``coverage_90``: the share of requests measured within the
    prediction times the factors of ``interval``, None without an interval.
    """
    in_both = np.isfinite(measured) & np.isfinite(predicted) & (measured > 0.0)
    if not in_both.any():
        return {"n": 0, **dict.fromkeys(("measured", "predicted", "median_ape", "p90_ape", "bias", "coverage_90"))}
    covered = None
    if interval:
        ratio = measured[in_both] / np.maximum(predicted[in_both], 1e-9)
        covered = float(np.mean((ratio >= interval[0]) & (ratio <= interval[1])))
    ape = np.abs(predicted[in_both] / measured[in_both] - 1.0)
    return {
        "n": int(in_both.sum()),
        "measured": float(measured[in_both].mean()),
        "predicted": float(predicted[in_both].mean()),
        "median_ape": float(np.median(ape)),
        "p90_ape": float(np.quantile(ape, 0.9)),
        "bias": float(predicted[in_both].mean() / measured[in_both].mean() - 1.0),
        "coverage_90": covered,
    }


def interval_factors(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return the 90 % prediction interval of a request by metric, as factors (low, high); rows of log_intervals."""
    return {row["metric"]: (row["request_low"], row["request_high"]) for row in rows}


def are_as_claimed(errors: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the 90 % intervals of a prediction are calibrated: they cover AS_CLAIMED of every metric's times.

    ``errors``: of each metric, as ``errors_of`` returns them; metrics without measured requests are skipped.

    >>> are_as_claimed([{"n": 9, "coverage_90": 0.9}, {"n": 0, "coverage_90": None}])
    True
    >>> are_as_claimed([{"n": 9, "coverage_90": 1.0}, {"n": 9, "coverage_90": 0.6}])
    False
    """
    coverages = [metric_errors["coverage_90"] for metric_errors in errors if metric_errors["n"]]
    return bool(coverages) and all(coverage is not None and coverage >= AS_CLAIMED for coverage in coverages)


def as_distribution(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return values reordered to the ranks of ``like``: the smallest beside the smallest; NaN where either is NaN.

    >>> as_distribution(np.array([3.0, 1.0, 2.0]), np.array([10.0, 20.0, 30.0])).tolist()
    [1.0, 2.0, 3.0]
    """
    in_both = np.flatnonzero(np.isfinite(values) & np.isfinite(like))
    reordered = np.full(values.size, np.nan)
    reordered[in_both[np.argsort(like[in_both], kind="stable")]] = np.sort(values[in_both])
    return reordered


def cached_of(measured: Measured, replayed: Replayed) -> dict[str, int]:
    """Return total cached tokens, measured and predicted; empty if the log reports none.

    Tokens have no clock noise: a difference means that the prompts or the cache differ from what the replay assumes.
    """
    in_both = measured.ok & replayed.served & np.isfinite(measured.cached_tokens)
    if not in_both.any():
        return {}
    return {
        "measured": int(measured.cached_tokens[in_both].sum()),
        "predicted": int(replayed.cached_tokens[in_both].sum()),
    }


def concurrency_of(measured: Measured) -> np.ndarray:
    """Return the number of requests in flight when each was sent, by the log's own times, shape [requests]."""
    ends_s = np.sort(measured.last_s)
    sent_before = np.argsort(np.argsort(measured.sent_s, kind="stable"), kind="stable")
    return sent_before - np.searchsorted(ends_s, measured.sent_s)
