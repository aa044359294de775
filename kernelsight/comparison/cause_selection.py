"""Causes of a log's misses (settings, factors on times), chosen by forward selection with replays and a beam.

Each candidate is one change of the deployment: a setting one step from the stated one, or a factor on one kind of
kernels, or host time, whose size is fitted by Newton steps with a replay after each. All candidates are replayed in one
call. The best one is kept if it explains enough of the residuals, and the search for the next one starts from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from kernelsight.comparison.cause_sizes import GROUPS, Log, Serve, State, with_sizes
from kernelsight.comparison.factors import PARAMETERS, StepLikelihood, relative_residuals, variant_of
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed
from kernelsight.comparison.residuals import GroupResiduals, explains, group_residuals, misfit, similar

# more causes at once would fit errors of the model; one more is tried only to see whether these are enough
MOST_NAMED = 2
# beam width: explanations that the search continues from while the best one leaves more than chance
BEAM_WIDTH = 3
# causes are accepted if they explain this share of the loss and leave at most this mean square of relative residuals;
# the last: the share that suffices where the remainder is chance
NEARLY_ALL, MOST_LEFT, MOST_OF_IT = 0.85, 0.15**2, 0.6
# degrees of freedom of Student's t for sizes of causes, and for the many residuals of steps and kernels
TAILS, STEP_TAILS = 4.0, 30.0
# a smaller mean square of relative residuals needs no cause
LEAST_LOSS = 0.002**2

LikelihoodsOf = Callable[[Sequence[Mapping[str, Any]]], Sequence[StepLikelihood | None]]


def explain(
    serve: Serve,
    flags: Mapping[str, Any],
    base: Replayed,
    measured: Measured,
    chosen: np.ndarray,
    prior: np.ndarray,
    settings: Sequence[tuple[str, Mapping[str, Any]]],
    likelihoods_of: LikelihoodsOf | None = None,
) -> tuple[State, list[tuple[str, float]]]:
    """Return the best explanation of a log, and (setting, loss) of each setting tried alone, best first.

    ``base``: the replay of ``flags``; ``chosen``: mask of the requests that are fitted, shape [requests]; ``prior``:
    covariance of PARAMETERS; ``settings``: names and flags of alternatives, of which those that cannot run are skipped;
    ``likelihoods_of``: the likelihood of each deployment by engine steps and kernels of the log. Losses are mean
    squares of relative residuals.
    """

    groups = similar(measured, chosen)

    def residuals_of(replayed: Replayed) -> GroupResiduals:
        return group_residuals(relative_residuals(measured, replayed)[:, chosen], groups)

    likelihoods_of = likelihoods_of or (lambda flags_of_deployments: [None] * len(flags_of_deployments))
    log = Log(serve, measured, chosen, prior, residuals_of)
    best = State(flags, np.zeros(len(PARAMETERS)), (), base, residuals_of(base), likelihoods_of([flags])[0])
    beam, ranked, before = [best], [], best.residuals.loss
    while best.residuals.loss > LEAST_LOSS:
        has_enough = len(best.causes) >= MOST_NAMED
        if has_enough and not is_believed(
            1.0 - best.residuals.loss / before, best.residuals.is_chance, best.residuals.loss
        ):
            break
        helpful = {name for name, loss in ranked if loss < before}
        tried = [] if has_enough else _settings_tried(log, beam, settings, likelihoods_of, helpful)
        if not best.causes:
            ranked = sorted(
                ((state.causes[-1], state.residuals.loss) for state in tried), key=lambda ranking: ranking[1]
            )
        # the size of a setting is its value: an explanation of settings alone has no size to fit
        sized = [state for state in tried if state.basis.size] + [
            extended for explanation in beam for extended in _one_more(explanation)
        ]
        states = [state for state in tried if not state.basis.size] + with_sizes(log, sized, best.residuals)
        if not states:
            break
        most_plausible, *less_plausible = by_plausibility(states, prior)
        if not explains(most_plausible.residuals, best.residuals):
            break
        best = most_plausible
        if has_enough:
            break
        # where one cause explains everything no other explanation is followed
        beam = [best] if best.residuals.is_chance else [best, *less_plausible[: BEAM_WIDTH - 1]]
    return best, ranked


def is_believed(explained: float, chance: bool, left: float) -> bool:
    """Whether causes explain enough: nearly all of the loss and leave little, or most of it and leave only chance.

    ``explained``: share of the loss that they explain; ``chance``: whether the remainder is chance; ``left``: the
    remaining loss, a mean square of relative residuals.

    >>> is_believed(0.9, False, 0.01), is_believed(0.9, False, 0.04), is_believed(0.7, True, 0.01)
    (True, False, True)
    """
    return explained >= MOST_OF_IT if chance else explained >= NEARLY_ALL and left <= MOST_LEFT


def by_plausibility(states: Sequence[State], prior: np.ndarray) -> list[State]:
    """Return explanations by decreasing posterior: misfit of residuals, plus improbability of sizes under the prior.

    Residuals count in standard errors of the explanation with the smallest loss. Causes with the same effect (host time
    of every step, a kernel that reads weights) have equal residuals; then the prior decides. Of several explanations
    with the same causes only the best is kept.
    """
    least = min((state.residuals for state in states), key=lambda residuals: residuals.loss)
    precision = np.linalg.inv(prior)

    lowest = min((state.likelihood.misfit for state in states if state.likelihood is not None), default=0.0)

    def unlikely(state: State) -> float:
        of_steps = 0.0 if state.likelihood is None else max(state.likelihood.misfit_at(state.values) - lowest, 0.0)
        return heavy_tailed(float(state.values @ precision @ state.values)) + heavy_tailed(of_steps, STEP_TAILS)

    errors = [misfit(state.residuals, least) for state in states]
    scale = max(min(errors) / least.groups, 1.0)
    scores = [error / scale + unlikely(state) for error, state in zip(errors, states, strict=True)]
    by_causes: dict[frozenset[str], State] = {}
    for index in np.argsort(scores, kind="stable"):
        by_causes.setdefault(frozenset(states[index].causes), states[index])
    return list(by_causes.values())


def heavy_tailed(squares: float, tails: float = TAILS) -> float:
    """Return minus twice the log density of Student's t, up to a constant: large deviations are not impossible.

    ``squares``: sum of squares in standard deviations; ``tails``: degrees of freedom.

    >>> [round(heavy_tailed(squares), 1) for squares in (0.0, 4.0, 100.0)]
    [0.0, 3.5, 16.3]
    """
    return (tails + 1.0) * float(np.log1p(squares / tails))


def _names(causes: Sequence[str]) -> set[str]:
    return {cause.split("=")[0] for cause in causes}


def _settings_tried(
    log: Log,
    beam: Sequence[State],
    settings: Sequence[tuple[str, Mapping[str, Any]]],
    likelihoods_of: LikelihoodsOf,
    helpful: Collection[str],
) -> list[State]:
    """Return each explanation extended by each setting that changes its replay; sizes of causes stay as they are.

    ``helpful``: names of settings that reduce the loss alone. Others are not combined with another setting, since every
    pair is one more deployment to replay.
    """
    pairs = [
        (state, name, {**state.flags, **setting})
        for state in beam
        for name, setting in settings
        if name.split("=")[0] not in _names(state.causes) and (name in helpful or set(state.causes) <= set(GROUPS))
    ]
    flags = [changed for *_, changed in pairs]
    replays = log.serve([variant_of(changed, state.values) for state, _, changed in pairs]) if pairs else []
    likelihoods = likelihoods_of(flags) if flags else []
    return [
        State(changed, state.values, (*state.causes, name), replayed, log.residuals_of(replayed), likelihood)
        for (state, name, changed), replayed, likelihood in zip(pairs, replays, likelihoods, strict=True)
        if replayed.served.any() and not np.array_equal(replayed.finish_ns, state.replayed.finish_ns)
    ]


def _one_more(state: State) -> list[State]:
    """Return the explanation extended by each further cause that has a size (zero yet) and whose parts take time."""
    parameters_used = {parameter for cause in state.causes if cause in GROUPS for parameter in GROUPS[cause]}
    return [
        state._replace(causes=(*state.causes, name))
        for name, group in GROUPS.items()
        if parameters_used.isdisjoint(group) and _takes_time(group, state.replayed)
    ]


def _takes_time(parameters: Sequence[str], replayed: Replayed) -> bool:
    """Whether the replay spends time in all of these parts; host and front end always count."""
    return all(parameter in ("host", "front_end") or replayed.part(parameter).any() for parameter in parameters)
