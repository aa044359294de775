"""Requests of each load, read from its trace or drawn from its rate and lengths; and which scenarios share a load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight import errors
from kernelsight.caches.memory_cache import memoised
from kernelsight.dataflow.array_expressions import in_one_piece
from kernelsight.dataflow.python_nodes import produces
from kernelsight.scenario.load_rules import RAMP_UP, distribution, first_fault, flags_set
from kernelsight.serving.load.arrivals import (
    empirical_rows,
    lognormal_lengths,
    ramp_rates,
    ramped_arrivals,
    steady_arrivals,
    think_times,
    uniform_lengths,
)
from kernelsight.serving.load.conversations import (
    NO_REQUEST,
    SharedBlocks,
    in_order_of_arrival,
    prefix_numbers,
    sessions_of,
    shared_blocks,
)
from kernelsight.serving.load.dependencies import Dependencies, earliest, generations
from kernelsight.serving.load.recorded_loads import RecordedLoad, read_load
from kernelsight.serving.load.traces import TRACE_SCHEMA

LOAD_COLUMNS = (
    *("trace", "request_rate", "burstiness", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"),
    *("max_concurrency", "num_prompts", "num_warmups", "input_len", "output_len", "range_ratio"),
    *("length_distribution", "input_len_cv", "output_len_cv", "lengths_from", "prefix_len", "num_prefixes"),
    *("num_priorities", "num_adapters", "adapter_zipf", "num_turns", "think_time_s", "think_time_cv"),
    *("think_time_limit_s", "shared_prefix", "seed"),
    *("trace_columns", "trace_tokenizer"),
)
DEPENDENCIES_SCHEMA = pa.schema(
    [("load_id", pa.string()), ("request_id", pa.int64()), ("after", pa.int64()), ("think_s", pa.float64())]
)
NO_PRIORITY = np.iinfo(np.int64).min
NO_ADAPTER = -1


class Drawn(NamedTuple):
    """A synthetic load in order of arrival, shape [requests] each, and the hash blocks of its prompts."""

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    priority: np.ndarray  # NO_PRIORITY: none
    adapter: np.ndarray  # NO_ADAPTER: none
    blocks: SharedBlocks


class Loads(NamedTuple):
    """The tables ``load_requests`` and ``load_dependencies``."""

    load_requests: pa.Table
    load_dependencies: pa.Table


@produces("scenario_loads")
def loads_of(scenarios: pa.Table) -> pa.Table:
    """Which scenarios share a load: equal arrivals and lengths.

    ``scenarios``: columns that it lacks are read as null. The value of max_concurrency changes neither arrivals nor
    lengths: closed loops that differ in it alone share a load.
    """
    load_columns = [name for name in LOAD_COLUMNS if name in scenarios.column_names and name != "max_concurrency"]
    columns = [scenarios[name].to_pylist() for name in load_columns]
    if "max_concurrency" in scenarios.column_names:
        columns.append(pc.is_valid(scenarios["max_concurrency"]).to_pylist())
    names = scenarios["scenario_id"].to_pylist()
    firsts: dict[tuple, str] = {}
    rows = zip(*columns, strict=True) if columns else [()] * len(names)
    loads = [firsts.setdefault(row, name) for name, row in zip(names, rows, strict=True)]
    return pa.table({"scenario_id": pa.array(names, pa.string()), "load_id": pa.array(loads, pa.string())})


@produces("load_requests", "load_dependencies")
def distinct_loads(scenarios: pa.Table, scenario_loads: pa.Table) -> dict[str, pa.Table]:
    """The requests of each different load, and which wait for which: read from its trace, or drawn."""
    firsts = pc.equal(scenario_loads["scenario_id"], scenario_loads["load_id"])
    loads = scenarios.rename_columns({"scenario_id": "load_id"})
    distinct = loads.filter(pc.is_in(loads["load_id"], scenario_loads.filter(firsts)["load_id"].combine_chunks()))
    return draw_loads(distinct)._asdict()


def draw_loads(loads: pa.Table) -> Loads:
    """Return ``load_requests`` in order of arrival and ``load_dependencies``; loads in the given order.

    ``loads``: load_id and columns of ``scenarios``; those that it lacks are read as null. num_prompts keeps the first
    requests of a trace. A trace is read once for all its loads; its rows are shared, and copied only with warm-ups or
    dependencies. max_concurrency and the end of warm-ups have no effect here: the simulation holds requests back.
    InvalidInput: a load that is incomplete or contradicts itself, or a trace that cannot be used.
    """
    names = [name for name in ("load_id", *LOAD_COLUMNS) if name in loads.column_names]
    rows = [dict.fromkeys(LOAD_COLUMNS) | row for row in loads.select(names).to_pylist()]
    for row in rows:
        fault = first_fault(row)
        if fault:
            raise errors.load_unclear(row["load_id"], *fault)
    recorded = {
        key: read_load(key[0], **dict(zip(OF_FILE, key[1:], strict=True)))
        for key in dict.fromkeys(map(_file_of, rows))
        if key[0]
    }
    pieces, counts, drawn, waits = [TRACE_SCHEMA.empty_table()], [], [], []
    for row in rows:
        file = recorded.get(_file_of(row))
        if row["trace"] is None:
            load, dependencies = _draw(row, None if file is None else file.requests)
            drawn.append(load)
            counts.append(row["num_prompts"])
        else:
            recorded_requests, dependencies = _cut(row, file)
            pieces += [_as_table(drawn), recorded_requests]
            counts.append(recorded_requests.num_rows)
            drawn = []
        waits.append(dependencies.limited(row["think_time_limit_s"]))
    pieces.append(_as_table(drawn))
    warmups = np.array([row["num_warmups"] or 0 for row in rows], dtype=np.int64)
    return Loads(
        _with_keys(pa.concat_tables(pieces), loads["load_id"], np.array(counts, dtype=np.int64), warmups),
        _dependency_rows(loads["load_id"], waits, warmups),
    )


# arguments of read_load beside the path
OF_FILE = ("shared_prefix", "columns", "tokenizer")


def _file_of(row: Mapping) -> tuple[Any, ...]:
    """Return (file that a load takes requests or lengths from, and how it is read: values of OF_FILE)."""
    return row["trace"] or row["lengths_from"], bool(row["shared_prefix"]), row["trace_columns"], row["trace_tokenizer"]


def _cut(row: Mapping, recorded: RecordedLoad) -> tuple[pa.Table, Dependencies]:
    """Return a recorded load's warm-ups and its first num_prompts other requests, by send time, and their dependencies.

    A request whose predecessor is cut off is sent at its earliest send time. InvalidInput: a request rate for a trace
    that has arrivals of its own.
    """
    requests, dependencies = recorded.requests, recorded.dependencies
    rated = flags_set(row, ("request_rate", *RAMP_UP))
    if recorded.timed and rated:
        problem = f"trace and {', '.join(rated)} are both set, but a trace has its own arrivals and lengths"
        raise errors.load_unclear(row["load_id"], problem, "Remove one or the other.")
    warmups = pc.sum(requests["warmup"]).as_py() or 0
    asked = None if row["num_prompts"] is None else row["num_prompts"] + warmups
    if not dependencies.request.size and recorded.timed:
        return requests.slice(0, asked), dependencies
    dependencies = dependencies.limited(row["think_time_limit_s"])
    arrival_s = requests["arrival_s"].to_numpy()
    if not recorded.timed:
        firsts = np.setdiff1d(np.arange(arrival_s.size), dependencies.request)
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(row["seed"]).spawn(3)[2]))
        arrival_s = arrival_s.copy()
        arrival_s[firsts] = _arrivals(generator, firsts.size, row)
    moments = earliest(dependencies, arrival_s)
    n = min(asked or arrival_s.size, arrival_s.size)
    within = (dependencies.request < n) & (dependencies.after < n)
    order = np.argsort(moments[:n], kind="stable")
    row_of_request = np.argsort(order)
    request, after, think_s = (values[within] for values in dependencies)
    moments = moments[order] - moments[order[0]]
    requests = requests.take(pa.array(order))
    requests = requests.set_column(requests.schema.get_field_index("arrival_s"), "arrival_s", pa.array(moments))
    return requests, Dependencies(row_of_request[request], row_of_request[after], think_s)


def _dependency_rows(load_ids: pa.ChunkedArray, waits: list[Dependencies], warmups: np.ndarray) -> pa.Table:
    """Return ``load_dependencies``, sorted by request; request_ids count a load's warm-ups first."""
    names = load_ids.cast(pa.string()).to_pylist()
    pieces = [DEPENDENCIES_SCHEMA.empty_table()]
    for name, waits_of_load, ahead in zip(names, waits, warmups.tolist(), strict=True):
        if waits_of_load.request.size:
            order = np.lexsort((waits_of_load.after, waits_of_load.request))
            columns = [
                np.full(order.size, name),
                waits_of_load.request[order] + ahead,
                waits_of_load.after[order] + ahead,
            ]
            pieces.append(pa.table([*map(pa.array, columns), waits_of_load.think_s[order]], schema=DEPENDENCIES_SCHEMA))
    return pa.concat_tables(pieces)


@produces("requests")
def requests_of(scenario_loads: pa.Table, load_requests: pa.Table) -> pa.Table:
    """The requests of each scenario: those of its load."""
    spans = spans_of_loads(load_requests)
    names, loads = (scenario_loads[name].to_pylist() for name in ("scenario_id", "load_id"))
    load_spans = [spans.get(load, (0, 0)) for load in loads]
    rows = np.concatenate([np.arange(*span) for span in load_spans] or [np.zeros(0, np.int64)])
    requests = load_requests
    if not np.array_equal(rows, np.arange(load_requests.num_rows)):  # copying takes longer than simulating
        requests = load_requests.take(pa.array(rows))
    owners = np.repeat(np.arange(len(load_spans)), [stop - start for start, stop in load_spans]).astype(np.int32)
    ids = pa.DictionaryArray.from_arrays(owners, pa.array(names, pa.string())).cast(pa.string())
    return requests.drop_columns(["load_id"]).add_column(0, "scenario_id", ids)


@produces("request_dependencies")
def dependencies_of(scenario_loads: pa.Table, load_dependencies: pa.Table) -> pa.Table:
    """Which requests of each scenario wait for which: those of its load."""
    spans = spans_of(load_dependencies["load_id"])
    names, loads = (scenario_loads[name].to_pylist() for name in ("scenario_id", "load_id"))
    load_spans = [(name, *spans[load]) for name, load in zip(names, loads, strict=True) if load in spans]
    rows = np.concatenate([np.arange(start, stop) for _, start, stop in load_spans] or [np.zeros(0, np.int64)])
    owners = np.repeat(np.arange(len(load_spans)), [stop - start for _, start, stop in load_spans])
    ids = pa.array([name for name, *_ in load_spans], pa.string()).take(pa.array(owners))
    return load_dependencies.take(pa.array(rows)).drop_columns(["load_id"]).add_column(0, "scenario_id", ids)


def loads_of_requests(requests: pa.Table, dependencies: pa.Table | None) -> dict[str, pa.Table]:
    """Return the tables of loads for given ``requests``: each scenario has its own load.

    ``dependencies``: given ``request_dependencies``; None: no request waits for another. InvalidInput: a request that
    waits for one that its scenario lacks, or a cycle.
    """
    names = pc.unique(requests["scenario_id"])
    load_requests = requests.drop_columns(["scenario_id"]).add_column(0, "load_id", requests["scenario_id"])
    waits = DEPENDENCIES_SCHEMA.empty_table()
    if dependencies is not None:
        waits = dependencies.rename_columns({"scenario_id": "load_id"}).select(DEPENDENCIES_SCHEMA.names)
        waits = waits.sort_by([(name, "ascending") for name in DEPENDENCIES_SCHEMA.names[:3]])
        check_dependencies(load_requests, waits)
    loads = pa.table({"scenario_id": names, "load_id": names})
    return {"scenario_loads": loads, "load_requests": load_requests, "load_dependencies": waits}


def check_dependencies(load_requests: pa.Table, load_dependencies: pa.Table) -> None:
    """Raise InvalidInput for a request that waits for one that its load lacks, and for a cycle of dependencies."""
    spans = spans_of_loads(load_requests)
    ids, columns = load_requests["request_id"].to_numpy(), load_dependencies.drop_columns(["load_id"])
    for load, (start, stop) in spans_of(load_dependencies["load_id"]).items():
        begin, end = spans.get(load, (0, 0))
        waits_of_load = Dependencies(*(values.to_numpy()[start:stop] for values in columns.columns))
        for name, numbers in (("request_id", waits_of_load.request), ("after", waits_of_load.after)):
            unknown = np.flatnonzero(~np.isin(numbers, ids[begin:end]))
            if unknown.size:
                problem = f"{name} {numbers[unknown[0]]} is no request of this scenario"
                raise errors.dependency_unusable(load, int(waits_of_load.request[unknown[0]]), problem)
        order = np.argsort(ids[begin:end])
        places = (order[np.searchsorted(ids[begin:end], values, sorter=order)] for values in waits_of_load[:2])
        in_cycle = np.flatnonzero(generations(Dependencies(*places, waits_of_load.think_s), end - begin) < 0)
        if in_cycle.size:
            problem = "it waits for itself, by way of the requests before it"
            raise errors.dependency_unusable(load, int(ids[begin:end][in_cycle[0]]), problem)


def spans_of_loads(load_requests: pa.Table) -> dict[str, tuple[int, int]]:
    """Return ``spans_of`` the loads of ``load_requests``; cached: callers must not modify the result."""
    return memoised((load_requests,), "spans", lambda: spans_of(load_requests["load_id"]))


def spans_of(names: pa.ChunkedArray) -> dict[str, tuple[int, int]]:
    """Return (first row, row after the last) of each name; the rows of a name must be contiguous."""
    joined = in_one_piece(names)
    if len(joined) == 0:
        return {}
    runs = pc.run_end_encode(joined)
    ends = runs.run_ends.to_numpy()
    starts = np.concatenate([[0], ends[:-1]])
    return {name: (int(a), int(b)) for name, a, b in zip(runs.values.to_pylist(), starts, ends, strict=True)}


def _draw(row: Mapping, recorded: pa.Table | None) -> tuple[Drawn, Dependencies]:
    """Draw one synthetic load from its seed; return it and the dependencies of its requests.

    Arrivals, lengths, prefixes, priorities and adapters have a child seed each, so that another rate leaves the lengths
    as they are, and the other way round. A new draw takes the last child seed, so that the earlier ones keep theirs. A
    generator is made where it draws: to make one takes as long as to draw a hundred numbers.
    """
    n, turns, prefix_len = row["num_prompts"], row["num_turns"] or 1, row["prefix_len"] or 0
    prompts, outputs, gaps, pairs, prefixes, ranks, pauses, choices = (
        partial(np.random.default_rng, seed) for seed in np.random.SeedSequence(row["seed"]).spawn(8)
    )
    new_tokens, output_tokens = _lengths(row, prompts, outputs, pairs, recorded)
    sessions = sessions_of(new_tokens, output_tokens, turns, prefix_len)
    count = -(-n // turns)
    arrival_s, before = _arrivals(gaps(), count, row), np.full(n, NO_REQUEST)
    prefix = prefix_numbers(prefixes(), count, row["num_prefixes"] or 1) if prefix_len else np.zeros(count, np.int64)
    mean_s = row["think_time_s"]
    think_s = think_times(pauses(), n, mean_s, row["think_time_cv"]) if mean_s else np.zeros(n)
    adapter = adapter_numbers(choices(), count, row["num_adapters"], row["adapter_zipf"])[sessions.session]
    if turns > 1:
        order, arrival_s, before = in_order_of_arrival(sessions, arrival_s, think_s)
        sessions = sessions._replace(**{name: values[order] for name, values in sessions._asdict().items()})
        output_tokens, think_s, adapter = output_tokens[order], think_s[order], adapter[order]
    blocks = shared_blocks(sessions, prefix, prefix_len)
    levels = row["num_priorities"]
    priority = np.full(n, NO_PRIORITY) if levels is None else ranks().permutation(np.arange(n) % levels)
    later = np.flatnonzero(before != NO_REQUEST)
    waits = Dependencies(later, before[later], think_s[later])
    return Drawn(arrival_s, sessions.prompt_tokens, output_tokens, priority, adapter, blocks), waits


def adapter_numbers(generator: np.random.Generator, n: int, adapters: int | None, zipf: float | None) -> np.ndarray:
    """Return the adapter of each of n sessions, drawn at random: number k from 0 in proportion to (k + 1) ** -zipf.

    ``adapters``: how many there are; None: no session has one. ``zipf``: 0 or None: all equally often.

    >>> np.bincount(adapter_numbers(np.random.default_rng(0), 6000, 3, 1.0)).tolist()
    [3269, 1637, 1094]
    """
    if adapters is None:
        return np.full(n, NO_ADAPTER)
    shares = np.cumsum(np.arange(1.0, adapters + 1.0) ** -(zipf or 0.0))
    return np.searchsorted(shares, generator.random(n) * shares[-1], side="right")


def _arrivals(generator: np.random.Generator, n: int, row: Mapping) -> np.ndarray:
    """Return the arrivals of n requests or sessions in seconds after the first."""
    if row["ramp_up_strategy"] is None:
        return steady_arrivals(generator, n, row["request_rate"], row["burstiness"])
    rates = ramp_rates(row["ramp_up_strategy"], row["ramp_up_start_rps"], row["ramp_up_end_rps"], n)
    return ramped_arrivals(generator, rates, row["burstiness"])


def _lengths(
    row: Mapping,
    prompts: Callable[[], np.random.Generator],
    outputs: Callable[[], np.random.Generator],
    pairs: Callable[[], np.random.Generator],
    recorded: pa.Table | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (new prompt tokens without a shared prefix, output tokens), shape [requests] each."""
    n, shape = row["num_prompts"], distribution(row)
    if shape == "empirical":
        rows = empirical_rows(pairs(), n, recorded.num_rows)
        return recorded["prompt_tokens"].to_numpy()[rows], recorded["output_tokens"].to_numpy()[rows]
    if shape == "lognormal":
        return (
            lognormal_lengths(prompts(), n, row["input_len"], row["input_len_cv"]),
            lognormal_lengths(outputs(), n, row["output_len"], row["output_len_cv"]),
        )
    return (
        uniform_lengths(prompts(), n, row["input_len"], row["range_ratio"]),
        uniform_lengths(outputs(), n, row["output_len"], row["range_ratio"]),
    )


def _as_table(drawn: list[Drawn]) -> pa.Table:
    """Return drawn loads, one after the other, as a table of ``TRACE_SCHEMA``."""
    if not drawn:
        return TRACE_SCHEMA.empty_table()
    columns = {name: np.concatenate([getattr(load, name) for load in drawn]) for name in Drawn._fields[:-1]}
    blocks = [load.blocks for load in drawn]
    unshared = np.repeat([block.block_tokens == 0 for block in blocks], [block.counts.size for block in blocks])
    block_tokens = np.repeat([block.block_tokens for block in blocks], [block.counts.size for block in blocks])
    ends = np.cumsum(np.concatenate([[0], *(block.counts for block in blocks)])).astype(np.int32)
    ids = np.concatenate([block.ids for block in blocks])
    arrays = columns | {
        "external_id": pa.nulls(columns["priority"].size, pa.string()),
        "hash_ids": pa.ListArray.from_arrays(pa.array(ends), pa.array(ids), mask=pa.array(unshared)),
        "hash_block_tokens": pa.array(block_tokens, mask=unshared),
        "priority": pa.array(columns["priority"], mask=columns["priority"] == NO_PRIORITY),
        "adapter": pa.array(columns["adapter"], mask=columns["adapter"] == NO_ADAPTER),
        "warmup": pa.array(np.zeros(columns["priority"].size, bool)),
    }
    return pa.table([arrays[name] for name in TRACE_SCHEMA.names], schema=TRACE_SCHEMA)


def _with_keys(table: pa.Table, load_ids: pa.ChunkedArray, counts: np.ndarray, warmups: np.ndarray) -> pa.Table:
    """Return requests with load_id, request_id and warmup; ``counts``, ``warmups``: requests of each load.

    Warm-ups come first: copies of the first request, sent at once, as vLLM's benchmark client does; then a trace's own.
    """
    owner = np.repeat(np.arange(counts.size), counts + warmups)
    position = np.arange(owner.size) - np.repeat(np.cumsum(counts + warmups) - counts - warmups, counts + warmups)
    warmups_before = warmups[owner]
    if warmups_before.any():
        rows = (np.cumsum(counts) - counts)[owner] + np.maximum(position - warmups_before, 0)
        table = table.take(pa.array(rows))
    table = table.add_column(0, "load_id", load_ids.cast(pa.string()).take(pa.array(owner)))
    table = table.add_column(1, "request_id", pa.array(position))
    own = table["warmup"].to_numpy(zero_copy_only=False)
    return table.set_column(table.num_columns - 1, "warmup", pa.array(own | (position < warmups_before)))
