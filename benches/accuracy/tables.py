"""Markdown tables of an evaluation: errors in percent, mean / median, beside every baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BASELINES = {
    "roofline": "roofline",
    "roofline_waves": "× waves",
    "affine_roofline": "a·roofline + t0",
    "nearest_gpu": "H100 × ratio",
}
SHAPES = {"serving": "serving shapes", "grid": "whole grid"}
Report = Mapping[str, Any]


def summary(reports: Mapping[str, Report], shapes: str) -> str:
    """Return a row per split: the mean over covered cells of rows of seen implementations, then of all rows."""
    head = [
        "split",
        "cells",
        "rows",
        "MAPE / median",
        "p90",
        "time-weighted",
        "bias",
        "covers",
        "width",
        "unseen impl.",
        "all kernels",
        "nothing of the target",
    ]
    rows = []
    for name, report in reports.items():
        score = report["overall"][shapes]
        cells = sum(1 for cell in report["families"] if cell["seen"][shapes]["n"])
        rows.append(
            [
                *(name, str(cells), f"{score['n']:,}", pair(score), percent(score["p90_ape"])),
                *(percent(score["time_weighted_ape"]), percent(score["bias"]), percent(score["coverage_90"])),
                *(ratio(score["width_90"]), pair(report["unseen_implementation"][shapes])),
                *(pair(report["covered"][shapes]), pair(report["nothing_of_target"]["covered"][shapes])),
                *(pair(report["overall_baselines"][baseline][shapes]) for baseline in BASELINES),
            ]
        )
    return markdown([*head, *BASELINES.values()], rows)


def cells(report: Report, shapes: str) -> str:
    """Return a row per cell and part: seen and unseen implementations of covered cells, then uncovered cells."""
    head = ["family", "dtype", "part", "rows", "MAPE / median", "p90", "bias", "> 20 µs", "covers", "width"]
    rows = []
    for cell in report["families"]:
        rows += [_row(cell, part, cell[part], shapes) for part in ("seen", "unseen") if cell[part][shapes]["n"]]
    rows += [_row(cell, "uncovered", cell, shapes) for cell in report["uncovered"] if cell[shapes]["n"]]
    return markdown([*head, *BASELINES.values()], rows)


def _row(cell: Report, part: str, scores: Report, shapes: str) -> list[str]:
    """Return the table row of one part of a cell."""
    score = scores[shapes]
    return [
        *(cell["family"], cell["dtype"], part, f"{score['n']:,}", pair(score), percent(score["p90_ape"])),
        *(percent(score["bias"]), pair(scores["above_20_us"][shapes]), percent(score["coverage_90"])),
        *(ratio(score["width_90"]), *(pair(scores["baselines"][name][shapes]) for name in BASELINES)),
    ]


def folds(reports: Mapping[str, Report], shapes: str) -> str:
    """Return a row per cell and a column per fold: model (affine baseline), on the rows of each held-out generation.

    A cell may be covered in one fold and not in another: both are shown.
    """
    texts_of: dict[tuple[str, str], dict[str, str]] = {}
    for name, report in reports.items():
        for cell in (*report["families"], *report["uncovered"]):
            if cell[shapes]["n"]:
                affine = pair(cell["baselines"]["affine_roofline"][shapes])
                text = f"{pair(cell[shapes])} ({affine})"
                texts_of.setdefault((cell["family"], cell["dtype"]), {})[name] = text
    rows = [[*key, *(texts.get(name, "") for name in reports)] for key, texts in sorted(texts_of.items())]
    return markdown(["family", "dtype", *reports], rows)


def remeasured(reports: Mapping[str, Report]) -> str:
    """Return the error floors: differences of two measurements of one kernel on the scored GPUs."""
    rows: dict[tuple[str, str], list[str]] = {}
    for report in reports.values():
        gpus = ", ".join(report["split"]["test_gpus"])
        for floor in report["remeasurement"]:
            count = f"{floor['grid']['n']:,}"
            rows[gpus, floor["what"]] = [gpus, floor["family"], floor["what"], count, *map(pair, _both(floor))]
    return markdown(["GPU", "family", "what", "pairs", *SHAPES.values()], list(rows.values()))


def beaten(report: Report) -> str:
    """Return the cells in which a·roofline + t0 or the nearest GPU is better, by mean or median error."""
    misses = []
    for cell in report["families"]:
        for part in ("seen", "unseen"):
            for baseline in ("affine_roofline", "nearest_gpu"):
                for shapes in SHAPES:
                    there = cell[part]["baselines"][baseline]
                    worse = [
                        f"{metric} {percent(there['model_there'][shapes][metric])} to {percent(there[shapes][metric])}"
                        for metric in ("mape", "median_ape")
                        if there[shapes]["n"] and there["model_there"][shapes][metric] > there[shapes][metric]
                    ]
                    if worse:
                        where = f"{cell['family']} {cell['dtype']}, {part}, {SHAPES[shapes]}"
                        misses.append(f"- {where}: {baseline} is better ({', '.join(worse)})")
    return "\n".join(misses) or "Every covered cell, seen or not, is better than both in MAPE and median."


def _both(pairs: Report) -> list[Any]:
    """Return the scores of serving shapes and of the whole grid."""
    return [pairs[shapes] for shapes in SHAPES]


def pair(score: Mapping[str, Any]) -> str:
    """Return "MAPE / median" in per cent.

    >>> pair({"n": 3, "mape": 0.1234, "median_ape": 0.081}), pair({"n": 0, "mape": None, "median_ape": None})
    ('12.3 / 8.1', '–')
    """
    return f"{100 * score['mape']:.1f} / {100 * score['median_ape']:.1f}" if score["n"] else "–"


def percent(value: float | None) -> str:
    """Return a fraction in per cent with one decimal."""
    return "–" if value is None else f"{100 * value:.1f}"


def ratio(value: float | None) -> str:
    """Return a ratio with two decimals."""
    return "–" if value is None else f"{value:.2f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])
