"""Tables of kernel errors by number of measured calls per kernel, each generation left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from figures.blocks import result
from figures.text import count, median_mean, percent, table

COUNTS = (1, 3, 5, 10)
SHOWN = (("family", 1), ("planned", 3))
NAMES = {
    "gb200": "GB200",
    "b200_sxm": "B200",
    "h100_sxm": "H100",
    "a100_sxm": "A100",
    "l40s": "L40S",
    "rtx_pro_6000_server": "RTX PRO 6000",
}


def rows_by() -> dict[tuple[str, str, int], Mapping[str, Any]]:
    """Return the recorded rows by GPU, choice of points and points per kernel."""
    return {(row["gpu"], row["how"], row["per_kernel"]): row for row in result("points")["rows"]}


def gpus() -> list[str]:
    """Return the scored GPUs in the order of pages."""
    scored = {gpu for gpu, _, _ in rows_by()}
    return [gpu for gpu in NAMES if gpu in scored]


def summary() -> str:
    """Table of errors before and after planned points of each kernel."""
    row_of = rows_by()
    head = [
        "median / mean error, %",
        "no point",
        "1 per family",
        *(f"{number} per kernel" for number in COUNTS),
        "points, seconds (1 per family; 3 per kernel)",
    ]
    lines = [
        [
            NAMES[gpu],
            *(median_mean(row_of[gpu, *key]) for key in (("planned", 0), ("family", 1))),
            *(median_mean(row_of[gpu, "planned", number]) for number in COUNTS),
            "; ".join(f"{count(row_of[gpu, *key]['points'])}, {row_of[gpu, *key]['seconds']:.0f}" for key in SHOWN),
        ]
        for gpu in gpus()
    ]
    return table(head, lines)


def table_of_all() -> str:
    """Table of every GPU, planned and random points: errors, other sites, bias, intervals."""
    head = ["GPU", "points per kernel", "points", "s", "median / mean", "p90", "bias", "other sites", "coverage"]
    lines = [
        [
            NAMES[gpu],
            "1 per family" if how == "family" else f"{number} {how}" if number else "none",
            count(row["points"]),
            f"{row['seconds']:.0f}",
            median_mean(row),
            percent(row["p90_ape"], sign=""),
            percent(row["bias"], sign=""),
            median_mean(row["unmeasured_sites"]),
            percent(row["coverage_90"], sign=""),
            f"{row['width_90']:.2f}",
            f"{row['cells_held']} of {row['cells']}",
        ]
        for gpu in gpus()
        for (name, how, number), row in rows_by().items()
        if name == gpu
    ]
    return table([*head, "width", "cells that meet the interval goals"], lines)
