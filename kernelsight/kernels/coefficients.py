"""Coefficients of latency expressions: prior, bounds, and a hierarchy of deviations by kernel, engine and GPU.

A fitted coefficient is a product of nodes: the constant of its family, times the factors of its GPU, of its engine, and
of each level from the kernel's lineage down to one engine's build of the kernel on one GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# levels of nodes: the family; a GPU for all its kernels (device), an engine for all its kernels (stack); and the path
# from a kernel's lineage down to one engine's build of it on one GPU
LEVELS = ("family", "device", "stack", "lineage", "implementation", "dtype", "engine", "gpu")
# levels outside the path, and the words that identify a node of each
ALONE = {"family": (), "device": ("gpu",), "stack": ("engine",)}
PATH = ("lineage", "implementation", "dtype", "engine", "gpu")
# by owner of a coefficient: prior standard deviation of its logarithm at each level, in units of its spread
OWNERS: dict[str, dict[str, float]] = {
    "fixed": {},
    "hardware": {"family": 1.0, "device": 0.2, "gpu": 0.05},
    "implementation": {"family": 1.0, "lineage": 0.6, "implementation": 0.6, "dtype": 0.4, "gpu": 0.1},
    "engine": {"family": 1.0, "stack": 0.5, "implementation": 0.4, "engine": 0.4, "gpu": 0.2},
}


def names_at(level: str) -> tuple[str, ...]:
    """Return the columns of ``eta_coefficients`` that identify a node of a level.

    >>> names_at("implementation"), names_at("stack")
    (('lineage', 'implementation'), ('engine',))
    """
    return ALONE[level] if level in ALONE else PATH[: PATH.index(level) + 1]


class Coefficient(NamedTuple):
    """One coefficient of a latency expression."""

    name: str
    unit: str
    start: float  # centre of its prior, and its value where nothing is fitted
    low: float  # bounds of every fitted value; a fixed one is not fitted, and may be 0
    high: float
    owner: str  # of OWNERS: the levels at which it may deviate; "fixed": a fact of the implementation
    doc: str
    spread: float = 0.5  # prior standard deviation of a deviation's logarithm, scaled by the level's share in OWNERS


def moved(declared: Coefficient, value: Any, log_move: Any) -> Any:
    """Return a coefficient's value times exp(``log_move``), within its bounds; a value outside of them is unchanged.

    >>> floor = Coefficient("floor_us", "us", 2.0, 1.0, 5.0, "hardware", "")
    >>> float(moved(floor, 2.0, 0.0)), float(moved(floor, 2.0, 9.0)), float(moved(floor, 0.0, 1.0))
    (2.0, 5.0, 0.0)
    """
    inside = (value >= declared.low) & (value <= declared.high)
    return np.where(inside, np.clip(value * np.exp(log_move), declared.low, declared.high), value)


class Node(NamedTuple):
    """One fitted number: a family's constant, or the factor of a deeper node on it."""

    level: str
    path: tuple[str, ...]  # the words of ``names_at(level)``
    coefficient: str
    log_value: float  # natural logarithm of the constant or factor
    log_sd: float  # its posterior standard deviation


# by (level, path): log values by coefficient
NodeValues = dict[tuple[str, tuple[str, ...]], dict[str, float]]


def log_values_by_node(nodes: Iterable[Node]) -> NodeValues:
    """Return the log values of nodes by level and path, then by coefficient."""
    log_values: NodeValues = {}
    for node in nodes:
        log_values.setdefault((node.level, node.path), {})[node.coefficient] = node.log_value
    return log_values


def values_along(
    coefficients: Sequence[Coefficient], node_sets: Sequence[NodeValues], paths: Sequence[Mapping[str, str]]
) -> dict[str, np.ndarray]:
    """Return each fitted coefficient at each path, (paths,): the product of the nodes along it, within its bounds.

    ``node_sets``: no two of them have a node of one level and path; ``paths``: the words of ``PATH`` by name.
    """
    family = next((log_values for nodes in node_sets if (log_values := nodes.get(("family", ())))), {})
    along = [
        [
            log_values
            for level in LEVELS[1:]
            for node_key in [(level, node_path(level, path))]
            for nodes in node_sets
            if (log_values := nodes.get(node_key))
        ]
        for path in paths
    ]
    values = {}
    for declared in coefficients:
        if declared.owner == "fixed":
            continue
        logs = np.full(len(paths), family.get(declared.name, np.log(declared.start)))
        for row, nodes in enumerate(along):
            for log_values in nodes:
                if declared.name in log_values:
                    logs[row] += log_values[declared.name]
        values[declared.name] = np.exp(logs).clip(declared.low, declared.high)
    return values


def node_path(level: str, path: Mapping[str, str]) -> tuple[str, ...]:
    """Return the path of a node: the words of ``path`` that identify it at a level."""
    return tuple(path[name] for name in names_at(level))
