"""Times of sending for runs that state none: from the client's rule (closed loop), or drawn (requested rate)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from kernelsight.files.row_faults import Faults

# origins of times: computed by the client's rule from the log's latencies, or drawn at random
RULE, DRAWN = "client_rule", "drawn"


class SendTimes(NamedTuple):
    """Times of sending, s from the first, and their origin: RULE or DRAWN."""

    seconds: list[float]
    how: str


def times_of_sending(result: Mapping[str, Any], latencies_s: Sequence[float | None]) -> SendTimes | None:
    """Return the times at which a benchmark client sent the requests of a result; None if the result has no such rule.

    ``result``: with request_rate, max_concurrency and burstiness as vLLM's and SGLang's clients write them;
    ``latencies_s``: E2E of each request. With an infinite rate ``max_concurrency`` requests are in flight (all, without
    it): the next is sent when one ends. With a finite rate gaps are drawn from a gamma distribution and scaled to the
    rate; a concurrency limit is then ignored.
    """
    try:
        rate = float(result["request_rate"])
    except (KeyError, TypeError, ValueError):
        return None
    max_concurrency = result.get("max_concurrency")
    if (
        not rate > 0.0
        or isinstance(max_concurrency, bool)
        or (max_concurrency is not None and not (isinstance(max_concurrency, int) and max_concurrency > 0))
    ):
        return None
    if math.isfinite(rate):
        return SendTimes(_drawn(rate, result.get("burstiness"), len(latencies_s)), DRAWN)
    return SendTimes(_one_after_another(max_concurrency or len(latencies_s), latencies_s), RULE)


def with_times(frame: pl.DataFrame, sent: SendTimes | None, faults: Faults) -> pl.DataFrame:
    """Return requests with the given times of sending as arrival_s and sent_s, and count that in ``faults``."""
    if sent is None:
        return frame
    faults.add("sent_by_rule" if sent.how == RULE else "sent_drawn", frame.height)
    sent_s = pl.Series(sent.seconds, dtype=pl.Float64)
    columns = (sent_s.alias("arrival_s"), sent_s.alias("sent_s"), pl.lit(sent.how).alias("sent_from"))
    return frame.with_columns(columns)


def _one_after_another(max_concurrency: int, latencies_s: Sequence[float | None]) -> list[float]:
    """Return times of sending of a closed loop, s: at most ``max_concurrency`` in flight, each end starts the next."""
    ends_s: list[float] = []
    sent_times_s = []
    for latency in latencies_s:
        sent_s = heapq.heappop(ends_s) if len(ends_s) >= max_concurrency else 0.0
        sent_times_s.append(sent_s)
        heapq.heappush(ends_s, sent_s + (latency if latency and math.isfinite(latency) else 0.0))
    return sent_times_s


def _drawn(rate: float, burstiness: Any, count: int) -> list[float]:
    """Return times of sending at a rate, 1/s: gamma gaps with shape ``burstiness``, scaled to the rate's total time."""
    shape = float(burstiness) if isinstance(burstiness, int | float) and 0.0 < burstiness < 1e6 else 1.0
    gaps = np.random.default_rng(0).gamma(shape, 1.0 / (rate * shape), count)
    total = float(gaps.sum())
    sent_times_s = np.cumsum(gaps) * (count / rate / total if total > 0.0 else 0.0)
    return (sent_times_s - sent_times_s[:1]).tolist()
