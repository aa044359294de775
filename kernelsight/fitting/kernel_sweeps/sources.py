"""The readers of published sweeps, by their name in ``calibrate import``."""

from __future__ import annotations

from kernelsight import laboratory
from kernelsight.errors import unknown
from kernelsight.fitting.kernel_sweeps import aiconfigurator, plain
from kernelsight.fitting.kernel_sweeps.points import Reader

READERS: dict[str, Reader] = {
    "aiconfigurator": aiconfigurator.read,
    "aisimulate": aiconfigurator.read_aisimulate,
    "parquet": plain.read,
}
# published kernel sets for research, read by the laboratory's modules of the same names
RESEARCH = ("aiter", "neusight", "vidur", "llmservingsim")
# sources that take several paths as one sweep
SEVERAL_PATHS = ("aiter",)


def names() -> list[str]:
    """Return the sources that can be imported here."""
    return [*READERS, *(RESEARCH if laboratory.is_here() else ())]


def reader(source: str) -> Reader:
    """Return the reader of a source; UnknownName: there is none. InvalidInput: only a checkout has it."""
    if source in RESEARCH:
        return laboratory.part(f"kernel_sweeps.{source}", f"calibrate import {source}").read
    if source not in READERS:
        raise unknown("source of sweeps", source, names(), f"Known: {', '.join(names())}.")
    return READERS[source]
