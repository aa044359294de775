"""What a log measured of each request, in the terms of the simulation: from its sending, by the clock of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput

# fewer requests, or less time under load, do not tell one cause from another
LEAST_REQUESTS, LEAST_SECONDS = 30, 20.0


class Measured(NamedTuple):
    """Requests of one log that can be compared, and their measured times; NaN where the log has none.

    ``ok``: which requests of the log were measured. ``ttft_ms`` and ``e2e_ms`` begin when the client sends (or, with
    ``from_server``, when the request arrives at the server); ``skips_queue``: TTFT begins when it is first scheduled.
    ``drawn``: times of sending are not the log's, so that distributions can be compared and requests cannot.
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
    skips_queue: bool
    drawn: bool = False

    @property
    def first_s(self) -> np.ndarray:
        """Moment of the first token; of sending where TTFT was not measured."""
        return self.sent_s + np.nan_to_num(self.ttft_ms) / 1e3

    @property
    def last_s(self) -> np.ndarray:
        """Moment of the last token; of sending where E2E was not measured."""
        return self.sent_s + np.nan_to_num(self.e2e_ms) / 1e3

    @property
    def tpot_ms(self) -> np.ndarray:
        """Time per output token after the first; NaN where there is none."""
        intervals = self.output_tokens - 1.0
        return np.divide(self.decode_ms, intervals, out=np.full(intervals.size, np.nan), where=intervals > 0.0)


def measured_of(requests: pa.Table) -> Measured:
    """Return what was measured of the requests of one log.

    InvalidInput: no times of sending, no latency of any request, several clocks, or several models.
    """
    models = sorted(set(pc.unique(requests["model"]).drop_null().to_pylist()))
    if len(models) > 1:
        raise InvalidInput(
            f"the log holds requests of {len(models)} models ({', '.join(models[:4])}), which no single deployment "
            "serves; compare the requests of one model at a time."
        )
    ok = pc.equal(requests["status"], "ok").to_numpy(zero_copy_only=False)
    arrival, sent = (_numbers(requests, name) for name in ("arrival_s", "sent_s"))
    if np.isnan(sent).all() and np.isnan(arrival).all():
        raise InvalidInput(
            "the log has no time of sending of any request, so that its load cannot be replayed; write it with a "
            "client that records start times, or give a table with arrival_s."
        )
    sent = _filled(sent, arrival)
    output = requests["output_tokens"].to_numpy().astype(float)
    ttft, tpot, e2e = (_numbers(requests, f"{name}_ms") for name in ("ttft", "tpot", "e2e"))
    clocks = set(requests["ttft_clock"].drop_null().to_pylist())
    if len(clocks) > 1:
        raise InvalidInput(
            f"the log mixes TTFT clocks ({', '.join(sorted(clocks))}); compare requests of one clock at a time."
        )
    clock = next(iter(clocks), "client_send")
    if clock == "client_scheduled":
        delay = np.where(np.isnan(arrival), 0.0, (sent - arrival) * 1e3)
        ttft, e2e = ttft - delay, e2e - delay
    decode = np.where(np.isnan(tpot), e2e - ttft, tpot * (output - 1.0))
    decode = np.where(output > 1.0, decode, 0.0)
    e2e = _filled(e2e, ttft, decode)
    ttft = _filled(ttft, e2e, -decode)
    if not np.isfinite(e2e[ok]).any() and not np.isfinite(ttft[ok]).any() and not np.isfinite(decode[ok]).any():
        raise InvalidInput("no request of the log has a latency; give one with ttft_ms, tpot_ms or e2e_ms.")
    return Measured(
        ok, sent, requests["prompt_tokens"].to_numpy(), output, ttft, decode, e2e,
        _numbers(requests, "queue_ms"), _numbers(requests, "cached_tokens"),
        clock in ("server_arrival", "server_scheduled"), clock == "server_scheduled",
        pc.any(pc.equal(requests["sent_from"], "drawn")).as_py() or False,
    )  # fmt: skip


def check_replicas(requests: pa.Table, settings: Mapping[str, Any]) -> None:
    """InvalidInput: the log names more replicas than the deployment has."""
    replicas = sorted(set(pc.unique(requests["replica"]).drop_null().to_pylist()))
    engines = settings["dp"] * settings["replicas"]
    if len(replicas) > engines:
        raise InvalidInput(
            f"the log holds requests of {len(replicas)} replicas ({', '.join(replicas[:4])}), and the deployment has "
            f"{engines}; compare the requests of one replica at a time, or state --replicas {len(replicas)}."
        )


def _numbers(requests: pa.Table, name: str) -> np.ndarray:
    column = requests[name]
    if column.null_count == len(column):
        return np.broadcast_to(np.nan, len(column))  # takes no memory
    return column.cast(pa.float64()).fill_null(np.nan).to_numpy()


def _filled(times: np.ndarray, *addends: np.ndarray) -> np.ndarray:
    """Return times, and the sum of others where they are NaN; the same array where none is."""
    missing = np.isnan(times)
    return np.where(missing, sum(addends), times) if missing.any() else times
