"""Parts of each request's E2E miss: measured minus predicted is exactly their sum, in whole nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from kernelsight.comparison.cause_sizes import GROUPS, State
from kernelsight.comparison.factors import PARAMETERS
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import KERNELS, Replayed

PARTS = (
    *("client", "workload", "front_end", "queue", "prefill_gemm", "prefill_attention", "decode_gemm"),
    *("decode_attention", "moe", "communication", "host", "preemption", "unexplained"),
)


class Misses(NamedTuple):
    """E2E misses of requests, and their parts by name, in whole nanoseconds; ``rows``: index of each request."""

    rows: np.ndarray
    miss_ns: np.ndarray
    parts: Mapping[str, np.ndarray]


def misses_of(measured: Measured, base: Replayed, explanation: State, drawn_ns: np.ndarray | None = None) -> Misses:
    """Return the misses of all requests that were measured and served, and their parts.

    A cause's part is its own time in the steps of each request, plus a proportional share of the queueing and larger
    batches that follow: parts of causes add up to the difference between the replays with and without all causes.
    The effect of a setting is ``queue``: it decides when requests are scheduled. ``drawn_ns``: E2E of the load as it
    was described, by request; the replay of the log's own load less that is ``workload``.
    """
    after = explanation.replayed
    rows = np.flatnonzero(measured.ok & base.served & after.served & np.isfinite(measured.e2e_ms))
    measured_ns = np.rint(measured.e2e_ms[rows] * 1e6).astype(np.int64)
    predicted_ns, explained_ns = ((replayed.finish_ns - replayed.sent_ns)[rows] for replayed in (base, after))
    parts_ns = {name: np.zeros(rows.size, np.int64) for name in PARTS}
    described_ns = predicted_ns
    if drawn_ns is not None:
        described_ns = drawn_ns[rows]
        parts_ns["workload"] = predicted_ns - described_ns
    direct = _direct(explanation, rows, measured.from_server)
    indirect = explained_ns - predicted_ns - sum(direct.values(), np.zeros(rows.size, np.int64))
    sizes = {name: abs(int(values.sum())) for name, values in direct.items()}
    total = sum(sizes.values())
    if total and all(cause in GROUPS for cause in explanation.causes):
        for name, size in sizes.items():
            direct[name] = direct[name] + np.rint(indirect * (size / total)).astype(np.int64)
    else:
        parts_ns["queue"] += indirect
    for name, values in direct.items():
        parts_ns[name] += values
    if np.isfinite(measured.queue_ms[rows]).any():
        queue_ms = np.where(np.isfinite(measured.queue_ms[rows]), measured.queue_ms[rows], after.queue_ms[rows])
        parts_ns["queue"] += np.rint((queue_ms - after.queue_ms[rows]) * 1e6).astype(np.int64)
    miss_ns = measured_ns - described_ns
    parts_ns["unexplained"] = miss_ns - sum(values for name, values in parts_ns.items() if name != "unexplained")
    return Misses(rows, miss_ns, parts_ns)


def _direct(explanation: State, rows: np.ndarray, from_server: bool) -> dict[str, np.ndarray]:
    """Return the time that each cause adds to a request and its steps, ns, shape [rows], by part."""
    direct: dict[str, np.ndarray] = {}
    for name, value in zip(PARAMETERS, explanation.values, strict=True):
        if not value:
            continue
        if name in KERNELS:
            nanoseconds = explanation.replayed.part(name)[rows] * (1.0 - np.exp(-value))
        elif name == "host":
            nanoseconds = explanation.replayed.steps.sum(axis=0)[rows] * value * 1e6
        else:
            # time before the server's clock starts belongs to the client or the network
            name, nanoseconds = "front_end" if from_server else "client", np.full(rows.size, value * 1e6)
        direct[name] = np.rint(nanoseconds).astype(np.int64)
    return direct
