"""Host constants fitted to measured runs: least error of TTFT and TPOT, regularised towards constants of more runs.

The forms were chosen by cross-validation inside the fitting fifth (``benches/accuracy/README.md`` lists the results).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernelsight.backtest.host_constants import NONE, Constants
from kernelsight.backtest.responses import Response, means_of

Pair = tuple[Any, Response]
# grid of the fit
CHOICES: dict[str, tuple[float, ...]] = {
    "pace": tuple(round(math.exp(0.05 * number), 3) for number in range(-12, 13)),
    "step_ms": (0.0, 0.15, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 8.0),
    "per_request_us": (0.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 200.0),
    "request_ms": (0.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 160.0, 200.0, 250.0),
    "eager_launch_us": (0.0, 15.0, 25.0, 35.0, 45.0, 55.0, 65.0, 75.0, 90.0, 110.0, 130.0),
    "per_prompt_token_us": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0),
}
HOST = ("step_ms", "per_request_us", "request_ms", "eager_launch_us", "per_prompt_token_us")
# expected distance of a group's constants from its version's (pace: logarithmic), and the penalty's weight
SPREADS = {
    **{"pace": 0.1, "step_ms": 1.5, "per_request_us": 20.0, "request_ms": 40.0, "eager_launch_us": 20.0},
    "per_prompt_token_us": 4.0,
}
PULL = 0.05
# larger errors do not come from host time
LARGEST_LOG_ERROR = 0.7
START = Constants(0.3, 0.0, 10.0)
MOST_ROUNDS = 12


def loss(pairs: Sequence[Pair], at: Constants) -> float:
    """Return the mean absolute log error of TTFT plus TPOT, each clipped at ``LARGEST_LOG_ERROR``."""
    return _errors(pairs)(at) / len(pairs) if pairs else 0.0


def _errors(pairs: Sequence[Pair]) -> Callable[[Constants], float]:
    """Return a function from constants to the sum over runs of the absolute log errors."""
    values = np.stack([np.stack([response.ttft_ms, response.tpot_ms]) for _, response in pairs])
    running, prompt_tokens = (
        np.array([getattr(response, name) for _, response in pairs]) for name in ("running", "prompt_tokens")
    )
    measured = np.array([(run["ttft_ms"], run["tpot_ms"]) for run, _ in pairs])

    def errors(at: Constants) -> float:
        found = np.abs(np.log(np.maximum(means_of(values, running, prompt_tokens, at), 1e-6) / measured))
        return float(np.minimum(found, LARGEST_LOG_ERROR).sum())

    return errors


def distance(at: Constants, centre: Constants) -> float:
    """Return the distance between constants, each in units of its spread.

    >>> distance(Constants(1.5, 20.0, 10.0), Constants(0.0, 0.0, 10.0))
    2.0
    """
    host = sum(abs(getattr(at, name) - getattr(centre, name)) / SPREADS[name] for name in HOST)
    return host + abs(math.log(at.pace / centre.pace)) / SPREADS["pace"]


def fit(pairs: Sequence[Pair]) -> Constants:
    """Return the host constants of least loss, with kernels as predicted; without runs: no host time."""
    return _descend(_errors(pairs), HOST, START) if pairs else NONE


def fit_near(pairs: Sequence[Pair], centre: Constants) -> Constants:
    """Return the host constants and the kernel factor of least loss, regularised towards ``centre``."""
    errors = _errors(pairs)
    return _descend(lambda at: errors(at) + PULL * distance(at, centre), ("pace", *HOST), centre)


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
    """Return the grid values next to the current one."""
    choices = CHOICES[name]
    place = min(range(len(choices)), key=lambda number: abs(choices[number] - getattr(at, name)))
    return [choices[number] for number in (place - 1, place + 1) if 0 <= number < len(choices)]
