"""Distance between GPUs, in octaves: how far a GPU without a sweep lies from those that kernels were measured on.

Intervals widen with it, and a GPU close to a measured one takes that one's fit. The distance compares ratios, not
sizes: twice as many multiprocessors of one design run the same kernels at twice the rate. For products and attention:
FLOP and bytes per clock of one multiprocessor, watts per FLOP/s; for collectives: the rate of the link.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from kernelsight.kernels.collectives import NODE_GPUS
from kernelsight.kernels.families import COMMUNICATION

# up to this distance a GPU takes the fit of a measured one of its generation, correction included: H100 and H200 are
# 0.52 octaves from each other, and each is predicted better with the other's correction than without
# (docs/accuracy/kernels.md)
TWIN_OCTAVES = 0.55
# octaves added for each difference in design: memory (HBM, GDDR), link (PCIe or not; peer access or none; bridges that
# join a few GPUs or links that join all), vendor
OTHER_DESIGN = 1.0


class GpuDistances:
    """Distances of one kernel family between the GPUs of a table: to the nearest of others, and to a measured twin."""

    def __init__(self, family: str, gpus: pa.Table, hardware: dict[str, np.ndarray]) -> None:
        """Place ``gpus`` for a family; ``hardware``: their ``hardware_columns``, one value a GPU."""
        self._row_of_gpu = {name: row for row, name in enumerate(gpus["gpu"].to_pylist())}
        if family in COMMUNICATION:
            ratios = [hardware["peak_link_bytes_per_us"]]
            designs = [hardware["link_over_pcie"], hardware["link_peers"], hardware["link_max_gpus"] < NODE_GPUS]
        else:
            rate = hardware["sixteen_bit_flops_per_us"]
            clocks = hardware["sm_count"] * hardware["clock_per_us"]
            ratios = [rate / clocks, hardware["memory_bytes_per_us"] / clocks, hardware["tdp_w"] / rate]
            designs = [hardware["hbm"]]
        vendors = gpus["vendor"].to_pylist()
        names = sorted(set(vendors))
        self._log_ratios = np.log2(np.stack(ratios, axis=1))
        self._designs = np.stack([*designs, [float(names.index(vendor)) for vendor in vendors]], axis=1)

    def octaves(self, gpu: str, others: Collection[str]) -> float:
        """Return the distance to the nearest of ``others``: the largest log2 ratio, and OTHER_DESIGN per difference.

        0 where the table has none of ``others``, so that intervals are not widened without a reason.
        """
        return min(self._octaves_to(gpu, others).values(), default=0.0)

    def twin(self, gpu: str, others: Collection[str]) -> str | None:
        """Return the nearest of ``others``, or None where it is farther than TWIN_OCTAVES."""
        octaves_to = self._octaves_to(gpu, others)
        nearest = min(octaves_to, key=octaves_to.__getitem__, default=None)
        return nearest if nearest is not None and octaves_to[nearest] <= TWIN_OCTAVES else None

    def _octaves_to(self, gpu: str, others: Collection[str]) -> dict[str, float]:
        names = [name for name in sorted(others) if name in self._row_of_gpu]
        other_rows, row = [self._row_of_gpu[name] for name in names], self._row_of_gpu[gpu]
        octaves = np.abs(self._log_ratios[other_rows] - self._log_ratios[row]).max(axis=1)
        octaves = octaves + OTHER_DESIGN * (self._designs[other_rows] != self._designs[row]).sum(axis=1)
        return dict(zip(names, octaves.tolist(), strict=True))
