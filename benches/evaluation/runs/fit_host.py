"""Fit of host constants to measured runs: least log error of TTFT and TPOT, regularised towards constants of more runs.

The model was chosen by cross-validation inside the fitting fifth, with whole groups left out: five constants shared by
all engines predict a left-out group as well as constants of its engine or its version.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernelsight.evaluation.runs.run_scores import GROUP
from kernelsight.laboratory.runs.host_constants import Constants, a_priori
from kernelsight.laboratory.runs.responses import Response, means_of

Pair = tuple[Any, Response]
# grid of each constant
CHOICES: dict[str, tuple[float, ...]] = {
    "pace": tuple(round(math.exp(0.05 * number), 3) for number in range(-12, 13)),
    "gap": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0),
    "per_request_us": (0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 50.0, 60.0, 90.0, 120.0),
    "request_ms": (0.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 160.0, 200.0),
    "eager_launch_us": (0.0, 4.0, 8.0, 15.0, 25.0, 35.0, 45.0, 55.0, 65.0, 75.0, 90.0, 110.0),
    "per_prompt_token_us": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0),
}
HOST = tuple(name for name in CHOICES if name not in ("pace", "gap"))
# constants that a group may have of its own
OF_GROUP = ("pace", "gap", "per_request_us", "request_ms", "eager_launch_us", "per_prompt_token_us")
# prior spread of a group's constants around those of all (pace: logarithmic); PULL: weight of the penalty
SPREADS = {
    **{"pace": 0.1, "gap": 1.0, "per_request_us": 20.0, "request_ms": 40.0, "eager_launch_us": 20.0},
    "per_prompt_token_us": 4.0,
}
PULL = 0.05
# larger errors do not come from host time
LARGEST_LOG_ERROR = 0.7
MOST_ROUNDS = 12


def loss(pairs: Sequence[Pair], constants: Constants) -> float:
    """Return the mean absolute log error of TTFT plus that of TPOT, each clipped at ``LARGEST_LOG_ERROR``.

    ``pairs``: runs with their responses; a group of n runs has weight sqrt(n).
    """
    return _errors(pairs)(constants) / float(_weights(pairs).sum()) if pairs else 0.0


def _weights(pairs: Sequence[Pair]) -> np.ndarray:
    """Return the weight of each run, 1 / sqrt(runs of its group), shape [runs]."""
    groups = [tuple(run[name] for name in GROUP) for run, _ in pairs]
    sizes = Counter(groups)
    return np.array([sizes[group] ** -0.5 for group in groups])


def _errors(pairs: Sequence[Pair]) -> Callable[[Constants], float]:
    """Return a function from constants to the weighted sum over runs of absolute log errors, clipped."""
    responses = Response.together([response for _, response in pairs])
    measured = np.log(np.array([(run["ttft_ms"], run["tpot_ms"]) for run, _ in pairs]))
    weights = _weights(pairs)

    def errors(constants: Constants) -> float:
        log_errors = np.abs(np.log(np.maximum(means_of(responses, constants), 1e-6)) - measured)
        return float(weights @ np.minimum(log_errors, LARGEST_LOG_ERROR).sum(axis=1))

    return errors


def distance(constants: Constants, centre: Constants) -> float:
    """Return the sum of distances between constants, each in units of its SPREADS.

    >>> distance(Constants(20.0, 50.0), Constants(0.0, 10.0))
    2.0
    """
    host = sum(abs(getattr(constants, name) - getattr(centre, name)) / SPREADS[name] for name in ("gap", *HOST))
    return host + abs(math.log(constants.pace / centre.pace)) / SPREADS["pace"]


def fit(pairs: Sequence[Pair]) -> Constants:
    """Return the host constants of least loss, starting from ``a_priori``; ``pace`` and ``gap`` stay 1."""
    return _descend(_errors(pairs), HOST, a_priori()._replace(delay=1.0)) if pairs else a_priori()


def fit_near(pairs: Sequence[Pair], centre: Constants) -> Constants:
    """Return the constants of one group with least loss, kernel factor included, regularised towards ``centre``."""
    errors, scale = _errors(pairs), len(pairs) ** 0.5
    return _descend(lambda constants: scale * errors(constants) + PULL * distance(constants, centre), OF_GROUP, centre)


def _descend(cost: Callable[[Constants], float], names: Sequence[str], start: Constants) -> Constants:
    """Return the constants of least cost, by coordinate descent: each over its grid, then pairs by one grid step."""
    best = start
    for _ in range(MOST_ROUNDS):
        before = best
        for name in names:
            candidates = [best._replace(**{name: value}) for value in CHOICES[name]]
            best = min((best, *candidates), key=cost)
        for first, second in itertools.combinations(names, 2):
            candidates = [
                best._replace(**{first: first_value, second: second_value})
                for first_value in _neighbours(first, best)
                for second_value in _neighbours(second, best)
            ]
            best = min((best, *candidates), key=cost)
        if best == before:
            break
    return best


def _neighbours(name: str, constants: Constants) -> list[float]:
    """Return the grid values next to the current one.

    >>> _neighbours("gap", Constants(0.0, 0.0, gap=0.2)), _neighbours("gap", Constants(0.0, 0.0, gap=3.0))
    ([0.0, 0.4], [2.5])
    """
    choices = CHOICES[name]
    nearest = min(range(len(choices)), key=lambda number: abs(choices[number] - getattr(constants, name)))
    return [choices[number] for number in (nearest - 1, nearest + 1) if 0 <= number < len(choices)]
