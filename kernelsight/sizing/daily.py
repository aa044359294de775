"""Autoscaling over a day: the demand of each hour, the instances that serve it, and the time to start one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.number_format import number, rounded

HOURS, DAY_S = 24, 86_400.0
# the hour of the peak of a smooth course; assumed
PEAK_HOUR = 14
MOST_PEAK = 20.0
# shortest trace from which hours are taken: a shorter one lacks some of them
LEAST_TRACE_S = 23.0 * 3600.0
# bytes/s of the disk that an instance reads its weights from: an AWS EBS gp3 volume of 1,000 MiB/s gave 15 GB of
# Llama 3 8B in 14.3 s (NVIDIA, "Reducing Cold Start Latency for LLM Inference with Run:ai Model Streamer", 2025)
DISK_BYTES_PER_S = 1e9
# seconds of a start beside loading weights, with cached compiled graphs: imports and engine 34, bytecode 10, graphs 13
# and 7, vLLM with Llama 3.1 8B on an L40S (tensorfuse.io/docs/blogs/reducing_gpu_cold_start, 2025)
ENGINE_START_S = 64.0


class Day(NamedTuple):
    """The demand of each hour of a day, in requests/s or users; ``source``: the origin of its course, for sentences."""

    amounts: tuple[float, ...]
    source: str

    @property
    def peak(self) -> float:
        """The largest hourly demand."""
        return max(self.amounts)

    @property
    def mean(self) -> float:
        """The mean over the day."""
        return sum(self.amounts) / len(self.amounts)


class Start(NamedTuple):
    """The cold start of an instance: seconds until it serves, and the sentence that explains them."""

    seconds: float
    sentence: str


class Hour(NamedTuple):
    """One hour: its demand (requests/s or users), the instances that serve it, and those started for it."""

    hour: int
    amount: float
    instances: int
    started: int


def day_of(course: float | str | Path, mean: float | None) -> Day:
    """Return the demand over a day from its peak-to-mean factor, or from a trace of a day or more.

    ``mean``: the mean that hours are scaled to, requests/s or users; None: that of the trace. InvalidInput: a factor
    out of range, or a trace that is too short.
    """
    factor = _factor(course)
    if factor is not None:
        if not 1.0 <= factor <= MOST_PEAK:
            raise InvalidInput(
                f"--daily-peak is {course}; give how many times the mean of a day its peak is, from 1 to "
                f"{MOST_PEAK:g}, or a trace."
            )
        if mean is None:
            raise InvalidInput("--daily-peak FACTOR needs the mean: give --rate, --requests-per-day or --users.")
        return Day(
            tuple(mean * share for share in _smooth(factor)), f"a smooth course, peak at {PEAK_HOUR} h (assumed)"
        )
    counts = _hours_of_trace(Path(course))
    per_s = [count / 3600.0 for count in counts]
    scale = 1.0 if mean is None else mean * HOURS / sum(per_s)
    return Day(tuple(scale * hourly_rate for hourly_rate in per_s), f"the hours of {Path(course).name}")


def stated_day(hours: Sequence[float], source: str | None) -> Day:
    """Return the demand over a day from its 24 hours; InvalidInput: not 24 numbers, or none above 0.

    >>> stated_day([1.0] * 24, None).source
    'the stated hours'
    """
    if len(hours) != HOURS or not all(0.0 <= amount < math.inf for amount in hours) or not max(hours) > 0.0:
        raise InvalidInput(f"hours has {len(hours)} values; give what each of the {HOURS} hours asks for, 0 or more.")
    return Day(tuple(hours), source or "the stated hours")


def _factor(course: Any) -> float | None:
    if isinstance(course, bool) or not isinstance(course, int | float | str):
        return None
    try:
        return float(course)
    except ValueError:
        return None


def _smooth(factor: float) -> list[float]:
    """Return each hour's demand over the mean, proportional to exp(k cos) around the peak: above 0 for any factor."""

    def shares(k: float) -> list[float]:
        weights = [math.exp(k * (math.cos(2.0 * math.pi * (hour - PEAK_HOUR) / HOURS) - 1.0)) for hour in range(HOURS)]
        return [HOURS * weight / sum(weights) for weight in weights]

    low, high = 0.0, 1e4
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if max(shares(middle)) < factor else (low, middle)
    return shares(high)


def _hours_of_trace(path: Path) -> list[float]:
    """Return the requests of each hour since the start of a trace, as the mean over its days."""
    import numpy as np

    from kernelsight.serving.load.recorded_loads import read_trace

    arrival_s = read_trace(path)["arrival_s"].to_numpy()  # in order, from 0
    if arrival_s[-1] < LEAST_TRACE_S:
        raise InvalidInput(
            f"{path.name} covers {number(float(arrival_s[-1]) / 3600.0, 3)} hours; a daily course needs a trace of a "
            "day, or a factor such as --daily-peak 2.5."
        )
    days = max(math.floor(arrival_s[-1] / DAY_S), 1)  # whole days, so that each hour counts equally often
    hours = (arrival_s[arrival_s < days * DAY_S] // 3600.0).astype(int) % HOURS
    return (np.bincount(hours, minlength=HOURS) / days).tolist()


def start_of(weights_bytes: float, disk_bytes_per_s: float | None, startup_s: float | None) -> Start:
    """Return the cold start of an instance: ``startup_s`` where it is given, else from the bytes of its weights.

    >>> start_of(16e9, None, None).sentence
    'a start takes 80 s: 16 GB of weights at 1 GB/s (assumed) and 64 s of the engine (assumed)'
    >>> start_of(16e9, None, 120.0)
    Start(seconds=120.0, sentence='a start takes 120 s')
    """
    if startup_s is not None:
        return Start(startup_s, f"a start takes {number(startup_s, 3)} s")
    rate = disk_bytes_per_s or DISK_BYTES_PER_S
    seconds = weights_bytes / rate + ENGINE_START_S
    assumed = "" if disk_bytes_per_s else " (assumed)"
    return Start(
        seconds,
        f"a start takes {rounded(seconds)} s: {number(weights_bytes / 1e9, 3)} GB of weights at "
        f"{number(rate / 1e9, 3)} GB/s{assumed} and {rounded(ENGINE_START_S)} s of the engine (assumed)",
    )


def hours_of(day: Day, instance_rate: float) -> list[Hour]:
    """Return the instances of each hour of a day, always at least one; ``instance_rate``: load that one serves."""
    instances_by_hour = [max(math.ceil(amount / instance_rate * (1.0 - 1e-9)), 1) for amount in day.amounts]
    return [
        Hour(hour, amount, instances, max(instances - before, 0))
        for hour, (amount, instances, before) in enumerate(
            zip(day.amounts, instances_by_hour, [instances_by_hour[-1], *instances_by_hour[:-1]], strict=True)
        )
    ]


def instance_hours(hours: Sequence[Hour], start_s: float) -> float:
    """Return the instance-hours of a day, including the time in which instances start, before their hour."""
    return sum(hour.instances + hour.started * start_s / 3600.0 for hour in hours)
