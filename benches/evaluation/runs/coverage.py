"""Coverage of prediction intervals on measured runs: covered share, width, and the spread that is missing in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from kernelsight.laboratory.runs.label_coverage import e2e_ms
from kernelsight.serving.engine.host import Z_90

METRICS = ("ttft", "tpot", "e2e")
# resolution of fitted spreads
STEP = 0.005
# share of the runs fitted to that intervals cover: the least that covers 90 % of the runs of campaigns left out
TARGETS = {"ttft": 0.92, "tpot": 0.9, "e2e": 0.9}


def logs_of(rows: Iterable[Mapping[str, Any]], metric: str) -> np.ndarray:
    """Return log(measured / predicted), and the log widths of the interval below and above, shape [runs, 3]."""
    logs = []
    for run in rows:
        measured_ms = run["ttft_ms"], run["tpot_ms"]
        predicted_ms = run["ttft_mean_ms"], run["tpot_mean_ms"]
        if metric == "e2e":
            measured, predicted = e2e_ms(run, *measured_ms), e2e_ms(run, *predicted_ms)
        else:
            metric_number = METRICS.index(metric)
            measured, predicted = measured_ms[metric_number], predicted_ms[metric_number]
        low, high = run["interval_factors"][metric]
        logs.append((math.log(measured / predicted), -math.log(low), math.log(high)))
    return np.array(logs).reshape(-1, 3)


def coverage(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return by metric: coverage_90, the share of runs within their interval, and width_90, its median p95 / p05.

    ``width_fixed``: p95 / p05 of intervals of one constant width that have the same coverage on these runs.
    """
    rows, by_metric = list(rows), {}
    for metric in METRICS:
        logs = logs_of(rows, metric)
        if not len(logs):
            by_metric[metric] = dict.fromkeys(("coverage_90", "width_90", "width_fixed"))
            continue
        log_errors, below, above = logs.T
        covered = float(np.mean((-log_errors <= below) & (log_errors <= above)))
        fixed = np.quantile(np.abs(log_errors), covered, method="inverted_cdf")
        by_metric[metric] = {
            "coverage_90": covered,
            "width_90": float(np.exp(np.median(below + above))),
            "width_fixed": float(np.exp(2.0 * fixed)),
        }
    return by_metric


def spread_lacking(rows: Iterable[Mapping[str, Any]], metric: str, held: float = 0.0) -> float:
    """Return the standard deviation of log(measured / predicted) that makes intervals cover TARGETS of runs.

    ``held``: the spread that these intervals already contain, which is removed first.

    >>> run = {"ttft_ms": 2.0, "tpot_ms": 1.0, "ttft_mean_ms": 1.0, "tpot_mean_ms": 1.0, "osl": 2}
    >>> spread_lacking([run | {"interval_factors": {"ttft": (1.0, 1.0)}}] * 3, "ttft")
    0.425
    """
    log_errors, below, above = logs_of(rows, metric).T
    below, above = _wider(below, above, -held)
    for number in range(1000):
        wider_below, wider_above = _wider(below, above, number * STEP)
        if np.mean((log_errors <= wider_above) & (-log_errors <= wider_below)) >= TARGETS[metric]:
            break
    return round(number * STEP, 3)


def with_spread_of_others(
    rows: Iterable[Mapping[str, Any]],
    others: Iterable[Mapping[str, Any]],
    group_of: Callable[[Mapping[str, Any]], tuple],
    held: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Return runs with the spread in their intervals replaced by that of other groups' runs (cross-validation).

    ``others``: the runs that spreads are fitted to, each time without the own group; ``held``: the spread that the
    intervals contain, by metric. A group without others keeps its intervals.
    """
    members, others = {}, list(others)
    for row in rows:
        members.setdefault(group_of(row), []).append(row)
    respread = []
    for group, group_rows in members.items():
        other_rows = [row for row in others if group_of(row) != group]
        spreads = (
            {metric: spread_lacking(other_rows, metric, held[metric]) for metric in METRICS} if other_rows else held
        )
        for row in group_rows:
            factors = {}
            for metric, (low, high) in row["interval_factors"].items():
                without_spread = _wider(-math.log(low), math.log(high), -held[metric])
                below, above = _wider(*without_spread, spreads[metric])
                factors[metric] = (math.exp(-below), math.exp(above))
            respread.append({**row, "interval_factors": factors})
    return respread


def _wider(below: Any, above: Any, log_sd: float) -> tuple[Any, Any]:
    """Return the log widths of an interval with a spread added in squares; a negative spread is removed."""
    more = math.copysign((Z_90 * log_sd) ** 2, log_sd)
    return tuple(np.sqrt(np.maximum(half**2 + more, 0.0)) for half in (below, above))
