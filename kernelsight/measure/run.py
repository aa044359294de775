"""Measure a suite on a device: point after point into the journal, resumable, with the time that is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.measure.device import CannotMeasure, Device, DeviceLost, Identity, Kernel, Replay
from kernelsight.measure.journal import Journal, journal_path, read_journal
from kernelsight.measure.rows import row_of
from kernelsight.measure.suite import Point, Suite
from kernelsight.measure.timing import Timing, Watch, time_replays

# launches of one replay together, in microseconds: far above the resolution of the clock, far below what heats
REPLAY_US = 1000.0
LEAST_LAUNCHES, MOST_LAUNCHES = 4, 200
# share of the launches in the replay that is measured to know the gap
REFERENCE_SHARE = 0.25
WARM_UP = 3
# points that tell how long the next ones take
RECENT = 20


class Outcome(NamedTuple):
    """Points measured in all, failed, still to do; and of each family (measured, failures by reason)."""

    measured: int
    failed: int
    left: int
    families: Mapping[str, tuple[int, Mapping[str, int]]]


def measure_suite(
    device: Device,
    suite: Suite,
    target: Path,
    *,
    resume: bool = False,
    most_seconds: float = math.inf,
    told: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Measure what the journal of ``target`` lacks, until all is done or the time is over; write the sweep.

    InvalidInput: a sweep is there and ``resume`` was not asked for, or it is of another suite or GPU. RunFailed: the
    device answers no more; what was measured is kept.
    """
    identity = device.identity()
    journal = _opened(target, suite, identity, resume)
    watch, spent, begun = Watch(), [], device.seconds()
    left = [point for point in suite.points if point.key not in journal.done]
    lost = None
    try:
        for number, point in enumerate(left, start=1):
            at = device.seconds()
            if at - begun >= most_seconds:
                break
            try:
                row, failure = _measured(device, identity, suite, point, watch), None
            except CannotMeasure as error:
                row, failure = None, str(error)
            except DeviceLost as error:
                row, failure, lost = None, f"the device was lost: {error}", error
            except Exception as error:  # one point, for whatever reason, must not cost the others
                row, failure = None, _reason(error)
            journal.add(point.key, row, failure)
            spent.append(device.seconds() - at)
            told(_line(number, len(left), point, row, failure, spent))
            if lost:
                break
    finally:
        journal.close()
        journal.write_sweep(target, identity.gpu)
    if lost:
        raise RunFailed(
            f"the GPU answers no more ({lost}); {len(journal.done):,} points are kept in {target}; the same command "
            "with --resume goes on behind the one that failed."
        )
    return _outcome(suite, journal)


def time_point(device: Device, point: Point, rule: Any, watch: Watch, kernel: Kernel) -> Timing:
    """Choose how many launches one replay holds, and time them."""
    if point.family == "launch":
        return time_replays(device, *_launch_replays(device, point, kernel), rule, watch)
    if not kernel.captured:
        launches = LEAST_LAUNCHES
        return time_replays(device, device.eager(kernel, 1), device.eager(kernel, launches), rule, watch)
    cold = point.cache == "cold"
    one = device.graph(kernel, 1, flush=False)
    one(WARM_UP)
    about_us = float(np.median(one(WARM_UP)))
    if cold:
        launches = int(np.clip(math.ceil(2 * REPLAY_US / about_us), 1, kernel.copies))
        reference, full = device.graph(None, 0, flush=True), device.graph(kernel, launches, flush=True)
    else:
        launches = int(np.clip(math.ceil(REPLAY_US / about_us), LEAST_LAUNCHES, MOST_LAUNCHES))
        reference = device.graph(kernel, max(1, round(REFERENCE_SHARE * launches)), flush=False)
        full = device.graph(kernel, launches, flush=False)
    reference(1), full(1)
    found = time_replays(device, reference, full, rule, watch)
    if not found.latency_us > 0:
        raise CannotMeasure("the launches cost less than the noise of a replay")
    return found


def _reason(error: Exception) -> str:
    """Return an unforeseen error as the reason of one point: its kind and its first line."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def _launch_replays(device: Device, point: Point, kernel: Kernel) -> tuple[Replay, Replay]:
    """Return what tells the cost of one launch: by a graph, by the host, or of a graph that holds nearly nothing."""
    if point.implementation == "empty_graph":
        # a replay of one empty kernel against none at all: the gap is its answer
        return device.graph(None, 0, flush=False), device.graph(kernel, 1, flush=False)
    make = device.eager if point.implementation == "eager_launch" else lambda of, n: device.graph(of, n, flush=False)
    launches = MOST_LAUNCHES
    return make(kernel, round(REFERENCE_SHARE * launches)), make(kernel, launches)


def _measured(device: Device, identity: Identity, suite: Suite, point: Point, watch: Watch) -> dict[str, Any]:
    kernel = device.prepare(point)
    try:
        timing = time_point(device, point, suite.rule, watch, kernel)
        return row_of(point, kernel, timing, identity)
    finally:
        kernel.close()


def _opened(target: Path, suite: Suite, identity: Identity, resume: bool) -> Journal:
    path = journal_path(target)
    header = {"suite": suite.name, "digest": suite.digest, "gpu": identity.gpu, "serial": identity.serial}
    journal, earlier = Journal(path, header), []
    if path.exists() and not resume:
        _, records = read_journal(path)
        raise InvalidInput(
            f"{path} holds {len(records):,} points of an earlier run; add --resume to go on, or name another -o FILE."
        )
    if target.exists() and not path.exists():
        raise InvalidInput(f"{target} is there, but was not measured here (it has no journal); name another -o FILE.")
    if path.exists():
        stated, earlier = read_journal(path)
        if stated["digest"] != suite.digest:
            raise InvalidInput(
                f"{path} holds points of the suite {stated['suite']}, whose points or rule are others than those of "
                f"{suite.name}; name another -o FILE."
            )
        if (stated["gpu"], stated["serial"]) != (identity.gpu, identity.serial):
            raise InvalidInput(
                f"{path} was measured on {stated['gpu']} (serial {stated['serial']}), and this GPU is {identity.gpu} "
                f"(serial {identity.serial}); name another -o FILE."
            )
    journal.open(earlier)
    return journal


def _line(number: int, of: int, point: Point, row: Any, failure: str | None, spent: list[float]) -> str:
    recent = spent[-RECENT:]
    left_minutes = (of - number) * sum(recent) / len(recent) / 60.0
    sizes = " ".join(f"{name}={size}" for name, size in point.shape)
    found = failure or f"{row['latency_us']:.4g} us +- {row['relative_error']:.1%}"
    what = " ".join(word for word in (point.family, point.implementation, point.dtype, point.cache, sizes) if word)
    return f"{number}/{of} {what}: {found}; {left_minutes:.1f} min left"


def _outcome(suite: Suite, journal: Journal) -> Outcome:
    families: dict[str, tuple[int, dict[str, int]]] = {}
    for point in suite.points:
        measured, reasons = families.get(point.family, (0, {}))
        if reason := journal.failures.get(point.key):
            reasons[reason] = reasons.get(reason, 0) + 1
        families[point.family] = (measured + (journal.done.get(point.key) is not None), reasons)
    failed = len(journal.failures)
    return Outcome(len(journal.done) - failed, failed, len(suite.points) - len(journal.done), families)
