"""Plots of a backtest: predicted against measured times, error against load, error by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.evaluation.runs.run_scores import GROUP
from kernelsight.present.figures.chart import LOG, amount, chart, dashes, dots, kind, tips
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
    scored, groups = points(rows), group_points(report)
    figures = []
    for metric, name in METRICS:
        measured, predicted = f"{metric}_measured", f"{metric}_predicted"
        scatter = chart(
            dots(14, opacity=0.5),
            x=amount(measured, f"measured {name} (ms)", scale=LOG),
            y=amount(predicted, f"predicted {name} (ms)", scale=LOG),
            color=kind("engine"),
            tooltip=tips("run_id", measured, predicted),
        )
        load = chart(
            {"type": "boxplot", "size": 7, "outliers": {"size": 4}},
            {"calculate": f"min(datum.{metric}_error, 200)", "as": "error"},
            x=amount("max_concurrency", "concurrency", scale=LOG | {"base": 2}),
            y=amount("error", f"error of {name} (%)"),
            color=kind("kind"),
        )
        equal = chart(dashes(), x=amount(measured), y=amount(measured))
        figures += [
            Figure(f"{name}: predicted against measured", "", spec={"layer": [scatter, equal]}, rows=scored),
            Figure(f"{name}: error against load", "", spec=load, rows=scored),
        ]
    of_groups = chart(
        dots(40),
        x=amount("median_ape", "median error (%)", scale={"type": "symlog"}),
        y=kind("group", axis={"labelLimit": 400}),
        color=kind("tool"),
        shape=kind("tool"),
        tooltip=tips("group", "tool", "metric", "n", median_ape=".3g"),
    )
    figures += [
        Figure(f"{name}: median error of each group", "", spec=of_groups, rows=rows_of_metric)
        for _, name in METRICS
        if (rows_of_metric := [row for row in groups if row["metric"] == name])
    ]
    return figures
