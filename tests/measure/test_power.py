"""Power of a kernel from the energy that a device counts: between renewals of the count, or not at all."""

from __future__ import annotations

import ctypes

import pytest

from kernelsight.measure.cuda.gpu import Nvml
from kernelsight.measure.timing import POWER_SECONDS, drawn_w
from tests.measure.simulated import Simulated


class Kernel:
    latency_us = 10.0


def replay(device):
    return device.graph(Kernel(), 100, flush=False)


def test_power_is_energy_between_renewals_of_the_count_over_their_time():
    device = Simulated(lambda point: 10.0, draws_w=321.0)
    assert drawn_w(device, replay(device), 10) == pytest.approx(321.0, rel=0.05)
    assert POWER_SECONDS <= device.seconds() < POWER_SECONDS + 0.1


def test_a_device_that_counts_no_energy_has_no_power_and_takes_no_time():
    device = Simulated(lambda point: 10.0)
    assert drawn_w(device, replay(device), 10) is None
    assert device.seconds() == 0.0


class Library:
    """NVML with an energy counter, or an older one that refuses it."""

    def __init__(self, refuses: bool) -> None:
        self.refuses = refuses

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu, millijoules) -> int:
        if self.refuses:
            return 3
        ctypes.cast(millijoules, ctypes.POINTER(ctypes.c_ulonglong))[0] = 2**40
        return 0


@pytest.mark.parametrize(("refuses", "joules"), [(False, 2**40 / 1e3), (True, None)])
def test_nvml_counts_millijoules_in_64_bits(refuses, joules):
    nvml = Nvml("0000:00:00.0")
    nvml._library = Library(refuses)
    assert nvml.readings().energy_j == joules
