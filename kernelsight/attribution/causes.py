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
# a cause has to take this share of the loss away, and there has to be a loss to speak of
LEAST_GAIN, LEAST_LOSS = 0.3, 0.002**2
# explanations that leave less than this are judged by how unusual they are
NOTHING_LEFT = 0.007**2
# losses that differ by less than this share of the best one are alike
NEAR = 0.4
# smaller sizes are no cause: of the logarithm of a factor, ms a step, ms a request
LEAST_FACTOR, LEAST_STEP_MS, LEAST_REQUEST_MS = 0.03, 0.05, 1.0


class State(NamedTuple):
    """An explanation: the flags, the values of PARAMETERS, the causes that were chosen, and what it predicts."""

    flags: Mapping[str, Any]
    values: np.ndarray
    causes: tuple[str, ...]
    replayed: Replayed
    loss: float
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

    def loss_of(replayed: Replayed) -> float:
        return loss_by_group(relative_residuals(measured, replayed)[:, chosen], groups)

    said = testify or (lambda several: [None] * len(several))
    best = State(flags, np.zeros(len(PARAMETERS)), (), base, loss_of(base), said([flags])[0])
    ranked: list[tuple[str, float]] = []
    for _ in range(MOST_CAUSES):
        if best.loss <= LEAST_LOSS:
            break
        open_settings = [(name, other) for name, other in settings if name.split("=")[0] not in _names(best.causes)]
        states = _settings_tried(serve, best, open_settings, loss_of, said)
        if not ranked:
            ranked = sorted(((state.causes[-1], state.loss) for state in states), key=lambda one: one[1])
        states += _sizes_fitted(serve, best, measured, chosen, prior, loss_of)
        if not states:
            break
        found = most_plausible(states, prior)
        if found.loss > (1.0 - LEAST_GAIN) * best.loss:
            break
        best = found
    return best, ranked


def most_plausible(states: Sequence[State], prior: np.ndarray) -> State:
    """Return the explanation that is best by what it leaves unexplained and by how unusual the sizes are that it needs.

    Causes that act alike (host time of every step, a kernel that reads weights) leave equally little; then the one that
    the prior expects is named.
    """
    least = max(min(state.loss for state in states) * NEAR, NOTHING_LEFT)
    precision = np.linalg.inv(prior)

    def unusual(values: np.ndarray) -> float:
        # heavier than normal tails: what is off may be far off
        return 2.0 * float(np.log1p(values @ precision @ values / 4.0))

    lowest = min((state.witness.misfit for state in states if state.witness is not None), default=0.0)

    def contradicted(state: State) -> float:
        if state.witness is None:
            return 0.0
        return 2.0 * float(np.log1p(max(state.witness.misfit_at(state.values) - lowest, 0.0) / 4.0))

    return min(states, key=lambda state: state.loss / least + unusual(state.values) + contradicted(state))


def similar(measured: Measured, chosen: np.ndarray) -> np.ndarray:
    """Return a number for each chosen request, equal for those of similar prompts, outputs and concurrency.

    Which requests share a step is chance; on average over such a group chance is left out, and what is left is a cause.
    """
    sent = measured.sent_s[chosen]
    ends = np.sort(sent + np.nan_to_num(measured.e2e_ms[chosen]) / 1e3)
    running = np.arange(sent.size)[np.argsort(np.argsort(sent))] - np.searchsorted(ends, sent)
    number = np.zeros(sent.size, np.int64)
    for values in (measured.prompt_tokens[chosen], measured.output_tokens[chosen], running):
        edges = np.unique(np.quantile(values, [1 / 3, 2 / 3]))
        number = number * 3 + np.searchsorted(edges, values)
    return number


def loss_by_group(residuals: np.ndarray, groups: np.ndarray) -> float:
    """Return the mean square of the groups' mean residuals, and a tenth of that of single requests.

    ``residuals``: relative, shape [phases, requests].
    """
    total = np.zeros(2)
    for own in residuals:
        there = np.isfinite(own)
        if not there.any():
            continue
        count = np.bincount(groups[there])
        sums = np.bincount(groups[there], own[there])
        means = np.divide(sums, count, out=np.zeros(count.size), where=count > 0)
        single = np.minimum(np.abs(own[there]), 0.3)
        total += ((count * means**2).sum() + 0.1 * (single**2).sum(), there.sum())
    return float(total[0] / max(total[1], 1.0))


def _names(causes: Sequence[str]) -> set[str]:
    return {cause.split("=")[0] for cause in causes}


def _settings_tried(
    serve: Serve,
    best: State,
    settings: Sequence[tuple[str, Mapping[str, Any]]],
    loss_of: Callable[[Replayed], float],
    said: Testify,
) -> list[State]:
    flags = [{**best.flags, **other} for _, other in settings]
    served = serve([variant_of(own, best.values) for own in flags]) if flags else []
    return [
        State(own, best.values, (*best.causes, name), replayed, loss_of(replayed), witness)
        for (name, _), own, replayed, witness in zip(settings, flags, served, said(flags), strict=True)
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
            values[name] = values[name] + _tied_step(
                values[name], basis, measured, replays[name], chosen, prior, best.witness
            )
        served = serve([variant_of(best.flags, values[name]) for name in tied]) if tied else []
        for name, replayed in zip(tied, served, strict=True):
            replays[name] = replayed
            state = State(best.flags, values[name], (*best.causes, name), replayed, loss_of(replayed), best.witness)
            if name not in found or state.loss < found[name].loss:
                found[name] = state
    return [state for state in found.values() if _is_material(state)]


def _is_material(state: State) -> bool:
    """Whether the size of every cause is more than noise."""
    sizes = dict(zip(PARAMETERS, np.abs(state.values), strict=True))
    least = {"host": LEAST_STEP_MS, "front_end": LEAST_REQUEST_MS}
    names = [part for cause in state.causes if cause in GROUPS for part in GROUPS[cause]]
    return all(sizes[name] >= least.get(name, LEAST_FACTOR) for name in names)


def _tied_step(
    value: np.ndarray,
    basis: np.ndarray,
    measured: Measured,
    replayed: Replayed,
    chosen: np.ndarray,
    prior: np.ndarray,
    witness: Witness | None,
) -> np.ndarray:
    """Return the Newton step of PARAMETERS that may only change along the columns of ``basis``.

    The prior is wide here: which cause it is, not how large, is decided by what it explains.
    """
    seen = observe(measured, replayed, chosen)
    seen = seen._replace(derivative=seen.derivative @ basis)
    inside = np.linalg.lstsq(basis, value, rcond=None)[0]
    wide = np.diag(np.diag(basis.T @ prior @ basis) * 100.0)
    beside = None if witness is None else (basis.T @ witness.precision @ basis, basis.T @ witness.pull(value))
    step, _ = newton_step(inside, seen, replayed, wide, beside)
    return limited(basis @ step)


def _overlaps(name: str, causes: Sequence[str]) -> bool:
    taken = {part for cause in causes if cause in GROUPS for part in GROUPS[cause]}
    return not taken.isdisjoint(GROUPS[name])


def _is_there(parts: Sequence[str], replayed: Replayed) -> bool:
    """Whether the deployment spends time in these parts."""
    return all(part in ("host", "front_end") or replayed.part(part).any() for part in parts)
