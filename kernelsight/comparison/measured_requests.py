"""Measured times of a log's requests in the terms of the simulation: TTFT, decode time, E2E and queue time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput

# with fewer requests, or less time under load, causes cannot be distinguished
LEAST_REQUESTS, LEAST_SECONDS = 30, 20.0


class Measured(NamedTuple):
    """Measured requests of one log, shape [requests] each; NaN where the log has no value.

    ``ok``: mask of requests that succeeded. ``ttft_ms`` and ``e2e_ms`` begin when the client sends (or, with
    ``from_server``, when the request arrives at the server, or is first scheduled there).
    ``drawn``: times of sending are drawn and not the log's: distributions can be compared, single requests cannot.
    """

    ok: np.ndarray
    sent_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    ttft_ms: np.ndarray
    decode_ms: np.ndarray
    e2e_ms: np.ndarray
    queue_ms: np.ndarray
    cached_tokens: np.ndarray
    from_server: bool
    drawn: bool = False

    @property
    def first_s(self) -> np.ndarray:
        """Moment of the first token, s; of sending where TTFT was not measured."""
        return self.sent_s + np.nan_to_num(self.ttft_ms) / 1e3

    @property
    def last_s(self) -> np.ndarray:
        """Moment of the last token, s; of sending where E2E was not measured."""
        return self.sent_s + np.nan_to_num(self.e2e_ms) / 1e3

    @property
    def tpot_ms(self) -> np.ndarray:
        """Time per output token after the first, ms; NaN where there is none."""
        intervals = self.output_tokens - 1.0
        return np.divide(self.decode_ms, intervals, out=np.full(intervals.size, np.nan), where=intervals > 0.0)


def measured_of(requests: pa.Table) -> Measured:
    """Return the measured requests of one log; ``requests``: rows of ``compared_requests``.

    InvalidInput: no times of sending, no latency of any request, several clocks, or several models.
    """
    models = sorted(set(pc.unique(requests["model"]).drop_null().to_pylist()))
    if len(models) > 1:
        raise InvalidInput(
            f"the log holds requests of {len(models)} models ({', '.join(models[:4])}), which no single deployment "
            "serves; compare the requests of one model at a time."
        )
    ok = pc.equal(requests["status"], "ok").to_numpy(zero_copy_only=False)
    arrival_s, sent_s = (_numbers(requests, name) for name in ("arrival_s", "sent_s"))
    if np.isnan(sent_s).all() and np.isnan(arrival_s).all():
        raise InvalidInput(
            "the log has no time of sending of any request, so that its load cannot be replayed; write it with a "
            "client that records start times, or give a table with arrival_s."
        )
    sent_s = _filled(sent_s, arrival_s)
    output_tokens = requests["output_tokens"].to_numpy().astype(float)
    ttft_ms, tpot_ms, e2e_ms = (_numbers(requests, f"{name}_ms") for name in ("ttft", "tpot", "e2e"))
    clocks = set(requests["ttft_clock"].drop_null().to_pylist())
    if len(clocks) > 1:
        raise InvalidInput(
            f"the log mixes TTFT clocks ({', '.join(sorted(clocks))}); compare requests of one clock at a time."
        )
    clock = next(iter(clocks), "client_send")
    if clock == "client_scheduled":
        delay_ms = np.where(np.isnan(arrival_s), 0.0, (sent_s - arrival_s) * 1e3)
        ttft_ms, e2e_ms = ttft_ms - delay_ms, e2e_ms - delay_ms
    decode_ms = np.where(np.isnan(tpot_ms), e2e_ms - ttft_ms, tpot_ms * (output_tokens - 1.0))
    decode_ms = np.where(output_tokens > 1.0, decode_ms, 0.0)
    e2e_ms = _filled(e2e_ms, ttft_ms, decode_ms)
    ttft_ms = _filled(ttft_ms, e2e_ms, -decode_ms)
    if (
        not np.isfinite(e2e_ms[ok]).any()
        and not np.isfinite(ttft_ms[ok]).any()
        and not np.isfinite(decode_ms[ok]).any()
    ):
        raise InvalidInput("no request of the log has a latency; give one with ttft_ms, tpot_ms or e2e_ms.")
    return Measured(
        ok, sent_s, requests["prompt_tokens"].to_numpy(), output_tokens, ttft_ms, decode_ms, e2e_ms,
        _numbers(requests, "queue_ms"), _numbers(requests, "cached_tokens"),
        clock in ("server_arrival", "server_scheduled"),
        pc.any(pc.equal(requests["sent_from"], "drawn")).as_py() or False,
    )  # fmt: skip


def check_replicas(requests: pa.Table, settings: Mapping[str, Any]) -> None:
    """Check that the log has no more replicas than the deployment; InvalidInput: it has.

    ``settings``: the row of ``log_settings``.
    """
    replicas = sorted(set(pc.unique(requests["replica"]).drop_null().to_pylist()))
    engines = settings["dp"] * settings["replicas"]
    if len(replicas) > engines:
        raise InvalidInput(
            f"the log holds requests of {len(replicas)} replicas ({', '.join(replicas[:4])}), and the deployment has "
            f"{engines}; compare the requests of one replica at a time, or state --replicas {len(replicas)}."
        )


def _numbers(requests: pa.Table, name: str) -> np.ndarray:
    """Return a column as floats, NaN for null, shape [requests]."""
    column = requests[name]
    if column.null_count == len(column):
        return np.broadcast_to(np.nan, len(column))  # takes no memory
    return column.cast(pa.float64()).fill_null(np.nan).to_numpy()


def _filled(times: np.ndarray, *addends: np.ndarray) -> np.ndarray:
    """Return ``times`` with the sum of the addends where they are NaN; the same array if none is."""
    missing = np.isnan(times)
    return np.where(missing, sum(addends), times) if missing.any() else times
