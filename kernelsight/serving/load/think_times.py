"""Pauses of users between the turns of a conversation, and the time over which users of a closed loop start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelsight.serving.load.arrivals import STEADY
from kernelsight.serving.load.dependencies import LONGEST_S

# standard deviation / mean of think times: 1 is the negative exponential distribution, from which the TPC-C benchmark
# draws them (TPC-C Standard Specification, revision 5.11, clause 5.2.5.4)
THINK_TIME_CV = 1.0


def think_times(generator: np.random.Generator, n: int, mean_s: float, cv: float | None) -> np.ndarray:
    """Return n think times in seconds: gamma-distributed with this mean and coefficient of variation.

    No cv: ``THINK_TIME_CV``. A cv of 0 makes all equal to the mean: conversations of equal lengths that begin together
    then stay in lock step, as no real users do.

    >>> think_times(np.random.default_rng(0), 2, 20.0, 0.0).tolist()
    [20.0, 20.0]
    """
    cv = THINK_TIME_CV if cv is None else cv
    shape = min(1.0 / max(cv, 1e-9) ** 2, STEADY)
    if shape == STEADY:
        return np.full(n, mean_s)
    return np.minimum(generator.standard_gamma(shape, n) * (mean_s / shape), LONGEST_S)


def ramp_s_of(scenario: Mapping[str, Any]) -> float:
    """Return the seconds over which the users of a closed loop start: as stated, else over their pauses.

    The pauses of one conversation, (num_turns - 1) x think_time_s: users are then at every turn from the first on, as
    they are later. Without pauses all start at once.

    >>> conversation = {"num_turns": 5, "think_time_s": 20.0, "concurrency_ramp_s": None}
    >>> ramp_s_of(conversation), ramp_s_of(conversation | {"concurrency_ramp_s": 0.0})
    (80.0, 0.0)
    """
    if scenario.get("concurrency_ramp_s") is not None:
        return scenario["concurrency_ramp_s"]
    return ((scenario.get("num_turns") or 1) - 1) * (scenario.get("think_time_s") or 0.0)
