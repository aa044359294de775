"""What a latency expression declares: its coefficients, where their fit starts and who owns them, and its features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# the nodes that a row belongs to: its family, its GPU whatever runs there, its engine whatever that runs, and the path
# from the kernel's lineage down to one engine's build of it on that GPU
LEVELS = ("family", "device", "stack", "lineage", "implementation", "dtype", "engine", "gpu")
# levels that are not on the path, and what identifies a node of them
ALONE = {"family": (), "device": ("gpu",), "stack": ("engine",)}
PATH = ("lineage", "implementation", "dtype", "engine", "gpu")
# prior standard deviation of a coefficient's log at each level, in units of its own spread
OWNERS: dict[str, dict[str, float]] = {
    "fixed": {},
    "hardware": {"family": 1.0, "device": 0.2, "gpu": 0.05},
    "implementation": {"family": 1.0, "lineage": 0.6, "implementation": 0.6, "dtype": 0.4, "gpu": 0.1},
    "engine": {"family": 1.0, "stack": 0.5, "implementation": 0.4, "engine": 0.4, "gpu": 0.2},
}


def names_at(level: str) -> tuple[str, ...]:
    """Return the words that identify a node of a level.

    >>> names_at("implementation"), names_at("stack")
    (('lineage', 'implementation'), ('engine',))
    """
    return ALONE[level] if level in ALONE else PATH[: PATH.index(level) + 1]


class Coefficient(NamedTuple):
    """One constant of an expression.

    ``start`` is the centre of its prior and its value where nothing is fitted; ``low`` and ``high`` bound every fitted
    value (a fixed one is not fitted, and may be zero). ``owner`` names the levels at which it may deviate; ``spread``
    is the prior standard deviation of the logarithm of such a deviation, scaled by the level's share in ``OWNERS``.
    """

    name: str
    unit: str
    start: float
    low: float
    high: float
    owner: str
    doc: str
    spread: float = 0.5


class Form(NamedTuple):
    """A family's latency model: ``expression(xp, call, gpu, at) -> (latency_us, tiles or None)`` over its view.

    ``reads``: columns of the family's call table that the view needs beside flops and bytes; ``view(xp, call)`` derives
    what the expression reads from them; ``spread``: half width of the 90 % interval as a factor, where none is fitted.
    """

    expression: Callable[..., Any]
    reads: tuple[str, ...]
    view: Callable[..., Any]
    coefficients: tuple[Coefficient, ...]
    spread: float


class Features(NamedTuple):
    """What a correction sees of a family's calls; the range of ``sizes`` and ``flags`` says how far a call lies from a
    sweep.

    ``sizes``: call columns, as log2; ``flags``: 1 where the column is positive; ``paddings``: (column, tile), octaves
    by which it rounds up; ``grids``: factors (column, tile) of a number of blocks, as log2 of waves and their rounding.
    """

    sizes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    paddings: tuple[tuple[str, float], ...] = ()
    grids: tuple[tuple[tuple[str, float], ...], ...] = ()


# what runs side by side counts as one number, so that few measured heads stand for many batches
LANES = (("batch", 1.0), ("heads", 1.0))


def same(xp: Any, call: Any) -> Any:
    """The view of a family whose expression reads its call table as it is."""
    return call


def moved(one: Coefficient, value: Any, log_move: Any) -> Any:
    """Return a value of a coefficient times exp(move), within its bounds; one that was stated outside of them stays.

    >>> floor = Coefficient("floor_us", "us", 2.0, 1.0, 5.0, "hardware", "")
    >>> float(moved(floor, 2.0, 0.0)), float(moved(floor, 2.0, 9.0)), float(moved(floor, 0.0, 1.0))
    (2.0, 5.0, 0.0)
    """
    inside = (value >= one.low) & (value <= one.high)
    return np.where(inside, np.clip(value * np.exp(log_move), one.low, one.high), value)


class Node(NamedTuple):
    """One fitted number: the constant of a family (log of the value) or the factor of a deeper node (log of it)."""

    level: str
    path: tuple[str, ...]
    coefficient: str
    log_value: float
    log_sd: float


# logarithms by coefficient, of the nodes of a level and path
Placed = dict[tuple[str, tuple[str, ...]], dict[str, float]]


def placed(nodes: Iterable[Node]) -> Placed:
    """Return nodes by their level and path."""
    values_at: Placed = {}
    for node in nodes:
        values_at.setdefault((node.level, node.path), {})[node.coefficient] = node.log_value
    return values_at


def values_along(
    coefficients: Sequence[Coefficient], nodes: Sequence[Placed], paths: Sequence[Mapping[str, str]]
) -> dict[str, np.ndarray]:
    """Return each fitted coefficient at each path: the product of the nodes that are found along it.

    ``nodes``: in one or more parts, no two of which have a node of one level and path.
    """
    family = next((at for part in nodes if (at := part.get(("family", ())))), {})
    along = [
        [
            at
            for level in LEVELS[1:]
            for node_key in [(level, node_path(level, path))]
            for part in nodes
            if (at := part.get(node_key))
        ]
        for path in paths
    ]
    values = {}
    for one in coefficients:
        if one.owner == "fixed":
            continue
        logs = np.full(len(paths), family.get(one.name, np.log(one.start)))
        for row, deeper in enumerate(along):
            for at in deeper:
                if one.name in at:
                    logs[row] += at[one.name]
        values[one.name] = np.exp(logs).clip(one.low, one.high)
    return values


def node_path(level: str, path: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words of a path that identify its node at a level."""
    return tuple(path[name] for name in names_at(level))
