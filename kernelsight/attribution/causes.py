"""Which causes explain a log: settings that differ and times that are off, chosen one after the other by replays.

Each candidate is one change of the deployment: a setting one step from the stated one, or a factor on one kind of
kernels, or host time, whose size is fitted by Newton steps with a replay after each. All candidates are replayed in one
call. The best one is kept if it explains enough of what is left, and the next is looked for beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.attribution.factors import (
    PARAMETERS,
    Witness,
    limited,
    newton_step,
    observe,
    relative_residuals,
    variant_of,
)
from kernelsight.attribution.left import Left, averaged, explains, left_by_group, misfit, similar
from kernelsight.attribution.measured import Measured
from kernelsight.attribution.replay import Replayed, Variant

# PARAMETERS that err together are one cause
GROUPS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("prefill_gemm", "decode_gemm"),
    **{name: (name,) for name in ("prefill_gemm", "decode_gemm", "prefill_attention", "decode_attention")},
    **{name: (name,) for name in ("moe", "communication", "host", "front_end")},
}
NEWTON_STEPS = 4
MOST_CAUSES = 3
# explanations that the search goes on from where the best one leaves more than chance
BEGINNINGS = 3
# a step that made it worse is tried again from where it began, this much shorter
SHORTER = 0.4
# degrees of freedom of Student's t
TAILS = 4.0
# sizes beside a fitted one whose replays are averaged with it
NEIGHBOURS = (0.99, 1.01)
# a smaller mean square of relative residuals is nothing to speak of
LEAST_LOSS = 0.002**2
# smaller sizes are no cause: of the logarithm of a factor, ms a step, ms a request
LEAST_FACTOR, LEAST_STEP_MS, LEAST_REQUEST_MS = 0.03, 0.05, 1.0


class State(NamedTuple):
    """An explanation: the flags, the values of PARAMETERS, the causes that were chosen, and what it predicts."""

    flags: Mapping[str, Any]
    values: np.ndarray
    causes: tuple[str, ...]
    replayed: Replayed
    left: Left
    witness: Witness | None = None


Serve = Callable[[Sequence[Variant]], list[Replayed]]
Testify = Callable[[Sequence[Mapping[str, Any]]], Sequence[Witness | None]]


def explain(
    serve: Serve,
    flags: Mapping[str, Any],
    base: Replayed,
    measured: Measured,
    chosen: np.ndarray,
    prior: np.ndarray,
    settings: Sequence[tuple[str, Mapping[str, Any]]],
    testify: Testify | None = None,
) -> tuple[State, list[tuple[str, float]]]:
    """Return the explanation of a log, and the loss of each setting alone, best first.

    ``base``: the replay of ``flags``; ``chosen``: the requests that are explained; ``settings``: names of alternatives,
    and the flags that they are; an alternative that cannot run is passed over; ``testify``: what steps and kernels of
    the log say of deployments.
    """

    groups = similar(measured, chosen)

    def left_of(replayed: Replayed) -> Left:
        return left_by_group(relative_residuals(measured, replayed)[:, chosen], groups)

    said = testify or (lambda several: [None] * len(several))
    best = State(flags, np.zeros(len(PARAMETERS)), (), base, left_of(base), said([flags])[0])
    level, ranked = [best], []
    for _ in range(MOST_CAUSES):
        if best.left.loss <= LEAST_LOSS:
            break
        states: list[State] = []
        for one in level:
            unlike = [(name, other) for name, other in settings if name.split("=")[0] not in _names(one.causes)]
            tried = _settings_tried(serve, one, unlike, left_of, said)
            if not one.causes:
                ranked = sorted(((state.causes[-1], state.left.loss) for state in tried), key=lambda own: own[1])
            states += tried + _sizes_fitted(serve, one, measured, chosen, prior, left_of)
        if not states:
            break
        first, *others = by_plausibility(states, prior)
        # a setting is replayed once: it is held against one replay
        if not explains(first.left, best.left if first.causes[-1] in GROUPS else left_of(best.replayed)):
            break
        best = first
        # what one cause explains whole needs no other beginning
        level = [best, *others[: BEGINNINGS - 1]] if misfit(best.left, best.left) > best.left.groups else [best]
    return best, ranked


def by_plausibility(states: Sequence[State], prior: np.ndarray) -> list[State]:
    """Return explanations, the best first, by what they leave unexplained and how unusual the sizes are they need.

    What is left is measured in standard errors of the explanation that leaves least. Causes that act alike (host time
    of every step, a kernel that reads weights) leave equally little; then the one that the prior expects is named. Of
    those of the same causes in another order the best stays.
    """
    least = min((state.left for state in states), key=lambda left: left.loss)
    precision = np.linalg.inv(prior)

    lowest = min((state.witness.misfit for state in states if state.witness is not None), default=0.0)

    def unlikely(state: State) -> float:
        seen = 0.0 if state.witness is None else max(state.witness.misfit_at(state.values) - lowest, 0.0)
        return far(float(state.values @ precision @ state.values)) + far(seen)

    errors = [misfit(state.left, least) for state in states]
    scale = max(min(errors) / least.groups, 1.0)
    scores = [error / scale + unlikely(state) for error, state in zip(errors, states, strict=True)]
    found: dict[frozenset[str], State] = {}
    for place in np.argsort(scores, kind="stable"):
        found.setdefault(frozenset(states[place].causes), states[place])
    return list(found.values())


def far(squares: float) -> float:
    """Return minus twice the logarithm of a density with heavier than normal tails: what is off may be far off.

    ``squares``: sum of squares in standard deviations.

    >>> [round(far(squares), 1) for squares in (0.0, 4.0, 100.0)]
    [0.0, 3.5, 16.3]
    """
    return (TAILS + 1.0) * float(np.log1p(squares / TAILS))


def _names(causes: Sequence[str]) -> set[str]:
    return {cause.split("=")[0] for cause in causes}


def _settings_tried(
    serve: Serve,
    best: State,
    settings: Sequence[tuple[str, Mapping[str, Any]]],
    left_of: Callable[[Replayed], Left],
    said: Testify,
) -> list[State]:
    flags = [{**best.flags, **other} for _, other in settings]
    served = serve([variant_of(own, best.values) for own in flags]) if flags else []
    return [
        State(own, best.values, (*best.causes, name), replayed, left_of(replayed), witness)
        for (name, _), own, replayed, witness in zip(settings, flags, served, said(flags), strict=True)
        if replayed.served.any()
    ]


def _sizes_fitted(
    serve: Serve,
    best: State,
    measured: Measured,
    chosen: np.ndarray,
    prior: np.ndarray,
    left_of: Callable[[Replayed], Left],
) -> list[State]:
    """Fit the size of each cause that is not chosen yet, sizes of chosen ones beside it."""
    groups = {name: parts for name, parts in GROUPS.items() if not _overlaps(name, best.causes)}
    chosen_groups = [GROUPS[name] for name in best.causes if name in GROUPS]
    tied = {name: [*chosen_groups, parts] for name, parts in groups.items() if _is_there(parts, best.replayed)}
    found = {name: best._replace(causes=(*best.causes, name)) for name in tied}
    lengths, steps = dict.fromkeys(tied, 1.0), dict[str, np.ndarray]()

    def served(values: Mapping[str, np.ndarray]) -> dict[str, State]:
        replays = serve([variant_of(best.flags, own) for own in values.values()]) if values else []
        return {
            name: found[name]._replace(values=own, replayed=replayed, left=left_of(replayed))
            for (name, own), replayed in zip(values.items(), replays, strict=True)
        }

    for _ in range(NEWTON_STEPS):
        for name, own in tied.items():
            if lengths[name] == 1.0:
                basis = np.array([[float(part in parts) for part in PARAMETERS] for parts in own]).T
                steps[name] = _tied_step(basis, measured, found[name], chosen, prior)
        for name, state in served({name: found[name].values + lengths[name] * steps[name] for name in tied}).items():
            better = misfit(state.left, best.left) < misfit(found[name].left, best.left)
            found[name], lengths[name] = (state, 1.0) if better else (found[name], lengths[name] * SHORTER)
    found = {name: state for name, state in found.items() if _is_material(state)}
    beside = [served({name: state.values * share for name, state in found.items()}) for share in NEIGHBOURS]
    # which requests share a step is chance: of many sizes one is best by it
    return [
        state._replace(left=averaged([state.left, *(own[name].left for own in beside)]))
        for name, state in found.items()
    ]


def _is_material(state: State) -> bool:
    """Whether the size of every cause is more than noise."""
    sizes = dict(zip(PARAMETERS, np.abs(state.values), strict=True))
    least = {"host": LEAST_STEP_MS, "front_end": LEAST_REQUEST_MS}
    names = [part for cause in state.causes if cause in GROUPS for part in GROUPS[cause]]
    return all(sizes[name] >= least.get(name, LEAST_FACTOR) for name in names)


def _tied_step(
    basis: np.ndarray, measured: Measured, state: State, chosen: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """Return the Newton step of PARAMETERS that may only change along the columns of ``basis``.

    The prior is wide here: which cause it is, not how large, is decided by what it explains.
    """
    seen = observe(measured, state.replayed, chosen)
    seen = seen._replace(derivative=seen.derivative @ basis)
    inside = np.linalg.lstsq(basis, state.values, rcond=None)[0]
    wide = np.diag(np.diag(basis.T @ prior @ basis) * 100.0)
    beside = None
    if state.witness is not None:
        beside = basis.T @ state.witness.precision @ basis, basis.T @ state.witness.pull(state.values)
    step, _ = newton_step(inside, seen, state.replayed, wide, beside)
    return limited(basis @ step)


def _overlaps(name: str, causes: Sequence[str]) -> bool:
    taken = {part for cause in causes if cause in GROUPS for part in GROUPS[cause]}
    return not taken.isdisjoint(GROUPS[name])


def _is_there(parts: Sequence[str], replayed: Replayed) -> bool:
    """Whether the deployment spends time in these parts."""
    return all(part in ("host", "front_end") or replayed.part(part).any() for part in parts)
