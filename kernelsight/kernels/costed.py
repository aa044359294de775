"""What step costs are added up in: picoseconds at knots, and the deployments that share them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.kernels.families import FAMILIES

# a resource is relieved by a fifth: enough to show what limits, little enough that nothing else begins to
RELIEF = 1.2


class Costed(NamedTuple):
    """Picoseconds and kernel launches of each knot, shape [knots]; where nothing is launched there is no cost.

    ``p05``, ``p95``: picoseconds when all kernels are at that end of their intervals. Of the picoseconds, what shrinks
    with a faster rate of arithmetic, of memory or of links; their dynamic energy; what is not done by the layers, which
    pipeline stages share: embedding and transfers; and what the families of experts and of collectives take.
    """

    picoseconds: np.ndarray
    p05: np.ndarray
    p95: np.ndarray
    compute: np.ndarray
    memory: np.ndarray
    link: np.ndarray
    nanojoules: np.ndarray
    launches: np.ndarray
    embedding: np.ndarray
    transfer: np.ndarray
    moe: np.ndarray
    communication: np.ndarray

    def add(self, family: str, times: Times, launches: np.ndarray) -> None:
        """Add a family's kernels; whole numbers below 2^53 are exact in any order."""
        sums = {**times._asdict(), "launches": launches}
        if column := FAMILIES[family].step_cost:
            sums[column] = times.picoseconds
        for name, values in sums.items():
            total = getattr(self, name)
            total += values


class Times(NamedTuple):
    """Picoseconds of kernels, shape [rows] or [knots]: the ends of their 90 % intervals, what bounds them, energy.

    ``nanojoules``: what their work draws on one GPU beside the power of an active GPU.
    """

    picoseconds: np.ndarray
    p05: np.ndarray
    p95: np.ndarray
    compute: np.ndarray
    memory: np.ndarray
    link: np.ndarray
    nanojoules: np.ndarray

    def at_knots(self, place: np.ndarray, count: np.ndarray, knot: np.ndarray, size: int) -> Times:
        """Return the sums over launches: rows in ``place``, ``count`` launches of each at ``knot``."""
        return Times(*(np.bincount(knot, times[place] * count, size) for times in self))

    def of(self, rows: slice) -> Times:
        """Return the times of some knots."""
        return Times(*(times[rows] for times in self))


class Groups(NamedTuple):
    """Launch signatures: the deployment that names each, its step shapes by id, and the GPUs that it is priced for."""

    firsts: list[str]
    knots: np.ndarray
    gpus: list[set[str]]
    of: dict[str, tuple[int, str]]  # of each deployment: the number of its signature, and its GPU


class Rest(NamedTuple):
    """What a family's latencies rest on, for a launch signature and a GPU: tier, evidence, and picoseconds of it."""

    tier: str
    evidence: str
    picoseconds: float


class Priced(NamedTuple):
    """A family's kernels of a launch signature on a GPU, at its knots: times, launches, and what they rest on."""

    unit: tuple[int, str]
    times: Times
    launches: np.ndarray
    rests: list[Rest]
