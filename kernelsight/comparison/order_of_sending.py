"""Requests of logs on one time line, in order of sending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
