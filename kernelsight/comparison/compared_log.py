"""The log of a comparison: its requests on one time line in order of sending, their times, and the load to replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import contracts
from kernelsight.comparison.measured_requests import (
    LEAST_REQUESTS,
    LEAST_SECONDS,
    Measured,
    check_replicas,
    measured_of,
)
from kernelsight.comparison.replay import load_of_log
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flag import options_of
from kernelsight.scenario.launch.deployments import with_launch_line
from kernelsight.scenario.stated_flags import object_text, read_flags

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader


# pause between logs of several runs, which are replayed in sequence: time to drain
PAUSE_S = 60.0


def in_order_of_sending(requests: pa.Table, logs: pa.Table) -> pa.Table:
    """Return the requests of all logs on one time line, in order of sending.

    ``logs``: ``production_logs``. Logs whose unix times overlap keep their offsets; others follow one another, PAUSE_S
    after the last request was sent.
    """
    if not requests.num_rows:
        return requests
    names = pc.unique(requests["log_id"]).to_pylist()
    if len(names) == 1 and _is_in_order(_sent(requests)):
        return requests.combine_chunks()
    starts = dict(zip(logs["log_id"].to_pylist(), logs["start_unix_s"].to_pylist(), strict=True))
    merged_groups, offset_s = [], 0.0
    for group in _at_the_same_time(requests, names, starts):
        group_start = starts.get(group[0]) or 0.0
        shifted = [
            _shifted(requests.filter(pc.equal(requests["log_id"], name)), offset_s, starts, group_start)
            for name in group
        ]
        merged = pa.concat_tables(shifted)
        merged = merged.take(pc.sort_indices(pa.table({"sent": _sent(merged)}), [("sent", "ascending")]))
        merged_groups.append(merged)
        offset_s = (pc.max(_sent(merged)).as_py() or 0.0) + PAUSE_S
    return pa.concat_tables(merged_groups).combine_chunks()


def _sent(requests: pa.Table) -> pa.ChunkedArray:
    """Return the moment that each request was sent, s; of arrival where that is unknown."""
    return pc.coalesce(requests["sent_s"], requests["arrival_s"])


def _at_the_same_time(requests: pa.Table, names: list[str], starts: Mapping[str, float | None]) -> list[list[str]]:
    """Return the names of logs in groups whose unix times overlap, by start; a log without unix times is a group."""
    last_sent = {row["log_id"]: row["sent_max"] or 0.0 for row in _last_sent(requests)}
    stamped = sorted((name for name in names if starts.get(name) is not None), key=lambda name: starts[name])
    groups, end = [[name] for name in names if starts.get(name) is None], -np.inf
    for name in stamped:
        if starts[name] < end:
            groups[-1].append(name)
        else:
            groups.append([name])
        end = max(end, starts[name] + last_sent[name])
    return groups


def _last_sent(requests: pa.Table) -> list[dict[str, Any]]:
    """Return (log_id, sent_max) of each log: the moment of its last request, s."""
    sent = pa.table({"log_id": requests["log_id"], "sent": _sent(requests)})
    return sent.group_by("log_id", use_threads=False).aggregate([("sent", "max")]).to_pylist()


def _shifted(requests: pa.Table, offset: float, starts: Mapping[str, float | None], group_start: float) -> pa.Table:
    """Return the requests of one log on the common time line; its group begins at ``offset``, s."""
    shift_s = offset + (starts.get(requests["log_id"][0].as_py()) or group_start) - group_start
    for column in ("arrival_s", "sent_s"):
        column_index = requests.column_names.index(column)
        requests = requests.set_column(
            column_index, requests.schema.field(column_index), pc.add(requests[column], shift_s)
        )
    return requests


def _is_in_order(sent: pa.ChunkedArray) -> bool:
    """Whether times ascend, so that a long log need not be sorted and copied."""
    times = sent.to_numpy()
    return not sent.null_count and bool(np.all(times[1:] >= times[:-1]))


# columns that may be null, and what is meant then
OPTIONAL = {flag.name: flag.default for flag in options_of("comparisons")["comparison"] if flag.default is not None}


class Question(NamedTuple):
    """The inputs of a comparison: flags of the deployment, and how causes are searched for.

    ``stated``: flags of the load as it was described; ``fit``: none, host (host time and front end alone) or parts;
    ``hold_out``: the last share of the time, on which corrections are scored; ``suspects``: which settings are tried,
    all or none; ``log_ids``: the logs, None: all; ``baseline``: ids of earlier logs that they are compared with.
    """

    flags: Mapping[str, Any]
    stated: Mapping[str, Any] | None = None
    fit: str = "parts"
    hold_out: float = 0.3
    suspects: str = "all"
    log_ids: tuple[str, ...] | None = None
    baseline: tuple[str, ...] | None = None

    def as_row(self, comparison_id: str) -> dict[str, Any]:
        """Return its row of ``comparisons``; a launch line among the flags is parsed into flags."""
        return {
            "comparison_id": comparison_id,
            "log_ids": None if self.log_ids is None else list(self.log_ids),
            "baseline_log_ids": None if self.baseline is None else list(self.baseline),
            "deployment": object_text(with_launch_line(self.flags)),
            "stated": object_text(self.stated) if self.stated else None,
            **{name: getattr(self, name) for name in OPTIONAL},
        }


def question_of(row: Mapping[str, Any]) -> Question:
    """Return the question of a row of ``comparisons``; InvalidInput: its flags are not a JSON object.

    >>> question_of({"deployment": '{"gpu": "l4"}', "stated": None, "fit": None, "log_ids": ["a"]}).flags
    {'gpu': 'l4'}
    """
    flags, stated = (read_flags(row, "comparisons", name) for name in ("deployment", "stated"))
    options = {name: default if row.get(name) is None else row[name] for name, default in OPTIONAL.items()}
    logs, baseline = (
        None if (ids := row.get(name)) is None else tuple(ids) for name in ("log_ids", "baseline_log_ids")
    )
    return Question(flags, stated or None, **options, log_ids=logs, baseline=baseline)


# requests that causes are fitted to: enough to distinguish causes, and replayed within a second or two
MOST_EXPLAINED = 4000
# tables of a log beside its requests; a session may have none of them
BESIDE = (
    *("production_logs", "production_steps", "production_kernels", "production_windows", "production_settings"),
    *("production_files", "log_faults"),
)


class ComparedLog(NamedTuple):
    """The requests of one comparison in order of sending, and the deployment that they are compared with.

    ``tables``: tables of the log by name, of those BESIDE the requests; ``settings``: the row of ``log_settings``;
    ``load``: the requests as ``load_requests``.
    """

    comparison_id: str
    question: Question
    tables: Mapping[str, pa.Table]
    requests: pa.Table
    measured: Measured
    settings: Mapping[str, Any]
    load: pa.Table

    @property
    def enough(self) -> bool:
        """Whether requests and seconds suffice to search for causes, and times of sending are the log's own."""
        if self.measured.drawn:
            return False
        sent = self.measured.sent_s[self.measured.ok]
        return sent.size >= LEAST_REQUESTS and float(np.ptp(sent)) >= LEAST_SECONDS

    @property
    def fitted_on(self) -> np.ndarray:
        """Mask of the requests that causes and corrections are fitted on: the first part of the time, [requests]."""
        sent = self.measured.sent_s
        last_s = sent.min() + (1.0 - self.question.hold_out) * np.ptp(sent)
        return self.measured.ok & (sent <= last_s)

    @property
    def sample_rows(self) -> np.ndarray:
        """Indices of consecutive requests in the middle of the fitted part, at most MOST_EXPLAINED."""
        stop = int(self.fitted_on.nonzero()[0].max(initial=0)) + 1
        start = max((stop - MOST_EXPLAINED) // 2, 0)
        return np.arange(start, min(start + MOST_EXPLAINED, stop))


@reads("production_logs")
@produces("compared_requests")
def compared_table(comparisons: pa.Table, production_requests: pa.Table, *, read: Reader) -> pa.Table:
    """Requests of each comparison, of all its logs, on one time line and in order of sending.

    InvalidInput: a comparison without requests.
    """
    logs = _optional(read, "production_logs")
    tables = []
    for row in comparisons.to_pylist():
        question = question_of(row)
        rows = in_order_of_sending(of_logs(production_requests, question), of_logs(logs, question))
        if not rows.num_rows:
            raise InvalidInput("the log holds no requests with a prompt length; log_faults says why rows were dropped.")
        tables.append(rows.append_column("comparison_id", pa.repeat(row["comparison_id"], rows.num_rows)))
    names = contracts()["compared_requests"].column_names
    return pa.concat_tables(table.select(names) for table in tables)


def compared_logs(
    comparisons: pa.Table,
    log_settings: pa.Table,
    compared_requests: pa.Table,
    beside: Mapping[str, pa.Table] | None = None,
) -> list[ComparedLog]:
    """Return the log of each comparison; ``beside``: tables of logs by name, of those BESIDE the requests.

    InvalidInput: a log that cannot be compared, as ``measured_of`` and ``check_replicas`` say.
    """
    settings = {row["comparison_id"]: row for row in log_settings.to_pylist()}
    logs = []
    for row in comparisons.to_pylist():
        comparison_id, question = row["comparison_id"], question_of(row)
        requests = rows_of(compared_requests, comparison_id)
        measured = measured_of(requests)
        check_replicas(requests, settings[comparison_id])
        load = load_of_log(requests, settings[comparison_id]["block_size"])
        tables = {table_name: of_logs(table, question) for table_name, table in (beside or {}).items()}
        logs.append(ComparedLog(comparison_id, question, tables, requests, measured, settings[comparison_id], load))
    return logs


def rows_of(table: pa.Table, comparison_id: str) -> pa.Table:
    """Return the rows of one comparison; the table itself where it has no others."""
    is_row = pc.equal(table["comparison_id"], comparison_id)
    return table if pc.all(is_row, min_count=0).as_py() else table.filter(is_row)


def of_logs(table: pa.Table, question: Question) -> pa.Table:
    """Return the rows of a table whose log is one of the question's; all rows if the table has no log_id."""
    if question.log_ids is None or "log_id" not in table.column_names:
        return table
    return table.filter(pc.is_in(table["log_id"], pa.array(question.log_ids, pa.string())))


def tables_beside(read: Reader) -> dict[str, pa.Table]:
    """Return the tables BESIDE the requests that a node declares as inputs, by name."""
    return {name: _optional(read, name) for name in BESIDE if name in read.tables}


def _optional(read: Reader, name: str) -> pa.Table:
    """Return an optional input table; an empty one if the session does not have it."""
    if read.is_available(name):
        return read(name, read.columns_of(name))
    return contracts()[name].schema.empty_table()
