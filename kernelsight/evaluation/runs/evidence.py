"""What the kernels of measured runs rest on, by ``deployment_evidence``: whether that says how far off we are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# the less certain later; a log's corrections are those of the deployment itself
CERTAINTY = (
    *("log-corrected", "target-measured", "points-measured", "gpu-measured"),
    *("cross-generation", "hypothetical", "unmeasured-vendor", "a-priori", "roofline"),
)
# of the GPU time, what a component takes at least to be named
LEAST_SHARE = 0.1
# in every run: analytic terms that no sweep has
ALWAYS_ANALYTIC = "other kernels"


def tiers_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tier of each component of one deployment; ``rows``: of ``deployment_evidence``."""
    return {row["component"]: row["tier"] for row in rows}


def weakest_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the least certain component of one deployment's kernels with its tier; ``all measured`` if there is none.

    ``rows``: of ``deployment_evidence``. Components with little of the GPU time do not count, nor do host times, which
    no run has measured on its own.

    >>> row = {"component": "experts", "tier": "gpu-measured", "gpu_share": 0.4}
    >>> weakest_of([row, {"component": "attention", "tier": "target-measured", "gpu_share": 0.3}])
    'experts gpu-measured'
    """
    counted = [row for row in rows if (row["gpu_share"] or 0.0) >= LEAST_SHARE and row["component"] != ALWAYS_ANALYTIC]
    weakest = max(counted, key=lambda row: (CERTAINTY.index(row["tier"]), row["gpu_share"]), default=None)
    if weakest is None or CERTAINTY.index(weakest["tier"]) <= CERTAINTY.index("target-measured"):
        return "all measured"
    return f"{weakest['component']} {weakest['tier']}"
