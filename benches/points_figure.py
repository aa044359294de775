"""Draws docs/pictures/points.svg: kernel error by seconds of measuring, from the recorded result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from record import ROOT, read

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
WIDTH, HEIGHT, LEFT, BOTTOM, RIGHT, TOP = 640, 360, 56, 44, 150, 20
# nothing measured stands at a second
TICKS = (1, 5, 20, 60, 200, 600)


def across(seconds: float) -> float:
    """Return the x coordinate of seconds of measuring: logarithmic, from 1."""
    share = math.log(max(seconds, 1.0)) / math.log(TICKS[-1])
    return LEFT + min(share, 1.0) * (WIDTH - LEFT - RIGHT)


def drawn(rows: Sequence[dict[str, Any]], sites: Sequence[tuple[str, float]]) -> str:
    """Return the figure as SVG; ``sites``: GB200's errors from whole measured sites, in percent, as lines."""
    highest = 5.0 * math.ceil(20.0 * max(row["median_ape"] for row in rows))

    def up(percent: float) -> float:
        return HEIGHT - BOTTOM - percent / highest * (HEIGHT - BOTTOM - TOP)

    parts = [
        text(LEFT, 12, "median error of served calls, %"),
        text(across(20), HEIGHT - 8, "seconds of measuring (1: none)"),
    ]
    for tick in TICKS:
        parts.append(text(across(tick) - 4, HEIGHT - BOTTOM + 16, str(tick)))
    for percent in range(0, int(highest) + 1, 5):
        parts.append(line([(LEFT, up(percent)), (WIDTH - RIGHT, up(percent))], "#dddddd"))
        parts.append(text(LEFT - 24, up(percent) + 4, str(percent)))
    for name, error in sites:
        parts.append(line([(LEFT, up(error)), (WIDTH - RIGHT, up(error))], "#555555", "2 3"))
        parts.append(text(WIDTH - RIGHT + 6, up(error) + 4, name))
    for number, gpu in enumerate(dict.fromkeys(row["gpu"] for row in rows)):
        for how, dash in (("planned", ""), ("random", "6 4")):
            curve = sorted((row["seconds"], 100 * row["median_ape"]) for row in rows if same(row, gpu, how))
            parts.append(line([(across(seconds), up(error)) for seconds, error in curve], COLOURS[number], dash))
        parts.append(text(WIDTH - RIGHT + 6, TOP + 16 * number + 8, gpu, COLOURS[number]))
    parts.append(text(WIDTH - RIGHT + 6, TOP + 16 * number + 28, "dashed: random"))
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def same(row: dict[str, Any], gpu: str, how: str) -> bool:
    """Return whether a row belongs to the curve of a GPU and choice, which begins with no point or one a family."""
    return row["gpu"] == gpu and (
        row["how"] == how or not row["per_kernel"] or (how, row["how"]) == ("planned", "family")
    )


def text(x: float, y: float, words: str, colour: str = "#333333") -> str:
    """Return an SVG text element."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}">{words}</text>'


def line(points: Sequence[tuple[float, float]], colour: str, dash: str = "") -> str:
    """Return an SVG line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>'


def main() -> None:
    """Draw docs/pictures/points.svg."""
    overall = read("kernels_sites")["figures"]["overall"]
    sites = [(f"GB200, {100 * row['budget']:.0f} % of sites", 100 * row["median_ape"]) for row in overall]
    target = ROOT / "docs" / "pictures" / "points.svg"
    Path(target).write_text(drawn(read("points")["figures"]["rows"], sites), encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
