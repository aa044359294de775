"""NVML bindings by ctypes, which CuPy lacks: clocks, temperature, energy and clock limits of a GPU.

Names, numbers and bits are those of nvml.h (NVIDIA, "NVML API Reference Guide").
"""

from __future__ import annotations

import ctypes
from typing import Any

from kernelsight.measure.device import Readings

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
