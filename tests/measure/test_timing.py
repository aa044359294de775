"""The statistics on a device whose latencies are known: recovered at 2 % noise, through heat, gaps and outliers."""

from __future__ import annotations

import math

import pytest

from kernelsight.measure.run import time_point
from kernelsight.measure.suite import Rule
from kernelsight.measure.timing import Timing, Watch
from tests.measure.simulated import CLOCK_HZ, EAGER_US, GAP_US, Simulated, any_point

RULE = Rule()
LATENCIES_US = (1.7, 12.0, 300.0, 9000.0)


def timed(device: Simulated, cache: str = "warm", rule: Rule = RULE, family: str = "gemm", **sizes: int) -> Timing:
    point = any_point(family, cache, **sizes)
    return time_point(device, point, rule, Watch(), device.prepare(point))


@pytest.mark.parametrize("cache", ["cold", "warm"])
@pytest.mark.parametrize("latency_us", LATENCIES_US)
def test_the_true_latency_lies_within_four_of_the_stated_errors(latency_us: float, cache: str) -> None:
    found = timed(Simulated(lambda point: latency_us), cache)
    assert found.relative_error <= 0.02 and found.fault is None
    assert abs(found.latency_us / latency_us - 1.0) <= 4.0 * found.relative_error
    # it is an error bar, not a bound that anything would keep
    assert found.relative_error >= 1e-4


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
