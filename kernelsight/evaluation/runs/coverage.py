"""Intervals against measured runs: how many they cover, how wide they are, and what spread they still lack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from kernelsight.serving.engine.host import Z_90

METRICS = ("ttft", "tpot", "e2e")
# steps in which the spread is searched for
STEP = 0.005


def e2e_ms(run: Mapping[str, Any], ttft_ms: float, tpot_ms: float) -> float:
    """Return the mean E2E time of a run, milliseconds.

    >>> e2e_ms({"osl": 11}, 100.0, 5.0)
    150.0
    """
    return ttft_ms + tpot_ms * (run["osl"] - 1)


def logs_of(rows: Iterable[Mapping[str, Any]], metric: str) -> np.ndarray:
    """Return log(measured / predicted), and how far below and above the interval reaches, shape [runs, 3]."""
    logs = []
    for run in rows:
        times = run["ttft_ms"], run["tpot_ms"]
        ours = run["ttft_mean_ms"], run["tpot_mean_ms"]
        if metric == "e2e":
            measured, predicted = e2e_ms(run, *times), e2e_ms(run, *ours)
        else:
            metric_number = METRICS.index(metric)
            measured, predicted = times[metric_number], ours[metric_number]
        low, high = run["interval_factors"][metric]
        logs.append((math.log(measured / predicted), -math.log(low), math.log(high)))
    return np.array(logs).reshape(-1, 3)


def coverage(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return by metric: the share of runs within their interval, its median p95 / p05, and that of one fixed factor.

    ``width_fixed``: p95 / p05 of the one factor on every prediction that covers as many of these runs.
    """
    rows, answer = list(rows), {}
    for metric in METRICS:
        logs = logs_of(rows, metric)
        if not len(logs):
            answer[metric] = dict.fromkeys(("coverage_90", "width_90", "width_fixed"))
            continue
        off, below, above = logs.T
        covered = float(np.mean((-off <= below) & (off <= above)))
        fixed = np.quantile(np.abs(off), covered, method="inverted_cdf")
        answer[metric] = {
            "coverage_90": covered,
            "width_90": float(np.exp(np.median(below + above))),
            "width_fixed": float(np.exp(2.0 * fixed)),
        }
    return answer


def spread_lacking(rows: Iterable[Mapping[str, Any]], metric: str, held: float = 0.0) -> float:
    """Return the standard deviation of log(measured / predicted) that makes intervals cover 90 % of runs.

    ``held``: the spread that is in these intervals already, and is taken out of them first.

    >>> run = {"ttft_ms": 2.0, "tpot_ms": 1.0, "ttft_mean_ms": 1.0, "tpot_mean_ms": 1.0, "osl": 2}
    >>> spread_lacking([run | {"interval_factors": {"ttft": (1.0, 1.0)}}] * 3, "ttft")
    0.425
    """
    off, below, above = logs_of(rows, metric).T
    below, above = _wider(below, above, -held)
    for number in range(1000):
        wider_below, wider_above = _wider(below, above, number * STEP)
        if np.mean((off <= wider_above) & (-off <= wider_below)) >= 0.9:
            break
    return round(number * STEP, 3)


def with_spread_of_others(
    rows: Iterable[Mapping[str, Any]],
    others: Iterable[Mapping[str, Any]],
    group_of: Callable[[Mapping[str, Any]], tuple],
    held: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Return runs whose intervals hold the spread of runs of other groups instead of the one they were served with.

    ``others``: the runs that a spread is fitted to, of which the own group's are left out each time; ``held``: the
    spread that all were served with, by metric. A group without others keeps its intervals.
    """
    members, others = {}, list(others)
    for row in rows:
        members.setdefault(group_of(row), []).append(row)
    answer = []
    for group, mine in members.items():
        rest = [row for row in others if group_of(row) != group]
        spreads = {metric: spread_lacking(rest, metric, held[metric]) for metric in METRICS} if rest else held
        for row in mine:
            factors = {}
            for metric, (low, high) in row["interval_factors"].items():
                bare = _wider(-math.log(low), math.log(high), -held[metric])
                below, above = _wider(*bare, spreads[metric])
                factors[metric] = (math.exp(-below), math.exp(above))
            answer.append({**row, "interval_factors": factors})
    return answer


def _wider(below: Any, above: Any, log_sd: float) -> tuple[Any, Any]:
    """Return how far an interval reaches with a spread beside it; a negative spread is taken out of it."""
    more = math.copysign((Z_90 * log_sd) ** 2, log_sd)
    return tuple(np.sqrt(np.maximum(half**2 + more, 0.0)) for half in (below, above))
