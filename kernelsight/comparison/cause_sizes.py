"""Sizes of causes, fitted by Newton and Gauss-Newton steps; all explanations of a round are replayed in one call.

First damped Newton steps whose derivatives are the parts of each request's time. Then Gauss-Newton steps on the mean
residuals of groups of requests, with central differences: replays on either side of a size, which include queueing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from kernelsight.comparison.factors import (
    LEAST_SHARE,
    PARAMETERS,
    StepLikelihood,
    limited,
    newton_step,
    observe,
    variant_of,
)
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed, Variant
from kernelsight.comparison.residuals import ALLOWED, GroupResiduals, averaged, misfit, variance_of

# causes that have a size, and the PARAMETERS of each: those that err together are one cause
GROUPS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("prefill_gemm", "decode_gemm"),
    **{name: (name,) for name in ("prefill_gemm", "decode_gemm", "prefill_attention", "decode_attention")},
    **{name: (name,) for name in ("moe", "communication", "host", "front_end")},
}
NEWTON_STEPS, SECANT_STEPS = 4, 2
# explanations of a round that take all Newton steps (each step drops at most half), and that take Gauss-Newton steps
MOST_FOLLOWED, MOST_REFINED = 12, 8
# damping: a step that increased the misfit is tried again from where it began, shorter by this factor
SHORTER = 0.4
# factors on fitted sizes whose replays are averaged with the fitted one
NEIGHBOURS = (0.98, 0.99, 1.01, 1.02)
# a replay on either side of a size differs from it by this many standard errors, within these bounds: of the logarithm
# of a factor, ms a step, ms a request
CLEAR = 6.0
NARROWEST, WIDEST = {"host": 0.02, "front_end": 0.5}, {"host": 1.0, "front_end": 20.0}
NARROWEST_FACTOR, WIDEST_FACTOR = 0.01, 0.3
# smaller sizes are no cause: of the logarithm of a factor, ms a step, ms a request
LEAST_FACTOR, LEAST_STEP_MS, LEAST_REQUEST_MS = 0.03, 0.05, 1.0


class Serve(Protocol):
    """Replays the requests of a log on deployments."""

    def __call__(self, variants: Sequence[Variant], *, with_parts: bool = True) -> list[Replayed]:
        """Return one replay per deployment; without ``with_parts`` the parts of its times are empty."""


class State(NamedTuple):
    """An explanation of a log: deployment, sizes of causes, and their replay.

    ``flags``: the deployment; ``values``: of PARAMETERS, shape [PARAMETERS]; ``causes``: names of chosen causes;
    ``replayed``, ``residuals``: its replay and what that leaves; ``likelihood``: of the log's engine steps, if any.
    """

    flags: Mapping[str, Any]
    values: np.ndarray
    causes: tuple[str, ...]
    replayed: Replayed
    residuals: GroupResiduals
    likelihood: StepLikelihood | None = None

    @property
    def basis(self) -> np.ndarray:
        """Directions in which its sizes may move, 0 or 1, shape [PARAMETERS, causes that have a size]."""
        sizes = [GROUPS[name] for name in self.causes if name in GROUPS]
        return (
            np.array([[float(parameter in group) for parameter in PARAMETERS] for group in sizes])
            .reshape(-1, len(PARAMETERS))
            .T
        )

    def is_material(self) -> bool:
        """Whether every cause has at least the smallest size that counts: LEAST_FACTOR, _STEP_MS or _REQUEST_MS."""
        sizes = dict(zip(PARAMETERS, np.abs(self.values), strict=True))
        least = {"host": LEAST_STEP_MS, "front_end": LEAST_REQUEST_MS}
        names = [parameter for cause in self.causes if cause in GROUPS for parameter in GROUPS[cause]]
        return all(sizes[name] >= least.get(name, LEAST_FACTOR) for name in names)


class Log(NamedTuple):
    """The data that explanations are fitted to: measured times of a log's requests, and how to replay them.

    ``chosen``: mask of the requests that are fitted, shape [requests]; ``prior``: covariance of PARAMETERS;
    ``residuals_of``: the residuals of a replay by group of requests.
    """

    serve: Serve
    measured: Measured
    chosen: np.ndarray
    prior: np.ndarray
    residuals_of: Callable[[Replayed], GroupResiduals]

    def states(self, states: Sequence[State], values: Sequence[np.ndarray], *, with_parts: bool = True) -> list[State]:
        """Return the explanations replayed at other values of PARAMETERS.

        ``with_parts``: the replays keep the parts of times, which derivatives need and residuals do not.
        """
        variants = [variant_of(state.flags, sizes) for state, sizes in zip(states, values, strict=True)]
        replays = self.serve(variants, with_parts=with_parts) if variants else []
        return [
            state._replace(values=sizes, replayed=replayed, residuals=self.residuals_of(replayed))
            for state, sizes, replayed in zip(states, values, replays, strict=True)
        ]


def with_sizes(log: Log, states: Sequence[State], noise: GroupResiduals) -> list[State]:
    """Return explanations with fitted sizes, best first, without those of which a cause is too small to count.

    ``noise``: residuals of the best explanation so far; its standard errors are the unit of comparison. Only the best
    MOST_REFINED take Gauss-Newton steps. Residuals are means of several replays: which requests share a step is chance.
    """
    fitted, stuck = _by_parts(log, states, noise)
    ranked = _best(fitted, noise)
    # derivatives from parts know nothing of growing queues, and do not resolve differences within chance
    close = [index for index in ranked[:MOST_REFINED] if stuck[index] or not fitted[index].residuals.is_chance]
    refined = [fitted[index] for index in close]
    for _ in range(SECANT_STEPS):
        refined = _by_secants(log, refined)
    for index, state in zip(close, refined, strict=True):
        if misfit(state.residuals, noise) < misfit(fitted[index].residuals, noise):
            fitted[index] = state
    return _averaged(log, [fitted[index] for index in _best(fitted, noise) if fitted[index].is_material()])


def _averaged(log: Log, states: Sequence[State]) -> list[State]:
    """Return explanations whose residuals are means over replays at NEIGHBOURS of their sizes."""
    neighbours = [
        log.states(states, [state.values * factor for state in states], with_parts=False) for factor in NEIGHBOURS
    ]
    return [
        state._replace(residuals=averaged([state.residuals, *(neighbour.residuals for neighbour in its_neighbours)]))
        for state, *its_neighbours in zip(states, *neighbours, strict=True)
    ]


def _by_parts(log: Log, states: Sequence[State], noise: GroupResiduals) -> tuple[list[State], list[bool]]:
    """Return the explanations after damped Newton steps, and for each whether its last step did not improve it.

    Derivatives are the parts of each request's time. After each step the half with the larger misfit is dropped, until
    MOST_FOLLOWED remain.
    """
    fitted, lengths, steps = list(states), [1.0] * len(states), [np.zeros(len(PARAMETERS))] * len(states)
    for turn in range(NEWTON_STEPS):
        if turn and len(fitted) > MOST_FOLLOWED:
            order = _best(fitted, noise)[: max(len(fitted) // 2, MOST_FOLLOWED)]
            fitted, lengths, steps = ([items[index] for index in order] for items in (fitted, lengths, steps))
        steps = [
            _step_by_parts(log, state) if length == 1.0 else step
            for state, length, step in zip(fitted, lengths, steps, strict=True)
        ]
        new_values = [state.values + length * step for state, length, step in zip(fitted, lengths, steps, strict=True)]
        for index, state in enumerate(log.states(fitted, new_values)):
            better = misfit(state.residuals, noise) < misfit(fitted[index].residuals, noise)
            fitted[index] = state if better else fitted[index]
            lengths[index] = 1.0 if better else lengths[index] * SHORTER
    return fitted, [length < 1.0 for length in lengths]


def _best(states: Sequence[State], noise: GroupResiduals) -> list[int]:
    """Return indices of explanations by increasing misfit; of several with the same causes only the best one."""
    best: dict[frozenset[str], int] = {}
    for index in sorted(range(len(states)), key=lambda index: misfit(states[index].residuals, noise)):
        best.setdefault(frozenset(states[index].causes), index)
    return list(best.values())


def _step_by_parts(log: Log, state: State) -> np.ndarray:
    """Return the Newton step of PARAMETERS, shape [PARAMETERS], restricted to the explanation's basis."""
    basis = state.basis
    observations = observe(log.measured, state.replayed, log.chosen)
    observations = observations._replace(derivative=observations.derivative @ basis)
    coordinates = np.linalg.lstsq(basis, state.values, rcond=None)[0]
    likelihood = None
    if state.likelihood is not None:
        likelihood = basis.T @ state.likelihood.precision @ basis, basis.T @ state.likelihood.pull(state.values)
    step, _ = newton_step(coordinates, observations, state.replayed, _wide(log.prior, basis), likelihood)
    return limited(basis @ step)


def _wide(prior: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Return the prior covariance of the basis' coordinates, 100 times as wide and without correlations.

    The prior ranks causes in ``by_plausibility``; it should not shrink their sizes here.
    """
    return np.diag(np.diag(basis.T @ prior @ basis) * 100.0)


def _by_secants(log: Log, states: Sequence[State]) -> list[State]:
    """Return the explanations after one Gauss-Newton step on residuals by group; slopes are central differences."""
    widths = [_widths(log, state) for state in states]
    points = [
        (state, state.values + sign * width * direction)
        for state, state_widths in zip(states, widths, strict=True)
        for direction, width in zip(state.basis.T, state_widths, strict=True)
        for sign in (-1.0, 1.0)
    ]
    replayed_sides = log.states([state for state, _ in points], [values for _, values in points], with_parts=False)
    tried = iter([replayed.residuals for replayed in replayed_sides])
    new_values = []
    for state, state_widths in zip(states, widths, strict=True):
        residual_pairs = [(next(tried), next(tried)) for _ in state_widths]
        center = averaged([state.residuals, *(residuals for pair in residual_pairs for residuals in pair)])
        slopes = [
            (high.mean - low.mean) / (2.0 * width)
            for (low, high), width in zip(residual_pairs, state_widths, strict=True)
        ]
        new_values.append(state.values + _step_by_groups(log, state, center, slopes))
    return log.states(states, new_values)


def _step_by_groups(log: Log, state: State, center: GroupResiduals, slopes: Sequence[np.ndarray]) -> np.ndarray:
    """Return the Gauss-Newton step, shape [PARAMETERS].

    ``center``: residuals by group at the explanation; ``slopes``: derivative of their means by each size.
    """
    basis, nonempty = state.basis, center.count > 0
    slope = np.array([phase_slopes[nonempty] for phase_slopes in slopes]).T
    weight = 1.0 / variance_of(center)[nonempty]
    weight /= max(misfit(center, center) / center.groups, 1.0)
    precision = np.linalg.inv(_wide(log.prior, basis))
    coordinates = np.linalg.lstsq(basis, state.values, rcond=None)[0]
    hessian = (slope.T * weight) @ slope + precision
    gradient = -(slope.T * weight) @ center.mean[nonempty] - precision @ coordinates
    if state.likelihood is not None:
        hessian = hessian + basis.T @ state.likelihood.precision @ basis
        gradient = gradient + basis.T @ state.likelihood.pull(state.values)
    return limited(basis @ np.linalg.solve(hessian, gradient))


def _widths(log: Log, state: State) -> list[float]:
    """Return the step width of each size's central difference: CLEAR standard errors of the residuals, bounded.

    Units are those of PARAMETERS: logarithm of a factor, ms a step, ms a request.
    """
    observations = observe(log.measured, state.replayed, log.chosen)
    slope = LEAST_SHARE * (observations.derivative @ state.basis) / observations.scale_ms[:, None]
    noise = max(float(np.sqrt(np.mean(np.square(state.residuals.spread)))), ALLOWED)
    clear = CLEAR * noise / np.maximum(np.sqrt((slope**2).sum(axis=0)), 1e-12)
    names = [GROUPS[name][0] for name in state.causes if name in GROUPS]
    return [
        float(np.clip(width, NARROWEST.get(name, NARROWEST_FACTOR), WIDEST.get(name, WIDEST_FACTOR)))
        for name, width in zip(names, clear, strict=True)
    ]
