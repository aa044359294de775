"""Host constants of an engine: times by cause, as columns of ``host_settings``, and their published priors."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# published host times of parts, with their sources
HOST_PRIORS = Path(__file__).with_name("host_priors.csv")
# number of running requests at which each costs half of ``per_request_us``
REQUESTS_HALF = 64.0


class Constants(NamedTuple):
    """Host times by cause, the same for every engine and model, and a factor (``pace``) on the kernels of a group.

    ``per_request_us``: per running request and step; n requests count as n / (1 + n / ``REQUESTS_HALF``).
    ``gap``: factor on the published idle time between two kernels. ``eager_launch_us``: host time of each launch
    outside CUDA graphs; it overlaps the kernels: such a step takes the longer of the two. ``request_ms``: per request,
    beside ``delay`` times the delay that a deployment states, which recipes fit; ``per_prompt_token_us``: tokenisation.
    """

    per_request_us: float
    request_ms: float
    pace: float = 1.0
    gap: float = 1.0
    eager_launch_us: float = 0.0
    per_prompt_token_us: float = 0.0
    delay: float = 1.0

    def host(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the replaced columns of a row of ``host_settings``, divided by ``pace``.

        A closed loop scales with its unit of time: slowing kernels by ``pace`` is equivalent to dividing host times by
        ``pace`` and multiplying all resulting times by it.
        """
        return {
            "step_exposed_us": 0.0,
            "launch_gap_us": row["launch_gap_us"] * self.gap / self.pace,
            "per_eager_launch_us": self.eager_launch_us / self.pace,
            "exposed_per_request_us": self.per_request_us / self.pace,
            "exposed_requests_half": REQUESTS_HALF,
            "request_us": (1000.0 * self.request_ms + self.delay * row["request_delay_us"]) / self.pace,
            "per_prompt_token_us": self.per_prompt_token_us / self.pace,
        }


def priors() -> dict[str, float]:
    """Return the published host times of ``host_priors.csv`` by constant, us.

    >>> sorted(priors())
    ['per_eager_launch_us', 'per_prompt_token_us', 'request_us']
    """
    with HOST_PRIORS.open(encoding="utf-8", newline="") as file:
        return {row["constant"]: float(row["value"]) for row in csv.DictReader(file)}


@cache
def a_priori() -> Constants:
    """Return the a-priori constants, from published times alone: 0 for running requests and stated delays."""
    prior_constants = priors()
    return Constants(
        0.0,
        prior_constants["request_us"] / 1000.0,
        eager_launch_us=prior_constants["per_eager_launch_us"],
        per_prompt_token_us=prior_constants["per_prompt_token_us"],
        delay=0.0,
    )
