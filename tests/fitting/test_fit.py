"""The hierarchical fit on trees whose constants are known: recovery within its stated deviations, order, bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from kernelsight.fitting.fit import NOISE, fit_nodes
from kernelsight.kernels.coefficients import (
    LEVELS,
    OWNERS,
    Coefficient,
    Node,
    log_values_by_node,
    node_path,
    values_along,
)

FLOOR = Coefficient("floor_us", "us", 3.0, 0.1, 100.0, "hardware", "launch", 0.3)
PASSES = Coefficient("passes", "1", 1.5, 0.1, 50.0, "implementation", "bytes moved against the least")
GAP = Coefficient("gap_us", "us", 1.0, 0.01, 100.0, "engine", "gap")
DOUBLED = Coefficient("doubled", "1", 0.0, 0.0, 1.0, "fixed", "1: bytes count twice")
COEFFICIENTS = (FLOOR, PASSES, GAP, DOUBLED)
KERNELS = {"fa2": "flash", "fa3": "flash", "triton": "triton", "xqa": "trtllm"}
LEAVES = [
    {"lineage": lineage, "implementation": name, "dtype": "bf16", "engine": engine, "gpu": gpu}
    for name, lineage in KERNELS.items()
    for engine in ("vllm", "sglang")
    for gpu in ("a100_sxm", "h100_sxm")
]
ROWS = 40
Nodes = list[Node]


def path_values(
    coefficients: Sequence[Coefficient], nodes: Sequence[Node], paths: Sequence[Mapping[str, str]]
) -> dict[str, np.ndarray]:
    """Return each coefficient at each path, of nodes in one part."""
    return values_along(coefficients, [log_values_by_node(nodes)], paths)


def expression(xp: Any, call: Any, gpu: Any, at: Any) -> tuple[Any, Any]:
    """Floor, gap and bytes: the smallest latency model with one coefficient of each owner."""
    moved = call["bytes"] * (1.0 + at["doubled"])
    return at["floor_us"] + at["gap_us"] + at["passes"] * moved / gpu["memory_bytes_per_us"], None


def drawn_tree(random: np.random.Generator) -> Nodes:
    """Return every node of the leaves, drawn from its prior."""
    nodes = {}
    for one in COEFFICIENTS[:3]:
        for leaf in LEAVES:
            for level in LEVELS:
                share = OWNERS[one.owner].get(level)
                name = (level, node_path(level, leaf), one.name)
                if share is not None and name not in nodes:
                    centre = np.log(one.start) if level == "family" else 0.0
                    nodes[name] = Node(*name, centre + one.spread * share * random.normal(), 0.0)
    return list(nodes.values())


def measured(nodes: Nodes, random: np.random.Generator, leaves: list = LEAVES, rows: int = ROWS) -> dict[str, Any]:
    """Return rows of every leaf with its own constants and the noise that the fit expects, as arguments of the fit."""
    leaf = np.repeat(np.arange(len(leaves)), rows)
    call = {"bytes": 10.0 ** random.uniform(4.0, 9.0, leaf.size)}
    rate = np.array([3.35e6 if one["gpu"] == "h100_sxm" else 2.0e6 for one in leaves])[leaf]
    gpu, fixed = {"memory_bytes_per_us": rate}, {"doubled": (leaf % 2).astype(float)}
    at = {name: values[leaf] for name, values in path_values(COEFFICIENTS, nodes, leaves).items()}
    latency = expression(np, call, gpu, {**at, **fixed})[0] * np.exp(NOISE * random.standard_t(4.0, leaf.size))
    return {"columns": call, "gpu": gpu, "fixed": fixed, "leaves": leaves, "leaf_of_row": leaf, "latency_us": latency}


def fitted(rows: dict[str, Any], **more: Any) -> Nodes:
    return fit_nodes(expression, COEFFICIENTS, **rows, **more)


def values(nodes: Nodes) -> dict[tuple, float]:
    return {(node.level, node.path, node.coefficient): node.log_value for node in nodes}


def shuffled(rows: dict[str, Any], order: np.ndarray) -> dict[str, Any]:
    """Return the same rows in another order."""
    columns = {name: {key: one[order] for key, one in rows[name].items()} for name in ("columns", "gpu", "fixed")}
    return {**rows, **columns, "leaf_of_row": rows["leaf_of_row"][order], "latency_us": rows["latency_us"][order]}


def test_known_trees_are_found_within_their_stated_deviations() -> None:
    """Over drawn trees, the errors of the nodes are as large as the fit says: their squares average near one."""
    found = []
    for seed in range(6):
        random = np.random.default_rng(seed)
        truth = drawn_tree(random)
        nodes, known = fitted(measured(truth, random)), values(truth)
        assert {(node.level, node.path, node.coefficient) for node in nodes} == set(known)
        found += [(node.log_value - known[node[:3]]) / node.log_sd for node in nodes]
    assert 0.6 < np.mean(np.square(found)) < 1.5
    assert np.mean(np.abs(found) < 1.64) > 0.85


def test_constants_of_the_measured_kernels_are_found_to_the_noise() -> None:
    random = np.random.default_rng(1)
    truth = drawn_tree(random)
    rows = measured(truth, random, rows=300)
    at, known = (path_values(COEFFICIENTS, nodes, LEAVES) for nodes in (fitted(rows), truth))
    assert at["passes"] == pytest.approx(known["passes"], rel=0.04)
    # floor and gap are seen in their sum alone
    assert at["floor_us"] + at["gap_us"] == pytest.approx(known["floor_us"] + known["gap_us"], rel=0.04)


def test_what_has_no_data_is_its_lineage_or_the_family() -> None:
    random = np.random.default_rng(2)
    nodes = fitted(measured(drawn_tree(random), random))
    log = values(nodes)
    new = {"lineage": "flash", "implementation": "fa4", "dtype": "bf16", "engine": "vllm", "gpu": "b200_sxm"}
    stranger = {**new, "lineage": "cudnn", "implementation": "cudnn"}
    passes = path_values(COEFFICIENTS, nodes, [new, stranger])["passes"]
    family, flash = log["family", (), "passes"], log["lineage", ("flash",), "passes"]
    assert np.log(passes) == pytest.approx([family + flash, family])
    # the lineage stands between its two kernels' own deviations
    own = [log["implementation", ("flash", name), "passes"] for name in ("fa2", "fa3")]
    assert min(own) < 0.0 < max(own)


def test_equal_rows_give_equal_numbers_in_any_order() -> None:
    random = np.random.default_rng(3)
    rows = measured(drawn_tree(random), random)
    nodes = fitted(rows)
    assert fitted(rows) == nodes
    other = fitted(shuffled(rows, random.permutation(rows["latency_us"].size)))
    assert [node[:3] for node in other] == [node[:3] for node in nodes]
    assert [node.log_value for node in other] == pytest.approx([node.log_value for node in nodes], abs=1e-6)


def test_a_few_wild_rows_move_little() -> None:
    random = np.random.default_rng(4)
    rows = measured(drawn_tree(random), random)
    before = path_values(COEFFICIENTS, fitted(rows), LEAVES)["passes"]
    wild = rows["latency_us"] * np.where(random.random(rows["latency_us"].size) < 0.03, 20.0, 1.0)
    after = path_values(COEFFICIENTS, fitted({**rows, "latency_us": wild}), LEAVES)["passes"]
    assert np.abs(np.log(after / before)).max() < 0.06


def test_more_rows_of_one_kernel_count_no_more_than_their_limit() -> None:
    """4,000 rows of one kernel are not independent: they determine it no better than 400 do."""
    deviations = []
    for rows in (40, 400, 4000):
        random = np.random.default_rng(5)
        nodes = fitted(measured([], random, LEAVES[:1], rows))
        deviations.append(next(node.log_sd for node in nodes if node[:3] == ("family", (), "passes")))
    assert deviations[1] <= deviations[0]
    assert deviations[2] == pytest.approx(deviations[1], rel=0.05)


def test_levels_that_are_held_keep_their_values() -> None:
    """A GPU's own sweep added to a fit without it: the kernels' constants stay, the GPU's deviations are found."""
    random = np.random.default_rng(6)
    truth = drawn_tree(random)
    others = [leaf for leaf in LEAVES if leaf["gpu"] == "a100_sxm"]
    mine = [leaf for leaf in LEAVES if leaf["gpu"] == "h100_sxm"]
    held = fitted(measured(truth, random, others))
    free = ("device", "gpu")
    added = fitted(measured(truth, random, mine, 200), start=held, free_levels=free)
    assert {node.level for node in added} == set(free)
    known = path_values(COEFFICIENTS, truth, mine)["passes"]
    errors = [
        np.abs(np.log(path_values(COEFFICIENTS, nodes, mine)["passes"] / known)) for nodes in (held, held + added)
    ]
    assert errors[1].mean() < 0.6 * errors[0].mean()


def test_no_value_leaves_its_bounds() -> None:
    random = np.random.default_rng(7)
    tight = (FLOOR, PASSES._replace(high=1.6), GAP, DOUBLED)
    truth = [Node("family", (), "passes", float(np.log(30.0)), 0.0)]
    rows = measured(truth, random)
    nodes = fit_nodes(expression, tight, **rows)
    assert (path_values(tight, nodes, LEAVES)["passes"] <= 1.6).all()
    assert all(np.isfinite([node.log_value, node.log_sd]).all() for node in nodes)
