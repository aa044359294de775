"""What the requests of many scenarios come to, from the loop's own columns: no row of a request is made a table's row.

The numbers are those of ``sql/serve/request_metrics.sql``, ``request_statistics.sql`` and ``itl_percentiles.sql``, bit
for bit; those queries say what they mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.serving.records import BIN_WIDTH, FINISHED, ITL_BINS, Outcome
from kernelsight.serving.results import NANOSECONDS

if TYPE_CHECKING:
    from kernelsight.serving.results import Replica

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
OBJECTIVES = {"ttft": "goodput_ttft_ms", "tpot": "goodput_tpot_ms", "e2e": "goodput_e2el_ms"}


class Spans(NamedTuple):
    """Rows of a column that belong together: where each group starts, and how many it has (0 is allowed)."""

    first: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, count: np.ndarray) -> Spans:
        """Return groups of so many rows, one after the other."""
        return cls(np.cumsum(count) - count, count)


def statistics_rows(replicas: list[Replica], requests: pa.Table, scenarios: pa.Table) -> pa.Table:
    """Return the ``request_statistics`` of scenarios, from what their replicas gave back; requests stand as given."""
    runs = pc.run_end_encode(requests["scenario_id"].combine_chunks())
    ends = runs.run_ends.to_numpy()
    spans, names = Spans.of(np.diff(ends, prepend=0)), runs.values
    outcome = _outcomes(replicas, requests.num_rows)
    tokens = {name: requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens")}
    counted = ~pc.fill_null(requests["warmup"], False).to_numpy(zero_copy_only=False)
    asked = _asked(outcome, tokens["prompt_tokens"], counted, spans)
    finished = np.flatnonzero(counted & (outcome.status == FINISHED))
    completed = _sum(np.bincount(finished, minlength=counted.size), spans)
    limits = _limits(scenarios, names)
    served = _served(outcome, tokens, finished, Spans.of(completed), limits)
    table = pa.table({"scenario_id": names.cast(pa.string()), **asked, "completed": completed, **served})
    return table.filter(pa.array(asked["requests"] > 0))


def _outcomes(replicas: list[Replica], rows: int) -> Outcome:
    """Return the outcomes of all requests in the order of ``requests``, times in whole nanoseconds, -1 for never."""
    found = Outcome(*(np.empty(rows) for _ in Outcome._fields))
    for one in replicas:
        for whole, part in zip(found, one.served.out, strict=True):
            whole[one.rows] = part
    times = {
        name: np.where(values < 0.0, -1.0, np.rint(values * NANOSECONDS)).astype(np.int64)
        for name, values in found._asdict().items()
        if name.endswith("_us")
    }
    return found._replace(**times)


def _limits(scenarios: pa.Table, names: pa.Array) -> dict[str, np.ndarray]:
    """Return the objectives of each scenario in milliseconds, NaN where it has none."""
    place = pc.index_in(names, scenarios["scenario_id"].combine_chunks())
    return {
        name: scenarios[column].take(place).to_numpy(zero_copy_only=False).astype(float)
        for name, column in OBJECTIVES.items()
    }


def _asked(outcome: Outcome, prompt_tokens: np.ndarray, counted: np.ndarray, spans: Spans) -> dict[str, np.ndarray]:
    """Counts and tokens of all requests but warm-ups, and the time from the first sending to the last finish."""
    never = np.iinfo(np.int64).max
    first = np.minimum.reduceat(np.where(counted, outcome.sent_us, never), spans.first)
    last = np.maximum.reduceat(np.where(counted, outcome.finish_us, -1), spans.first)
    return {
        "requests": _sum(counted.astype(np.int64), spans),
        "asked_tokens": _sum(np.where(counted, prompt_tokens, 0), spans),
        "cached_tokens": _sum(np.where(counted, outcome.cached_tokens, 0).astype(np.int64), spans),
        "duration_s": (np.where(last < 0, first, last) - first) / 1e9,
    }


def _served(
    outcome: Outcome,
    tokens: Mapping[str, np.ndarray],
    finished: np.ndarray,
    spans: Spans,
    limits: Mapping[str, np.ndarray],
) -> dict[str, pa.Array]:
    """Sums, means and percentiles of the requests that finished, null for a scenario of which none did."""
    sent, scheduled, first, finish = (
        getattr(outcome, name)[finished] for name in ("sent_us", "scheduled_us", "first_token_us", "finish_us")
    )
    outputs = tokens["output_tokens"][finished]
    owner = np.repeat(np.arange(spans.count.size), spans.count)
    several = np.flatnonzero(outputs > 1)
    latency_ms = {"ttft": (first - sent) / 1e6, "e2e": (finish - sent) / 1e6, "queue": (scheduled - sent) / 1e6}
    tpot_ms = (finish - first)[several] / 1e6 / (outputs[several] - 1)
    of_several = Spans.of(np.bincount(owner[several], minlength=spans.count.size))
    nobody = spans.count == 0
    found = {name: pa.array(_sum(values[finished], spans), mask=nobody) for name, values in tokens.items()}
    for name, values, group in (
        *((name, each, spans) for name, each in latency_ms.items()),
        ("tpot", tpot_ms, of_several),
    ):
        if name != "queue":
            found[f"{name}_mean_ms"] = _mean(values, group)
        found |= {f"{name}_{word}_ms": each for word, each in zip(QUANTILES, _quantiles(values, group), strict=True)}
    for name, spent in (("queue", scheduled - sent), ("prefill", first - scheduled), ("decode", finish - first)):
        found[f"{name}_ns"] = pa.array(_time_sum(_whole(spent / 1e6 * 1e6), spans), mask=nobody)
    lost_ms = outcome.requeued_us[finished] / 1e6 + outcome.recomputed_us[finished] / 1e6
    found["preempted_ns"] = pa.array(_time_sum(_whole(lost_ms * 1e6), spans), mask=nobody)
    good = latency_ms["ttft"] <= _or_any(limits["ttft"])[owner]
    good &= latency_ms["e2e"] <= _or_any(limits["e2e"])[owner]
    good[several] &= tpot_ms <= _or_any(limits["tpot"])[owner[several]]
    without = np.all([np.isnan(values) for values in limits.values()], axis=0)
    found["good"] = pa.array(_sum(good.astype(np.int64), spans), mask=nobody | without)
    return found


def _or_any(limit_ms: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(limit_ms), np.inf, limit_ms)


def _sum(values: np.ndarray, spans: Spans) -> np.ndarray:
    """Add whole numbers up by group."""
    upto = np.concatenate([[0], np.cumsum(values.astype(np.int64))])
    return upto[spans.first + spans.count] - upto[spans.first]


def _time_sum(values_ns: np.ndarray, spans: Spans) -> np.ndarray:
    """Add times up by group, rounded once: two halves each, as millions of long waits leave the 64 bits."""
    return _sum(values_ns >> 30, spans) * 2.0**30 + _sum(values_ns & (2**30 - 1), spans)


def _whole(values: np.ndarray) -> np.ndarray:
    """Round to the nearest whole number, halves up, as SQL does."""
    below = np.floor(values)
    return (below + (values - below >= 0.5)).astype(np.int64)


def _mean(values_ms: np.ndarray, spans: Spans) -> pa.Array:
    nothing = spans.count == 0
    return pa.array(_time_sum(_whole(values_ms * 1e6), spans) / np.maximum(spans.count, 1) / 1e6, mask=nothing)


def _quantiles(values: np.ndarray, spans: Spans) -> list[pa.Array]:
    """Return the quantiles of each group, linear between ranks; groups of one size are sorted at once."""
    found = np.zeros((len(QUANTILES), spans.count.size))
    for count in np.unique(spans.count[spans.count > 0]).tolist():
        groups = np.flatnonzero(spans.count == count)
        rows = np.sort(values[spans.first[groups, np.newaxis] + np.arange(count)], axis=1)
        for number, quantile in enumerate(QUANTILES.values()):
            rank = (count - 1) * quantile
            low, high = rows[:, math.floor(rank)], rows[:, math.ceil(rank)]
            found[number, groups] = low + (high - low) * (rank - math.floor(rank))
    return [pa.array(row, mask=spans.count == 0) for row in found]


def gap_percentiles(histogram: pa.Table) -> pa.Table:
    """Return the ``itl_percentiles`` of an ``itl_histogram`` whose scenarios and bins stand in order."""
    runs = pc.run_end_encode(histogram["scenario_id"].combine_chunks())
    spans = Spans.of(np.diff(runs.run_ends.to_numpy(), prepend=0))
    upto = np.cumsum(histogram["gaps"].to_numpy())
    before = np.where(spans.first > 0, upto[spans.first - 1], 0)
    total = _sum(histogram["gaps"].to_numpy(), spans)
    centre_ms = _bin_centres()[histogram["bin"].to_numpy()]
    percents = np.array([50, 90, 99])
    rank = (total[:, np.newaxis] - 1) * percents / 100.0
    # ranks count from 0: the gap of rank r lies in the first bin whose gaps reach beyond r
    low, high = (
        centre_ms[np.searchsorted(upto, before[:, np.newaxis] + side(rank).astype(np.int64), side="right")]
        for side in (np.floor, np.ceil)
    )
    return pa.table(
        {
            "scenario_id": pa.array(np.repeat(np.array(runs.values.to_pylist(), dtype=object), percents.size)),
            "percentile": np.tile(percents, total.size),
            "itl_ms": (low + (rank - np.floor(rank)) * (high - low)).ravel(),
        }
    )


@cache
def _bin_centres() -> np.ndarray:
    """Centre of every bin in milliseconds, by the C library's power, which DuckDB uses too."""
    base = round(math.exp(BIN_WIDTH), 9)
    return np.array([math.pow(base, number + 0.5) / 1000 for number in range(ITL_BINS)])
