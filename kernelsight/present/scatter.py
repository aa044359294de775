"""Points and a front of them as text, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.number_format import number

WIDTH, HEIGHT = 72, 14
Point = tuple[float, float]
Rows = Sequence[Mapping[str, Any]]


def front_lines(rows: Rows, front: Rows, axes: Mapping[str, str]) -> list[str]:
    """Return the picture of a front among rows; ``axes``: names of two columns, to the right and up.

    Rows without both values are left out.
    """
    across, up = axes
    points, best = (
        [(row[across], row[up]) for row in listed if None not in (row[across], row[up])] for listed in (rows, front)
    )
    return scatter(points, best, (axes[across], f"{axes[up]}; *: on the front"))


def scatter(points: Sequence[Point], front: Sequence[Point], names: tuple[str, str]) -> list[str]:
    """Return lines of at most 100 characters: ``points`` as ., those of ``front`` as *; axes begin at 0.

    ``names``: of the horizontal and of the vertical axis. Without a front or two different points there is no picture.

    >>> scatter([(1.0, 1.0), (2.0, 0.0)], [(2.0, 0.0)], ("a", "b"))[0::7]
    ['b', '      |', '    0 |                                                                       *']
    >>> scatter([(1.0, 1.0), (2.0, 0.0)], [], ("a", "b"))
    []
    """
    if not front or len(set(points)) < 2:
        return []
    most_x, most_y = (max(axis) or 1.0 for axis in zip(*points, strict=True))
    rows = [[" "] * WIDTH for _ in range(HEIGHT)]
    for mark, marked in ((".", points), ("*", front)):
        for x, y in marked:
            rows[round((1.0 - y / most_y) * (HEIGHT - 1))][round(x / most_x * (WIDTH - 1))] = mark
    ticks = {0: number(most_y), HEIGHT - 1: "0"}
    width = max(5, *map(len, ticks.values()))
    lines = [f"{ticks.get(place, ''):>{width}} |{''.join(row)}".rstrip() for place, row in enumerate(rows)]
    right = number(most_x)
    below = f"0  {names[0]}".ljust(WIDTH - len(right)) + right
    return [names[1], *lines, " " * (width + 1) + "+" + "-" * WIDTH, " " * (width + 2) + below]
