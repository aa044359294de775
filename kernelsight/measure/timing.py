"""Times a kernel: replays it until the median is precise enough, repeats throttled blocks, counts outliers.

One value is (full - median(reference)) / difference in launches: both replay the same kernel, so that the constant time
of a replay (the gap before it, or the flush of L2) cancels. The relative standard error of a median is
1.2533 sigma / sqrt(n), sigma = 1.4826 x the median absolute deviation (robust for normal noise).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelsight.measure.device import Device, Readings, Replay
from kernelsight.measure.suite import Rule
from kernelsight.number_format import number

MEDIAN_ERROR = 1.2533
ROBUST_SIGMA = 1.4826
# sigmas from the median beyond which a replay is an outlier, and the least sigma as a share of the median
OUTLIER_SIGMAS, LEAST_SIGMA = 6.0, 1e-3
# abnormal clock limits; a power limit is normal for large products
SLOWED = frozenset({"hw_slowdown", "hw_thermal", "sw_thermal", "power_brake"})
POWER = "power_cap"
# a clock below these shares of the highest in the point or in the run is throttled, unless by the power limit
SAME_CLOCK, RUN_CLOCK = 0.97, 0.9
# time for which a kernel runs to measure its power, and before a sustained point is measured
POWER_SECONDS, WORKED_SECONDS = 0.5, 2.0
# consecutive throttled points after which the next ones no longer wait
HOPELESS_POINTS = 3
# medians with a larger relative standard error are not used in fits
TOO_NOISY = 0.05
SLOWED_FAULT = "slowed by heat or a power brake"


class Timing(NamedTuple):
    """One measured latency, its precision, and the state of the GPU during the measurement.

    ``gap_us``: constant time of a replay; ``repeated``: blocks discarded as throttled; ``fault``: why a fit should
    exclude it, or None; ``power_w``: mean power of the GPU while it runs, or None where the device counts no energy;
    ``worked_s``: seconds that it had worked before, or None for a burst.
    """

    latency_us: float
    relative_error: float
    samples: int
    cv: float
    outliers: int
    gap_us: float
    sm_clock_hz: float | None
    memory_clock_hz: float | None
    temperature_c: float | None
    limits: frozenset[str]
    repeated: int
    fault: str | None
    power_w: float | None = None
    worked_s: float | None = None


class Block(NamedTuple):
    """Replays between two readings of the GPU's state, in microseconds each."""

    reference_us: np.ndarray
    full_us: np.ndarray
    readings: Readings


class Watch:
    """State kept between points: the highest clock seen, and ``slowed_points``, consecutive throttled points."""

    def __init__(self) -> None:
        self.highest_hz, self.slowed_points = 0.0, 0

    def unthrottled(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks without throttling, except by the power limit."""
        clocks_hz = [block.readings.sm_clock_hz or 0.0 for block in blocks]
        unlimited_hz = [hz for hz, block in zip(clocks_hz, blocks, strict=True) if not block.readings.limits & SLOWED]
        self.highest_hz = max([self.highest_hz, *unlimited_hz])
        highest_of_point = max(unlimited_hz, default=0.0)
        least_hz = max(SAME_CLOCK * highest_of_point, RUN_CLOCK * self.highest_hz)
        return [
            block
            for hz, block in zip(clocks_hz, blocks, strict=True)
            if not block.readings.limits & SLOWED
            and (POWER in block.readings.limits or block.readings.sm_clock_hz is None or hz >= least_hz)
        ]


def time_replays(device: Device, reference: Replay, full: Replay, rule: Rule, watch: Watch) -> Timing:
    """Replay both until the rule is met, and return the time of the launches by which they differ.

    ValueError: the device reports an invalid time.
    """
    blocks: list[Block] = []
    started_s, repeated = device.seconds(), 0
    most_repeats = rule.most_repeats if watch.slowed_points < HOPELESS_POINTS else 0
    while True:
        blocks.append(Block(replayed(reference, rule.block), replayed(full, rule.block), device.readings()))
        unthrottled = watch.unthrottled(blocks)
        slowed = len(blocks) - len(unthrottled)
        if slowed > repeated and slowed <= most_repeats:
            repeated = slowed
            # time spent cooling does not count towards the point's limit
            started_s += rule.cool_seconds
            device.wait(rule.cool_seconds)
        if unthrottled:
            timing = _timing(unthrottled, reference.launches, full.launches, slowed)
            met = timing.samples >= rule.least_samples and timing.relative_error <= rule.relative_error
            if met or timing.samples >= rule.most_samples or device.seconds() - started_s >= rule.most_seconds:
                watch.slowed_points = 0
                return timing
        if slowed > most_repeats:
            watch.slowed_points += 1
            return _timing(blocks, reference.launches, full.launches, slowed)._replace(fault=SLOWED_FAULT)


def worked_s(device: Device, replay: Replay, block: int) -> float:
    """Replay for WORKED_SECONDS without a pause; return the seconds that it took."""
    started_s = device.seconds()
    while device.seconds() - started_s < WORKED_SECONDS:
        replay(block)
    return device.seconds() - started_s


def drawn_w(device: Device, replay: Replay, block: int) -> float | None:
    """Replay for POWER_SECONDS and return the mean power of the GPU in W; None where the device counts no energy.

    The device updates its energy counter a few times a second: power is taken between two updates.
    """
    last_j, started_s = device.readings().energy_j, device.seconds()
    if last_j is None:
        return None
    updates: list[tuple[float, float]] = []
    while (now_s := device.seconds()) - started_s < POWER_SECONDS:
        replay(block)
        energy_j = device.readings().energy_j
        if energy_j is not None and energy_j != last_j:
            last_j = energy_j
            updates.append((device.seconds(), energy_j))
        elif device.seconds() == now_s:
            return None
    if len(updates) < 2:
        return None
    (first_s, before_j), (last_s, after_j) = updates[0], updates[-1]
    return (after_j - before_j) / (last_s - first_s)


def replayed(replay: Replay, count: int) -> np.ndarray:
    """Return the durations of replays in us, shape (count,); ValueError for an invalid one."""
    values = replay(count)
    if not (np.isfinite(values) & (values >= 0)).all():
        worst = values[~(np.isfinite(values) & (values >= 0))][0]
        raise ValueError(f"the device reports {number(float(worst))} us for a replay")
    return values


def _timing(blocks: Sequence[Block], reference_launches: int, launches: int, repeated: int) -> Timing:
    difference = launches - reference_launches
    reference = np.concatenate([block.reference_us for block in blocks])
    full = np.concatenate([block.full_us for block in blocks])
    reference_us, full_us = np.median(reference), np.median(full)
    latency = float(full_us - reference_us) / difference
    error = float(np.hypot(median_error(reference), median_error(full))) / difference
    relative = error / latency if latency > 0 else float("inf")
    spread = max(robust_sigma(full), LEAST_SIGMA * full_us)
    inside = full[np.abs(full - full_us) <= OUTLIER_SIGMAS * spread]
    states = [block.readings for block in blocks]
    return Timing(
        latency,
        relative,
        full.size,
        float(inside.std(ddof=1) / full_us) if inside.size > 1 and full_us > 0 else 0.0,
        int(full.size - inside.size),
        max(float(reference_us) - reference_launches * latency, 0.0),
        _known_median([state.sm_clock_hz for state in states]),
        _known_median([state.memory_clock_hz for state in states]),
        max((state.temperature_c for state in states if state.temperature_c is not None), default=None),
        frozenset().union(*(state.limits for state in states)),
        repeated,
        None if relative <= TOO_NOISY else "noisy: its median is not known to 5 %",
    )


def robust_sigma(values: np.ndarray) -> float:
    """Estimate the standard deviation by the median absolute deviation, which outliers do not change.

    >>> robust_sigma(np.array([1.0, 2.0, 3.0, 400.0]))
    1.4826
    """
    return float(ROBUST_SIGMA * np.median(np.abs(values - np.median(values))))


def median_error(values: np.ndarray) -> float:
    """Return the standard error of the median of ``values``, in their unit."""
    return MEDIAN_ERROR * robust_sigma(values) / float(np.sqrt(values.size))


def _known_median(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return float(np.median(known_values)) if known_values else None
