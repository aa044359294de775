"""Watch of a growing log or a server's metrics: polls, windows compared with their prediction, drift, durable state.

Each poll ends by writing the state, after all its other output. A poll that was interrupted is repeated from the state
before it and writes the same files: a restart neither loses nor duplicates anything. Two scrapes of a server's counters
give the load between them, its mean times, and the means predicted for it.
"""

from __future__ import annotations

import contextlib
import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import durable_file, locked
from kernelsight.comparison.errors import METRICS, predicted_of
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import LOAD, Variant, conformed
from kernelsight.comparison.verdict import cause_sentence
from kernelsight.comparison.watch_state import Drift, State, state_of, with_window
from kernelsight.comparison.watched_requests import (
    due_count,
    requests_table,
    window_of,
    with_requests,
    without_compared,
)
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.files.bounded_http import get_text
from kernelsight.files.budget import SCRAPE
from kernelsight.files.parquet_files import read_schema
from kernelsight.files.redaction import redacted_text
from kernelsight.logs.appended_lines import Appended, appended, requests_of
from kernelsight.logs.prometheus import used_lines
from kernelsight.logs.read_logs import read_logs
from kernelsight.number_format import number
from kernelsight.present.watch_windows import Window, as_prometheus, history_rows, moment

# metric, the column of its mean, and the column that weighs it; the first that a server exposes is used
MEANS = (
    ("ttft", "ttft_mean_ms", "first_tokens"),
    ("tpot", "tpot_mean_ms", "finished"),
    ("tpot", "itl_mean_ms", "output_tokens"),
    ("e2e", "e2e_mean_ms", "finished"),
)
# fewer requests between two polls are not compared; bounds of the requests that are drawn to predict their means
LEAST_REQUESTS, LEAST_DRAWN, MOST_DRAWN = 5, 200, 2000


def scraped(text: str) -> str:
    """Return the lines of a scrape that windows are computed from, which are kept until the next poll."""
    return "\n".join(["# TYPE kept untyped", *used_lines(text)]) + "\n"


def counters_between(before: str, later: str) -> dict[str, float] | None:
    """Return the increase of a server's counters between two scrapes, summed over engines, and mean times, ms.

    None: counters fell or are missing, as after a restart.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{name}.txt" for name in ("before", "now")]
        for file, text in zip(files, (before, later), strict=True):
            file.write_text(text, encoding="utf-8")
        try:
            windows = read_logs(metrics=files)["production_windows"].to_pylist()
        except InvalidInput:
            return None
    counts = ("prompt_tokens", "output_tokens", "cached_tokens", "first_tokens", "finished", "running", "waiting")
    counters = {name: float(sum(row[name] or 0.0 for row in windows)) for name in counts}
    for metric, mean, count in MEANS:
        measured_windows = [row for row in windows if row[mean] is not None and row[count]]
        weight = sum(row[count] for row in measured_windows)
        if weight and metric not in counters:
            counters[metric] = sum(row[mean] * row[count] for row in measured_windows) / weight
    return counters


def window_between(
    counters: Mapping[str, float], seconds: float, flags: Mapping[str, Any], session: Session
) -> dict[str, dict[str, float]]:
    """Return measured and expected means by metric, ms; empty if too few requests were served.

    The expected load is drawn: requests at the measured rate, with mean lengths and exponential gaps.
    """
    started, ended = counters["first_tokens"], counters["finished"]
    if min(started, ended) < LEAST_REQUESTS or seconds <= 0.0:
        return {}
    count = int(min(max(started, LEAST_DRAWN), MOST_DRAWN))
    sent_s = np.cumsum(np.random.default_rng(0).exponential(seconds / started, count))
    prompt = max(round((counters["prompt_tokens"] - counters["cached_tokens"]) / started), 1)
    output = max(round(counters["output_tokens"] / ended), 1)
    columns = {"load_id": [LOAD] * count, "request_id": np.arange(count), "arrival_s": sent_s - sent_s[0]}
    load = conformed({**columns, "prompt_tokens": [prompt] * count, "output_tokens": [output] * count})
    (served,) = LogReplayer(session, load).serve([Variant(flags)], with_parts=False)
    expected = predicted_of(served, np.full(count, float(output)))
    figures = {}
    for metric in METRICS:
        finite_ms = expected[metric][np.isfinite(expected[metric])]
        if metric in counters and counters[metric] > 0.0 and finite_ms.size:
            expected_mean = float(finite_ms.mean())
            figures[metric] = {
                "n": started if metric == "ttft" else ended,
                "measured_mean": counters[metric],
                "expected_mean": expected_mean,
                "log_factor": math.log(counters[metric] / expected_mean),
            }
    return figures


# notes on unused lines of one part
MOST_NOTES = 5
SOURCE = b"kernelsight.source"  # key of the file's metadata
_WINDOW = re.compile(r"(\d{8,})\.parquet")
_ADVICE = "give --state FILE to continue a watch, or another folder"
Compare = Callable[..., Any]


@dataclass
class Targets:
    """Output files of a watch: state, Prometheus metrics, and a folder with one Parquet file per window; None: none."""

    state: Path | None = None
    metrics: Path | None = None
    history: Path | None = None


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
        is_saved = self.targets.state is not None and self.targets.state.exists()
        self.state = state_of(self.targets.state, self.source)
        # the window that an interrupted poll may have written already, and that is written again
        self.repeated = self.state.windows if is_saved else None
        if self.targets.history is not None:
            check_history(self.targets.history, self.state, self.repeated)
        if not is_saved:
            self._save()  # from now on windows in the history are those of this state

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
            notes += self._keep(appended_part, path)
            self.state.place = appended_part.place
            windows += self._windows(notes)
            self._save()
        return windows

    def _keep(self, appended_part: Appended, path: Path) -> list[str]:
        """Keep the requests in appended lines, count the lines that are none; return a note on them."""
        frames, unused = requests_of(appended_part, path, self.log_format, self.columns)
        for requests in frames:
            self.state.kept = with_requests(self.state.kept, requests)
        self.state.totals["refused"] += unused.rows
        kept = sum(requests.height for requests in frames)
        return [f"{path}: {unused.sentence(kept, 'lines')}"] if unused.rows else []

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
            text = scraped(get_text(self.source, SCRAPE))
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
            write_window(self.targets.history, self.state, window, self.repeated)
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


def check_history(folder: Path, state: State, repeated: int | None) -> None:
    """Check that a watch can continue in a folder; InvalidInput: it would overwrite windows of another watch.

    ``repeated``: the number of a window that may be there, written by an interrupted poll; None: none may.
    """
    numbers = [int(match[1]) for path in folder.glob("*.parquet") if (match := _WINDOW.fullmatch(path.name))]
    others = [number for number in numbers if number >= state.windows]
    if others == [repeated] and _source_of(_path(folder, state.windows)) == state.source:
        return
    if others:
        raise InvalidInput(
            f"--history {folder} holds {len(numbers):,} windows of an earlier watch, and window {min(others):,} would "
            f"be overwritten; {_ADVICE}."
        )


def write_window(folder: Path, state: State, window: Window, repeated: int | None) -> None:
    """Write a window; InvalidInput: its file is there, and is not the ``repeated`` window of the same source."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, window.number)
    if path.exists() and not (window.number == repeated and _source_of(path) == state.source):
        raise InvalidInput(f"--history {folder}: {path.name} is a window of another watch; {_ADVICE}.")
    table = pa.Table.from_pylist(history_rows(window)).replace_schema_metadata({SOURCE: state.source.encode()})
    with durable_file(path) as draft:
        pq.write_table(table, draft)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.parquet"


def _source_of(path: Path) -> str:
    """Return the log or address of a window's file, "" if it does not say; InvalidInput: it is no Parquet file."""
    schema = read_schema(path, lambda problem: InvalidInput(f"{path} of --history {problem}; give another folder."))
    return (schema.metadata or {}).get(SOURCE, b"").decode("utf-8", "replace")
