"""Scores of simulated runs by campaign (a laboratory, a client and a method), on the metrics that each one measured.

Campaigns that measure a saturated loop (all users in flight) leave out its first prompts and its last requests. If a
run has hardly more requests than users, most of it is the latter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelsight.evaluation.runs.run_scores import is_scored_separately, score, stated_again

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


# name of this prediction, next to columns of scenario_summary
FULL_THROUGHPUT = "full_output_throughput"
# a window is saturated if this share of the users runs; from the first one on in whose mean step this share decodes
RUNNING, DECODING = 0.9, 0.8
# saturated windows, with the output tokens of their steps
FULL_WINDOWS = f"""
select scenario_id, "window", tokens, lasting_s
from (
  select scenario_id, "window", sum(decode_tokens) as tokens, max(end_ns - start_ns) / 1e9 as lasting_s,
         sum(running_us * 1e3 / (end_ns - start_ns)) / any_value(max_concurrency) as running,
         sum(decode_tokens / greatest(steps, 1)) / any_value(max_concurrency) as decoding
  from serving_windows
  join scenarios using (scenario_id)
  where end_ns > start_ns
  group by scenario_id, "window"
)
where running >= {RUNNING}
qualify "window" >= min(case when decoding >= {DECODING} then "window" end) over (partition by scenario_id)
"""
# decode tokens x tokens / (tokens - 1): the first token of a request comes from its prefill step
TOKENS_QUERY = f"""
with full_windows as ({FULL_WINDOWS}),
rates as (select scenario_id, sum(tokens) / sum(lasting_s) as tokens_per_s from full_windows group by scenario_id)
select scenario_id, tokens_per_s * tokens / greatest(tokens - 1, 1) as tokens_per_s
from rates
join (select scenario_id, output_throughput / request_throughput as tokens from scenario_summary) using (scenario_id)
"""


def full_throughputs(session: Session) -> dict[str, float]:
    """Return the output throughput, tokens/s, of saturated closed loops by scenario_id; others are left out."""
    return {row["scenario_id"]: row["tokens_per_s"] for row in session.query(TOKENS_QUERY).to_pylist()}


class Metric(NamedTuple):
    """A metric of a run: its measured column, its predicted column, and the metric whose interval it has."""

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
# predicted columns for clients whose ITL statistics are over the mean gap of each request, which is its TPOT; a mean
# that is weighted by tokens is the mean over gaps again
ITL_COLUMNS = {
    "requests": {"itl_p50_ms": "tpot_p50_ms", "itl_mean_ms": "tpot_mean_ms"},
    "tokens": {"itl_p50_ms": "tpot_p50_ms"},
}
# campaigns of which a fifth, drawn by run id, is for fitting and never scored
WITH_FITTING_FIFTH = ("inferencex", "gap_analysis")


def compared(run: Mapping[str, Any], served: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return measured, predicted, error, low, high and covered, by metric that the run measured.

    ``served``: ``predicted``, the simulated figures by column, and ``factors``, (low, high) of their 90 % intervals.
    Errors are predicted / measured - 1.
    """
    by_metric = {}
    for name, metric in METRICS.items():
        column = ITL_COLUMNS.get(run.get("itl_over") or "", {}).get(metric.predicted, metric.predicted)
        measured, predicted = run.get(metric.measured), served["predicted"].get(column)
        if measured is None or predicted is None:
            continue
        if name == "throughput" and run.get("while_full"):
            # a loop that is never saturated, its KV cache being too small: users get their tokens within one E2E each
            tokens = predicted / served["predicted"]["request_throughput"]
            full_throughput = 1e3 * run["max_concurrency"] * tokens / served["predicted"]["e2e_mean_ms"]
            predicted = served["predicted"].get(FULL_THROUGHPUT, full_throughput)
        low, high = served["factors"].get(metric.interval, (1.0, 1.0))
        by_metric[name] = {
            "measured": measured,
            "predicted": predicted,
            "error": predicted / measured - 1.0,
            "low": low * predicted,
            "high": high * predicted,
            "covered": low * predicted <= measured <= high * predicted,
        }
    return by_metric


def scored_of_campaigns(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the runs that campaigns are scored on: simulated, without duplicates and without the fitting fifth."""
    candidates = [row for row in rows if row.get("compared") and not is_scored_separately(row)]
    duplicates = stated_again(candidates)
    return [
        row
        for row in candidates
        if row["run_id"] not in duplicates and not (row["fitting"] and row["campaign"] in WITH_FITTING_FIFTH)
    ]


def campaign_scores(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return scores by campaign and metric: n, APE (median, mean, 90th percentile), bias, coverage of intervals."""
    campaigns: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        for name, comparison in row["compared"].items():
            campaigns.setdefault(row["campaign"], {}).setdefault(name, []).append(comparison)
    return {
        campaign: {
            name: score([comparison["error"] for comparison in metrics[name]])
            | {"coverage_90": float(np.mean([comparison["covered"] for comparison in metrics[name]]))}
            for name in METRICS
            if name in metrics
        }
        for campaign, metrics in sorted(campaigns.items())
    }
