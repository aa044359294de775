"""Scenarios of one deployment, served one after the other in one compiled call that keeps no row of a request.

Their loads may differ in everything that the client decides. One engine of one stage without drafts serves them, and no
request waits for another or shares a prefix with it; other scenarios have a call each (see ``simulate``). All records
lie in memory that is used again for each scenario, small enough for the cache of a core.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.serving.engine.compiled import loop_entry
from kernelsight.serving.engine.inputs import Load
from kernelsight.serving.engine.loop import serve_until_full
from kernelsight.serving.engine.records import CLIENT, EDGE, ENTRY, FOREVER, HOST, ITL_BINS, LAYOUT, REQUEST
from kernelsight.serving.engine.replica import Pool, engine_records, group_records, limit_records, stage_records
from kernelsight.serving.engine.request_columns import fill_requests, read_requests
from kernelsight.serving.engine.served import REAL, WHOLE
from kernelsight.serving.engine.statistics import COUNTS, SAMPLES, TIMES, count_requests, take_gaps
from kernelsight.serving.engine.steps import COLUMNS
from kernelsight.serving.engine.waits import fresh_sums

NO_HASHES = Load(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))


class Columns(NamedTuple):
    """The requests of many scenarios, those of one after the other; shape [requests] each."""

    arrival_us: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    priority: np.ndarray
    warmup: np.ndarray


class Loads(NamedTuple):
    """Where the requests of each scenario stand, and what its client holds to; shape [scenarios] each."""

    first: np.ndarray
    count: np.ndarray
    warmups: np.ndarray
    max_concurrency: np.ndarray
    most_ms: np.ndarray  # (scenarios, 3) largest TTFT, E2E and TPOT that are good; infinite: no objective


class Results(NamedTuple):
    """Statistics of each scenario (see ``statistics``), shape [scenarios, ...]; its engine's record at the end.

    ``samples`` are those of the latencies, as far as ``counts`` says; ``bins`` and ``gaps`` the filled bins of the ITL
    histograms, scenario after scenario, ``filled`` of each.
    """

    counts: np.ndarray
    sums: np.ndarray
    samples: np.ndarray
    engines: np.ndarray
    filled: np.ndarray
    bins: np.ndarray
    gaps: np.ndarray


class Workspace(NamedTuple):
    """The memory that the loop works in, sized for the largest scenario and the largest step costs."""

    requests: np.ndarray
    bytes: np.ndarray  # the same memory
    heaps: np.ndarray
    uses: np.ndarray
    histogram: np.ndarray
    whole: np.ndarray
    real: np.ndarray

    @classmethod
    def of(cls, requests: int, running: int, costs: int) -> Workspace:
        """Return a workspace for scenarios of ``requests`` requests, of which ``running`` run at once."""
        records = np.empty(requests, REQUEST)
        heaps = np.empty((1, 1, 2, 2 * min(running, requests) + 16, 2), np.int64)
        columns = np.empty((len(WHOLE), requests), np.int64), np.empty((len(REAL), requests))
        return cls(records, records.view(np.uint8), heaps, np.zeros((3, costs)), np.zeros(ITL_BINS, np.int64), *columns)


@loop_entry
def serve_each(
    first: np.ndarray,
    count: np.ndarray,
    arrival_us: np.ndarray,
    prompt_tokens: np.ndarray,
    output_tokens: np.ndarray,
    priority: np.ndarray,
    warmup: np.ndarray,
    most_ms: np.ndarray,
    clients: np.ndarray,
    engines: np.ndarray,
    limits: np.ndarray,
    host: np.ndarray,
    costs: np.ndarray,
    layout: np.ndarray,
    draft_layout: np.ndarray,
    requests: np.ndarray,
    memory: np.ndarray,
    edges: np.ndarray,
    turns: np.ndarray,
    sent: np.ndarray,
    heaps: np.ndarray,
    hashes: np.ndarray,
    entries: np.ndarray,
    uses: np.ndarray,
    histogram: np.ndarray,
    stages: np.ndarray,
    groups: np.ndarray,
    rows: np.ndarray,
    by_part: np.ndarray,
    whole: np.ndarray,
    real: np.ndarray,
    counts: np.ndarray,
    sums: np.ndarray,
    samples: np.ndarray,
    filled: np.ndarray,
    bins: np.ndarray,
    gaps: np.ndarray,
) -> None:
    """Serve scenario after scenario; ``clients``, ``engines`` and ``limits`` have a record for each, see ``loop``."""
    used = 0
    for j in range(first.size):
        n = count[j]
        start, stop = first[j], first[j] + n
        own = requests[:n]
        memory[: memory.size // requests.size * n] = 0
        fill_requests(own, arrival_us[start:stop], prompt_tokens[start:stop], output_tokens[start:stop])
        for i in range(n):
            own[i].priority = priority[start + i]
        serve_until_full(
            clients[j : j + 1], engines[j : j + 1], own, edges, turns, sent, heaps, hashes, entries, limits[j : j + 1],
            host, costs, layout, draft_layout, uses, histogram, stages, groups, rows, by_part,
        )  # fmt: skip
        read_requests(own, whole, real)
        count_requests(
            whole, real, prompt_tokens[start:stop], output_tokens[start:stop], warmup[start:stop], most_ms[j],
            host[0].request_us, host[0].per_prompt_token_us, counts[j], sums[j], samples[j],
        )  # fmt: skip
        filled[j] = take_gaps(histogram, bins[used:], gaps[used:])
        used += filled[j]


def serve_loads(columns: Columns, loads: Loads, pool: Pool, workspace: Workspace) -> Results:
    """Serve k loads on one engine each of ``pool``; ``workspace`` fits its step costs and its largest batch."""
    k, costs = loads.first.size, pool.costs
    clients = np.zeros(k, CLIENT)
    clients["now"], clients["until_us"] = columns.arrival_us[loads.first], FOREVER
    clients["warmups"] = clients["warmups_left"] = loads.warmups
    clients["max_concurrency"], clients["front"] = loads.max_concurrency, 1
    engines = engine_records([pool._replace(engines=k)], clients["now"])
    limits = limit_records([pool._replace(engines=k)], NO_HASHES)
    limits["requests"] = loads.count
    results = Results(
        np.zeros((k, COUNTS), np.int64), np.zeros((k, TIMES, 2), np.int64),
        np.empty((k, len(SAMPLES), int(loads.count.max()))), engines, np.zeros(k, np.int64),
        np.empty(k * ITL_BINS, np.int64), np.empty(k * ITL_BINS, np.int64),
    )  # fmt: skip
    serve_each(
        loads.first, loads.count, *columns, loads.most_ms, clients, engines, limits,
        np.array([tuple(pool.host)], HOST), costs.values, np.array([costs.layout]), np.zeros(1, LAYOUT),
        workspace.requests, workspace.bytes, np.zeros(0, EDGE), np.zeros((1, 2)), np.zeros((1, 1), np.bool_),
        workspace.heaps, np.zeros(0, np.int64), np.zeros(1, ENTRY), workspace.uses, workspace.histogram,
        stage_records([pool], 0.0),
        group_records(limits[:1]), np.zeros((1, 0, COLUMNS)), fresh_sums(0, False),
        workspace.whole, workspace.real,
        results.counts, results.sums, results.samples, results.filled, results.bins, results.gaps,
    )  # fmt: skip
    used = int(results.filled.sum())
    return results._replace(bins=results.bins[:used].copy(), gaps=results.gaps[:used].copy())
