"""The readers of published sweeps, by their name in ``calibrate import``."""

from __future__ import annotations

from kernelsight.fitting.kernel_sweeps import aiconfigurator, aiter, llmservingsim, neusight, plain, vidur
from kernelsight.fitting.kernel_sweeps.points import Reader

READERS: dict[str, Reader] = {
    "aiconfigurator": aiconfigurator.read,
    "aisimulate": aiconfigurator.read_aisimulate,
    "aiter": aiter.read,
    "neusight": neusight.read,
    "vidur": vidur.read,
    "llmservingsim": llmservingsim.read,
    "parquet": plain.read,
}
# sources that take several paths as one sweep
SEVERAL_PATHS = ("aiter",)
