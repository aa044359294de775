"""Few-shot calibration of a GPU: from a few measured calls, moved constants and a Gaussian process over the residuals.

The model is of the log error e = log(measured / predicted across generations). Each constant of the expression has a
*move* on the new GPU, for the family, for its implementation and for its kernel (engine and number formats as well),
with a normal prior around 0 in units of the constant's spread. Residuals of moved constants are correlated between
calls of one family, of one implementation and of one kernel, the latter two by how close their sizes are: kriging
(Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapter 2).
:mod:`kernelsight.fitting.few_shot` fits both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.kernels.coefficients import Coefficient, moved
from kernelsight.kernels.families import FAMILIES

# rows that are predicted in one block
BLOCK = 2048
# largest log factor of the residuals' prediction: a factor of 20
MOST_DELTA = 3.0


class ErrorPrior(NamedTuple):
    """Prior of log errors: standard deviations of the moves of constants and of the parts of residuals, length scale.

    Chosen on A100, L40S, H100 and RTX PRO 6000 after 1, 3, 5 and 10 points per kernel, each GPU predicted by a fit
    without its generation. Half or twice of any of them changes the mean error by 0 to 0.4 percentage points.
    """

    # a constant's log move at each of the three levels, in units of its spread
    constant: float = 0.8
    # residuals that calls share: of one family, of one implementation, of these by size, of one kernel by size
    family: float = 0.05
    implementation: float = 0.10
    implementation_by_size: float = 0.20
    kernel_by_size: float = 0.20
    noise: float = 0.15  # of one measured point
    size_length: float = 3.0  # length scale of the correlation, in log sizes


PRIOR = ErrorPrior()
# tables of tuned kernels, the best of many for each shape, scatter as no expression does: ``constant`` of 0.8, 0.5,
# 0.35 and 0.25 leaves a mean (of medians) of 14.5, 11.6, 10.7 and 11.1 % error after 3 points per kernel of MI300X and
# MI308X, each predicted by the other's fit
PRIOR_OF_TUNED = ErrorPrior(constant=0.35)
# features count in octaves, lengths in natural logarithms
LN2 = float(np.log(2.0))


def prior_for(vendor: str | None) -> ErrorPrior:
    """Return the prior for GPUs of a vendor; None: the first vendor, as in packs."""
    return PRIOR if vendor is None else PRIOR_OF_TUNED


class CallInputs(NamedTuple):
    """Inputs of the Gaussian process: kernel, log sizes and slopes of N calls of one family."""

    engine: np.ndarray  # (N,)
    implementation: np.ndarray  # (N,)
    dtype: np.ndarray  # (N,)
    features: np.ndarray  # (N, F) natural logarithms of sizes
    slopes: np.ndarray  # (N, C) d log latency / d log constant, times the constant's spread; (N, 0) where not needed

    @property
    def size(self) -> int:
        """The number of calls."""
        return self.features.shape[0]

    def at(self, rows: Any) -> CallInputs:
        """Return the inputs of some calls."""
        return CallInputs(*(column[rows] for column in self))

    def kernels(self) -> np.ndarray:
        """Return the kernel of each call as engine|implementation|dtype, (N,)."""
        words = zip(self.engine, self.implementation, self.dtype, strict=True)
        return np.array(["|".join(names) for names in words], dtype=object)


def sizes_of(family: str, call_features: np.ndarray) -> np.ndarray:
    """Return natural logarithms of sizes, and flags times ln 2, (N, F): the features without rounding to tiles.

    ``call_features``: :func:`kernelsight.kernels.features.features` of the calls.
    """
    return LN2 * call_features[:, : size_count(family)]


def size_count(family: str) -> int:
    """Return the number of a family's features that are sizes or flags."""
    return len(FAMILIES[family].features.sizes) + len(FAMILIES[family].features.flags)


def call_inputs(words: Mapping[str, Any], features: np.ndarray, slopes: np.ndarray | None = None) -> CallInputs:
    """Return the inputs of calls; ``words``: engine, implementation and dtype, each one for all calls or (N,)."""
    count = features.shape[0]
    names = (
        np.broadcast_to(np.asarray(words[name], dtype=object), count) for name in ("engine", "implementation", "dtype")
    )
    return CallInputs(*names, features, np.empty((count, 0)) if slopes is None else slopes)


def covariance(calls: CallInputs, others: CallInputs, prior: ErrorPrior = PRIOR) -> np.ndarray:
    """Return the covariance of log errors, without noise, (calls, others)."""

    def total(of_kernel: CallInputs, same: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        return _of_residuals(of_kernel, others, same, prior) + _of_moves(of_kernel, others, same, prior)

    return _by_kernel(calls, others, total)


def residual_covariance(calls: CallInputs, others: CallInputs, prior: ErrorPrior = PRIOR) -> np.ndarray:
    """Return the covariance of residuals of moved constants, without noise, (calls, others)."""
    return _by_kernel(calls, others, lambda of_kernel, same: _of_residuals(of_kernel, others, same, prior))


def _by_kernel(
    calls: CallInputs,
    others: CallInputs,
    of_one_kernel: Callable[[CallInputs, tuple[np.ndarray, np.ndarray]], np.ndarray],
) -> np.ndarray:
    """Return a covariance, (calls, others), filled by ``of_one_kernel`` for the calls of each kernel.

    Its second argument: which ``others`` have the same implementation, and the same kernel, as 0 or 1, (others,) each.
    """
    covariances = np.empty((calls.size, others.size))
    kernels, kernel_of_row = np.unique(calls.kernels().astype(str), return_inverse=True)
    other_kernels = others.kernels().astype(str)
    for number, kernel in enumerate(kernels.tolist()):
        rows = np.flatnonzero(kernel_of_row == number)
        of_kernel = calls.at(rows)
        same_implementation = np.asarray(others.implementation == of_kernel.implementation[0], float)
        covariances[rows] = of_one_kernel(of_kernel, (same_implementation, np.asarray(other_kernels == kernel, float)))
    return covariances


def _of_residuals(
    calls: CallInputs, others: CallInputs, same: tuple[np.ndarray, np.ndarray], prior: ErrorPrior
) -> np.ndarray:
    same_implementation, same_kernel = same
    correlation = np.exp(-0.5 * _squared_distances(calls.features, others.features) / prior.size_length**2)
    by_size = same_implementation * prior.implementation_by_size**2 + same_kernel * prior.kernel_by_size**2
    return prior.family**2 + same_implementation * prior.implementation**2 + correlation * by_size


def _of_moves(
    calls: CallInputs, others: CallInputs, same: tuple[np.ndarray, np.ndarray], prior: ErrorPrior
) -> np.ndarray:
    same_implementation, same_kernel = same
    return prior.constant**2 * (1.0 + same_implementation + same_kernel) * (calls.slopes @ others.slopes.T)


def _squared_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1) - 2.0 * first @ second.T
    return np.maximum(squares, 0.0)


def prior_variance(calls: CallInputs, prior: ErrorPrior = PRIOR) -> np.ndarray:
    """Return the variance of each call's log error before anything is measured, without noise, (calls,)."""
    variance = prior.family**2 + prior.implementation**2 + prior.implementation_by_size**2 + prior.kernel_by_size**2
    return variance + 3.0 * prior.constant**2 * (calls.slopes**2).sum(axis=1)


# log moves of constants, by the words of a family, implementation or kernel (``levels_of``), then by constant
Moves = Mapping[tuple[str, ...], Mapping[str, float]]


class FewShotCalibration(NamedTuple):
    """Few-shot calibration of one family on one GPU: moves of constants, and measured points with kriging weights."""

    moves: Moves
    inputs: CallInputs  # inputs of the P measured points
    weights: np.ndarray  # (P,)

    def count(self, kernel: str) -> int:
        """Return the number of measured points of a kernel, engine|implementation|dtype."""
        return int((self.inputs.kernels() == kernel).sum())


def levels_of(engine: str, implementation: str, dtype: str) -> tuple[tuple[str, ...], ...]:
    """Return the keys of ``Moves`` that apply to a kernel: family, implementation, the kernel itself."""
    return (), (implementation,), (engine, implementation, dtype)


def moved_constants(
    points: FewShotCalibration, coefficients: Sequence[Coefficient], words: Mapping[str, str], at: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the constants ``at`` of a kernel, by name, with their moves on the GPU, within the bounds of a fit.

    ``words``: engine, implementation and dtype of the kernel.
    """
    moves_of_levels = [
        points.moves.get(level, {}) for level in levels_of(*(words[name] for name in CallInputs._fields[:3]))
    ]
    fitted = {declared.name: declared for declared in coefficients if declared.owner != "fixed"}
    log_moves = {name: sum(moves.get(name, 0.0) for moves in moves_of_levels) for name in fitted}
    return {
        name: moved(fitted[name], value, log_moves[name]) if name in fitted else value for name, value in at.items()
    }


def expected_residual(calls: CallInputs, points: FewShotCalibration, prior: ErrorPrior = PRIOR) -> np.ndarray:
    """Return the expected log residual of calls beside moved constants, (calls,), at most MOST_DELTA either way."""
    log_delta = np.empty(calls.size)
    for first in range(0, calls.size, BLOCK):
        block = slice(first, first + BLOCK)
        log_delta[block] = residual_covariance(calls.at(block), points.inputs, prior) @ points.weights
    return np.clip(log_delta, -MOST_DELTA, MOST_DELTA)


def calibration_of(rows: Sequence[Mapping[str, Any]]) -> FewShotCalibration:
    """Return the calibration of one family on one GPU from its ``eta_coefficients`` rows of part points."""
    moves: dict[tuple[str, ...], dict[str, float]] = {}
    arrays: dict[tuple[str, ...], dict[str, np.ndarray]] = {}
    for row in rows:
        words = tuple(row[name] for name in ("engine", "implementation", "dtype") if row[name] is not None)
        if row["array"] is None:
            moves.setdefault(words, {})[row["coefficient"]] = float(np.log(row["value"]))
        else:
            arrays.setdefault(words, {})[row["coefficient"]] = np.array(row["array"])
    inputs, weights = [], []
    for words, of_kernel in sorted(arrays.items()):
        kernel = dict(zip(("engine", "implementation", "dtype"), words, strict=True))
        inputs.append(call_inputs(kernel, of_kernel["features"].reshape(of_kernel["weights"].size, -1)))
        weights.append(of_kernel["weights"])
    return FewShotCalibration(
        moves, CallInputs(*map(np.concatenate, zip(*inputs, strict=True))), np.concatenate(weights)
    )
