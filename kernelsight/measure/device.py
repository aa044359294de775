"""The protocol of a device to measure, between the timing code and the hardware, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from kernelsight.measure.suite import Point

# bytes read to flush L2, as a multiple of its size
FLUSH_CACHES = 4.0
# why a point that is too large fails
NO_MEMORY = "its buffers do not fit the free memory of the GPU"


class CannotMeasure(Exception):
    """One point cannot be measured on this device, for the reason in the message; others may."""


class DeviceLost(Exception):
    """The device stopped responding: the remaining points must be measured by another process."""


class Identity(NamedTuple):
    """The GPU: its catalogue name, serial number, sizes, and versions of the software that affects times.

    ``row``: its row of ``gpus`` as reported by the device.
    """

    gpu: str
    serial: str
    l2_bytes: int
    driver: str
    versions: Mapping[str, str]
    row: Mapping[str, Any]


class Readings(NamedTuple):
    """State of the GPU at one moment; ``limits``: why its clocks are reduced; None: it cannot be read.

    ``energy_j``: energy drawn since the driver was loaded.
    """

    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    limits: frozenset[str]
    energy_j: float | None = None


class Kernel(Protocol):
    """A kernel with ``copies`` sets of buffers, of which one launch touches ``bytes``.

    ``captured``: whether a CUDA graph can capture its launches; if not, the host launches them individually.
    """

    implementation: str
    engine: str
    engine_version: str
    bytes: int
    copies: int
    captured: bool

    def launch(self, copy: int) -> None:
        """Enqueue one launch on the device's stream, with one set of buffers."""

    def close(self) -> None:
        """Free the buffers."""


class Replay(Protocol):
    """A prepared sequence of ``launches``; calling it runs it ``count`` times and returns (count,) microseconds."""

    launches: int

    def __call__(self, count: int) -> np.ndarray: ...


class Device(Protocol):
    """A GPU, or a simulated one."""

    def identity(self) -> Identity: ...

    def readings(self) -> Readings: ...

    def prepare(self, point: Point) -> Kernel:
        """Return the kernel of a point; CannotMeasure if the device, a library or the memory does not support it."""

    def graph(self, kernel: Kernel | None, launches: int, flush: bool) -> Replay:
        """Return a replay of a CUDA graph of ``launches``, after a read of FLUSH_CACHES x L2 if ``flush``."""

    def eager(self, kernel: Kernel, launches: int) -> Replay:
        """Return a replay of ``launches`` by the host, without a graph."""

    def seconds(self) -> float:
        """Return the seconds of a monotonic clock."""

    def wait(self, seconds: float) -> None:
        """Let the GPU idle."""
