"""Which causes explain a log: settings that differ and times that are off, chosen one after the other by replays.

Each candidate is one change of the deployment: a setting one step from the stated one, or a factor on one kind of
kernels, or host time, whose size is fitted by Newton steps with a replay after each. All candidates are replayed in one
call. The best one is kept if it explains enough of what is left, and the next is looked for beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.attribution.factors import PARAMETERS, newton_step, observe, relative_loss, variant_of
from kernelsight.attribution.measured import Measured
from kernelsight.attribution.replay import Replayed, Variant

# PARAMETERS that err together are one cause
GROUPS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("prefill_gemm", "decode_gemm"),
    **{name: (name,) for name in ("prefill_gemm", "decode_gemm", "prefill_attention", "decode_attention")},
    **{name: (name,) for name in ("moe", "communication", "host", "front_end")},
}
NEWTON_STEPS = 5
MOST_CAUSES = 3
# a cause has to take this share of the loss away, and there has to be a loss to speak of: relative error of half a percent
LEAST_GAIN, LEAST_LOSS = 0.25, 0.005**2 / 0.2


class State(NamedTuple):
    """An explanation: the flags, the values of PARAMETERS, the causes that were chosen, and what it predicts."""

    flags: Mapping[str, Any]
    values: np.ndarray
    causes: tuple[str, ...]
    replayed: Replayed
    loss: float


Serve = Callable[[Sequence[Variant]], list[Replayed]]


def explain(
    serve: Serve,
    flags: Mapping[str, Any],
    base: Replayed,
    measured: Measured,
    chosen: np.ndarray,
    prior: np.ndarray,
    settings: Sequence[tuple[str, Mapping[str, Any]]],
) -> tuple[State, list[tuple[str, float]]]:
    """Return the explanation of a log, and the loss of each setting alone, best first.

    ``base``: the replay of ``flags``; ``chosen``: the requests that are explained; ``settings``: names of alternatives,
    and the flags that they are; an alternative that cannot run is passed over.
    """

    def loss_of(replayed: Replayed) -> float:
        return float(np.nanmean(np.where(chosen, relative_loss(measured, replayed), np.nan)))

    best = State(flags, np.zeros(len(PARAMETERS)), (), base, loss_of(base))
    ranked: list[tuple[str, float]] = []
    for _ in range(MOST_CAUSES):
        if best.loss <= LEAST_LOSS:
            break
        open_settings = [(name, other) for name, other in settings if name.split("=")[0] not in _names(best.causes)]
        states = _settings_tried(serve, best, open_settings, loss_of)
        if not ranked:
            ranked = sorted(((state.causes[-1], state.loss) for state in states), key=lambda one: one[1])
        states += _sizes_fitted(serve, best, measured, chosen, prior, loss_of)
        if not states:
            break
        found = min(states, key=lambda state: state.loss)
        if found.loss > (1.0 - LEAST_GAIN) * best.loss:
            break
        best = found
    return best, ranked


def _names(causes: Sequence[str]) -> set[str]:
    return {cause.split("=")[0] for cause in causes}


def _settings_tried(
    serve: Serve, best: State, settings: Sequence[tuple[str, Mapping[str, Any]]], loss_of: Callable[[Replayed], float]
) -> list[State]:
    flags = [{**best.flags, **other} for _, other in settings]
    served = serve([variant_of(own, best.values) for own in flags]) if flags else []
    return [
        State(own, best.values, (*best.causes, name), replayed, loss_of(replayed))
        for (name, _), own, replayed in zip(settings, flags, served, strict=True)
        if replayed.served.any()
    ]


def _sizes_fitted(
    serve: Serve,
    best: State,
    measured: Measured,
    chosen: np.ndarray,
    prior: np.ndarray,
    loss_of: Callable[[Replayed], float],
) -> list[State]:
    """Fit the size of each cause that is not chosen yet, sizes of chosen ones beside it."""
    groups = {name: parts for name, parts in GROUPS.items() if not _overlaps(name, best.causes)}
    chosen_groups = [GROUPS[name] for name in best.causes if name in GROUPS]
    tied = {name: [*chosen_groups, parts] for name, parts in groups.items() if _is_there(parts, best.replayed)}
    values = dict.fromkeys(tied, best.values)
    replays = dict.fromkeys(tied, best.replayed)
    found: dict[str, State] = {}
    for _ in range(NEWTON_STEPS):
        for name, own in tied.items():
            basis = np.array([[float(part in parts) for part in PARAMETERS] for parts in own]).T
            values[name] = values[name] + _tied_step(values[name], basis, measured, replays[name], chosen, prior)
        served = serve([variant_of(best.flags, values[name]) for name in tied]) if tied else []
        for name, replayed in zip(tied, served, strict=True):
            replays[name] = replayed
            state = State(best.flags, values[name], (*best.causes, name), replayed, loss_of(replayed))
            if name not in found or state.loss < found[name].loss:
                found[name] = state
    return list(found.values())


def _tied_step(
    value: np.ndarray, basis: np.ndarray, measured: Measured, replayed: Replayed, chosen: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """Return the Newton step of PARAMETERS that may only change along the columns of ``basis``.

    The prior is wide here: which cause it is, not how large, is decided by what it explains.
    """
    seen = observe(measured, replayed, chosen)
    seen = seen._replace(derivative=seen.derivative @ basis)
    inside = np.linalg.lstsq(basis, value, rcond=None)[0]
    wide = np.diag(np.diag(basis.T @ prior @ basis) * 100.0)
    step, _ = newton_step(inside, seen, replayed, wide)
    return basis @ step


def _overlaps(name: str, causes: Sequence[str]) -> bool:
    taken = {part for cause in causes if cause in GROUPS for part in GROUPS[cause]}
    return not taken.isdisjoint(GROUPS[name])


def _is_there(parts: Sequence[str], replayed: Replayed) -> bool:
    """Whether the deployment spends time in these parts."""
    return all(part in ("host", "front_end") or replayed.part(part).any() for part in parts)
