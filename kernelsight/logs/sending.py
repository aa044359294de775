"""When a client sent the requests of a run that states no times of sending: from the rule by which it sends."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from kernelsight.logs.log_run import Faults

# how times that a log does not hold were made: by the client's rule from the log's own latencies, or drawn
RULE, DRAWN = "client_rule", "drawn"


class Sent(NamedTuple):
    """Seconds at which requests were sent, and how they are known: RULE or DRAWN."""

    seconds: list[float]
    how: str


def times_of_sending(result: Mapping[str, Any], latencies_s: Sequence[float | None]) -> Sent | None:
    """Return when a benchmark client sent the requests of a result; None where the result does not say how it sends.

    ``result``: request_rate, max_concurrency and burstiness as vLLM's and SGLang's clients write them. Without a rate
    all requests are sent at once, or as many as ``max_concurrency`` allows, each next one when another ends. With a
    rate gaps are drawn, of a gamma distribution whose sum is that of the rate; a limit beside it is not kept.

    >>> times_of_sending({"request_rate": "inf", "max_concurrency": 2}, [3.0, 1.0, 1.0, 5.0])
    Sent(seconds=[0.0, 0.0, 1.0, 2.0], how='client_rule')
    >>> times_of_sending({"request_rate": "trace"}, [1.0]) is None
    True
    """
    try:
        rate = float(result["request_rate"])
    except (KeyError, TypeError, ValueError):
        return None
    most = result.get("max_concurrency")
    if not rate > 0.0 or isinstance(most, bool) or (most is not None and not (isinstance(most, int) and most > 0)):
        return None
    if math.isfinite(rate):
        return Sent(_drawn(rate, result.get("burstiness"), len(latencies_s)), DRAWN)
    return Sent(_one_after_another(most or len(latencies_s), latencies_s), RULE)


def with_times(frame: pl.DataFrame, sent: Sent | None, faults: Faults) -> pl.DataFrame:
    """Return requests with the times of sending that were made for them, and note it."""
    if sent is None:
        return frame
    faults.add("sent_by_rule" if sent.how == RULE else "sent_drawn", frame.height)
    times = pl.Series(sent.seconds, dtype=pl.Float64)
    columns = (times.alias("arrival_s"), times.alias("sent_s"), pl.lit(sent.how).alias("sent_from"))
    return frame.with_columns(columns)


def _one_after_another(most: int, latencies_s: Sequence[float | None]) -> list[float]:
    """Return times of sending where at most so many are in flight, and the first to end makes place for the next."""
    ends_s: list[float] = []
    times = []
    for latency in latencies_s:
        sent_s = heapq.heappop(ends_s) if len(ends_s) >= most else 0.0
        times.append(sent_s)
        heapq.heappush(ends_s, sent_s + (latency if latency and math.isfinite(latency) else 0.0))
    return times


def _drawn(rate: float, burstiness: Any, count: int) -> list[float]:
    shape = float(burstiness) if isinstance(burstiness, int | float) and 0.0 < burstiness < 1e6 else 1.0
    gaps = np.random.default_rng(0).gamma(shape, 1.0 / (rate * shape), count)
    total = float(gaps.sum())
    times = np.cumsum(gaps) * (count / rate / total if total > 0.0 else 0.0)
    return (times - times[:1]).tolist()
