"""Host constants of an engine: times by cause, as columns of ``host_settings``, and their published priors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from kernelsight.catalog.tables import facts

# number of running requests at which each costs half of ``per_request_us``
REQUESTS_HALF = 64.0


class Constants(NamedTuple):
    """Host times by cause, the same for every engine and model, and a factor (``pace``) on the kernels of a group.

    ``per_request_us``: per running request and step; n requests count as n / (1 + n / ``REQUESTS_HALF``).
    ``gap``: factor on the published idle time between two kernels. ``eager_launch_us``: host time of each kernel
    launched outside CUDA graphs, ``latent_launch_us`` more with latent attention; it overlaps the kernels: such a step
    takes the longer of the two. ``request_ms``: per request, beside ``delay`` times the delay that a deployment states,
    which recipes fit; ``per_prompt_token_us``: tokenisation.
    """

    per_request_us: float
    request_ms: float
    pace: float = 1.0
    gap: float = 1.0
    eager_launch_us: float = 0.0
    latent_launch_us: float = 0.0
    per_prompt_token_us: float = 0.0
    delay: float = 1.0

    def host(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the replaced columns of a row of ``host_settings``, divided by ``pace``.

        A closed loop scales with its unit of time: slowing kernels by ``pace`` is equivalent to dividing host times by
        ``pace`` and multiplying all resulting times by it.
        """
        launch_us = self.eager_launch_us + (self.latent_launch_us if row["latent_attention"] else 0.0)
        return {
            "step_exposed_us": 0.0,
            "launch_gap_us": row["launch_gap_us"] * self.gap / self.pace,
            "per_eager_launch_us": launch_us / self.pace,
            "exposed_per_request_us": self.per_request_us / self.pace,
            "exposed_requests_half": REQUESTS_HALF,
            "request_us": (1000.0 * self.request_ms + self.delay * row["request_delay_us"]) / self.pace,
            "per_prompt_token_us": self.per_prompt_token_us / self.pace,
        }


def priors() -> dict[str, float]:
    """Return the published host times of ``host_priors`` by constant, us.

    >>> sorted(priors())
    ['latent_launch_us', 'per_eager_launch_us', 'per_prompt_token_us', 'request_us']
    """
    table = facts("host_priors")
    return dict(zip(table["constant"].to_pylist(), table["value"].to_pylist(), strict=True))


@cache
def a_priori() -> Constants:
    """Return the a-priori constants, from published times alone: 0 for running requests and stated delays."""
    prior_constants = priors()
    return Constants(
        0.0,
        prior_constants["request_us"] / 1000.0,
        eager_launch_us=prior_constants["per_eager_launch_us"],
        latent_launch_us=prior_constants["latent_launch_us"],
        per_prompt_token_us=prior_constants["per_prompt_token_us"],
        delay=0.0,
    )
