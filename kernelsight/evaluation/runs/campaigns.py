"""Scores by campaign: a laboratory, a client and a method. What each campaign measured is what is scored of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.evaluation.runs.full_loops import FULL_THROUGHPUT
from kernelsight.evaluation.runs.scores import is_scored_separately, score, stated_again


class Metric(NamedTuple):
    """A metric of a run: its measured column, our column, and the interval that our figure has."""

    measured: str
    predicted: str
    interval: str


METRICS = {
    "ttft_mean": Metric("ttft_ms", "ttft_mean_ms", "ttft"),
    "tpot_mean": Metric("tpot_ms", "tpot_mean_ms", "tpot"),
    "itl_p50": Metric("itl_p50_ms", "itl_p50_ms", "tpot"),
    "itl_mean": Metric("itl_mean_ms", "itl_mean_ms", "tpot"),
    "e2e_mean": Metric("e2e_mean_ms", "e2e_mean_ms", "e2e"),
    "e2e_p99": Metric("e2e_p99_ms", "e2e_p99_ms", "e2e_p99"),
    "throughput": Metric("output_throughput", "output_throughput", "output_throughput"),
}
# our columns for clients that take the mean gap of each request first, which is its TPOT; a mean over tokens is that
# over gaps again
ITL_COLUMNS = {
    "requests": {"itl_p50_ms": "tpot_p50_ms", "itl_mean_ms": "tpot_mean_ms"},
    "tokens": {"itl_p50_ms": "tpot_p50_ms"},
}
ORDER = ("engine", "model", "gpu", "tp", "run_id")
# campaigns of which a fifth, drawn by the id of the run, is for fitting and never scored
WITH_FITTING_FIFTH = ("inferencex", "gap_analysis")


def spread_runs(runs: Sequence[Mapping[str, Any]], most: int) -> list[int]:
    """Return the numbers of at most this many runs of each campaign, spread evenly over engines, models and GPUs.

    Runs that are scored separately are left out.

    >>> runs = [dict.fromkeys(ORDER, 0) | {"campaign": "c", "run_id": str(number)} for number in range(9)]
    >>> spread_runs(runs, 3)
    [1, 4, 7]
    """
    members: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        if not is_scored_separately(run):
            members.setdefault(run["campaign"], []).append(number)
    chosen = []
    for numbers in members.values():
        ordered = sorted(numbers, key=lambda number: tuple(str(runs[number][name]) for name in ORDER))
        every = max(len(ordered) / most, 1.0)
        chosen += [ordered[int((rank + 0.5) * every)] for rank in range(min(len(ordered), most))]
    return sorted(chosen)


def compared(run: Mapping[str, Any], served: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return by metric, of those that the run measured: measured, predicted, error, interval, whether that holds it.

    ``served``: predictions of the run by column, named ``predicted``, and the factors of their intervals.
    """
    answer = {}
    for name, metric in METRICS.items():
        column = ITL_COLUMNS.get(run.get("itl_over") or "", {}).get(metric.predicted, metric.predicted)
        measured, predicted = run.get(metric.measured), served["predicted"].get(column)
        if measured is None or predicted is None:
            continue
        if name == "throughput" and run.get("while_full"):
            # one that is never full, as its cache is too small: every user gets its tokens in the time of a request
            tokens = predicted / served["predicted"]["request_throughput"]
            full_throughput = 1e3 * run["max_concurrency"] * tokens / served["predicted"]["e2e_mean_ms"]
            predicted = served["predicted"].get(FULL_THROUGHPUT, full_throughput)
        low, high = served["factors"].get(metric.interval, (1.0, 1.0))
        answer[name] = {
            "measured": measured,
            "predicted": predicted,
            "error": predicted / measured - 1.0,
            "low": low * predicted,
            "high": high * predicted,
            "covered": low * predicted <= measured <= high * predicted,
        }
    return answer


def scored_of_campaigns(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the runs that campaigns are scored on: served, each measurement once, none of the fitting fifth."""
    together = [row for row in rows if row.get("compared") and not is_scored_separately(row)]
    again = stated_again(together)
    return [
        row
        for row in together
        if row["run_id"] not in again and not (row["fitting"] and row["campaign"] in WITH_FITTING_FIFTH)
    ]


def campaign_scores(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return by campaign and metric: n, median APE, MAPE, 90th percentile of APE, bias, and coverage of intervals."""
    campaigns: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        for name, each in row["compared"].items():
            campaigns.setdefault(row["campaign"], {}).setdefault(name, []).append(each)
    return {
        campaign: {
            name: score([each["error"] for each in metrics[name]])
            | {"coverage_90": float(np.mean([each["covered"] for each in metrics[name]]))}
            for name in METRICS
            if name in metrics
        }
        for campaign, metrics in sorted(campaigns.items())
    }
