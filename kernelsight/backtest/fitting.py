"""Host constants fitted to measured runs: least error of TTFT and TPOT together, drawn towards constants of more runs.

The forms were chosen by cross-validation inside the fitting fifth (``docs/accuracy/end_to_end.md`` lists what each
gave).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernelsight.backtest.constants import NONE, Constants
from kernelsight.backtest.responses import Response, means_of

Pair = tuple[Any, Response]
# what the fit chooses from
CHOICES: dict[str, tuple[float, ...]] = {
    "pace": tuple(round(math.exp(0.05 * number), 3) for number in range(-12, 13)),
    "step_ms": (0.0, 0.15, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 8.0),
    "per_request_us": (0.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 200.0),
    "request_ms": (0.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 160.0, 200.0, 250.0),
    "eager_launch_us": (0.0, 15.0, 25.0, 35.0, 45.0, 55.0, 65.0, 75.0, 90.0, 110.0, 130.0),
    "per_prompt_token_us": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0),
}
HOST = ("step_ms", "per_request_us", "request_ms", "eager_launch_us", "per_prompt_token_us")
# how far from its version's a group's constants are expected to lie (pace: as a logarithm), and what that counts
SPREADS = {
    **{"pace": 0.1, "step_ms": 1.5, "per_request_us": 20.0, "request_ms": 40.0, "eager_launch_us": 20.0},
    "per_prompt_token_us": 4.0,
}
PULL = 0.05
# an error beyond this factor says nothing about host time
LARGEST_LOG_ERROR = 0.7
START = Constants(0.3, 0.0, 10.0)
MOST_ROUNDS = 12


def loss(pairs: Sequence[Pair], at: Constants) -> float:
    """Return the mean absolute log error of TTFT and TPOT together, each cut off at ``LARGEST_LOG_ERROR``."""
    return _errors(pairs)(at) / len(pairs) if pairs else 0.0


def _errors(pairs: Sequence[Pair]) -> Callable[[Constants], float]:
    """Return the sum over runs of the absolute log errors at constants, as a function of these."""
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
    """Return how far constants lie from others, each in units of its spread.

    >>> distance(Constants(1.5, 20.0, 10.0), Constants(0.0, 0.0, 10.0))
    2.0
    """
    host = sum(abs(getattr(at, name) - getattr(centre, name)) / SPREADS[name] for name in HOST)
    return host + abs(math.log(at.pace / centre.pace)) / SPREADS["pace"]


def fit(pairs: Sequence[Pair]) -> Constants:
    """Return the host constants of least loss, kernels as predicted; no run at all: no host time."""
    return _descend(_errors(pairs), HOST, START) if pairs else NONE


def fit_near(pairs: Sequence[Pair], centre: Constants) -> Constants:
    """Return the host constants and the pace of the kernels of least loss, drawn towards ``centre``."""
    errors = _errors(pairs)
    return _descend(lambda at: errors(at) + PULL * distance(at, centre), ("pace", *HOST), centre)


def _descend(cost: Callable[[Constants], float], names: Sequence[str], start: Constants) -> Constants:
    """Return the constants of least cost: each in turn over its choices, then two by one choice, until none moves."""
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
    """Return the choices next to the one that is held."""
    choices = CHOICES[name]
    place = min(range(len(choices)), key=lambda number: abs(choices[number] - getattr(at, name)))
    return [choices[number] for number in (place - 1, place + 1) if 0 <= number < len(choices)]
