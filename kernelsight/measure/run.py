"""Measures a suite on a device, point by point, resumable, with an estimate of the remaining time.

Each point, measured or failed, is in the journal before the next is measured.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import draft_of, locked
from kernelsight.caches.journal import Journal, Records, journal_path, read_journal
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.measure.device import CannotMeasure, Device, DeviceLost, Identity, Kernel, Replay
from kernelsight.measure.rows import row_of, sweep_schema, versions_of
from kernelsight.measure.suite import SUSTAINED, Point, Rule, Suite
from kernelsight.measure.timing import (
    HOPELESS_POINTS,
    SLOWED_FAULT,
    Timing,
    Watch,
    drawn_w,
    replayed,
    time_replays,
    worked_s,
)
from kernelsight.number_format import number, percent

KIND = "measurement"
# metadata key of a sweep's rejected points, read by evaluations: JSON array of {gpu, reason, n}
REJECTED = b"kernelsight.rejected"


class Points:
    """The points measured so far: ``done`` by key, None for a failed one (with its reason in ``failures``)."""

    def __init__(self, path: Path, header: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> None:
        """Start the journal with the points of an earlier one, which it replaces."""
        self.done: dict[str, dict[str, Any] | None] = {}
        self.failures: dict[str, str] = {}
        self._journal = Journal(path, KIND, {**header, "columns": sweep_schema().names}, earlier)
        for record in earlier:
            self._keep(record)

    def add(self, point: str, row: Mapping[str, Any] | None, failure: str | None = None) -> None:
        """Write one point, measured or failed; it is on disk when this returns."""
        record = {**(row or {}), "point": point, "failure": failure}
        self._journal.append(record)
        self._keep(record)

    def close(self) -> None:
        """Close the journal, which stays on the disk."""
        self._journal.close()

    def write_sweep(self, target: Path, gpu: str) -> None:
        """Write the measured points atomically as a Parquet file in the contract of ``sweep_points``."""
        rows = [row for row in self.done.values() if row is not None]
        counts: dict[str, int] = {}
        for reason in self.failures.values():
            counts[reason] = counts.get(reason, 0) + 1
        rejected = [{"gpu": gpu, "reason": reason, "n": n} for reason, n in counts.items()]
        table = pa.Table.from_pylist(rows, sweep_schema())
        table = table.replace_schema_metadata({REJECTED: json.dumps(rejected)})
        with draft_of(target) as draft:
            pq.write_table(table, draft, compression="zstd")

    def _keep(self, record: Mapping[str, Any]) -> None:
        row = {name: record[name] for name in record if name not in ("point", "failure")}
        self.done[record["point"]] = None if record["failure"] else row
        if record["failure"]:
            self.failures[record["point"]] = record["failure"]


def read_points(path: Path) -> Records:
    """Read a journal of points; InvalidInput: it is not one, or of another version's columns."""
    header, records = read_journal(path, KIND)
    if not isinstance(header, dict) or header.get("columns") != sweep_schema().names:
        raise InvalidInput(f"{path} has other columns than this version writes; use another -o FILE.")
    return Records(header, records)


# duration of a replay in microseconds: far above the clock's resolution, too short to heat the GPU
REPLAY_US = 1000.0
LEAST_LAUNCHES, MOST_LAUNCHES = 4, 200
# least estimate of a launch: below the resolution of any clock
LEAST_US = 0.01
# share of the launches in the reference replay, which measures the constant time
REFERENCE_SHARE = 0.25
WARM_UP = 3
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# points from which the remaining time is estimated
RECENT = 20


class Outcome(NamedTuple):
    """Numbers of points measured, failed, and left to measure; by family (measured, failures by reason)."""

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
    """Measure the points missing in the journal of ``target``, within the time limit; write the sweep.

    ``retry``: resume and repeat failed and throttled points. InvalidInput: a sweep exists without ``resume``, is of
    another suite or GPU, or another process is writing it. RunFailed: the device stopped responding, or a file could
    not be written; measured points are kept.
    """
    identity, path = device.identity(), journal_path(target)
    try:
        with locked(target):
            points = _opened(target, suite, identity, resume, retry, log)
            try:
                lost = _measure_missing(device, identity, suite, points, most_seconds, log)
            finally:
                points.close()
                points.write_sweep(target, identity.gpu)
    except OSError as error:
        if not path.exists():
            raise
        where, advice = (
            error.filename or target.resolve().parent,
            "free disk space" if error.errno in FULL else "fix it",
        )
        raise RunFailed(
            f"{where} cannot be written ({error.strerror}); the measured points are kept in {path}; {advice}, and "
            "continue with --resume."
        ) from None
    if lost:
        raise RunFailed(
            f"the GPU stopped responding ({lost}); {len(points.done):,} points are kept in {target}; continue after "
            "the failed one with --resume."
        )
    return _outcome(suite, points)


def _measure_missing(
    device: Device, identity: Identity, suite: Suite, points: Points, most_seconds: float, log: Callable[[str], None]
) -> DeviceLost | None:
    """Measure the points missing in the journal; return the error if the device was lost, else None."""
    watch, spent_s, started_s = Watch(), [], device.seconds()
    missing = [point for point in suite.points if point.key not in points.done]
    for ordinal, point in enumerate(missing, start=1):
        point_started_s, lost = device.seconds(), None
        if point_started_s - started_s >= most_seconds:
            break
        try:
            row, failure = _measured(device, identity, suite, point, watch), None
        except CannotMeasure as error:
            row, failure = None, str(error)
        except DeviceLost as error:
            row, failure, lost = None, f"the device was lost: {error}", error
        except Exception as error:  # a failing point must not end the run
            row, failure = None, _reason(error)
        points.add(point.key, row, failure)
        spent_s.append(device.seconds() - point_started_s)
        log(_line(ordinal, len(missing), point, row, failure, spent_s))
        if lost:
            return lost
        if watch.slowed_points == HOPELESS_POINTS and row and row["not_fitted"] == SLOWED_FAULT:
            log("the GPU stays throttled: points are measured without waiting; --retry repeats them")
    return None


def time_point(device: Device, point: Point, rule: Rule, watch: Watch, kernel: Kernel) -> Timing:
    """Choose the launches per replay and time them; CannotMeasure if their time is invalid or below the noise."""
    try:
        reference, full = _replays(device, point, kernel)
        worked = worked_s(device, full, rule.block) if point.cache == SUSTAINED else None
        timing = time_replays(device, reference, full, rule, watch)
    except ValueError as error:
        raise CannotMeasure(str(error)) from None
    if not timing.latency_us > 0:
        raise CannotMeasure("the launches take less time than the noise of a replay")
    return timing._replace(power_w=drawn_w(device, full, rule.block), worked_s=worked)


def _replays(device: Device, point: Point, kernel: Kernel) -> tuple[Replay, Replay]:
    """Return the two warmed-up replays: the reference, and the one with all launches."""
    if point.family == "launch":
        return _launch_replays(device, point, kernel)
    if not kernel.captured:
        return device.eager(kernel, 1), device.eager(kernel, LEAST_LAUNCHES)
    cold = point.cache == "cold"
    single = device.graph(kernel, 1, flush=False)
    single(WARM_UP)
    about_us = max(float(np.median(replayed(single, WARM_UP))), LEAST_US)
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
    """Return an unexpected error as the failure of one point: its class and first line."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def _launch_replays(device: Device, point: Point, kernel: Kernel) -> tuple[Replay, Replay]:
    """Return the two replays that measure the cost of one launch: in a graph, by the host, or of an empty graph."""
    if point.implementation == "empty_graph":
        # one empty kernel against none: the gap is the result
        return device.graph(None, 0, flush=False), device.graph(kernel, 1, flush=False)
    make = (
        device.eager
        if point.implementation == "eager_launch"
        else lambda replayed_kernel, n: device.graph(replayed_kernel, n, flush=False)
    )
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
) -> Points:
    """Open the journal of a sweep, with the points of an earlier run to keep; InvalidInput: see measure_suite."""
    path = journal_path(target)
    header = {"suite": suite.name, "digest": suite.digest, "gpu": identity.gpu, "serial": identity.serial}
    earlier: list[dict[str, Any]] = []
    if path.exists() and not (resume or retry):
        _, records = read_points(path)
        raise InvalidInput(
            f"{path} has {len(records):,} points of an earlier run; add --resume to continue, or use another -o FILE."
        )
    if target.exists() and not path.exists():
        raise InvalidInput(f"{target} exists, but has no journal to resume from; use another -o FILE.")
    if path.exists():
        stored, earlier = read_points(path)
        if stored["digest"] != suite.digest:
            raise InvalidInput(
                f"{path} has points of the suite {stored['suite']}, whose points or rule differ from {suite.name}; use "
                "another -o FILE."
            )
        if (stored["gpu"], stored["serial"]) != (identity.gpu, identity.serial):
            raise InvalidInput(
                f"{path} was measured on {stored['gpu']} (serial {stored['serial']}), but this GPU is {identity.gpu} "
                f"(serial {identity.serial}); use another -o FILE."
            )
        _log_versions(earlier, identity, log)
        retained = [record for record in earlier if not (retry and _failed(record))]
        log(
            f"{len(retained):,} points kept from the earlier run, {len(suite.points) - len(retained):,} left to measure"
        )
        earlier = retained
    return Points(path, header, earlier)


def _failed(record: Mapping[str, Any]) -> bool:
    """Return whether a point of the journal failed, or was throttled throughout."""
    return record["failure"] is not None or record["not_fitted"] == SLOWED_FAULT


def _log_versions(earlier: Sequence[Mapping[str, Any]], identity: Identity, log: Callable[[str], None]) -> None:
    """Log if earlier points were measured with other software versions; every row has its own."""
    latest = (identity.driver, versions_of(identity))
    before = {(record["driver"], record["versions"]) for record in earlier if record.get("driver")} - {latest}
    for driver, versions in sorted(before):
        log(f"earlier points: driver {driver} ({versions}), next points: {latest[0]} ({latest[1]}); stored in each row")


def _line(ordinal: int, total: int, point: Point, row: Any, failure: str | None, spent_s: list[float]) -> str:
    """Return the line that is logged for a point: its place, result, and the estimated remaining time."""
    recent = spent_s[-RECENT:]
    left_minutes = (total - ordinal) * sum(recent) / len(recent) / 60.0
    sizes = " ".join(f"{name}={size}" for name, size in point.shape)
    result = failure or f"{number(row['latency_us'])} us +- {percent(row['relative_error'], 1)}"
    point_text = " ".join(
        word for word in (point.family, point.implementation, point.dtype, point.cache, sizes) if word
    )
    return f"{ordinal}/{total} {point_text}: {result}; {number(left_minutes, 2)} min left"


def _outcome(suite: Suite, points: Points) -> Outcome:
    families: dict[str, tuple[int, dict[str, int]]] = {}
    for point in suite.points:
        measured, reasons = families.get(point.family, (0, {}))
        if reason := points.failures.get(point.key):
            reasons[reason] = reasons.get(reason, 0) + 1
        families[point.family] = (measured + (points.done.get(point.key) is not None), reasons)
    failed = len(points.failures)
    return Outcome(len(points.done) - failed, failed, len(suite.points) - len(points.done), families)
