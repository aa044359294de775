"""Kernels of installed libraries that can be measured: the rows of library_kernels.csv.

A row names a family of kernels, the kernel, its formats (``dtype`` of a suite), whether it has windows, the compute
capabilities that run it, the distribution and module to import, what builds a launch (module of
``kernelsight.measure.cuda`` and function), and what its call was checked against.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kernelsight.files.own import own_rows


class LibraryKernel(NamedTuple):
    """One row; ``least`` and ``most``: compute capabilities."""

    family: str
    implementation: str
    formats: tuple[str, ...]
    windows: bool
    least: float
    most: float
    distribution: str
    module: str
    build: str
    checked: str

    def runs_on(self, capability: float) -> bool:
        """Return whether GPUs of a compute capability run it."""
        return self.least <= capability <= self.most


def _row(row: dict[str, str]) -> LibraryKernel:
    formats, windows = tuple(row["formats"].split()), row["windows"] == "1"
    least, most = float(row["least"]), float(row["most"])
    return LibraryKernel(**{**row, "formats": formats, "windows": windows, "least": least, "most": most})


LIBRARY_KERNELS: dict[tuple[str, str], LibraryKernel] = {
    (row["family"], row["implementation"]): _row(row)
    for row in own_rows(Path(__file__).resolve().parent / "library_kernels.csv")
}


def of_family(family: str) -> list[LibraryKernel]:
    """Return the kernels of a family, in the order in which a plan prefers them."""
    return [kernel for kernel in LIBRARY_KERNELS.values() if kernel.family == family]
