"""The statistics on a device whose latencies are known: recovered at 2 % noise, through heat, gaps and outliers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernelsight.measure.device import Readings
from kernelsight.measure.run import time_point
from kernelsight.measure.suite import Rule
from kernelsight.measure.timing import Block, Timing, Watch, _timing
from tests.measure.simulated import CLOCK_HZ, EAGER_US, GAP_US, Simulated, any_point

RULE = Rule()


def timed(device: Simulated, cache: str = "warm", rule: Rule = RULE, family: str = "gemm", **sizes: int) -> Timing:
    point = any_point(family, cache, **sizes)
    return time_point(device, point, rule, Watch(), device.prepare(point))


def test_errors_are_as_large_as_stated_over_many_points() -> None:
    device, misses = Simulated(lambda point: 20.0), []
    for _ in range(60):
        found = timed(device)
        misses.append((found.latency_us / 20.0 - 1.0) / found.relative_error)
    assert 0.5 < math.sqrt(sum(miss * miss for miss in misses) / len(misses)) < 1.7


def test_the_gap_of_a_replay_is_measured_apart() -> None:
    found = timed(Simulated(lambda point: 6.0, noise=0.001))
    assert found.gap_us == pytest.approx(GAP_US, rel=0.3)
    assert found.latency_us == pytest.approx(6.0, rel=0.005)


def test_a_quiet_kernel_stops_at_the_least_samples_and_a_noisy_one_goes_on() -> None:
    quiet, loud = (timed(Simulated(lambda point: 50.0, noise=noise)) for noise in (0.001, 0.03))
    assert quiet.samples == RULE.least_samples
    assert loud.samples > 3 * quiet.samples and loud.relative_error <= RULE.relative_error


def test_time_runs_out_before_a_hopeless_error_and_the_row_says_so() -> None:
    found = timed(Simulated(lambda point: 9000.0, noise=0.6), rule=Rule(most_seconds=0.5))
    assert found.relative_error > 0.05
    assert found.fault == "noisy: its median is not known to 5 %"


@pytest.mark.parametrize("silent", [False, True])
def test_a_slowed_stretch_is_found_and_repeated(silent: bool) -> None:
    device = Simulated(lambda point: 100.0, hot=(0.05, 2.5), silent=silent)
    watch = Watch()
    point = any_point()
    for _ in range(3):
        found = time_point(device, point, Rule(relative_error=0.002), watch, device.prepare(point))
        assert found.latency_us == pytest.approx(100.0, rel=0.01)
        assert found.sm_clock_hz == CLOCK_HZ and found.fault is None
    assert device.waited >= RULE.cool_seconds


def test_a_gpu_that_never_cools_gives_a_row_that_is_not_fitted() -> None:
    device = Simulated(lambda point: 100.0, hot=(0.0, 1e9))
    found = timed(device)
    assert found.fault == "slowed by heat or a power brake"
    assert found.repeated > RULE.most_repeats and "sw_thermal" in found.limits
    assert device.waited == RULE.most_repeats * RULE.cool_seconds
    assert found.latency_us == pytest.approx(165.0, rel=0.02)


def test_outliers_are_counted_and_do_not_move_the_median() -> None:
    found = timed(Simulated(lambda point: 100.0, far=0.03), rule=Rule(relative_error=0.001))
    assert 0.01 * found.samples < found.outliers < 0.06 * found.samples
    assert found.latency_us == pytest.approx(100.0, rel=0.01)
    assert found.cv < 0.03


def test_launches_cost_more_from_the_host_than_in_a_graph() -> None:
    device = Simulated(lambda point: 1.1, noise=0.002)
    costs = {}
    for name in ("graph_launch", "eager_launch", "empty_graph"):
        point = any_point("launch")._replace(implementation=name)
        costs[name] = time_point(device, point, Rule(), Watch(), device.prepare(point)).latency_us
    assert costs["graph_launch"] == pytest.approx(1.1, rel=0.02)
    assert costs["eager_launch"] == pytest.approx(EAGER_US, rel=0.02)


def state(mhz: float | None, *limits: str, celsius: float | None = None) -> Readings:
    return Readings(None if mhz is None else mhz * 1e6, None, celsius, frozenset(limits))


@pytest.mark.parametrize(
    ("highest_mhz", "states", "kept", "then_mhz"),
    [
        # at least 97 % of the point's highest clock, and at least 90 % of the run's
        (0.0, [state(1000.0), state(971.0), state(969.0)], [0, 1], 1000.0),
        (1000.0, [state(920.0), state(901.0)], [0, 1], 1000.0),
        (1000.0, [state(901.0), state(899.0)], [0], 1000.0),
        # a power limit is normal; heat is not, at whatever clock, which is then no clock to reach
        (0.0, [state(1000.0), state(600.0, "power_cap")], [0, 1], 1000.0),
        (0.0, [state(1000.0), state(1000.0, "power_cap", "sw_thermal")], [0], 1000.0),
        (0.0, [state(1500.0, "hw_thermal"), state(1000.0)], [1], 1000.0),
        # a clock that cannot be read is not throttled
        (0.0, [state(1000.0), state(None)], [0, 1], 1000.0),
    ],
)
def test_blocks_are_throttled_by_the_clocks_of_the_point_and_of_the_run(
    highest_mhz: float, states: list[Readings], kept: list[int], then_mhz: float
) -> None:
    watch, blocks = Watch(), [Block(np.zeros(1), np.zeros(1), reading) for reading in states]
    watch.highest_hz = highest_mhz * 1e6
    found = watch.unthrottled(blocks)
    assert [any(block is one for one in found) for block in blocks] == [place in kept for place in range(len(blocks))]
    assert watch.highest_hz == then_mhz * 1e6


def test_a_point_is_calculated_as_by_hand() -> None:
    """Medians 13 us of one launch and 50 us of five: 37 / 4 a launch, and two outliers, one on each side."""
    blocks = [
        Block(np.array([12.0, 13.0]), np.array([49.0, 50.0, 1.0]), state(1000.0, "power_cap", celsius=70.0)),
        Block(np.array([14.0, 13.0]), np.array([51.0, 50.0, 99.0]), state(None, celsius=61.0)),
    ]
    found = _timing(blocks, 1, 5, 3)
    # deviations from the medians: 1 0 1 0, and 1 0 49 1 0 49, of which the medians are 0.5 and 1
    of_reference, of_full = (1.2533 * 1.4826 * median / n**0.5 for median, n in ((0.5, 4), (1.0, 6)))
    assert found.latency_us == 9.25 and found.gap_us == 13.0 - 9.25
    assert found.relative_error == pytest.approx(math.hypot(of_reference, of_full) / 4 / 9.25)
    assert (found.samples, found.outliers, found.repeated) == (6, 2, 3)
    assert found.cv == pytest.approx(math.sqrt(2.0 / 3.0) / 50.0), "of 49, 50, 51 and 50"
    assert (found.sm_clock_hz, found.temperature_c, found.limits) == (1e9, 70.0, frozenset({"power_cap"}))


def test_throttled_points_are_counted_in_a_row() -> None:
    """Three in a row are hopeless; one good point between them ends the row."""
    watch, point = Watch(), any_point()
    for hot, slowed_points in ((True, 1), (True, 2), (False, 0), (True, 1)):
        device = Simulated(lambda point: 100.0, hot=(0.0, 1e9 if hot else 0.0))
        time_point(device, point, RULE, watch, device.prepare(point))
        assert watch.slowed_points == slowed_points
