"""The seam between the statistics and the hardware: what the timing core asks of a device, and the faults it knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from kernelsight.measure.suite import Point

# bytes that a flush reads, against L2: what lay there before is gone
FLUSH_CACHES = 4.0
# the reason of a point that is too large, whoever finds that out
NO_MEMORY = "its buffers do not fit the free memory of the GPU"


class CannotMeasure(Exception):
    """One point cannot be measured on this device, for the reason that the message states; the next one may."""


class DeviceLost(Exception):
    """The device answers no more: whatever was not yet written has to be measured by another process."""


class Identity(NamedTuple):
    """What runs: the catalogue's name of the GPU, its serial, sizes, and versions of everything that shapes a time.

    ``row``: what the running GPU tells of the columns of ``gpus``.
    """

    gpu: str
    serial: str
    l2_bytes: int
    memory_bytes: int
    driver: str
    versions: Mapping[str, str]
    row: Mapping[str, Any]


class Readings(NamedTuple):
    """State of the GPU at one moment; ``limits``: why its clocks are below their highest, None: cannot be read."""

    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    limits: frozenset[str]


class Kernel(Protocol):
    """A kernel with its buffers: ``copies`` sets of them, each of ``bytes`` that one launch touches.

    ``captured``: whether a graph can hold its launches; where not, the host launches them one by one.
    """

    implementation: str
    engine: str
    engine_version: str
    bytes: int
    copies: int
    captured: bool

    def launch(self, copy: int) -> None:
        """Put one launch on the device's stream, over one set of buffers."""

    def close(self) -> None:
        """Free the buffers."""


class Replay(Protocol):
    """A prepared sequence of ``launches``; called, it runs ``count`` times and returns (count,) microseconds each."""

    launches: int

    def __call__(self, count: int) -> np.ndarray: ...


class Device(Protocol):
    """A GPU, or a simulated one."""

    def identity(self) -> Identity: ...

    def readings(self) -> Readings: ...

    def prepare(self, point: Point) -> Kernel:
        """Return the kernel of a point; CannotMeasure where the device, a library or the memory lacks something."""

    def graph(self, kernel: Kernel | None, launches: int, flush: bool) -> Replay:
        """Return a graph of ``launches`` in a row, behind a read of FLUSH_CACHES x L2 where ``flush``."""

    def eager(self, kernel: Kernel, launches: int) -> Replay:
        """Return the same launched one by one by the host."""

    def seconds(self) -> float:
        """Return a clock that only rises."""

    def wait(self, seconds: float) -> None:
        """Let the GPU rest."""
