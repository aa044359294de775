"""Evidence behind the predictions of measured runs: tiers of their components, and the least certain one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kernelsight.kernels.labels import CERTAINTY, MEASURED

# smallest share of GPU time of a component that is considered
LEAST_SHARE = 0.1
# component of every run: analytic terms that no sweep measures
ALWAYS_ANALYTIC = "other kernels"


def tiers_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tier of each component of one run's steps; ``rows``: of ``scenario_evidence``."""
    return {row["component"]: row["tier"] for row in rows}


def weakest_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return "component tier" of the least certain component of one run's kernels, or "all measured".

    ``rows``: of ``scenario_evidence``. Components with little of the GPU time do not count, nor do host times, which
    no run measured separately.

    >>> row = {"component": "experts", "tier": "gpu-measured", "gpu_share": 0.4}
    >>> weakest_of([row, {"component": "attention", "tier": "target-measured", "gpu_share": 0.3}])
    'experts gpu-measured'
    """
    counted = [row for row in rows if (row["gpu_share"] or 0.0) >= LEAST_SHARE and row["component"] != ALWAYS_ANALYTIC]
    weakest = max(counted, key=lambda row: (CERTAINTY.index(row["tier"]), row["gpu_share"]), default=None)
    if weakest is None or CERTAINTY.index(weakest["tier"]) <= CERTAINTY.index(MEASURED):
        return "all measured"
    return f"{weakest['component']} {weakest['tier']}"


def measured_share_of(rows: Iterable[Mapping[str, Any]]) -> float:
    """Return the share of a run's GPU time that was measured: same GPU and kernels, at similar sizes.

    >>> row = {"gpu_share": 0.8, "measured_share": 0.5}
    >>> measured_share_of([row, {"gpu_share": 0.2, "measured_share": 1.0}, {"gpu_share": None, "measured_share": 0.0}])
    0.6
    """
    return round(sum((row["gpu_share"] or 0.0) * row["measured_share"] for row in rows), 6)
