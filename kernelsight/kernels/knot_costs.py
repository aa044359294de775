"""Sums of kernel times at the knots of step costs, in whole picoseconds, and the launch signatures that share them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.kernels.families import FAMILIES

# factor on a resource's rate by which its share of a time is measured: enough to show what limits, too little for
# another limit to take over
RELIEF = 1.2


class KnotCosts(NamedTuple):
    """Cost of each knot, arrays (knots,) of picoseconds where no unit is named; 0 launches: the knot has no cost."""

    picoseconds: np.ndarray
    p05: np.ndarray  # every kernel at the low end of its interval
    p95: np.ndarray  # every kernel at the high end
    measured: np.ndarray  # of the picoseconds, kernels that are target-measured
    # of the picoseconds, what scales with the rate of each resource
    compute: np.ndarray
    memory: np.ndarray
    link: np.ndarray
    nanojoules: np.ndarray  # dynamic energy
    launches: np.ndarray  # number of kernel launches
    # of the picoseconds, what is outside the layers that pipeline stages share
    embedding: np.ndarray
    transfer: np.ndarray
    # of the picoseconds, routed experts and collectives, to which a log's corrections apply
    moe: np.ndarray
    communication: np.ndarray

    def add(self, family: str, times: KernelTimes, launches: np.ndarray) -> None:
        """Add a family's kernels in place; sums of whole numbers below 2^53 are exact in any order."""
        sums = {**times._asdict(), "launches": launches}
        if column := FAMILIES[family].step_cost:
            sums[column] = times.picoseconds
        for name, values in sums.items():
            total = getattr(self, name)
            total += values


class KernelTimes(NamedTuple):
    """Times of kernels in picoseconds, arrays (rows,) or (knots,); fields as in :class:`KnotCosts`."""

    picoseconds: np.ndarray
    p05: np.ndarray
    p95: np.ndarray
    measured: np.ndarray
    compute: np.ndarray
    memory: np.ndarray
    link: np.ndarray
    nanojoules: np.ndarray  # dynamic energy of one GPU: above the power of an active GPU

    def at_knots(self, rows: np.ndarray, count: np.ndarray, knot: np.ndarray, size: int) -> KernelTimes:
        """Return sums at ``size`` knots: of each of ``rows``, ``count`` launches at ``knot``; (rows,) each."""
        # shares of resources are all 0 unless they are asked for
        return KernelTimes(
            *(np.bincount(knot, times[rows] * count, size) if times.any() else np.zeros(size) for times in self)
        )

    def of(self, rows: slice) -> KernelTimes:
        """Return the times of a range of knots."""
        return KernelTimes(*(times[rows] for times in self))


class LaunchGroups(NamedTuple):
    """Launch signatures by number: deployments with one signature launch the same kernels, on any GPU."""

    names: list[str]  # the deployment that names each
    knots: np.ndarray  # number of its step shapes, (signatures,)
    gpus: list[set[str]]  # GPUs that it is priced for
    unit_of: dict[str, tuple[int, str]]  # by deployment: the number of its signature, and its GPU


class EvidenceTime(NamedTuple):
    """Time of a family's kernels on one tier and evidence, for a launch signature on a GPU."""

    tier: str
    evidence: str
    picoseconds: np.ndarray  # (knots,)


class PricedFamily(NamedTuple):
    """A family's kernels of a launch signature on a GPU, at its knots: times, launches (knots,), tiers and evidence."""

    unit: tuple[int, str]  # number of the signature, and GPU
    times: KernelTimes
    launches: np.ndarray
    rests: list[EvidenceTime]
