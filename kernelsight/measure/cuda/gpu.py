"""The local NVIDIA GPU as a device: CUDA graphs of launches, timed by CUDA events, with L2 flushed for cold points.

NVML, which CuPy lacks, is called by ctypes (clocks, temperature, energy, clock limits): names, numbers and bits are
those of nvml.h (NVIDIA, "NVML API Reference Guide").
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kernelsight.measure.catalogue import catalogue_name, catalogue_rows, device_row
from kernelsight.measure.device import FLUSH_CACHES, NO_MEMORY, CannotMeasure, DeviceLost, Identity, Kernel, Readings
from kernelsight.measure.suite import Point
from kernelsight.version import VERSION

SM_CLOCK, MEMORY_CLOCK, GPU_SENSOR = 1, 2, 0
MEGAHERTZ = 1e6
# bits of nvmlClocksEventReasons, without idle, user settings and sync boost
LIMITS = {0x4: "power_cap", 0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "power_brake"}


class Nvml:
    """One GPU in NVML; without NVML every reading is None and the limits are empty."""

    def __init__(self, pci_bus_id: str) -> None:
        self._library: Any = None
        self._gpu = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if library.nvmlInit_v2():
            return
        status = library.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(self._gpu))
        self._library = None if status else library

    def readings(self) -> Readings:
        """Return the current state."""
        sm, memory = (self._number("nvmlDeviceGetClockInfo", clock) for clock in (SM_CLOCK, MEMORY_CLOCK))
        return Readings(
            None if sm is None else sm * MEGAHERTZ,
            None if memory is None else memory * MEGAHERTZ,
            self._number("nvmlDeviceGetTemperature", GPU_SENSOR),
            limits_of(self._reasons()),
            self._energy_j(),
        )

    def driver(self) -> str:
        """Return the version of the driver."""
        return self._text("nvmlSystemGetDriverVersion", of_gpu=False) or "unknown"

    def serial(self) -> str | None:
        """Return the UUID of the GPU."""
        return self._text("nvmlDeviceGetUUID", of_gpu=True)

    def highest_clock_hz(self) -> float | None:
        """Return the highest clock of the multiprocessors in Hz."""
        megahertz = self._number("nvmlDeviceGetMaxClockInfo", SM_CLOCK)
        return None if megahertz is None else megahertz * MEGAHERTZ

    def power_limit_w(self) -> float | None:
        """Return the current power limit in W."""
        milliwatts = self._number("nvmlDeviceGetPowerManagementLimit")
        return None if milliwatts is None else milliwatts / 1e3

    def _number(self, name: str, *arguments: int) -> float | None:
        value = ctypes.c_uint()
        return None if self._fails(name, self._gpu, *arguments, ctypes.byref(value)) else float(value.value)

    def _energy_j(self) -> float | None:
        """Return the energy in J since the driver was loaded, which GPUs count since Volta."""
        millijoules = ctypes.c_ulonglong()
        name = "nvmlDeviceGetTotalEnergyConsumption"
        return None if self._fails(name, self._gpu, ctypes.byref(millijoules)) else millijoules.value / 1e3

    def _reasons(self) -> int:
        bits = ctypes.c_ulonglong()
        # the older name is deprecated since CUDA 12
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return 0 if all(self._fails(name, self._gpu, ctypes.byref(bits)) for name in names) else bits.value

    def _text(self, name: str, of_gpu: bool) -> str | None:
        text = ctypes.create_string_buffer(96)
        size = ctypes.c_uint(len(text))
        return None if self._fails(name, *((self._gpu,) if of_gpu else ()), text, size) else text.value.decode()

    def _fails(self, name: str, *arguments: Any) -> bool:
        """Call a function; return whether it is missing or failed."""
        function = getattr(self._library, name, None)
        return function is None or bool(function(*arguments))


def limits_of(bits: int) -> frozenset[str]:
    """Return the names of the limits in NVML's bits.

    >>> sorted(limits_of(0x1 | 0x4 | 0x20))
    ['power_cap', 'sw_thermal']
    """
    return frozenset(name for bit, name in LIMITS.items() if bits & bit)


# share of the free memory for buffers
MEMORY_SHARE = 0.6
# sets of buffers used in turn by a graph of cold launches
MOST_COPIES = 32
KILOHERTZ = 1e3
Launch = Callable[[], None]
Preparation = Callable[["Gpu", Point], Kernel]


class Gpu:
    """A CUDA device; all work goes to one stream of it.

    ``prepare``: builds the kernel of a point on this GPU; ``flush``: builds a launch which reads a number of bytes,
    after which L2 holds nothing else.
    """

    def __init__(
        self, ordinal: int, gpu: str | None, prepare: Preparation, flush: Callable[[Gpu, int], Launch]
    ) -> None:
        import cupy

        self.cupy, self.runtime = cupy, cupy.cuda.runtime
        self.ordinal = ordinal
        cupy.cuda.Device(ordinal).use()
        self.properties = self.runtime.getDeviceProperties(ordinal)
        self.nvml = Nvml(cupy.cuda.Device(ordinal).pci_bus_id)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        reported = self._reported()
        rows = catalogue_rows()
        self.gpu = gpu or catalogue_name(reported, rows)
        self.row = device_row(reported, self.gpu, rows)
        self.l2_bytes = int(self.properties["l2CacheSize"])
        # GPUs with peer access enabled
        self.reached: set[int] = set()
        self.communicators: dict[tuple[int, ...], Any] = {}
        self.cudnn_handle: Any = None
        self._build_kernel, self._build_flush = prepare, flush
        self._flush: Launch | None = None

    def identity(self) -> Identity:
        uuid = self.properties.get("uuid") or self.ordinal
        serial = self.nvml.serial() or (uuid.hex() if isinstance(uuid, bytes) else str(uuid))
        return Identity(
            self.gpu,
            serial,
            self.l2_bytes,
            self.nvml.driver(),
            self.versions(),
            self.row,
        )

    def versions(self) -> dict[str, str]:
        """Return the software versions that affect every measurement."""
        return {
            "cuda": _version(self.runtime.runtimeGetVersion()),
            "driver_api": _version(self.runtime.driverGetVersion()),
            "cupy": self.cupy.__version__,
            "kernelsight": VERSION,
        }

    def readings(self) -> Readings:
        return self.nvml.readings()

    def seconds(self) -> float:
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def prepare(self, point: Point) -> Kernel:
        """Build the kernel of a point and run it once, so that nothing is loaded or selected while it is timed."""
        self.cupy.get_default_memory_pool().free_all_blocks()
        if torch := sys.modules.get("torch"):
            # PyTorch's memory pool of earlier points
            torch.cuda.empty_cache()
        with self.stream:
            kernel = self._guarded(lambda: self._build_kernel(self, point))
            try:
                self._guarded(lambda: (kernel.launch(0), self.stream.synchronize()))
            except BaseException:
                kernel.close()
                raise
            return kernel

    def copies_of(self, size: int, cache: str, built: int = 0) -> int:
        """Return the number of sets of buffers of ``size`` bytes for a point; CannotMeasure if none fits.

        ``built``: how many of them are built already.
        """
        free, _ = self.runtime.memGetInfo()
        most = built + int(MEMORY_SHARE * free) // max(size, 1)
        if most < 1:
            raise CannotMeasure(NO_MEMORY)
        return min(most, MOST_COPIES) if cache == "cold" else 1

    def graph(self, kernel: Kernel | None, launches: int, flush: bool) -> GraphReplay:
        with self.stream:
            if flush and self._flush is None:
                self._flush = self._guarded(lambda: self._build_flush(self, round(FLUSH_CACHES * self.l2_bytes)))
                self._flush()
            return self._guarded(lambda: self._captured(kernel, launches, flush))

    def eager(self, kernel: Kernel, launches: int) -> EagerReplay:
        return EagerReplay(self, kernel, launches)

    def _captured(self, kernel: Kernel | None, launches: int, flush: bool) -> GraphReplay:
        self.stream.begin_capture()
        try:
            if flush:
                self._flush()
            for number in range(launches):
                kernel.launch(number % kernel.copies)
        except BaseException:
            self._end_broken_capture()
            raise
        return GraphReplay(self, self.stream.end_capture(), launches)

    def _end_broken_capture(self) -> None:
        """End the capture so that the stream stays usable, without hiding the original error."""
        with contextlib.suppress(self.runtime.CUDARuntimeError):
            self.stream.end_capture()

    def timed(self, once: Callable[[], Any], count: int) -> np.ndarray:
        """Return the device time in microseconds of ``count`` runs, each between two events."""

        def run() -> np.ndarray:
            events = [(self.cupy.cuda.Event(), self.cupy.cuda.Event()) for _ in range(count)]
            for begin, end in events:
                begin.record(self.stream)
                once()
                end.record(self.stream)
            self.stream.synchronize()
            elapsed = self.cupy.cuda.get_elapsed_time
            return np.array([elapsed(begin, end) * 1e3 for begin, end in events])

        with self.stream:
            return self._guarded(run)

    def _guarded(self, work: Callable[[], Any]) -> Any:
        """Run work on the device; CannotMeasure if the point fails, DeviceLost if the device stopped responding."""
        try:
            return work()
        except self.cupy.cuda.memory.OutOfMemoryError:
            raise CannotMeasure(NO_MEMORY) from None
        except self.cupy.cuda.compiler.CompileException as error:
            raise CannotMeasure(f"NVRTC cannot compile it: {str(error).splitlines()[0]}") from None
        except CannotMeasure:
            raise
        except Exception as error:  # of CUDA or of any library
            try:
                self.runtime.deviceSynchronize()
            except self.runtime.CUDARuntimeError:
                raise DeviceLost(str(error)) from None
            if "out of memory" in str(error):  # of a library's own memory pool
                raise CannotMeasure(NO_MEMORY) from None
            by_cuda = isinstance(error, self.runtime.CUDARuntimeError)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CannotMeasure(f"CUDA error: {reason}" if by_cuda else reason) from None

    def _reported(self) -> dict[str, Any]:
        """Return the columns of ``gpus`` that the device reports."""
        properties = self.properties
        attribute = self.cupy.cuda.Device(self.ordinal).attributes
        clock = self.nvml.highest_clock_hz() or attribute["ClockRate"] * KILOHERTZ
        # the data rate is twice the memory clock: HBM and GDDR move two words per cycle of the clock that CUDA reports
        bandwidth = 2.0 * attribute["MemoryClockRate"] * KILOHERTZ * attribute["GlobalMemoryBusWidth"] / 8.0
        return {
            "name": properties["name"].decode() if isinstance(properties["name"], bytes) else str(properties["name"]),
            "compute_capability": f"{properties['major']}.{properties['minor']}",
            "sm_count": int(properties["multiProcessorCount"]),
            "sm_clock_hz": float(clock),
            "l2_bytes": int(properties["l2CacheSize"]),
            "memory_bytes": int(properties["totalGlobalMem"]),
            "memory_bandwidth_bytes_per_s": bandwidth if bandwidth and math.isfinite(bandwidth) else None,
            "tdp_w": self.nvml.power_limit_w(),
        }


class GraphReplay:
    """A captured graph."""

    def __init__(self, gpu: Gpu, graph: Any, launches: int) -> None:
        self.gpu, self.graph, self.launches = gpu, graph, launches
        graph.upload(gpu.stream)

    def __call__(self, count: int) -> np.ndarray:
        return self.gpu.timed(lambda: self.graph.launch(self.gpu.stream), count)


class EagerReplay:
    """Individual launches by the host."""

    def __init__(self, gpu: Gpu, kernel: Kernel, launches: int) -> None:
        self.gpu, self.kernel, self.launches = gpu, kernel, launches

    def __call__(self, count: int) -> np.ndarray:
        def once() -> None:
            for number in range(self.launches):
                self.kernel.launch(number % self.kernel.copies)

        return self.gpu.timed(once, count)


def _version(number: int) -> str:
    """Return CUDA's version number as text.

    >>> _version(12080)
    '12.8'
    """
    return f"{number // 1000}.{number % 1000 // 10}"
