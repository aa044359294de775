"""A log in the order of sending, a sample of it, the parts of kernels, and the load as described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed, Variant
from kernelsight.dataflow.session import Session

# logs of several runs are replayed one after the other, with time to drain between them
PAUSE_S = 60.0


class Sample(NamedTuple):
    """Some consecutive requests of a log, and how variants serve them."""

    replayer: LogReplayer
    log_measured: Measured
    rows: np.ndarray

    @property
    def measured(self) -> Measured:
        """What was measured of these requests."""
        return Measured(*(value[self.rows] if isinstance(value, np.ndarray) else value for value in self.log_measured))

    def serve(self, variants: Sequence[Variant], *, with_parts: bool = True) -> list[Replayed]:
        """Serve these requests on every variant."""
        return self.replayer.serve(variants, self.rows, with_parts=with_parts)


def in_order_of_sending(requests: pa.Table, logs: pa.Table) -> pa.Table:
    """Return the requests of all logs in order of sending.

    Logs with unix times that overlap were sent at the same time, and stay so; others follow one another. ``logs``: the
    table production_logs.
    """
    if not requests.num_rows:
        return requests
    names = pc.unique(requests["log_id"]).to_pylist()
    if len(names) == 1 and _is_in_order(_sent(requests)):
        return requests.combine_chunks()
    starts = dict(zip(logs["log_id"].to_pylist(), logs["start_unix_s"].to_pylist(), strict=True))
    merged_groups, offset = [], 0.0
    for group in _at_the_same_time(requests, names, starts):
        group_start = starts.get(group[0]) or 0.0
        moved = [
            _shifted(requests.filter(pc.equal(requests["log_id"], name)), offset, starts, group_start) for name in group
        ]
        merged = pa.concat_tables(moved)
        merged = merged.take(pc.sort_indices(pa.table({"sent": _sent(merged)}), [("sent", "ascending")]))
        merged_groups.append(merged)
        offset = (pc.max(_sent(merged)).as_py() or 0.0) + PAUSE_S
    return pa.concat_tables(merged_groups).combine_chunks()


def _sent(requests: pa.Table) -> pa.ChunkedArray:
    return pc.coalesce(requests["sent_s"], requests["arrival_s"])


def _at_the_same_time(requests: pa.Table, names: list[str], starts: Mapping[str, float | None]) -> list[list[str]]:
    """Return the logs in groups whose unix times overlap, by their start; those without unix times each alone."""
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
    sent = pa.table({"log_id": requests["log_id"], "sent": _sent(requests)})
    return sent.group_by("log_id", use_threads=False).aggregate([("sent", "max")]).to_pylist()


def _shifted(requests: pa.Table, offset: float, starts: Mapping[str, float | None], group_start: float) -> pa.Table:
    """Return the requests of one log on the time line of its group, which begins at ``offset``."""
    later = offset + (starts.get(requests["log_id"][0].as_py()) or group_start) - group_start
    for column in ("arrival_s", "sent_s"):
        column_index = requests.column_names.index(column)
        requests = requests.set_column(
            column_index, requests.schema.field(column_index), pc.add(requests[column], later)
        )
    return requests


def _is_in_order(sent: pa.ChunkedArray) -> bool:
    """Whether times ascend, so that a log as long as it may be need not be copied; equal times keep their order."""
    times = sent.to_numpy()
    return not sent.null_count and bool(np.all(times[1:] >= times[:-1]))


def part_of(family: str, phase: str) -> str | None:
    if family in ("host", "overlap", "p2p"):
        return None
    if family == "moe":
        return "moe"
    if family in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return "communication"
    if family in ("prefill_attention", "mla_prefill"):
        return "prefill_attention"
    if family in ("decode_attention", "mla_decode"):
        return "decode_attention"
    return f"{phase}_gemm"


def drawn_e2e(session: Session, flags: Mapping[str, Any], base: Replayed) -> np.ndarray:
    """Return the E2E, in ns, that the load in flags predicts for each request: at the same rank among all."""
    run = session.simulate(**flags)
    times = np.sort(run.table("request_metrics")["e2e_ms"].to_numpy()) * 1e6
    predicted = np.where(base.served, base.e2e_ms, np.inf)
    rank = (np.argsort(np.argsort(predicted)) + 0.5) / max(int(base.served.sum()), 1)
    return np.rint(np.quantile(times, np.clip(rank, 0.0, 1.0))).astype(np.int64)
