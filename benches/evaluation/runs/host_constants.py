"""Host constants of an engine: times by cause, as columns of ``host_settings``, and their published priors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from kernelsight.catalog.tables import facts

# number of running requests at which each costs half of ``per_request_us``
REQUESTS_HALF = 64.0
# engine whose mixture-of-experts models answer later, by ``experts_request_ms``
LATE_EXPERTS = "sglang"


class Constants(NamedTuple):
    """Host times by cause, the same for every engine and model, and a factor (``pace``) on the kernels of a group.

    ``per_request_us``: per running request and step; n requests count as n / (1 + n / ``REQUESTS_HALF``).
    ``gap``: factor on the published idle time between two kernels. ``eager_launch_us``: host time of each kernel
    launched outside CUDA graphs, ``latent_launch_us`` more with latent attention; it overlaps the kernels: such a step
    takes the longer of the two. ``request_ms``: per request, ``experts_request_ms`` more for a mixture of experts on
    SGLang; ``per_prompt_token_us``: tokenisation.
    """

    per_request_us: float
    request_ms: float
    pace: float = 1.0
    gap: float = 1.0
    eager_launch_us: float = 0.0
    latent_launch_us: float = 0.0
    experts_request_ms: float = 0.0
    per_prompt_token_us: float = 0.0

    def host(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the replaced columns of a row of ``host_settings``, divided by ``pace``.

        A closed loop scales with its unit of time: slowing kernels by ``pace`` is equivalent to dividing host times by
        ``pace`` and multiplying all resulting times by it.
        """
        launch_us = self.eager_launch_us + (self.latent_launch_us if row["latent_attention"] else 0.0)
        answers_late = row["experts"] and row["engine"] == LATE_EXPERTS
        request_ms = self.request_ms + (self.experts_request_ms if answers_late else 0.0)
        return {
            "step_exposed_us": 0.0,
            "launch_gap_us": row["launch_gap_us"] * self.gap / self.pace,
            "per_eager_launch_us": launch_us / self.pace,
            "exposed_per_request_us": self.per_request_us / self.pace,
            "exposed_requests_half": REQUESTS_HALF,
            "request_us": 1000.0 * request_ms / self.pace,
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
    """Return the a-priori constants, from published times alone: 0 for running requests and late answers."""
    prior_constants = priors()
    return Constants(
        0.0,
        prior_constants["request_us"] / 1000.0,
        eager_launch_us=prior_constants["per_eager_launch_us"],
        latent_launch_us=prior_constants["latent_launch_us"],
        per_prompt_token_us=prior_constants["per_prompt_token_us"],
    )
