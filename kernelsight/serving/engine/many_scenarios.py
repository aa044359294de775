"""Many scenarios of one deployment, simulated in one compiled call that keeps no record of single requests.

Their loads may differ in everything that the client decides. One engine of one stage without drafts serves them, and no
request waits for another or shares a prefix with it; other scenarios take a call each (see ``simulate``). Each scenario
reuses the same memory for its records, small enough for the cache of a core.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.serving.compilation.compiled import loop_entry
from kernelsight.serving.engine.input_checks import check_clients, check_lengths, check_pools
from kernelsight.serving.engine.inputs import Load, together_until
from kernelsight.serving.engine.loop import serve_until_full
from kernelsight.serving.engine.packed_costs import layouts_by_adapters
from kernelsight.serving.engine.records import CLIENT, EDGE, ENTRY, FOREVER, ITL_BINS, LAYOUT, REQUEST
from kernelsight.serving.engine.replica import (
    Pool,
    engine_records,
    group_records,
    host_records,
    limit_records,
    stage_records,
)
from kernelsight.serving.engine.request_blocks import fill_requests, read_requests
from kernelsight.serving.engine.served import REAL, WHOLE
from kernelsight.serving.engine.state import Scenario
from kernelsight.serving.engine.statistics import COUNTS, SAMPLES, TIMES, count_requests, take_gaps
from kernelsight.serving.engine.steps import COLUMNS
from kernelsight.serving.engine.waits import fresh_sums

NO_HASHES = Load(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))


class Columns(NamedTuple):
    """The requests of many scenarios, scenario after scenario; shape [requests] each."""

    arrival_us: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    priority: np.ndarray
    warmup: np.ndarray


class Loads(NamedTuple):
    """Rows of each scenario's requests in ``Columns``, and the settings of its client; shape [scenarios] each."""

    first: np.ndarray  # row of the first request
    count: np.ndarray
    warmups: np.ndarray
    max_concurrency: np.ndarray
    user_us: np.ndarray
    most_ms: np.ndarray  # [scenarios, 3] objectives on TTFT, E2E latency and TPOT; inf: none


class Results(NamedTuple):
    """Statistics of each scenario (see ``statistics``), shape [scenarios, ...], and its engine's record at the end.

    ``samples``: latencies; ``counts`` state how many are filled. ``bins``, ``gaps``: non-empty bins of the ITL
    histograms, scenario after scenario; ``filled``: their number for each.
    """

    counts: np.ndarray
    sums: np.ndarray
    samples: np.ndarray
    engines: np.ndarray
    filled: np.ndarray
    bins: np.ndarray
    gaps: np.ndarray


class Workspace(NamedTuple):
    """Memory that the loop works in, sized for the largest scenario and the largest step costs."""

    requests: np.ndarray
    bytes: np.ndarray  # the same memory
    heaps: np.ndarray
    uses: np.ndarray
    histogram: np.ndarray
    whole: np.ndarray
    real: np.ndarray

    @classmethod
    def of(cls, requests: int, running: int, costs: int) -> Workspace:
        """Return a workspace for scenarios of up to ``requests`` requests, of which up to ``running`` run at once."""
        records = np.empty(requests, REQUEST)
        heaps = np.empty((1, 1, 2, 2 * min(running, requests) + 16, 2), np.int64)
        columns = np.empty((len(WHOLE), requests), np.int64), np.empty((len(REAL), requests))
        return cls(records, records.view(np.uint8), heaps, np.zeros((3, costs)), np.zeros(ITL_BINS, np.int64), *columns)


@loop_entry
def serve_each(columns: tuple, loads: tuple, arrays: tuple, workspace: tuple, results: tuple) -> None:
    """Simulate scenarios one after the other; arguments: fields of the tuples ``Columns`` to ``Results``, in order.

    ``clients``, ``engines`` and ``limits`` have a record for each scenario; all other memory is reused.
    """
    all_columns, each, many = Columns(*columns), Loads(*loads), Scenario(*arrays)
    space, outcomes = Workspace(*workspace), Results(*results)
    host, used = many.host[0, 0], 0
    for j in range(each.first.size):
        n = each.count[j]
        start, stop = each.first[j], each.first[j] + n
        own = space.requests[:n]
        space.bytes[: space.bytes.size // space.requests.size * n] = 0
        prompt_tokens, output_tokens = all_columns.prompt_tokens[start:stop], all_columns.output_tokens[start:stop]
        fill_requests(own, all_columns.arrival_us[start:stop], prompt_tokens, output_tokens)
        for i in range(n):
            own[i].priority = all_columns.priority[start + i]
        one = Scenario(
            many.clients[j : j + 1], own, many.edges, many.turns, many.sent, many.hashes, many.entries,
            many.engines[j : j + 1], many.limits[j : j + 1], many.host, many.heaps, many.groups, many.stages,
            many.layout, many.draft_layout, many.rows, many.costs, many.uses, many.histogram, many.sums,
        )  # fmt: skip
        serve_until_full(*one)
        read_requests(own, space.whole, space.real)
        count_requests(
            space.whole, space.real, prompt_tokens, output_tokens, all_columns.warmup[start:stop], each.most_ms[j],
            host.request_us, host.per_prompt_token_us, outcomes.counts[j], outcomes.sums[j], outcomes.samples[j],
        )  # fmt: skip
        outcomes.filled[j] = take_gaps(many.histogram, outcomes.bins[used:], outcomes.gaps[used:])
        used += outcomes.filled[j]


def serve_loads(columns: Columns, loads: Loads, pool: Pool, workspace: Workspace) -> Results:
    """Simulate each load on one engine of ``pool``; ``workspace``: large enough for its step costs and batches.

    InvalidInput: a load or an engine that cannot be simulated.
    """
    check_pools([pool])
    check_clients(loads.max_concurrency, loads.user_us)
    check_lengths(columns.arrival_us, columns.prompt_tokens, columns.output_tokens)
    k, costs = loads.first.size, pool.costs
    clients = np.zeros(k, CLIENT)
    clients["now"], clients["until_us"] = columns.arrival_us[loads.first], FOREVER
    clients["warmups"] = clients["warmups_left"] = loads.warmups
    clients["filled"] = loads.count
    clients["max_concurrency"], clients["front"] = loads.max_concurrency, 1
    clients["user_us"] = loads.user_us
    clients["together_until"] = [
        together_until(columns.arrival_us[first : first + count], warmups, users, user_us)
        for first, count, warmups, users, user_us, _ in zip(*loads, strict=True)
    ]
    engines = engine_records([pool._replace(engines=k)], clients["now"])
    limits = limit_records([pool._replace(engines=k)], NO_HASHES)
    limits["requests"] = loads.count
    results = Results(
        np.zeros((k, COUNTS), np.int64), np.zeros((k, TIMES, 2), np.int64),
        np.empty((k, len(SAMPLES), int(loads.count.max()))), engines, np.zeros(k, np.int64),
        np.empty(k * ITL_BINS, np.int64), np.empty(k * ITL_BINS, np.int64),
    )  # fmt: skip
    scenario = Scenario(
        clients=clients,
        requests=workspace.requests,
        edges=np.zeros(0, EDGE),
        turns=np.zeros((1, 2)),
        sent=np.zeros((1, 1), np.bool_),
        hashes=np.zeros(0, np.int64),
        entries=np.zeros(1, ENTRY),
        engines=engines,
        limits=limits,
        host=host_records(pool.host)[None],
        heaps=workspace.heaps,
        groups=group_records(limits[:1]),
        stages=stage_records([pool], 0.0),
        layout=layouts_by_adapters(costs.layout, costs.surface)[None],
        draft_layout=np.zeros(1, LAYOUT),
        rows=np.zeros((1, 0, COLUMNS)),
        costs=costs.values,
        uses=workspace.uses,
        histogram=workspace.histogram,
        sums=fresh_sums(0, False),
    )
    serve_each(columns, loads, scenario, workspace, results)
    used = int(results.filled.sum())
    return results._replace(bins=results.bins[:used].copy(), gaps=results.gaps[:used].copy())
