"""Watch of a growing log or a server's metrics: polls, windows compared with their prediction, drift, durable state.

Each poll ends by writing the state, after all its other output. A poll that was interrupted is repeated from the state
before it and writes the same files: a restart neither loses nor duplicates anything.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.comparison.drift import Drift, with_window
from kernelsight.comparison.verdict import cause_sentence
from kernelsight.comparison.watched_requests import (
    COLUMNS,
    RecentRequests,
    due_count,
    requests_table,
    window_of,
    with_requests,
    without_compared,
)
from kernelsight.comparison.watched_server import counters_between, scraped, window_between
from kernelsight.dataflow.bounded_files import read_text
from kernelsight.dataflow.bounded_http import get_text
from kernelsight.dataflow.durable import durable_file, locked
from kernelsight.dataflow.redaction import redacted_text
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.logs.appended_lines import Position, appended, rows_of
from kernelsight.number_format import number
from kernelsight.present.watch_windows import Window, as_prometheus, history_rows, moment

VERSION = 1
TIMEOUT_S, MOST_BYTES, MOST_STATE_BYTES = 10.0, 8 << 20, 1 << 26
Compare = Callable[..., Any]


@dataclass
class State:
    """State of a watch, saved after each poll.

    ``place``: how far the log was read; ``kept``: recent requests; ``scrape``, ``scraped_at``: the last metrics of a
    server, and their unix time; ``drifts``: drift detectors by metric; ``looks_like``: likely causes of the drift;
    ``windows``, ``totals``: number of windows and of requests so far.
    """

    source: str
    place: Position = field(default_factory=Position)
    kept: RecentRequests = field(default_factory=lambda: RecentRequests([]))
    scrape: str = ""
    scraped_at: float = 0.0
    drifts: dict[str, Drift] = field(default_factory=dict)
    looks_like: str = ""
    windows: int = 0
    totals: dict[str, float] = field(default_factory=lambda: {"requests": 0.0, "failed": 0.0, "refused": 0.0})

    @property
    def drifting_since(self) -> float | None:
        """Start of the earliest drift that has not ended, s; None without one."""
        return min((drift.since for drift in self.drifts.values() if drift.since is not None), default=None)

    def as_json(self) -> str:
        """Return the state as the JSON text that is saved."""
        return json.dumps({"version": VERSION, **vars(self)})


@dataclass
class Targets:
    """Output files of a watch: state, Prometheus metrics, and a folder with one Parquet file per window; None: none."""

    state: Path | None = None
    metrics: Path | None = None
    history: Path | None = None


def state_of(path: Path | None, source: str) -> State:
    """Return the state in a file, or a new one without a file; InvalidInput: not a state, or of another source."""
    shown_source = redacted_text(source)
    if path is None or not path.exists():
        return State(shown_source)

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"--state {path} {problem}; give another file, or remove it to begin anew.")

    try:
        fields = json.loads(read_text(path, refuse, MOST_STATE_BYTES))
        if fields.pop("version") != VERSION:
            raise refuse("was written by another version")
        state = State(**fields)
        state.place, state.kept = Position(*state.place), RecentRequests(*state.kept)
        state.drifts = {name: Drift(*drift) for name, drift in state.drifts.items()}
        if any(len(row) != len(COLUMNS) for row in state.kept.rows):
            raise refuse("is no state of a watch")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise refuse("is no state of a watch") from None
    if state.source != shown_source:
        raise refuse(f"is of {state.source}")
    return state


@dataclass
class Watch:
    """A watch of one log or one metrics address.

    ``flags``: the deployment; ``compare``: ``Session.compare``, which finds causes of a drift; ``log_format``,
    ``columns``: of the log, as in ``read_logs``; ``now``: returns unix time, s.
    """

    source: str
    flags: Mapping[str, Any]
    session: Session
    compare: Compare
    targets: Targets = field(default_factory=Targets)
    log_format: str = "auto"
    columns: Mapping[str, str] | None = None
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.is_server = "://" in self.source
        self.state = state_of(self.targets.state, self.source)

    @contextlib.contextmanager
    def locked_state(self) -> Any:
        """Lock the state file against other processes while a watch runs."""
        with locked(self.targets.state) if self.targets.state else contextlib.nullcontext():
            yield self

    def poll(self) -> list[Window]:
        """Read new lines or metrics, write their windows and the state, and return the windows."""
        windows = self._poll_server() if self.is_server else self._poll_log()
        self._save()
        return windows

    def _poll_log(self) -> list[Window]:
        """Return the windows of the lines that were appended to the log."""
        windows, path = [], Path(self.source)
        for appended_part in appended(path, self.state.place):
            notes = {
                "rotated": [f"{path} was rotated: reading goes on in the new file"],
                "truncated": [f"{path} was truncated: it is read from its beginning"],
            }.get(appended_part.event, [])
            if appended_part.lines:
                try:
                    requests = rows_of(appended_part, path, self.log_format, self.columns)
                    self.state.kept = with_requests(self.state.kept, requests)
                except InvalidInput as refused:
                    self.state.totals["refused"] += appended_part.lines.count(b"\n")
                    notes.append(f"lines were not used: {refused}")
            self.state.place = appended_part.place
            windows += self._windows(notes)
            self._save()
        return windows

    def _windows(self, notes: list[str]) -> list[Window]:
        """Return a window of the requests that can be compared now; without any, a window of notes alone."""
        due = due_count(self.state.kept)
        if due <= self.state.kept.compared:
            return self._window_of_notes(notes)
        try:
            metrics, counts = window_of(self.state.kept, due, self.flags, self.session)
        except InvalidInput as refused:
            return self._window_of_notes([*notes, str(refused)])
        finally:
            self.state.kept = without_compared(self.state.kept, due)
        return [self._window(metrics, counts, notes)]

    def _window_of_notes(self, notes: list[str]) -> list[Window]:
        """Return a window without requests that holds notes; none without notes."""
        return [self._new_window({}, {}, notes)] if notes else []

    def _new_window(self, metrics: dict[str, dict[str, float]], counts: dict[str, float], notes: list[str]) -> Window:
        """Return a window with the current levels, drift and totals of the state."""
        usual = {name: drift.level for name, drift in self.state.drifts.items()}
        state = self.state
        return Window(state.windows, metrics, counts, notes, usual, state.drifting_since, dict(state.totals))

    def _poll_server(self) -> list[Window]:
        """Return the window between the last scrape of the server's metrics and a new one."""
        now_s = self.now()
        try:
            text = scraped(get_text(self.source, TIMEOUT_S, MOST_BYTES))
        except RunFailed as failed:
            return self._window_of_notes([str(failed)])
        before, since = self.state.scrape, self.state.scraped_at
        self.state.scrape, self.state.scraped_at = text, now_s
        if not before:
            return []
        counters = counters_between(before, text)
        if counters is None:
            return self._window_of_notes(
                [f"{redacted_text(self.source)}: counters fell or are missing: was it started again?"]
            )
        metrics = window_between(counters, now_s - since, self.flags, self.session)
        if not metrics:
            return []
        counts = {"requests": counters["finished"], "failed": 0.0, "start_s": since, "end_s": now_s}
        return [self._window(metrics, counts, [])]

    def _window(self, metrics: dict[str, dict[str, float]], counts: dict[str, float], notes: list[str]) -> Window:
        """Return a window after updating drift and totals, and writing history and metrics."""
        drift_notes = self._follow(metrics, counts["start_s"])
        for name in ("requests", "failed"):
            self.state.totals[name] += counts[name]
        window = self._new_window(metrics, counts, notes + drift_notes)
        self.state.windows += 1
        if self.targets.history is not None:
            self.targets.history.mkdir(parents=True, exist_ok=True)
            with durable_file(self.targets.history / f"{window.number:08d}.parquet") as draft:
                pq.write_table(pa.Table.from_pylist(history_rows(window)), draft)
        if self.targets.metrics is not None:
            with durable_file(self.targets.metrics) as draft:
                draft.write_text(as_prometheus(window), encoding="utf-8")
        return window

    def _follow(self, metrics: Mapping[str, Mapping[str, float]], start_s: float) -> list[str]:
        """Update the drift detectors; return a note when a drift begins, with its likely causes, and when it ends."""
        drifting_before, events = self.state.drifting_since, []
        for name, metric_figures in metrics.items():
            self.state.drifts[name], event = with_window(
                self.state.drifts.get(name, Drift()), metric_figures["log_factor"], start_s
            )
            events.append(event)
        since = self.state.drifting_since
        if drifting_before is None and since is not None:
            self.state.looks_like = self._looks_like(metrics)
            return [f"drift began at {moment(since)}: {self.state.looks_like}"]
        if drifting_before is not None and since is None:
            self.state.looks_like = ""
            return [f"the drift that began at {moment(drifting_before)} has ended"]
        return []

    def _looks_like(self, metrics: Mapping[str, Mapping[str, float]]) -> str:
        """Return a description of a drift: each metric over its usual level, and causes in the kept requests."""
        ratios = ", ".join(
            f"{name.upper()} {number(math.exp(row['log_factor'] - self.state.drifts[name].level), 3)} times the usual"
            for name, row in metrics.items()
        )
        if self.is_server:
            return ratios
        try:
            comparison = self.compare(requests=requests_table(self.state.kept.rows), deployment=self.flags, fit="none")
        except InvalidInput:
            return ratios
        causes = "; ".join(cause_sentence(cause) for cause in comparison.summary["causes"])
        return f"{ratios}; {causes}" if causes else ratios

    def _save(self) -> None:
        if self.targets.state is not None:
            with durable_file(self.targets.state) as draft:
                draft.write_text(self.state.as_json(), encoding="utf-8")
