"""A device with known latencies: noise, a replay gap, a flush, heat, faults, and a clock of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernelsight.measure.device import CannotMeasure, DeviceLost, Identity, Readings
from kernelsight.measure.suite import FAMILIES, Point

L2_BYTES = 50 * 2**20
GAP_US, FLUSH_US, EAGER_US, HOST_US = 5.0, 60.0, 3.0, 20.0
ROW = {"gpu": "h200_sxm_device", "like": "h200_sxm", "name": "simulated", "sm_count": 66}
CLOCK_HZ, SLOW_CLOCK_HZ = 1.98e9, 1.2e9
HOT = Readings(SLOW_CLOCK_HZ, 2.6e9, 92.0, frozenset({"sw_thermal"}))


class SimulatedKernel:
    """A kernel of known latency; the times of its launches are drawn when it is replayed."""

    def __init__(self, point: Point, latency_us: float, moved: int) -> None:
        self.latency_us, self.bytes, self.copies, self.captured = latency_us, moved, 32, True
        self.implementation, self.engine, self.engine_version = point.implementation, "kernelsight", "0.1.0"

    def launch(self, copy: int) -> None: ...

    def close(self) -> None: ...


class Simulated:
    """Latency by ``latency_us`` of a point; ``noise`` of one replay, and ``far`` the share that takes thrice as long.

    ``hot``: (from, to) seconds in which the GPU is slowed to SLOW_CLOCK_HZ, told as a limit unless ``silent``;
    ``fails``: the points that fail; ``lost_at`` and ``killed_at``: at which prepared point the device or process ends;
    ``draws_w``: its power, of which it renews the energy ten times a second, or None where it counts none.
    """

    def __init__(
        self,
        latency_us: Callable[[Point], float],
        *,
        noise: float = 0.02,
        far: float = 0.0,
        hot: tuple[float, float] = (0.0, 0.0),
        silent: bool = False,
        fails: Callable[[Point], bool] = lambda point: False,
        lost_at: int | None = None,
        killed_at: int | None = None,
        gpu: str = "h200_sxm",
        serial: str = "GPU-1",
        moved: Callable[[Point], int] = lambda point: 2**20,
        draws_w: float | None = None,
    ) -> None:
        self.latency_us, self.noise, self.far, self.hot, self.silent = latency_us, noise, far, hot, silent
        self.fails, self.lost_at, self.killed_at, self.gpu, self.serial = fails, lost_at, killed_at, gpu, serial
        self.moved, self.draws_w = moved, draws_w
        self.random, self.now, self.prepared, self.waited = np.random.default_rng(0), 0.0, [], 0.0

    def identity(self) -> Identity:
        return Identity(self.gpu, self.serial, L2_BYTES, "570.0", {"cuda": "12.8"}, ROW)

    def readings(self) -> Readings:
        if self._slow():
            return HOT._replace(limits=frozenset()) if self.silent else HOT
        joules = None if self.draws_w is None else self.draws_w * np.floor(10.0 * self.now) / 10.0
        return Readings(CLOCK_HZ, 2.6e9, 60.0, frozenset(), joules)

    def prepare(self, point: Point) -> SimulatedKernel:
        self.prepared.append(point)
        if self.killed_at == len(self.prepared):
            raise KeyboardInterrupt
        if self.lost_at == len(self.prepared):
            raise DeviceLost("an illegal address")
        if self.fails(point):
            raise CannotMeasure("no such library is installed")
        return SimulatedKernel(point, self.latency_us(point), self.moved(point))

    def graph(self, kernel: SimulatedKernel | None, launches: int, flush: bool) -> SimulatedReplay:
        return SimulatedReplay(self, kernel, launches, GAP_US + (FLUSH_US if flush else 0.0))

    def eager(self, kernel: SimulatedKernel, launches: int) -> SimulatedReplay:
        return SimulatedReplay(self, kernel, launches, HOST_US, EAGER_US)

    def seconds(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waited += seconds

    def _slow(self) -> bool:
        return self.hot[0] <= self.now < self.hot[1]


class SimulatedReplay:
    """``launches`` of a kernel behind what every replay costs."""

    def __init__(
        self, device: Simulated, kernel: SimulatedKernel | None, launches: int, own_us: float, each_us: float = 0.0
    ) -> None:
        self.device, self.launches, self.own_us = device, launches, own_us
        self.launch_us = max(kernel.latency_us if kernel else 0.0, each_us)

    def __call__(self, count: int) -> np.ndarray:
        device = self.device
        slower = CLOCK_HZ / SLOW_CLOCK_HZ if device._slow() else 1.0
        quiet = (self.own_us + self.launches * self.launch_us) * slower
        elapsed = quiet * (1.0 + device.noise * device.random.standard_normal(count))
        elapsed *= np.where(device.random.random(count) < device.far, 3.0, 1.0)
        device.now += float(elapsed.sum()) * 1e-6
        return elapsed


def any_point(family: str = "gemm", cache: str = "warm", **sizes: int) -> Point:
    """Return a point of a family, in its first implementation and format."""
    of = FAMILIES[family]
    shape = {**dict.fromkeys(of.sizes, 64), **of.defaults, **sizes}
    return Point(family, of.implementations[0], of.dtypes[0], cache, tuple(sorted(shape.items())))
