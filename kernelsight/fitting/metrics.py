"""Error metrics of predicted latencies (MAPE, bias, coverage of intervals): p predicted, m measured, as fractions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

ERRORS = ("mape", "median_ape", "p90_ape", "time_weighted_ape", "bias", "coverage_90", "width_90")
METRICS = ("n", *ERRORS)
Score = dict[str, float | int | None]


def score(
    measured: np.ndarray, predicted: np.ndarray, p05: np.ndarray | None = None, p95: np.ndarray | None = None
) -> Score:
    """Return all metrics over the rows that have a prediction; None where there are none, or no intervals.

    APE = |p - m| / m, of which mape is the mean, median_ape and p90_ape the quantiles (by linear interpolation);
    bias = mean (p - m) / m; time_weighted_ape = sum |p - m| / sum m; coverage_90 = share of m in [p05, p95];
    width_90 = median p95 / p05.

    >>> s = score(np.array([10.0, 10.0, 20.0, 40.0]), np.array([11.0, 8.0, 20.0, np.nan]))
    >>> s["n"], round(s["mape"], 4), round(s["median_ape"], 4), round(s["bias"], 4), round(s["time_weighted_ape"], 4)
    (3, 0.1, 0.1, -0.0333, 0.075)
    """
    is_predicted = np.isfinite(predicted)
    measured, predicted = measured[is_predicted], predicted[is_predicted]
    errors: Score = {"n": int(measured.size), **dict.fromkeys(ERRORS)}
    if not measured.size:
        return errors
    relative = (predicted - measured) / measured
    error = np.abs(relative)
    errors["mape"] = float(error.mean())
    errors["median_ape"], errors["p90_ape"] = (float(value) for value in np.quantile(error, (0.5, 0.9)))
    errors["time_weighted_ape"] = float(np.abs(predicted - measured).sum() / measured.sum())
    errors["bias"] = float(relative.mean())
    if p05 is not None and p95 is not None:
        p05, p95 = p05[is_predicted], p95[is_predicted]
        errors["coverage_90"] = float(((measured >= p05) & (measured <= p95)).mean())
        errors["width_90"] = float(np.median(p95 / p05))
    return errors


def mean_of(scores: Iterable[Mapping[str, float | int | None]]) -> Score:
    """Return the unweighted mean of each metric over the scores that have rows; n is the sum.

    >>> mean_of([score(np.array([10.0]), np.array([11.0])), score(np.array([10.0]), np.array([13.0]))])["mape"]
    0.2
    """
    filled = [metrics for metrics in scores if metrics["n"]]
    means: Score = {"n": sum(int(metrics["n"] or 0) for metrics in filled)}
    for name in ERRORS:
        values = [metrics[name] for metrics in filled if metrics[name] is not None]
        means[name] = float(np.mean(values)) if values else None
    return means
