"""Fit of a family's measured calls as points: moves of its constants, and weights of the residual that these leave.

The model is :mod:`kernelsight.kernels.few_shot`. Moves of constants are the maximum a posteriori, by Gauss-Newton steps
with a line search.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kernelsight.fitting.expressions import Calls, fitted_coefficients
from kernelsight.kernels.few_shot import (
    PRIOR,
    CallInputs,
    ErrorPrior,
    FewShotCalibration,
    Moves,
    covariance,
    expected_residual,
    levels_of,
    moved_constants,
    residual_covariance,
)
from kernelsight.kernels.latency_model import LatencyModel

# Gauss-Newton steps at most; the later ones matter for constants that move far
STEPS = 5
# trial lengths of a step: the whole, a half, down to a sixteenth
HALVINGS = 5
# moves of constants in units of their spreads, shape [constants], by level (the words that name it)
LevelMoves = Mapping[tuple[str, ...], np.ndarray]


class Measured(NamedTuple):
    """Measured calls of one family on one GPU: their inputs, predicted latency in us, log(measured / predicted)."""

    inputs: CallInputs
    predicted_us: np.ndarray
    log_error: np.ndarray
    calls: Calls

    def at(self, rows: np.ndarray) -> Measured:
        """Return the calls at the indices ``rows``."""
        return Measured(self.inputs.at(rows), self.predicted_us[rows], self.log_error[rows], self.calls.take(rows))

    def latency_us(self, points: FewShotCalibration) -> np.ndarray:
        """Predict the latency of each call in us by constants that points move, and the residual's mean at the call."""
        return moved_calls(self.calls, points).latency_us() * np.exp(expected_residual(self.inputs, points))


class _Trial(NamedTuple):
    """Moves of constants, the calls with these moves, their log residuals, and the objective: less is likelier."""

    moves: LevelMoves
    calls: Calls
    residual: np.ndarray
    objective: float


def moved_calls(calls: Calls, points: FewShotCalibration) -> Calls:
    """Return calls with their constants moved by points."""
    by_leaf = [
        moved_constants(
            points, calls.latency_model.coefficients, leaf, {name: values[number] for name, values in calls.at.items()}
        )
        for number, leaf in enumerate(calls.rows.leaves)
    ]
    return calls._replace(at={name: np.array([float(constants[name]) for constants in by_leaf]) for name in calls.at})


def fit_points(measured: Measured, steps: int = STEPS, prior: ErrorPrior = PRIOR) -> FewShotCalibration:
    """Fit the points of one family's measured calls: moves of its constants, and weights of the residual.

    Moves m, in prior standard deviations, minimise |m|^2 + e' (K + noise^2)^-1 e; e is the residual that moved
    constants leave, and its weights are (K + noise^2)^-1 e. At most ``steps`` Gauss-Newton steps are made, each halved
    until the objective falls: whole steps can oscillate where a constant counts on one side of a maximum only.
    """
    inputs, log_us = measured.inputs, np.log(measured.predicted_us) + measured.log_error
    noise = prior.noise**2 * np.eye(inputs.size)
    precision = np.linalg.inv(residual_covariance(inputs, inputs, prior) + noise)

    def trial(moves: LevelMoves) -> _Trial:
        calls = moved_calls(
            measured.calls, FewShotCalibration(_by_constant(moves, measured.calls.latency_model), inputs, log_us)
        )
        residual = log_us - np.log(calls.latency_us())
        penalty = sum(float(of_level @ of_level) for of_level in moves.values()) / prior.constant**2
        return _Trial(moves, calls, residual, penalty + float(residual @ precision @ residual))

    best = trial({level: np.zeros(inputs.slopes.shape[1]) for level in _levels(inputs)})
    for _ in range(steps):
        inputs = inputs._replace(slopes=best.calls.slopes())
        linear = best.residual + (inputs.slopes * _moves_of_rows(best.moves, inputs)).sum(axis=1)
        target = _moves_by_level(inputs, np.linalg.solve(covariance(inputs, inputs, prior) + noise, linear), prior)
        trials = (trial(_between(best.moves, target, 0.5**halving)) for halving in range(HALVINGS))
        better = next((candidate for candidate in trials if candidate.objective < best.objective), None)
        if better is None:
            break
        best = better
    moves = _by_constant(best.moves, measured.calls.latency_model)
    return FewShotCalibration(moves, measured.inputs._replace(slopes=best.calls.slopes()), precision @ best.residual)


def _between(start: LevelMoves, target: LevelMoves, share: float) -> LevelMoves:
    return {level: moves + share * (target[level] - moves) for level, moves in start.items()}


def _by_constant(moves: LevelMoves, latency_model: LatencyModel) -> Moves:
    """Return moves as logarithms of factors, by level and name of the constant."""
    fitted = fitted_coefficients(latency_model)
    return {
        level: {constant.name: float(move * constant.spread) for constant, move in zip(fitted, of_level, strict=True)}
        for level, of_level in moves.items()
    }


def _levels(inputs: CallInputs) -> dict[tuple[str, ...], None]:
    words = zip(inputs.engine, inputs.implementation, inputs.dtype, strict=True)
    return dict.fromkeys(level for kernel in words for level in levels_of(*kernel))


def _moves_by_level(inputs: CallInputs, weights: np.ndarray, prior: ErrorPrior) -> LevelMoves:
    """Return the moves of constants that weights of rows imply, by level with points."""
    moves = {level: np.zeros(inputs.slopes.shape[1]) for level in _levels(inputs)}
    for row, words in enumerate(zip(inputs.engine, inputs.implementation, inputs.dtype, strict=True)):
        for level in levels_of(*words):
            moves[level] += prior.constant**2 * weights[row] * inputs.slopes[row]
    return moves


def _moves_of_rows(moves: LevelMoves, inputs: CallInputs) -> np.ndarray:
    """Return the moves of each row's constants, summed over its levels; shape [rows, constants]."""
    words = zip(inputs.engine, inputs.implementation, inputs.dtype, strict=True)
    return np.array([sum(moves[level] for level in levels_of(*kernel)) for kernel in words])
