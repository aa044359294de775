"""Plots of a backtest: predicted against measured times, error against load, error by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.evaluation.runs.run_scores import GROUP
from kernelsight.present.figures.files import figures_of
from kernelsight.present.page import Figure

METRICS = (("ttft", "TTFT"), ("tpot", "TPOT"))
SHOWN_RUNS = 20


def points(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of the upper plots: scored runs with measured and predicted times, ms, and errors, %."""
    return [
        {
            **{name: row[name] for name in ("run_id", "model", "gpu", "engine", "max_concurrency")},
            "kind": "mixture of experts" if row["is_moe"] else "dense",
            **{
                key: value
                for metric, _ in METRICS
                for key, value in (
                    (f"{metric}_measured", row[f"{metric}_ms"]),
                    (f"{metric}_predicted", row[f"{metric}_mean_ms"]),
                    (f"{metric}_error", 100.0 * row["errors"][metric]),
                )
            },
        }
        for row in rows
        if row.get("errors") and not row["fitting"] and not row.get("prefill_workers")
    ]


def group_points(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the points of the lower plot: median error, %, by group of runs, of KernelSight and AIConfigurator."""
    peer = report.get("peer", {}).get("groups", [])
    points = [("KernelSight", group, group) for group in report["groups"]]
    points += [("AIConfigurator", group, group["peer"]) for group in peer]
    return [
        {
            "group": " ".join(str(group[key] or "").split("/")[-1] for key in GROUP),
            "n": group["n"],
            "tool": tool,
            "metric": name,
            "median_ape": 100.0 * scores[metric]["median_ape"],
        }
        for tool, group, scores in points
        for metric, name in METRICS
        if group["n"] >= SHOWN_RUNS
    ]


def backtest_figures(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> list[Figure]:
    """Return figures of TTFT and TPOT, predicted against measured and error against load, then of groups of runs.

    Groups have ``SHOWN_RUNS`` runs or more. Errors above 200 % are drawn at the edge.
    """
    *of_runs, of_ttft, of_tpot = figures_of("backtest").values()
    scored, groups = points(rows), group_points(report)
    of_groups = [
        figure._replace(rows=rows_of_metric)
        for figure, (_, name) in zip((of_ttft, of_tpot), METRICS, strict=True)
        if (rows_of_metric := [row for row in groups if row["metric"] == name])
    ]
    return [*(figure._replace(rows=scored) for figure in of_runs), *of_groups]
