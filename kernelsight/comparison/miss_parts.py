"""The miss of every request as exact parts: measured minus predicted is their sum, in whole nanoseconds."""

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
    """The E2E miss of the compared requests in whole nanoseconds, and its parts by name; shape [requests] each."""

    rows: np.ndarray
    miss_ns: np.ndarray
    parts: Mapping[str, np.ndarray]


def misses_of(measured: Measured, base: Replayed, explanation: State, drawn_ns: np.ndarray | None = None) -> Misses:
    """Return the misses of all requests that were measured and served, and their parts.

    A cause is credited with its own time in the steps of each request, and, in proportion, with the queueing and the
    larger batches that follow from it: together the difference between the replay with all causes and the one without.
    What a setting changes is ``queue``: it decides when requests are scheduled. ``drawn_ns``: E2E of a load as it was
    described, by request; the replay of the log's own load less that is ``workload``.
    """
    after = explanation.replayed
    rows = np.flatnonzero(measured.ok & base.served & after.served & np.isfinite(measured.e2e_ms))
    real = np.rint(measured.e2e_ms[rows] * 1e6).astype(np.int64)
    predicted, explained = ((replayed.finish_ns - replayed.sent_ns)[rows] for replayed in (base, after))
    parts_ns = {name: np.zeros(rows.size, np.int64) for name in PARTS}
    start = predicted
    if drawn_ns is not None:
        start = drawn_ns[rows]
        parts_ns["workload"] = predicted - start
    direct = _direct(explanation, rows, measured.from_server)
    indirect = explained - predicted - sum(direct.values(), np.zeros(rows.size, np.int64))
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
        waited = np.where(np.isfinite(measured.queue_ms[rows]), measured.queue_ms[rows], after.queue_ms[rows])
        parts_ns["queue"] += np.rint((waited - after.queue_ms[rows]) * 1e6).astype(np.int64)
    miss = real - start
    parts_ns["unexplained"] = miss - sum(values for name, values in parts_ns.items() if name != "unexplained")
    return Misses(rows, miss, parts_ns)


def _direct(explanation: State, rows: np.ndarray, from_server: bool) -> dict[str, np.ndarray]:
    """Return what each cause adds to the steps of each request, or to the request itself, nanoseconds."""
    direct: dict[str, np.ndarray] = {}
    for name, value in zip(PARAMETERS, explanation.values, strict=True):
        if not value:
            continue
        if name in KERNELS:
            nanoseconds = explanation.replayed.part(name)[rows] * (1.0 - np.exp(-value))
        elif name == "host":
            nanoseconds = explanation.replayed.steps.sum(axis=0)[rows] * value * 1e6
        else:
            # before the server's clock starts it is the client's, or the network's
            name, nanoseconds = "front_end" if from_server else "client", np.full(rows.size, value * 1e6)
        direct[name] = np.rint(nanoseconds).astype(np.int64)
    return direct
