"""Requests of logs in order of sending, samples of them, and the E2E that a described load predicts for them."""

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

# pause between logs of several runs, which are replayed in sequence: time to drain
PAUSE_S = 60.0


class Sample(NamedTuple):
    """Consecutive requests of a log, and their replays; ``rows``: their indices in the log."""

    replayer: LogReplayer
    log_measured: Measured
    rows: np.ndarray

    @property
    def measured(self) -> Measured:
        """The measured times of these requests."""
        return Measured(*(value[self.rows] if isinstance(value, np.ndarray) else value for value in self.log_measured))

    def serve(self, variants: Sequence[Variant], *, with_parts: bool = True) -> list[Replayed]:
        """Return a replay of these requests on every variant."""
        return self.replayer.serve(variants, self.rows, with_parts=with_parts)


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


def part_of(family: str, phase: str) -> str | None:
    """Return the part of KERNELS that a kernel family belongs to in a phase (prefill, decode); None: to none."""
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
    """Return the E2E of the described load for each request, ns: the quantile at the request's rank in ``base``.

    ``flags``: deployment and load as described, which are simulated.
    """
    run = session.simulate(**flags)
    drawn_ns = np.sort(run.table("request_metrics")["e2e_ms"].to_numpy()) * 1e6
    predicted_ms = np.where(base.served, base.e2e_ms, np.inf)
    rank = (np.argsort(np.argsort(predicted_ms)) + 0.5) / max(int(base.served.sum()), 1)
    return np.rint(np.quantile(drawn_ns, np.clip(rank, 0.0, 1.0))).astype(np.int64)
