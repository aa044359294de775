"""Request statistics and ITL percentiles of many scenarios as tables, without a row for each request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.serving.engine import statistics as counted_as
from kernelsight.serving.engine.records import BIN_WIDTH, ITL_BINS

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
# from this number of samples on, selecting the ranks of quantiles is faster than sorting
LONG = 2_000
REJECTED = {
    "rejected_too_long": counted_as.TOO_LONG,
    "rejected_no_memory": counted_as.NO_MEMORY,
    "rejected_earlier_turn": counted_as.EARLIER_TURN,
}


class Counted(NamedTuple):
    """Statistics, shape [scenarios, ...]; ``engine.statistics`` names the columns of ``counts`` and ``sums``."""

    scenarios: list[str]
    counts: np.ndarray
    sums: np.ndarray
    quantiles: np.ndarray  # of each latency in SAMPLES, ms: shape [scenarios, samples, quantiles]
    most_ms: np.ndarray  # objectives on TTFT, E2E and TPOT; inf: none


def joined(groups: Sequence[Counted]) -> Counted:
    """Return the statistics of separate groups of scenarios in one."""
    return Counted(
        [name for group in groups for name in group.scenarios],
        *(np.concatenate([group[field] for group in groups]) for field in range(1, len(Counted._fields))),
    )


def statistics_table(counted: Counted) -> pa.Table:
    """Return ``request_statistics``; a scenario whose requests are all warm-ups has no row."""
    counts = counted.counts
    completed, none_completed = counts[:, counted_as.COMPLETED], counts[:, counted_as.COMPLETED] == 0
    several = counts[:, counted_as.SEVERAL]
    first_ns, last_ns = counts[:, counted_as.FIRST_SENT_NS], counts[:, counted_as.LAST_FINISH_NS]
    times_ns = counted.sums[:, :, 0] * 2.0**counted_as.HALF_BITS + counted.sums[:, :, 1]
    columns = {
        "requests": counts[:, counted_as.REQUESTS],
        "asked_tokens": counts[:, counted_as.ASKED_TOKENS],
        "cached_tokens": counts[:, counted_as.CACHED_TOKENS],
        "tier_tokens": counts[:, counted_as.TIER_TOKENS],
        "duration_s": (np.where(last_ns < 0, first_ns, last_ns) - first_ns) / 1e9,
        "completed": completed,
        "prompt_tokens": pa.array(counts[:, counted_as.PROMPT_TOKENS], mask=none_completed),
        "output_tokens": pa.array(counts[:, counted_as.OUTPUT_TOKENS], mask=none_completed),
    }
    for sample, name in enumerate(counted_as.SAMPLES):
        size = several if name == "tpot" else completed
        if name != "queue":
            columns[f"{name}_mean_ms"] = pa.array(times_ns[:, sample] / np.maximum(size, 1) / 1e6, mask=size == 0)
        for number, word in enumerate(QUANTILES):
            columns[f"{name}_{word}_ms"] = pa.array(counted.quantiles[:, sample, number], mask=size == 0)
    for name, time in (
        *(("front_end_ns", counted_as.FRONT_END), ("queue_ns", counted_as.QUEUE), ("prefill_ns", counted_as.PREFILL)),
        *(("decode_ns", counted_as.DECODE), ("preempted_ns", counted_as.PREEMPTED)),
    ):
        columns[name] = pa.array(times_ns[:, time], mask=none_completed)
    columns |= {name: counts[:, count] for name, count in REJECTED.items()}
    transferred = counts[:, counted_as.TRANSFERRED]
    transfer_ms = times_ns[:, counted_as.KV_TRANSFER] / np.maximum(transferred, 1) / 1e6
    columns["kv_transfer_mean_ms"] = pa.array(transfer_ms, mask=transferred == 0)
    columns["good"] = pa.array(counts[:, counted_as.GOOD], mask=none_completed | np.isinf(counted.most_ms).all(axis=1))
    table = pa.table({"scenario_id": pa.array(counted.scenarios, pa.string()), **columns})
    return table.filter(pa.array(counts[:, counted_as.REQUESTS] > 0))


def quantiles_of(counts: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return the quantiles of samples, linear between ranks, ms: shape [scenarios, samples, quantiles].

    ``samples``: as ``count_requests`` fills them for scenarios of these ``counts``, those of TPOT last; reordered in
    place.
    """
    quantiles = np.zeros((*samples.shape[:2], len(QUANTILES)))
    tpot = counted_as.SAMPLES.index("tpot")
    for latencies, sizes in (
        (slice(None, tpot), counts[:, counted_as.COMPLETED]),
        (slice(tpot, None), counts[:, counted_as.SEVERAL]),
    ):
        for size in set(sizes[sizes > 0].tolist()):
            has_size = sizes == size
            rows = samples[:, latencies, :size] if has_size.all() else samples[has_size, latencies, :size]
            ranks = [(size - 1) * quantile for quantile in QUANTILES.values()]
            if size < LONG:
                rows.sort(axis=-1)
            else:
                places = sorted({side(rank) for rank in ranks for side in (math.floor, math.ceil)})
                for row in np.ndindex(rows.shape[:-1]):
                    _place(rows[row], places)
            for number, rank in enumerate(ranks):
                low, high = rows[..., math.floor(rank)], rows[..., math.ceil(rank)]
                quantiles[has_size, latencies, number] = low + (high - low) * (rank - math.floor(rank))
    return quantiles


def _place(row: np.ndarray, places: Sequence[int]) -> None:
    """Select in place: bring to each of the ascending ``places`` the value that sorting would bring there."""
    # each among the values above the last: numpy takes three times as long for all places in one call
    sorted_up_to = 0
    for place in places:
        row[sorted_up_to:].partition(place - sorted_up_to)
        sorted_up_to = place + 1


def gap_percentiles(histogram: pa.Table, percentiles: Sequence[float] = (50, 90, 99)) -> pa.Table:
    """Return ``itl_percentiles``, ms, linear between ranks; ``histogram``: ``itl_histogram``, sorted."""
    runs = pc.run_end_encode(histogram["scenario_id"].combine_chunks())
    ends = runs.run_ends.to_numpy()
    gaps = histogram["gaps"].to_numpy()
    cumulative = np.cumsum(gaps)
    last = cumulative[ends - 1]
    before = np.concatenate([[0], last])[: last.size]
    total = last - before
    centre_ms = bin_centres()[histogram["bin"].to_numpy()]
    percents = np.array(percentiles)
    rank = (total[:, np.newaxis] - 1) * percents / 100.0
    # ranks count from 0: the latency of rank r is in the first bin whose cumulative count exceeds r
    low, high = (
        centre_ms[np.searchsorted(cumulative, before[:, np.newaxis] + side(rank).astype(np.int64), side="right")]
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
def bin_centres() -> np.ndarray:
    """Return the centre of every ITL bin in ms, by the C library's pow, which DuckDB uses too."""
    base = round(math.exp(BIN_WIDTH), 9)
    return np.array([math.pow(base, number + 0.5) / 1000 for number in range(ITL_BINS)])
