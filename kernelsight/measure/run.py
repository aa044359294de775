"""Measure a suite on a device: point after point into the journal, resumable, with the time that is left."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.measure.device import CannotMeasure, Device, DeviceLost, Identity, Kernel, Replay
from kernelsight.measure.journal import Journal, journal_path, locked, read_journal
from kernelsight.measure.rows import row_of, versions_of
from kernelsight.measure.suite import Point, Suite
from kernelsight.measure.timing import HOPELESS_POINTS, SLOWED_FAULT, Rule, Timing, Watch, replayed, time_replays

# launches of one replay together, in microseconds: far above the resolution of the clock, far below what heats
REPLAY_US = 1000.0
LEAST_LAUNCHES, MOST_LAUNCHES = 4, 200
# below the resolution of any clock
LEAST_US = 0.01
# share of the launches in the replay that is measured to know the gap
REFERENCE_SHARE = 0.25
WARM_UP = 3
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
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
    retry: bool = False,
    most_seconds: float = math.inf,
    log: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Measure what the journal of ``target`` lacks, until all is done or the time is over; write the sweep.

    ``retry``: a resume that measures again what failed or was slowed. InvalidInput: a sweep is there and ``resume`` was
    not asked for, it is of another suite or GPU, or another process measures into it. RunFailed: the device answers no
    more, or the disk takes no more; what was measured is kept.
    """
    identity, path = device.identity(), journal_path(target)
    try:
        with locked(target):
            journal = _opened(target, suite, identity, resume, retry, log)
            try:
                lost = _measure_left(device, identity, suite, journal, most_seconds, log)
            finally:
                journal.close()
                journal.write_sweep(target, identity.gpu)
    except OSError as error:
        if not path.exists():
            raise
        where, what = error.filename or target.resolve().parent, "make room" if error.errno in FULL else "see to it"
        raise RunFailed(
            f"{where} cannot be written ({error.strerror}); what was measured is kept in {path}; {what}, and the same "
            "command with --resume goes on."
        ) from None
    if lost:
        raise RunFailed(
            f"the GPU answers no more ({lost}); {len(journal.done):,} points are kept in {target}; the same command "
            "with --resume goes on behind the one that failed."
        )
    return _outcome(suite, journal)


def _measure_left(
    device: Device, identity: Identity, suite: Suite, journal: Journal, most_seconds: float, log: Callable[[str], None]
) -> DeviceLost | None:
    """Measure what the journal lacks; return what lost the device, None where nothing did."""
    watch, spent, begun = Watch(), [], device.seconds()
    left = [point for point in suite.points if point.key not in journal.done]
    for number, point in enumerate(left, start=1):
        at, lost = device.seconds(), None
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
        log(_line(number, len(left), point, row, failure, spent))
        if lost:
            return lost
        if watch.slowed_points == HOPELESS_POINTS and row and row["not_fitted"] == SLOWED_FAULT:
            log("the GPU stays slowed: points are taken as they come until it is not; --retry measures them again")
    return None


def time_point(device: Device, point: Point, rule: Rule, watch: Watch, kernel: Kernel) -> Timing:
    """Choose how many launches one replay holds, and time them; CannotMeasure where no time is left of them."""
    try:
        found = time_replays(device, *_replays(device, point, kernel), rule, watch)
    except ValueError as error:
        raise CannotMeasure(str(error)) from None
    if not found.latency_us > 0:
        raise CannotMeasure("the launches cost less than the noise of a replay")
    return found


def _replays(device: Device, point: Point, kernel: Kernel) -> tuple[Replay, Replay]:
    """Return what is replayed, warmed up: the reference, and the launches behind it."""
    if point.family == "launch":
        return _launch_replays(device, point, kernel)
    if not kernel.captured:
        return device.eager(kernel, 1), device.eager(kernel, LEAST_LAUNCHES)
    cold = point.cache == "cold"
    one = device.graph(kernel, 1, flush=False)
    one(WARM_UP)
    about_us = max(float(np.median(replayed(one, WARM_UP))), LEAST_US)
    if cold:
        launches = int(np.clip(math.ceil(2 * REPLAY_US / about_us), 1, kernel.copies))
        reference, full = device.graph(None, 0, flush=True), device.graph(kernel, launches, flush=True)
    else:
        launches = int(np.clip(math.ceil(REPLAY_US / about_us), LEAST_LAUNCHES, MOST_LAUNCHES))
        reference = device.graph(kernel, max(1, round(REFERENCE_SHARE * launches)), flush=False)
        full = device.graph(kernel, launches, flush=False)
    reference(1), full(1)
    return reference, full


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


def _opened(
    target: Path, suite: Suite, identity: Identity, resume: bool, retry: bool, log: Callable[[str], None]
) -> Journal:
    path = journal_path(target)
    header = {"suite": suite.name, "digest": suite.digest, "gpu": identity.gpu, "serial": identity.serial}
    journal, earlier = Journal(path, header), []
    if path.exists() and not (resume or retry):
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
        _tell_versions(earlier, identity, log)
        kept = [record for record in earlier if not (retry and _failed(record))]
        log(f"{len(kept):,} points are kept from before, {len(suite.points) - len(kept):,} are to be measured")
        earlier = kept
    journal.open(earlier)
    return journal


def _failed(record: Mapping[str, Any]) -> bool:
    """Return whether a point of the journal failed, or was slowed throughout."""
    return record["failure"] is not None or record["not_fitted"] == SLOWED_FAULT


def _tell_versions(earlier: Sequence[Mapping[str, Any]], identity: Identity, log: Callable[[str], None]) -> None:
    """Say where the points so far were measured under others: every row states its own."""
    now = (identity.driver, versions_of(identity))
    before = {(record["driver"], record["versions"]) for record in earlier if record["driver"]} - {now}
    for driver, versions in sorted(before):
        log(f"points so far are of driver {driver} ({versions}), the next of {now[0]} ({now[1]}); rows tell their own")


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
