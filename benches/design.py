"""Tokens per dollar of a grid of hypothetical GPUs, and the optimiser's walks of docs/guides/design_a_gpu.md.

    python benches/design.py [--record]

Runs the guide's program, then simulates its load on every GPU of a grid. ``--record`` writes the figures to
benches/results/ and draws docs/pictures/design.svg from them; without it, the recorded figures are drawn.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from points_figure import line, text
from record import ROOT, read, record

GUIDE = ROOT / "docs" / "guides" / "design_a_gpu.md"
PICTURE = ROOT / "docs" / "pictures" / "design.svg"
BANDWIDTHS, ARITHMETIC = np.geomspace(1.0, 8.0, 13), np.geomspace(100.0, 2000.0, 13)
VISITED = re.compile(r"\[ *([\d.]+) +([\d.]+) *\] T/s: ([\d,]+) tokens/s")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 400, 60, 44, 26
COLOURS = ("#d62728", "#ff7f0e")


def program() -> str:
    """Return the guide's Python program that minimises over a GPU's facts."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if "minimize(" in block)


def walked() -> tuple[dict[str, Any], list[list[list[float]]]]:
    """Run the guide's program; return its namespace and the (TB/s, TFLOP/s) points of each walk."""
    walks: list[list[list[float]]] = [[]]

    def print_and_note(line: str) -> None:
        print(line)
        if match := VISITED.match(line):
            walks[-1].append([float(match[1]), float(match[2])])
        else:  # the sentence that ends a walk
            walks.append([])

    names: dict[str, Any] = {"print": print_and_note}
    exec(compile(program(), str(GUIDE), "exec"), names)
    return names, [walk for walk in walks if walk]


def served(names: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens per second for 1,000 $ of every GPU of the grid, and whether it keeps the budgets."""
    designs = {f"design {i} {j}": (x, y) for i, x in enumerate(BANDWIDTHS) for j, y in enumerate(ARITHMETIC)}
    with names["s"].fork() as session:
        rows = [
            {"gpu": gpu, "like": "h100_sxm"} | dict(zip(names["FACTS"], (1e12 * x, 1e12 * y), strict=True))
            for gpu, (x, y) in designs.items()
        ]
        session.extend("gpus", rows)
        grid = {"model": "llama-3.1-8b", "gpu": list(designs)} | names["LOAD"]
        summary = session.what_if(grid).table("scenario_summary").to_pylist()
    rows_of_grid = []
    for row in summary:
        x, y = designs[row["gpu"]]
        price, _ = names["use"](names["PRICE"], np.log([x, y]))
        is_within = all(
            names["use"](quantity, np.log([x, y]))[0] <= limit for quantity, limit in names["LARGEST"].values()
        )
        value = 1000.0 * row["output_throughput"] / price
        rows_of_grid.append(
            {"bandwidth": float(x), "arithmetic": float(y), "per_1000_usd": float(value), "kept": is_within}
        )
    return rows_of_grid


def drawn(grid: Sequence[dict[str, Any]], walks: Sequence[Sequence[Sequence[float]]]) -> str:
    """Return the figure as SVG: cells shaded by tokens per dollar, pale if over a budget; walks as lines."""
    spans = [np.log([row[name] for row in grid]) for name in ("bandwidth", "arithmetic")]
    halves = [float(np.diff(np.unique(span.round(9)))[0]) / 2.0 for span in spans]
    (left, right), (low, high) = (
        (span.min() - half, span.max() + half) for span, half in zip(spans, halves, strict=True)
    )

    def across(value: float) -> float:
        return LEFT + (np.log(value) - left) / (right - left) * (WIDTH - LEFT - 12)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (np.log(value) - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    values = [row["per_1000_usd"] for row in grid]
    best = max(row["per_1000_usd"] for row in grid if row["kept"])
    parts = [
        text(LEFT, 14, f"tokens/s for 1,000 $: {min(values):.0f} (white) to {best:.0f} (dark); pale: breaks a budget")
    ]
    for row in grid:
        share = min((row["per_1000_usd"] - min(values)) / (best - min(values)), 1.0)
        opacity = (0.05 + 0.8 * share) * (1.0 if row["kept"] else 0.25)
        x, y = (np.exp(np.log(row[name]) + side * half) for name, side, half in
                (("bandwidth", -1.0, halves[0]), ("arithmetic", 1.0, halves[1])))  # fmt: skip
        width, height = (WIDTH - LEFT - 12) / BANDWIDTHS.size, (HEIGHT - BOTTOM - TOP) / ARITHMETIC.size
        box = f'x="{across(x):.1f}" y="{up(y):.1f}" width="{width:.1f}" height="{height:.1f}"'
        parts.append(f'<rect {box} fill="#1f77b4" fill-opacity="{opacity:.2f}"/>')
    for colour, walk in zip(COLOURS, walks, strict=True):
        points = [(across(x), up(y)) for x, y in walk]
        parts.append(line(points, colour))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
        parts.append(text(points[0][0] + 6, points[0][1] - 6, "start", colour))
    parts += [text(across(tick) - 4, HEIGHT - BOTTOM + 16, f"{tick:g}") for tick in (1, 2, 4, 8)]
    parts += [text(LEFT - 34, up(tick) + 4, f"{tick:,}") for tick in (100, 300, 1000, 2000)]
    parts += [text(WIDTH / 2 - 70, HEIGHT - 8, "memory bandwidth, TB/s"), text(4, TOP - 2, "TFLOP/s")]
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def main() -> None:
    """Run, record and draw; or draw the recorded figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    if parser.parse_args().record:
        names, walks = walked()
        record("design", {"grid": served(names), "walks": walks}, "python benches/design.py --record")
    figures = read("design")["figures"]
    Path(PICTURE).write_text(drawn(figures["grid"], figures["walks"]), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
