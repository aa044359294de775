"""Which causes explain a log: settings that differ and times that are off, chosen one after the other by replays.

Each candidate is one change of the deployment: a setting one step from the stated one, or a factor on one kind of
kernels, or host time, whose size is fitted by Newton steps with a replay after each. All candidates are replayed in one
call. The best one is kept if it explains enough of what is left, and the next is looked for beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from kernelsight.comparison.cause_sizes import GROUPS, Log, Serve, State, with_sizes
from kernelsight.comparison.factors import PARAMETERS, Witness, relative_residuals, variant_of
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed
from kernelsight.comparison.residuals import Left, explains, left_by_group, misfit, similar

# more at once imitate what the model lacks; another one is looked for only to see whether these are enough
MOST_NAMED = 2
# explanations that the search goes on from where the best one leaves more than chance
BEGINNINGS = 3
# causes are believed where they take away this share of the loss, and leave no more than this of times, squared; and
# where chance is left
NEARLY_ALL, MOST_LEFT, MOST_OF_IT = 0.85, 0.15**2, 0.6
# degrees of freedom of Student's t: of sizes of causes, and of what steps and kernels say, of which there are many
TAILS, STEP_TAILS = 4.0, 30.0
# a smaller mean square of relative residuals is nothing to speak of
LEAST_LOSS = 0.002**2

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
    log = Log(serve, measured, chosen, prior, left_of)
    best = State(flags, np.zeros(len(PARAMETERS)), (), base, left_of(base), said([flags])[0])
    level, ranked, before = [best], [], best.left.loss
    while best.left.loss > LEAST_LOSS:
        settled = len(best.causes) >= MOST_NAMED
        if settled and not is_believed(1.0 - best.left.loss / before, best.left.is_chance, best.left.loss):
            break
        helpful = {name for name, loss in ranked if loss < before}
        tried = [] if settled else _settings_tried(log, level, settings, said, helpful)
        if not best.causes:
            ranked = sorted(((state.causes[-1], state.left.loss) for state in tried), key=lambda own: own[1])
        # the size of a setting is its value: what has no other one is as it was served
        sized = [state for state in tried if state.basis.size] + [each for one in level for each in _one_more(one)]
        states = [state for state in tried if not state.basis.size] + with_sizes(log, sized, best.left)
        if not states:
            break
        first, *others = by_plausibility(states, prior)
        if not explains(first.left, best.left):
            break
        best = first
        if settled:
            break
        # what one cause explains whole needs no other beginning
        level = [best] if best.left.is_chance else [best, *others[: BEGINNINGS - 1]]
    return best, ranked


def is_believed(explained: float, chance: bool, left: float) -> bool:
    """Whether causes explain nearly everything and leave little, or most of it and no more than chance.

    ``explained``: share of the loss; ``left``: what of the loss they leave, a mean square of shares of times.

    >>> is_believed(0.9, False, 0.01), is_believed(0.9, False, 0.04), is_believed(0.7, True, 0.01)
    (True, False, True)
    """
    return explained >= MOST_OF_IT if chance else explained >= NEARLY_ALL and left <= MOST_LEFT


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
        return far(float(state.values @ precision @ state.values)) + far(seen, STEP_TAILS)

    errors = [misfit(state.left, least) for state in states]
    scale = max(min(errors) / least.groups, 1.0)
    scores = [error / scale + unlikely(state) for error, state in zip(errors, states, strict=True)]
    found: dict[frozenset[str], State] = {}
    for place in np.argsort(scores, kind="stable"):
        found.setdefault(frozenset(states[place].causes), states[place])
    return list(found.values())


def far(squares: float, tails: float = TAILS) -> float:
    """Return minus twice the logarithm of a density with heavier than normal tails: what is off may be far off.

    ``squares``: sum of squares in standard deviations; ``tails``: degrees of freedom.

    >>> [round(far(squares), 1) for squares in (0.0, 4.0, 100.0)]
    [0.0, 3.5, 16.3]
    """
    return (tails + 1.0) * float(np.log1p(squares / tails))


def _names(causes: Sequence[str]) -> set[str]:
    return {cause.split("=")[0] for cause in causes}


def _settings_tried(
    log: Log, level: Sequence[State], settings: Sequence[tuple[str, Mapping[str, Any]]], said: Testify,
    helpful: Collection[str],
) -> list[State]:  # fmt: skip
    """Return each explanation with each setting that changes something, the sizes of its causes as they were.

    ``helpful``: settings that explain something alone. Others are not tried beside another setting, where every pair is
    a deployment of its own.
    """
    pairs = [
        (one, name, {**one.flags, **other})
        for one in level
        for name, other in settings
        if name.split("=")[0] not in _names(one.causes) and (name in helpful or set(one.causes) <= set(GROUPS))
    ]
    flags = [own for *_, own in pairs]
    served = log.serve([variant_of(own, one.values) for one, _, own in pairs]) if pairs else []
    return [
        State(own, one.values, (*one.causes, name), replayed, log.left_of(replayed), witness)
        for (one, name, own), replayed, witness in zip(pairs, served, said(flags) if flags else [], strict=True)
        if replayed.served.any() and not np.array_equal(replayed.finish_ns, one.replayed.finish_ns)
    ]


def _one_more(one: State) -> list[State]:
    """Return the explanation with one more cause that has a size, zero so far: those whose parts are there."""
    taken = {part for cause in one.causes if cause in GROUPS for part in GROUPS[cause]}
    return [
        one._replace(causes=(*one.causes, name))
        for name, parts in GROUPS.items()
        if taken.isdisjoint(parts) and _is_there(parts, one.replayed)
    ]


def _is_there(parts: Sequence[str], replayed: Replayed) -> bool:
    """Whether the deployment spends time in these parts."""
    return all(part in ("host", "front_end") or replayed.part(part).any() for part in parts)
