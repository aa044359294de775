"""Host constants fitted to measured runs: least error of TTFT and TPOT, regularised towards constants of more runs.

The form was chosen by cross-validation inside the fitting fifth, whole groups left out: six constants that all engines
share are as good for a group that is left out as constants of its engine or its version.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernelsight.evaluation.runs.host_constants import Constants, a_priori
from kernelsight.evaluation.runs.responses import Response, means_of
from kernelsight.evaluation.runs.scores import GROUP

Pair = tuple[Any, Response]
LAUNCHES_US = (0.0, 4.0, 8.0, 15.0, 25.0, 35.0, 45.0, 55.0, 65.0, 75.0, 90.0, 110.0)
# grid of the fit
CHOICES: dict[str, tuple[float, ...]] = {
    "pace": tuple(round(math.exp(0.05 * number), 3) for number in range(-12, 13)),
    "gap": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0),
    "per_request_us": (0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 50.0, 60.0, 90.0, 120.0),
    "request_ms": (0.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 160.0, 200.0),
    "eager_launch_us": LAUNCHES_US,
    "latent_launch_us": LAUNCHES_US,
    "experts_request_ms": (0.0, 15.0, 30.0, 60.0, 90.0, 120.0, 160.0, 200.0),
    "per_prompt_token_us": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0),
}
HOST = tuple(name for name in CHOICES if name not in ("pace", "gap"))
# what a group may have of its own
OWN = ("pace", "gap", "per_request_us", "request_ms", "eager_launch_us", "per_prompt_token_us")
# expected distance of a group's constants from those of all (pace: logarithmic), and the penalty's weight
SPREADS = {
    **{"pace": 0.1, "gap": 1.0, "per_request_us": 20.0, "request_ms": 40.0, "eager_launch_us": 20.0},
    **{"latent_launch_us": 20.0, "experts_request_ms": 40.0, "per_prompt_token_us": 4.0},
}
PULL = 0.05
# larger errors do not come from host time
LARGEST_LOG_ERROR = 0.7
MOST_ROUNDS = 12


def loss(pairs: Sequence[Pair], at: Constants) -> float:
    """Return the mean absolute log error of TTFT plus TPOT, each clipped at ``LARGEST_LOG_ERROR``.

    A group of n runs counts as sqrt(n).
    """
    return _errors(pairs)(at) / float(_weights(pairs).sum()) if pairs else 0.0


def _weights(pairs: Sequence[Pair]) -> np.ndarray:
    groups = [tuple(run[name] for name in GROUP) for run, _ in pairs]
    sizes = Counter(groups)
    return np.array([sizes[group] ** -0.5 for group in groups])


def _errors(pairs: Sequence[Pair]) -> Callable[[Constants], float]:
    """Return a function from constants to the weighted sum over runs of the absolute log errors."""
    responses = Response.together([response for _, response in pairs])
    measured = np.log(np.array([(run["ttft_ms"], run["tpot_ms"]) for run, _ in pairs]))
    weights = _weights(pairs)

    def errors(at: Constants) -> float:
        misses = np.abs(np.log(np.maximum(means_of(responses, at), 1e-6)) - measured)
        return float(weights @ np.minimum(misses, LARGEST_LOG_ERROR).sum(axis=1))

    return errors


def distance(at: Constants, centre: Constants) -> float:
    """Return the distance between constants, each in units of its spread.

    >>> distance(Constants(20.0, 50.0), Constants(0.0, 10.0))
    2.0
    """
    host = sum(abs(getattr(at, name) - getattr(centre, name)) / SPREADS[name] for name in ("gap", *HOST))
    return host + abs(math.log(at.pace / centre.pace)) / SPREADS["pace"]


def fit(pairs: Sequence[Pair]) -> Constants:
    """Return the host constants of least loss, from ``a_priori`` on; kernels as predicted, gaps as published."""
    return _descend(_errors(pairs), HOST, a_priori()) if pairs else a_priori()


def fit_near(pairs: Sequence[Pair], centre: Constants) -> Constants:
    """Return the constants and the kernel factor of least loss for one group, regularised towards ``centre``."""
    errors, scale = _errors(pairs), len(pairs) ** 0.5
    return _descend(lambda at: scale * errors(at) + PULL * distance(at, centre), OWN, centre)


def _descend(cost: Callable[[Constants], float], names: Sequence[str], start: Constants) -> Constants:
    """Return the constants of least cost by coordinate descent: each over its grid, then pairs by one grid step."""
    best = start
    for _ in range(MOST_ROUNDS):
        before = best
        for name in names:
            moves = [best._replace(**{name: value}) for value in CHOICES[name]]
            best = min((best, *moves), key=cost)
        for first, second in itertools.combinations(names, 2):
            moves = [
                best._replace(**{first: one, second: other})
                for one in _beside(first, best)
                for other in _beside(second, best)
            ]
            best = min((best, *moves), key=cost)
        if best == before:
            break
    return best


def _beside(name: str, at: Constants) -> list[float]:
    """Return the grid values next to the current one.

    >>> _beside("gap", Constants(0.0, 0.0, gap=0.2)), _beside("gap", Constants(0.0, 0.0, gap=3.0))
    ([0.0, 0.4], [2.5])
    """
    choices = CHOICES[name]
    nearest = min(range(len(choices)), key=lambda number: abs(choices[number] - getattr(at, name)))
    return [choices[number] for number in (nearest - 1, nearest + 1) if 0 <= number < len(choices)]
