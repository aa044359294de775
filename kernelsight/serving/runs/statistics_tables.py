"""Statistics of many scenarios as tables: ``request_statistics`` and ``itl_percentiles``, without rows of requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.serving.engine import statistics as of
from kernelsight.serving.engine.records import BIN_WIDTH, ITL_BINS

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
# samples of which finding single ranks takes less time than sorting
LONG = 2_000
REJECTED = {
    "rejected_too_long": of.TOO_LONG,
    "rejected_no_memory": of.NO_MEMORY,
    "rejected_earlier_turn": of.EARLIER_TURN,
}


class Counted(NamedTuple):
    """Scenarios whose requests were added up (see ``statistics``); shape [scenarios, ...]."""

    scenarios: list[str]
    counts: np.ndarray
    sums: np.ndarray
    quantiles: np.ndarray  # of each latency in SAMPLES: shape [scenarios, samples, quantiles]
    most_ms: np.ndarray


def joined(parts: Sequence[Counted]) -> Counted:
    """Return scenarios that were counted apart."""
    return Counted(
        [name for part in parts for name in part.scenarios],
        *(np.concatenate([part[field] for part in parts]) for field in range(1, len(Counted._fields))),
    )


def statistics_table(counted: Counted) -> pa.Table:
    """Return the ``request_statistics`` of scenarios; of one whose requests are warm-ups alone there is no row."""
    counts = counted.counts
    completed, none_completed = counts[:, of.COMPLETED], counts[:, of.COMPLETED] == 0
    several = counts[:, of.SEVERAL]
    first_ns, last_ns = counts[:, of.FIRST_SENT_NS], counts[:, of.LAST_FINISH_NS]
    times_ns = counted.sums[:, :, 0] * 2.0**of.HALF_BITS + counted.sums[:, :, 1]
    columns = {
        "requests": counts[:, of.REQUESTS],
        "asked_tokens": counts[:, of.ASKED_TOKENS],
        "cached_tokens": counts[:, of.CACHED_TOKENS],
        "tier_tokens": counts[:, of.TIER_TOKENS],
        "duration_s": (np.where(last_ns < 0, first_ns, last_ns) - first_ns) / 1e9,
        "completed": completed,
        "prompt_tokens": pa.array(counts[:, of.PROMPT_TOKENS], mask=none_completed),
        "output_tokens": pa.array(counts[:, of.OUTPUT_TOKENS], mask=none_completed),
    }
    for sample, name in enumerate(of.SAMPLES):
        size = several if name == "tpot" else completed
        if name != "queue":
            columns[f"{name}_mean_ms"] = pa.array(times_ns[:, sample] / np.maximum(size, 1) / 1e6, mask=size == 0)
        for number, word in enumerate(QUANTILES):
            columns[f"{name}_{word}_ms"] = pa.array(counted.quantiles[:, sample, number], mask=size == 0)
    for name, time in (
        *(("front_end_ns", of.FRONT_END), ("queue_ns", of.QUEUE), ("prefill_ns", of.PREFILL)),
        *(("decode_ns", of.DECODE), ("preempted_ns", of.PREEMPTED)),
    ):
        columns[name] = pa.array(times_ns[:, time], mask=none_completed)
    columns |= {name: counts[:, count] for name, count in REJECTED.items()}
    transferred = counts[:, of.TRANSFERRED]
    transfer_ms = times_ns[:, of.KV_TRANSFER] / np.maximum(transferred, 1) / 1e6
    columns["kv_transfer_mean_ms"] = pa.array(transfer_ms, mask=transferred == 0)
    columns["good"] = pa.array(counts[:, of.GOOD], mask=none_completed | np.isinf(counted.most_ms).all(axis=1))
    table = pa.table({"scenario_id": pa.array(counted.scenarios, pa.string()), **columns})
    return table.filter(pa.array(counts[:, of.REQUESTS] > 0))


def quantiles_of(counts: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return the quantiles of samples, linear between ranks: shape [scenarios, samples, quantiles].

    ``samples``: as ``count_requests`` fills them for scenarios of these ``counts``, those of TPOT last; in place.
    """
    quantiles = np.zeros((*samples.shape[:2], len(QUANTILES)))
    several = of.SAMPLES.index("tpot")
    for part, sizes in (
        (slice(None, several), counts[:, of.COMPLETED]),
        (slice(several, None), counts[:, of.SEVERAL]),
    ):
        for size in set(sizes[sizes > 0].tolist()):
            of_size = sizes == size
            rows = samples[:, part, :size] if of_size.all() else samples[of_size, part, :size]
            ranks = [(size - 1) * quantile for quantile in QUANTILES.values()]
            if size < LONG:
                rows.sort(axis=-1)
            else:
                places = sorted({side(rank) for rank in ranks for side in (math.floor, math.ceil)})
                for row in np.ndindex(rows.shape[:-1]):
                    _place(rows[row], places)
            for number, rank in enumerate(ranks):
                low, high = rows[..., math.floor(rank)], rows[..., math.ceil(rank)]
                quantiles[of_size, part, number] = low + (high - low) * (rank - math.floor(rank))
    return quantiles


def _place(row: np.ndarray, places: Sequence[int]) -> None:
    """Bring the values that sorting would bring to these places, in ascending order, there."""
    # one at a time, each among those above the last: numpy takes three times as long for all at once
    done = 0
    for place in places:
        row[done:].partition(place - done)
        done = place + 1


def gap_percentiles(histogram: pa.Table, percentiles: Sequence[float] = (50, 90, 99)) -> pa.Table:
    """Return the ``itl_percentiles`` of an ``itl_histogram`` whose scenarios and bins stand in order."""
    runs = pc.run_end_encode(histogram["scenario_id"].combine_chunks())
    ends = runs.run_ends.to_numpy()
    gaps = histogram["gaps"].to_numpy()
    upto = np.cumsum(gaps)
    last = upto[ends - 1]
    before = np.concatenate([[0], last])[: last.size]
    total = last - before
    centre_ms = bin_centres()[histogram["bin"].to_numpy()]
    percents = np.array(percentiles)
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
def bin_centres() -> np.ndarray:
    """Centre of every bin in milliseconds, by the C library's power, which DuckDB uses too."""
    base = round(math.exp(BIN_WIDTH), 9)
    return np.array([math.pow(base, number + 0.5) / 1000 for number in range(ITL_BINS)])
