"""What holds for all tests: none depends on how fast the machine is, and how many random worlds are drawn."""

from __future__ import annotations

import math
import os

from hypothesis import HealthCheck, settings

# percent of the random worlds that tests draw; .ci/run draws them all
WORLDS_PERCENT = float(os.environ.get("KERNELSIGHT_WORLDS", "20"))
# so many are cheap to draw, and all that a test with few worlds has
LEAST_WORLDS = 60

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def random_worlds(count: int) -> settings:
    """Return the settings of a test on ``count`` random worlds, of which KERNELSIGHT_WORLDS percent are drawn.

    The environment variable may be above 100, for a longer search.
    """
    drawn = max(math.ceil(count * WORLDS_PERCENT / 100), min(count, LEAST_WORLDS))
    return settings(max_examples=drawn, deadline=None, suppress_health_check=list(HealthCheck))
