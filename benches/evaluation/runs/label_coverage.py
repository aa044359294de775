"""Coverage of 90 % intervals by what is known of a prediction: its label, vendor, engine, campaign, class of model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from kernelsight.evaluation.runs.run_scores import measured_both

# metrics of a run's comparison by the quantity that they measure; of several the first that the run measured
METRICS = {
    "ttft": ("ttft_mean",),
    "tpot": ("tpot_mean", "itl_mean", "itl_p50"),
    "e2e": ("e2e_mean",),
    "throughput": ("throughput",),
}
# ends of the bands of the measured share of GPU time, percent
BANDS = (20, 50, 80)
LABELS = {
    "all": lambda row: "all",
    "tier": lambda row: row["tier"],
    "measured share": lambda row: band(row["measured_share"]),
    "vendor": lambda row: row["vendor"],
    "engine": lambda row: row["engine"],
    "engine age": lambda row: f"{row['engine']} from {row['host_version']}",
    "campaign": lambda row: row["campaign"],
    "class": lambda row: "mixture of experts" if row["is_moe"] else "dense",
}


def e2e_ms(run: Mapping[str, Any], ttft_ms: float, tpot_ms: float) -> float:
    """Return the mean E2E of a run from its TTFT and TPOT, ms.

    >>> e2e_ms({"osl": 11}, 100.0, 5.0)
    150.0
    """
    return ttft_ms + tpot_ms * (run["osl"] - 1)


def band(share: float) -> str:
    """Return the band of a measured share of GPU time.

    >>> band(0.0), band(0.3), band(0.8), band(1.0)
    ('0 to 20 %', '20 to 50 %', '80 to 100 %', '80 to 100 %')
    """
    ends = (0, *BANDS, 100)
    number = sum(100.0 * share >= end for end in BANDS)
    return f"{ends[number]} to {ends[number + 1]} %"


def label_coverage(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per label, value and metric: n, coverage_90, width_90 (median p95 / p05) and median_ape.

    ``rows``: scored runs with ``compared``, such as of ``scored_of_campaigns``.
    """
    members: dict[tuple[str, str, str], list[tuple[float, bool, float]]] = {}
    for row in rows:
        for metric, outcome in _outcomes(row).items():
            for label, value_of in LABELS.items():
                members.setdefault((label, value_of(row), metric), []).append(outcome)
    order = {name: place for names in (LABELS, METRICS) for place, name in enumerate(names)}
    ordered = sorted(members.items(), key=lambda item: (order[item[0][0]], item[0][1], order[item[0][2]]))
    found = []
    for (label, value, metric), outcomes in ordered:
        errors, covered, widths = zip(*outcomes, strict=True)
        key = {"label": label, "value": value, "metric": metric, "n": len(outcomes)}
        shares = {"coverage_90": float(np.mean(covered)), "width_90": float(np.median(widths))}
        found.append(key | shares | {"median_ape": float(np.median(np.abs(errors)))})
    return found


def _outcomes(row: Mapping[str, Any]) -> dict[str, tuple[float, bool, float]]:
    """Return (error, whether its interval contains the measurement, high / low) of a run by metric.

    E2E that a client did not report follows from its TTFT, TPOT and output length.
    """
    outcomes = {}
    for metric, names in METRICS.items():
        for name in [name for name in names if name in row["compared"]][:1]:
            comparison = row["compared"][name]
            outcomes[metric] = comparison["error"], comparison["covered"], comparison["high"] / comparison["low"]
    if "e2e" not in outcomes and measured_both(row):
        measured = e2e_ms(row, row["ttft_ms"], row["tpot_ms"])
        predicted = e2e_ms(row, row["ttft_mean_ms"], row["tpot_mean_ms"])
        low, high = row["interval_factors"]["e2e"]
        outcomes["e2e"] = predicted / measured - 1.0, low * predicted <= measured <= high * predicted, high / low
    return outcomes
