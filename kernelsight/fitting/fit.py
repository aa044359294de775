"""Hierarchical (partially pooled) fit of a latency expression's coefficients, by damped Gauss-Newton on log latency.

A coefficient of a row is its family's constant times one factor per level of the row's path (lineage, implementation,
dtype, engine, GPU). The logarithms of the factors have normal priors around zero, so that a node with little data stays
near its parent, and a node without data equals its parent. Maximum a posteriori with Student-t errors; deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from kernelsight.dataflow.array_expressions import bucket, padded
from kernelsight.kernels.coefficients import LEVELS, OWNERS, Coefficient, Node, node_path

# scale of the Student-t log error of a row, and its degrees of freedom
NOISE = 0.08
FREEDOM = 4.0
# most weight of a leaf of the tree, in independent rows
LEAF_ROWS = 400.0
ITERATIONS = 40
# fewest rows that functions are compiled for
LEAST_ROWS = 1024
# functions of few rows run a few dozen times: the code of fusion emitters takes twice as long to compile
OPTIONS = {"xla_cpu_use_fusion_emitters": False}


def fit_nodes(
    expression: Callable[..., Any],
    coefficients: Sequence[Coefficient],
    columns: Mapping[str, np.ndarray],
    gpu: Mapping[str, np.ndarray],
    fixed: Mapping[str, np.ndarray],
    leaves: Sequence[Mapping[str, str]],
    leaf_of_row: np.ndarray,
    latency_us: np.ndarray,
    weights: np.ndarray | None = None,
    start: Sequence[Node] = (),
    free_levels: Sequence[str] = LEVELS,
) -> list[Node]:
    """Return the nodes of the coefficient tree that fit ``latency_us`` best under their priors (MAP).

    ``columns``, ``gpu`` and ``fixed``: float arrays of shape (rows,); ``leaves``: the distinct paths, ``leaf_of_row``:
    (rows,), each row's index among them; ``weights``: relative weight of rows within their leaf. ``start``: nodes that
    are fixed where their level is not in ``free_levels``, and the first guess where it is.
    """
    tree = _Tree(coefficients, leaves, leaf_of_row, free_levels, start)
    data = _Data(expression, coefficients, columns, gpu, fixed, latency_us)
    leaf_weights = _leaf_weights(leaf_of_row, weights)
    values = tree.first_guess()
    damping, best = 1e-2, None
    for _ in range(ITERATIONS):
        residual, slopes = data.linearise(tree.log_values(values))
        robust = leaf_weights * (FREEDOM + 1.0) / (FREEDOM + (residual / NOISE) ** 2)
        cost = _cost(residual, leaf_weights) + tree.prior_cost(values)
        matrix, vector = tree.normal_equations(residual, slopes, robust / NOISE**2, values)
        improved = False
        for _ in range(8):
            step = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), -vector)
            trial = values + np.clip(step, -1.0, 1.0)
            trial_residual = data.residual(tree.log_values(trial))
            trial_cost = _cost(trial_residual, leaf_weights) + tree.prior_cost(trial)
            if trial_cost < cost:
                values, improved, damping = trial, True, max(damping / 4.0, 1e-6)
                break
            damping *= 4.0
        if not improved or (cost - trial_cost) < 1e-5 * cost:
            best = matrix
            break
        best = matrix
    deviations = np.sqrt(np.diag(np.linalg.inv(best))) if best is not None else tree.prior_sd
    return tree.nodes(values, deviations)


def _cost(residual: np.ndarray, weights: np.ndarray) -> float:
    return float(0.5 * (FREEDOM + 1.0) * np.sum(weights * np.log1p((residual / NOISE) ** 2 / FREEDOM)))


def _leaf_weights(leaf_of_row: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return row weights that add up to each leaf's rows, at most LEAF_ROWS: rows of one kernel are not independent."""
    weights = np.ones(leaf_of_row.size) if weights is None else weights.astype(float)
    total = np.bincount(leaf_of_row, weights)
    count = np.bincount(leaf_of_row)
    return weights * (np.minimum(count, LEAF_ROWS) / np.maximum(total, 1e-300))[leaf_of_row]


class _Tree:
    """The parameters of the tree: their priors, and which leaves read which of them."""

    def __init__(
        self,
        coefficients: Sequence[Coefficient],
        leaves: Sequence[Mapping[str, str]],
        leaf_of_row: np.ndarray,
        free_levels: Sequence[str],
        start: Sequence[Node],
    ) -> None:
        self.coefficients = [coefficient for coefficient in coefficients if coefficient.owner != "fixed"]
        self.leaves, self.leaf_of_row = leaves, leaf_of_row
        start_values = {(node.level, node.path, node.coefficient): node.log_value for node in start}
        self.names: list[tuple[str, tuple[str, ...], str]] = []
        self.prior_mean, self.prior_sd, self.guess = [], [], []
        position: dict[tuple, int] = {}
        # per leaf: (parameter, coefficient) pairs, and the sum of fixed levels for each coefficient
        self.members: list[tuple[np.ndarray, np.ndarray]] = []
        self.offset = np.zeros((len(self.leaves), len(self.coefficients)))
        for leaf_number, leaf in enumerate(self.leaves):
            parameters, owners = [], []
            for number, coefficient in enumerate(self.coefficients):
                for level in LEVELS:
                    if level != "family" and level not in OWNERS[coefficient.owner]:
                        continue
                    name = (level, node_path(level, leaf), coefficient.name)
                    centre = np.log(coefficient.start) if level == "family" else 0.0
                    if level not in free_levels:
                        self.offset[leaf_number, number] += start_values.get(name, centre)
                        continue
                    if name not in position:
                        position[name] = len(self.names)
                        self.names.append(name)
                        self.prior_mean.append(centre)
                        self.prior_sd.append(coefficient.spread * OWNERS[coefficient.owner].get(level, 1.0))
                        self.guess.append(start_values.get(name, centre))
                    parameters.append(position[name])
                    owners.append(number)
            self.members.append((np.array(parameters, dtype=int), np.array(owners, dtype=int)))
        self.prior_mean = np.array(self.prior_mean)
        self.prior_sd = np.array(self.prior_sd)
        self.low = np.log([coefficient.low for coefficient in self.coefficients])
        self.high = np.log([coefficient.high for coefficient in self.coefficients])

    def first_guess(self) -> np.ndarray:
        return np.array(self.guess)

    def log_values(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients' logarithms, and whether each is inside its bounds: both (rows, coefficients)."""
        logs = self.offset.copy()
        for leaf, (parameters, owners) in enumerate(self.members):
            np.add.at(logs[leaf], owners, values[parameters])
        inside = (logs > self.low) & (logs < self.high)
        return np.clip(logs, self.low, self.high)[self.leaf_of_row], inside[self.leaf_of_row]

    def prior_cost(self, values: np.ndarray) -> float:
        return float(0.5 * np.sum(((values - self.prior_mean) / self.prior_sd) ** 2))

    def normal_equations(
        self, residual: np.ndarray, slopes: np.ndarray, weights: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        size = len(self.names)
        matrix = np.diag(1.0 / self.prior_sd**2)
        vector = (values - self.prior_mean) / self.prior_sd**2
        order = np.argsort(self.leaf_of_row, kind="stable")
        starts = np.searchsorted(self.leaf_of_row[order], np.arange(len(self.leaves) + 1))
        for leaf, (parameters, owners) in enumerate(self.members):
            if not parameters.size:
                continue
            rows = order[starts[leaf] : starts[leaf + 1]]
            weighted = slopes[rows] * weights[rows, None]
            gram, gradient = weighted.T @ slopes[rows], weighted.T @ residual[rows]
            matrix[np.ix_(parameters, parameters)] += gram[np.ix_(owners, owners)]
            np.add.at(vector, parameters, gradient[owners])
        assert matrix.shape == (size, size)
        return matrix, vector

    def nodes(self, values: np.ndarray, deviations: np.ndarray) -> list[Node]:
        return [
            Node(level, path, coefficient, float(value), float(sd))
            for (level, path, coefficient), value, sd in zip(self.names, values, deviations, strict=True)
        ]


class _Data:
    """The rows of a fit, with the compiled residual and slopes of its expression."""

    def __init__(
        self,
        expression: Callable[..., Any],
        coefficients: Sequence[Coefficient],
        columns: Mapping[str, np.ndarray],
        gpu: Mapping[str, np.ndarray],
        fixed: Mapping[str, np.ndarray],
        latency_us: np.ndarray,
    ) -> None:
        self.names = tuple(coefficient.name for coefficient in coefficients if coefficient.owner != "fixed")
        self.rows = latency_us.size
        # functions are compiled for a number of rows: few of these
        self.padded_rows = max(bucket(self.rows), LEAST_ROWS)
        inputs = (*(dict(arrays) for arrays in (columns, gpu, fixed)), np.log(latency_us))
        self.inputs = tuple(self._padded(one) for one in inputs)
        self.compiled = _compiled(expression, self.names)

    def residual(self, logs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return self._run(0, logs[0])

    def linearise(self, logs: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        slopes = self._run(1, logs[0]) * logs[1]
        return self._run(0, logs[0]), np.where(np.isfinite(slopes), slopes, 0.0)

    def _run(self, which: int, logs: np.ndarray) -> np.ndarray:
        import jax

        with jax.enable_x64(True):
            return np.asarray(self.compiled[which](self._padded(logs), *self.inputs))[: self.rows]

    def _padded(self, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: self._padded(one) for name, one in values.items()}
        return padded(values, self.padded_rows)


@cache
def _compiled(expression: Callable[..., Any], names: tuple[str, ...]) -> tuple[Callable, Callable]:
    """Return compiled functions of (logs, columns, gpu, fixed, log latency): residual (rows,), slopes (rows, names)."""
    import jax
    import jax.numpy as jnp

    def residual(logs: Any, columns: dict, gpu: dict, fixed: dict, measured: Any) -> Any:
        at = {**fixed, **{name: jnp.exp(logs[:, number]) for number, name in enumerate(names)}}
        return jnp.log(expression(jnp, columns, gpu, at)[0]) - measured

    def slopes(logs: Any, *inputs: Any) -> Any:
        shift = jnp.zeros(len(names))
        return jax.jacfwd(lambda moved: residual(logs + moved, *inputs))(shift)

    options = _known_options()
    return jax.jit(residual, compiler_options=options), jax.jit(slopes, compiler_options=options)


@cache
def _known_options() -> dict[str, bool]:
    """Return OPTIONS where this version of JAX has them (0.10; 0.12 does not)."""
    import jax

    try:
        jax.jit(abs, compiler_options=OPTIONS)(0.0)
    except jax.errors.JaxRuntimeError:
        return {}
    return OPTIONS
