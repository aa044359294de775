"""How unlike two GPUs are, for the intervals of a GPU that no sweep holds: octaves between what kernels depend on.

Ratios rather than sizes: twice as many multiprocessors of one kind are the same kernels at twice the pace. Of products
and attention: FLOP and bytes a clock of one multiprocessor, watts for a FLOP a second; of collectives: the link's rate.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from kernelsight.kernels.collectives import NODE_GPUS
from kernelsight.kernels.families import COMMUNICATION

# a GPU this near to a measured one of its generation has that one's fit, correction and all: H100 and H200 lie 0.52
# apart, and each is predicted better with the other's correction than without (docs/accuracy/kernels.md)
TWIN_OCTAVES = 0.55
# octaves for another kind: of memory (HBM, GDDR), of link (PCIe or not; with peer access or without; bridges that join
# a few GPUs or links that join all), another vendor
OTHER_KIND = 1.0


class Likeness:
    """The GPUs of a table as points: :meth:`octaves` is the distance of one to the nearest of others."""

    def __init__(self, family: str, gpus: pa.Table, hardware: dict[str, np.ndarray]) -> None:
        """Lay out ``gpus`` for a family; ``hardware``: their columns."""
        self._place = {name: row for row, name in enumerate(gpus["gpu"].to_pylist())}
        if family in COMMUNICATION:
            ratios = [hardware["peak_link_bytes_per_us"]]
            kinds = [hardware["link_over_pcie"], hardware["link_peers"], hardware["link_max_gpus"] < NODE_GPUS]
        else:
            rate = hardware["sixteen_bit_flops_per_us"]
            clocks = hardware["sm_count"] * hardware["clock_per_us"]
            ratios = [rate / clocks, hardware["memory_bytes_per_us"] / clocks, hardware["tdp_w"] / rate]
            kinds = [hardware["hbm"]]
        vendors = gpus["vendor"].to_pylist()
        names = sorted(set(vendors))
        self._logs = np.log2(np.stack(ratios, axis=1))
        self._kinds = np.stack([*kinds, [float(names.index(vendor)) for vendor in vendors]], axis=1)

    def octaves(self, gpu: str, others: Collection[str]) -> float:
        """Return the largest ratio of ratios, and OTHER_KIND for each kind that differs, to the nearest of ``others``.

        0 where none of these is known: nothing says how unlike they are.
        """
        return min(self._apart(gpu, others).values(), default=0.0)

    def twin(self, gpu: str, others: Collection[str]) -> str | None:
        """Return the nearest of ``others``, if it lies within TWIN_OCTAVES."""
        apart = self._apart(gpu, others)
        nearest = min(apart, key=apart.__getitem__, default=None)
        return nearest if nearest is not None and apart[nearest] <= TWIN_OCTAVES else None

    def _apart(self, gpu: str, others: Collection[str]) -> dict[str, float]:
        names = [name for name in sorted(others) if name in self._place]
        there, mine = [self._place[name] for name in names], self._place[gpu]
        apart = np.abs(self._logs[there] - self._logs[mine]).max(axis=1)
        apart = apart + OTHER_KIND * (self._kinds[there] != self._kinds[mine]).sum(axis=1)
        return dict(zip(names, apart.tolist(), strict=True))
