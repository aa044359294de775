"""Summaries of many scenarios: scenarios of a single engine share calls of the compiled loop, by deployment.

Scenarios with several engines, sessions or shared prefixes take a call each. Calls are spread over threads: the loop
releases the GIL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.scenario.scenario_rows import deployments_of
from kernelsight.serving.engine.host import front_end_of
from kernelsight.serving.engine.many_scenarios import Columns, Loads, Workspace, serve_loads
from kernelsight.serving.engine.records import LARGEST_BLOCK, NO_LIMIT
from kernelsight.serving.engine.replica import TOTALS
from kernelsight.serving.engine.request_blocks import BLOCK, LEAST_BLOCKS
from kernelsight.serving.engine.served import REAL, WHOLE, Outcome, Totals
from kernelsight.serving.engine.statistics import COUNTS, SAMPLES, TIMES, count_requests
from kernelsight.serving.runs.result_tables import histogram_rows, histogram_table, total_rows, total_table
from kernelsight.serving.runs.shared_prefixes import shares_prefixes
from kernelsight.serving.runs.simulation_inputs import SimulationInputs, adapters_of, pool_of, user_us_of
from kernelsight.serving.runs.statistics_tables import QUANTILES, Counted, joined, quantiles_of
from kernelsight.serving.runs.tiers import moved_rows

if TYPE_CHECKING:
    from kernelsight.serving.runs.result_tables import Replica


Job = TypeVar("Job")
Made = TypeVar("Made")


def over_threads(work: Callable[[Job], Made], jobs: Sequence[Job], threads: int | None = None) -> list[Made]:
    """Return the result of ``work`` for each job, in order; ``threads``: the number of cores by default.

    >>> over_threads(abs, [-1, 2, -3])
    [1, 2, 3]
    """
    count = min(len(jobs), threads or os.cpu_count() or 1)
    if count <= 1:  # starting a thread takes longer than simulating a short load
        return [work(job) for job in jobs]
    with ThreadPoolExecutor(count) as workers:
        return list(workers.map(work, jobs))


# scenarios and requests of one compiled call: few, so that threads finish together; enough to hide the cost of a call
CALL_SCENARIOS = 32
CALL_REQUESTS = 1 << 16
OBJECTIVES = ("goodput_ttft_ms", "goodput_e2el_ms", "goodput_tpot_ms")


class Summary(NamedTuple):
    """Statistics of scenarios, and functions that make ``itl_histogram``, ``replica_totals`` and ``kv_tier_totals``."""

    counted: Counted
    histogram: Callable[[], pa.Table]
    totals: Callable[[], pa.Table]
    tiers: Callable[[], pa.Table]


def summarise(
    inputs: SimulationInputs, serve_replicas: Callable[..., list[Replica]], threads: int | None = None
) -> Summary:
    """Simulate every scenario for its summary alone: no request has a row, no use of step costs is counted.

    ``serve_replicas`` simulates scenarios that need a call each; ``threads``: the number of cores by default.
    """
    scenarios = [row for row in inputs.scenarios if row["scenario_id"] in inputs.spans]
    single, others = [], []
    shared = pc.is_valid(inputs.requests["hash_ids"]).to_numpy(zero_copy_only=False)
    for row in scenarios:
        (single if _is_single_engine(inputs, row, shared) else others).append(row)
    summaries = _serve_together(inputs, single, threads) if single else []
    if others or not summaries:
        replicas = serve_replicas(
            inputs._replace(scenarios=others), count_uses=False, keep_requests=False, threads=threads
        )
        summaries.append(summary_of_replicas(inputs, others, replicas))
    counted, *tables = zip(*summaries, strict=True)
    return Summary(joined(counted), *(partial(_concatenated, each) for each in tables))


def _concatenated(tables: Iterable[Callable[[], pa.Table]]) -> pa.Table:
    return pa.concat_tables([table() for table in tables])


def summary_of_replicas(inputs: SimulationInputs, scenarios: list[dict[str, Any]], replicas: list[Replica]) -> Summary:
    """Return the summary of scenarios that had a call each, from their engines."""
    counted = count_replicas(inputs, scenarios, replicas)
    return Summary(counted, *(partial(rows, replicas) for rows in (histogram_rows, total_rows, moved_rows)))


def _columns_of(inputs: SimulationInputs) -> Columns:
    """Return the columns of all requests in the types that the loop is compiled for; arrivals in us."""
    columns = inputs.columns
    return Columns(
        columns["arrival_s"] * 1e6,
        columns["prompt_tokens"].astype(np.int64),
        columns["output_tokens"].astype(np.int64),
        columns["priority"].astype(np.int64),  # a copy: numba compiles again for read-only arrays
        columns["warmup"],
    )


def _is_single_engine(inputs: SimulationInputs, scenario: dict[str, Any], shared: np.ndarray) -> bool:
    """Whether a scenario can share a call: one engine of one stage without drafts, no sessions, no shared prefixes.

    A scenario with a load so large that its records are kept in blocks takes its own call.
    """
    (deployment, *prefills) = deployments_of(scenario)
    settings, plan = inputs.deployments[deployment], inputs.plans[deployment]
    rows = slice(*inputs.spans[scenario["scenario_id"]])
    return (
        not prefills
        and rows.stop - rows.start < LEAST_BLOCKS * BLOCK
        and settings["dp"] == settings["pp"] == (scenario["replicas"] or 1) == 1
        and settings["num_speculative_tokens"] == 0
        and 0 < plan["block_size"] <= LARGEST_BLOCK
        and scenario["scenario_id"] not in inputs.waits
        and not adapters_of(inputs.columns["adapter"][rows], settings).size
        and not (shares_prefixes(settings, plan) and shared[rows].any())
    )


def _serve_together(inputs: SimulationInputs, scenarios: list[dict[str, Any]], threads: int | None) -> list[Summary]:
    """Simulate scenarios of a single engine, a few of one deployment in each call, calls spread over threads."""
    calls, columns = list(_calls(inputs, scenarios)), _columns_of(inputs)
    pools = {key: pool_of(inputs, key) for key in dict.fromkeys(call[0]["deployment_id"] for call in calls)}
    most_requests = max(stop - start for start, stop in (inputs.spans[row["scenario_id"]] for row in scenarios))
    max_num_seqs = max(pool.limits.max_num_seqs for pool in pools.values())
    most_costs = max(pool.costs.values.size for pool in pools.values())
    workspaces = threading.local()

    def serve(call: list[dict[str, Any]]) -> tuple:
        if not hasattr(workspaces, "own"):
            workspaces.own = Workspace.of(most_requests, max_num_seqs, most_costs)
        loads = _loads_of(inputs, columns, call)
        served = serve_loads(columns, loads, pools[call[0]["deployment_id"]], workspaces.own)
        names = [row["scenario_id"] for row in call]
        counted = Counted(names, served.counts, served.sums, quantiles_of(served.counts, served.samples), loads.most_ms)
        return counted, [served.engines[name] for name in TOTALS], served.filled, served.bins, served.gaps

    counted, totals, filled, bins, gaps = zip(*over_threads(serve, calls, threads), strict=True)
    all_counted = joined(counted)
    owners = [row["deployment_id"] for call in calls for row in call]
    sums = Totals(*(np.concatenate(each) for each in zip(*totals, strict=True)))
    return [
        Summary(
            all_counted,
            lambda: histogram_table(all_counted.scenarios, np.concatenate(filled).tolist(), bins, gaps),
            lambda: total_table(all_counted.scenarios, [0] * len(owners), owners, sums),
            lambda: moved_rows([]),
        )
    ]


def _calls(inputs: SimulationInputs, scenarios: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """Yield the scenarios of each call: of one deployment, up to CALL_SCENARIOS and CALL_REQUESTS."""
    by_deployment: dict[str, list[dict[str, Any]]] = {}
    for row in scenarios:
        by_deployment.setdefault(row["deployment_id"], []).append(row)
    for rows in by_deployment.values():
        call: list[dict[str, Any]] = []
        requests = 0
        for row in rows:
            start, stop = inputs.spans[row["scenario_id"]]
            if call and (len(call) == CALL_SCENARIOS or requests + stop - start > CALL_REQUESTS):
                yield call
                call, requests = [], 0
            call.append(row)
            requests += stop - start
        yield call


def _loads_of(inputs: SimulationInputs, columns: Columns, scenarios: list[dict[str, Any]]) -> Loads:
    """Return the loads of the scenarios of one call."""
    spans = np.array([inputs.spans[row["scenario_id"]] for row in scenarios])
    first, count = spans[:, 0].copy(), spans[:, 1] - spans[:, 0]
    warmups = [int(columns.warmup[start:stop].sum()) for start, stop in spans.tolist()]
    concurrency = [NO_LIMIT if row["max_concurrency"] is None else row["max_concurrency"] for row in scenarios]
    users = np.array([user_us_of(row) for row in scenarios], dtype=float)
    return Loads(first, count, np.array(warmups), np.array(concurrency, np.int64), users, objectives_of(scenarios))


def objectives_of(scenarios: list[dict[str, Any]]) -> np.ndarray:
    """Return the goodput objectives on TTFT, E2E latency and TPOT, ms, shape [scenarios, 3]; inf where unset."""
    limits_ms = [[row[name] for name in OBJECTIVES] for row in scenarios]
    largest_ms = np.array([[np.inf if value is None else value for value in row] for row in limits_ms], dtype=float)
    return largest_ms.reshape(-1, len(OBJECTIVES))


def count_replicas(inputs: SimulationInputs, scenarios: list[dict[str, Any]], replicas: list[Replica]) -> Counted:
    """Return the statistics of scenarios that had a call each, from the arrays of their engines."""
    columns = _columns_of(inputs) if any(replica.tally is None for replica in replicas) else None
    counts, sums = np.zeros((len(scenarios), COUNTS), np.int64), np.zeros((len(scenarios), TIMES, 2), np.int64)
    largest_ms, quantiles = objectives_of(scenarios), []
    replicas_of_scenario: dict[str, list[Replica]] = {}
    for replica in replicas:
        replicas_of_scenario.setdefault(replica.scenario, []).append(replica)
    for number, row in enumerate(scenarios):
        start, stop = inputs.spans[row["scenario_id"]]
        if (tally := replicas_of_scenario[row["scenario_id"]][0].tally) is not None:
            counts[number], sums[number] = tally.counts, tally.sums
            quantiles.append(quantiles_of(counts[number : number + 1], tally.samples[np.newaxis]))
            continue
        integers, real = _outcome_of(replicas_of_scenario[row["scenario_id"]], start, stop)
        samples, front = np.empty((len(SAMPLES), stop - start)), deployments_of(row)[-1]
        count_requests(
            integers, real, columns.prompt_tokens[start:stop], columns.output_tokens[start:stop],
            columns.warmup[start:stop], largest_ms[number],
            *front_end_of(inputs.hosts[front], inputs.deployments[front]), counts[number], sums[number], samples,
        )  # fmt: skip
        quantiles.append(quantiles_of(counts[number : number + 1], samples[np.newaxis]))
    if not scenarios:
        return Counted([], counts, sums, np.zeros((0, len(SAMPLES), len(QUANTILES))), largest_ms)
    return Counted([row["scenario_id"] for row in scenarios], counts, sums, np.concatenate(quantiles), largest_ms)


def _outcome_of(replicas: list[Replica], start: int, stop: int) -> Outcome:
    """Return the outcome of requests ``start`` to ``stop``, merged from the replicas that served them."""
    if replicas[0].rows.size == stop - start:  # all of them, in order
        return replicas[0].served.out
    outcome = Outcome(np.empty((len(WHOLE), stop - start), np.int64), np.empty((len(REAL), stop - start)))
    for replica in replicas:
        for values, values_of_engine in zip(outcome, replica.served.out, strict=True):
            values[:, replica.rows - start] = values_of_engine
    return outcome
