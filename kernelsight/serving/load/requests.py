"""The requests of each load: read from its trace, or drawn from its rate and lengths; which scenarios share a load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight import errors
from kernelsight.dataflow.columns import in_one_piece
from kernelsight.scenario.load_rules import distribution, first_fault
from kernelsight.serving.load.arrivals import ramp_rates, ramped_arrivals, steady_arrivals
from kernelsight.serving.load.conversations import (
    NO_REQUEST,
    SharedBlocks,
    in_order_of_arrival,
    prefix_numbers,
    sessions_of,
    shared_blocks,
)
from kernelsight.serving.load.lengths import empirical_rows, lognormal_lengths, uniform_lengths
from kernelsight.serving.load.traces import TRACE_SCHEMA, read_trace

LOAD_COLUMNS = (
    *("trace", "request_rate", "burstiness", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"),
    *("max_concurrency", "num_prompts", "num_warmups", "input_len", "output_len", "range_ratio"),
    *("length_distribution", "input_len_cv", "output_len_cv", "lengths_from", "prefix_len", "num_prefixes"),
    *("num_priorities", "num_turns", "think_time_s", "seed"),
)
DRAWN_SCHEMA = pa.schema([*TRACE_SCHEMA, ("after_request_id", pa.int64()), ("think_s", pa.float64())])
NO_PRIORITY = np.iinfo(np.int64).min


class Drawn(NamedTuple):
    """A synthetic load in order of arrival: shape [requests] each, and the identities of the prompts' blocks."""

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    after_request_id: np.ndarray
    think_s: np.ndarray
    priority: np.ndarray  # NO_PRIORITY: none
    blocks: SharedBlocks


def loads_of(scenarios: pa.Table) -> pa.Table:
    """Return ``scenario_loads``: scenarios with equal load columns share a load, which bears the name of the first.

    ``scenarios``: columns that it lacks are read as null. How many requests a closed loop holds in flight changes
    neither arrivals nor lengths.
    """
    known = [name for name in LOAD_COLUMNS if name in scenarios.column_names and name != "max_concurrency"]
    columns = [scenarios[name].to_pylist() for name in known]
    if "max_concurrency" in scenarios.column_names:
        columns.append(pc.is_valid(scenarios["max_concurrency"]).to_pylist())
    names = scenarios["scenario_id"].to_pylist()
    firsts: dict[tuple, str] = {}
    rows = zip(*columns, strict=True) if columns else [()] * len(names)
    loads = [firsts.setdefault(row, name) for name, row in zip(names, rows, strict=True)]
    return pa.table({"scenario_id": pa.array(names, pa.string()), "load_id": pa.array(loads, pa.string())})


def draw_requests(loads: pa.Table) -> pa.Table:
    """Return the ``load_requests`` table: the requests of each load in order of arrival, loads in the given order.

    ``loads``: load_id and columns of ``scenarios``; those that it lacks are read as null. A trace is read once however
    many loads cut it, and its rows are shared, not copied, but where there are warm-ups; num_prompts keeps its first
    requests. max_concurrency and the end of warm-ups play no part here: the serving loop holds requests back.
    Raises InvalidInput for a load that is stated by halves or twice, and for a trace that cannot be used.

    >>> loads = pa.table({"load_id": ["chat"], "request_rate": [2.0], "burstiness": [1.0], "num_prompts": [3],
    ...     "input_len": [512], "output_len": [64], "range_ratio": [1.0], "seed": [0]})
    >>> draw_requests(loads).select(["load_id", "request_id", "prompt_tokens"]).to_pylist()[-1]
    {'load_id': 'chat', 'request_id': 2, 'prompt_tokens': 512}
    """
    known = [name for name in ("load_id", *LOAD_COLUMNS) if name in loads.column_names]
    rows = [dict.fromkeys(LOAD_COLUMNS) | row for row in loads.select(known).to_pylist()]
    for row in rows:
        fault = first_fault(row)
        if fault:
            raise errors.load_unclear(row["load_id"], *fault)
    paths = dict.fromkeys(row[name] for row in rows for name in ("trace", "lengths_from") if row[name] is not None)
    traces = {path: read_trace(path) for path in paths}
    pieces, counts, drawn = [DRAWN_SCHEMA.empty_table()], [], []
    for row in rows:
        if row["trace"] is None:
            drawn.append(_draw(row, traces.get(row["lengths_from"])))
            counts.append(row["num_prompts"])
            continue
        pieces += [_as_table(drawn), _as_drawn(traces[row["trace"]].slice(0, row["num_prompts"]))]
        counts.append(pieces[-1].num_rows)
        drawn = []
    pieces.append(_as_table(drawn))
    warmups = np.array([row["num_warmups"] or 0 for row in rows], dtype=np.int64)
    return _with_keys(pa.concat_tables(pieces), loads["load_id"], np.array(counts, dtype=np.int64), warmups)


def requests_of(scenario_loads: pa.Table, load_requests: pa.Table) -> pa.Table:
    """Return the ``requests`` table: the requests of each scenario's load, scenarios in their order."""
    spans = spans_of(load_requests["load_id"])
    names, loads = (scenario_loads[name].to_pylist() for name in ("scenario_id", "load_id"))
    own = [spans.get(load, (0, 0)) for load in loads]
    rows = np.concatenate([np.arange(*span) for span in own] or [np.zeros(0, np.int64)])
    taken = load_requests
    if not np.array_equal(rows, np.arange(load_requests.num_rows)):  # copying takes longer than serving
        taken = load_requests.take(pa.array(rows))
    owners = np.repeat(np.arange(len(own)), [stop - start for start, stop in own]).astype(np.int32)
    ids = pa.DictionaryArray.from_arrays(owners, pa.array(names, pa.string())).cast(pa.string())
    return taken.drop_columns(["load_id"]).add_column(0, "scenario_id", ids)


def loads_of_requests(requests: pa.Table) -> dict[str, pa.Table]:
    """Return ``scenario_loads`` and ``load_requests`` of requests that were given: each scenario has its own load."""
    names = pc.unique(requests["scenario_id"])
    named = requests.drop_columns(["scenario_id"]).add_column(0, "load_id", requests["scenario_id"])
    return {"scenario_loads": pa.table({"scenario_id": names, "load_id": names}), "load_requests": named}


def spans_of(names: pa.ChunkedArray) -> dict[str, tuple[int, int]]:
    """Return the first row of each name and the row after its last; the rows of one name stand together."""
    joined = in_one_piece(names)
    if len(joined) == 0:
        return {}
    runs = pc.run_end_encode(joined)
    ends = runs.run_ends.to_numpy()
    starts = np.concatenate([[0], ends[:-1]])
    return {name: (int(a), int(b)) for name, a, b in zip(runs.values.to_pylist(), starts, ends, strict=True)}


def _draw(row: Mapping, recorded: pa.Table | None) -> Drawn:
    """Draw one load, from its own seed alone.

    What is drawn has a child seed each, so that another rate leaves the lengths as they are, and the other way round;
    new ones go to the end, which leaves what the first ones give.
    """
    n, turns, prefix_len = row["num_prompts"], row["num_turns"] or 1, row["prefix_len"] or 0
    seeds = np.random.SeedSequence(row["seed"]).spawn(6)
    prompts, outputs, gaps, pairs, prefixes, ranks = (np.random.Generator(np.random.PCG64(seed)) for seed in seeds)
    new_tokens, output_tokens = _lengths(row, prompts, outputs, pairs, recorded)
    sessions = sessions_of(new_tokens, output_tokens, turns, prefix_len)
    count = -(-n // turns)
    arrival_s, before = _arrivals(gaps, count, row), np.full(n, NO_REQUEST)
    prefix = prefix_numbers(prefixes, count, row["num_prefixes"] or 1) if prefix_len else np.zeros(count, np.int64)
    think_s = row["think_time_s"] or 0.0
    if turns > 1:
        order, arrival_s, before = in_order_of_arrival(sessions, arrival_s, think_s)
        sessions = sessions._replace(**{name: values[order] for name, values in sessions._asdict().items()})
        output_tokens = output_tokens[order]
    blocks = shared_blocks(sessions, prefix, prefix_len)
    levels = row["num_priorities"]
    priority = np.full(n, NO_PRIORITY) if levels is None else ranks.permutation(np.arange(n) % levels)
    return Drawn(arrival_s, sessions.prompt_tokens, output_tokens, before, np.full(n, think_s), priority, blocks)


def _arrivals(generator: np.random.Generator, n: int, row: Mapping) -> np.ndarray:
    """Return the arrivals of n requests or sessions in seconds after the first."""
    if row["ramp_up_strategy"] is None:
        return steady_arrivals(generator, n, row["request_rate"], row["burstiness"])
    rates = ramp_rates(row["ramp_up_strategy"], row["ramp_up_start_rps"], row["ramp_up_end_rps"], n)
    return ramped_arrivals(generator, rates, row["burstiness"])


def _lengths(
    row: Mapping,
    prompts: np.random.Generator,
    outputs: np.random.Generator,
    pairs: np.random.Generator,
    recorded: pa.Table | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the new tokens of each prompt, without a shared prefix, and the tokens to generate; shape [requests]."""
    n, shape = row["num_prompts"], distribution(row)
    if shape == "empirical":
        rows = empirical_rows(pairs, n, recorded.num_rows)
        return recorded["prompt_tokens"].to_numpy()[rows], recorded["output_tokens"].to_numpy()[rows]
    if shape == "lognormal":
        return (
            lognormal_lengths(prompts, n, row["input_len"], row["input_len_cv"]),
            lognormal_lengths(outputs, n, row["output_len"], row["output_len_cv"]),
        )
    return (
        uniform_lengths(prompts, n, row["input_len"], row["range_ratio"]),
        uniform_lengths(outputs, n, row["output_len"], row["range_ratio"]),
    )


def _as_drawn(trace: pa.Table) -> pa.Table:
    """Return the requests of a trace with the columns that only sessions fill."""
    for field in list(DRAWN_SCHEMA)[len(TRACE_SCHEMA) :]:
        trace = trace.append_column(field, pa.nulls(trace.num_rows, field.type))
    return trace


def _as_table(drawn: list[Drawn]) -> pa.Table:
    """Return drawn loads, one after the other, as a table of ``DRAWN_SCHEMA``."""
    if not drawn:
        return DRAWN_SCHEMA.empty_table()
    columns = {name: np.concatenate([getattr(one, name) for one in drawn]) for name in Drawn._fields[:-1]}
    first = columns["after_request_id"] == NO_REQUEST
    blocks = [one.blocks for one in drawn]
    alone = np.repeat([block.block_tokens == 0 for block in blocks], [block.counts.size for block in blocks])
    block_tokens = np.repeat([block.block_tokens for block in blocks], [block.counts.size for block in blocks])
    ends = np.cumsum(np.concatenate([[0], *(block.counts for block in blocks)])).astype(np.int32)
    ids = np.concatenate([block.ids for block in blocks])
    arrays = columns | {
        "external_id": pa.nulls(first.size, pa.string()),
        "hash_ids": pa.ListArray.from_arrays(pa.array(ends), pa.array(ids), mask=pa.array(alone)),
        "hash_block_tokens": pa.array(block_tokens, mask=alone),
        "priority": pa.array(columns["priority"], mask=columns["priority"] == NO_PRIORITY),
        "after_request_id": pa.array(columns["after_request_id"], mask=first),
        "think_s": pa.array(columns["think_s"], mask=first),
    }
    return pa.table([arrays[name] for name in DRAWN_SCHEMA.names], schema=DRAWN_SCHEMA)


def _with_keys(table: pa.Table, load_ids: pa.ChunkedArray, counts: np.ndarray, warmups: np.ndarray) -> pa.Table:
    """Add load_id, request_id and warmup; ``counts`` and ``warmups`` have the requests of each load.

    Warm-ups go first, all at once: copies of the first request, as vLLM's benchmark client sends them.
    """
    owner = np.repeat(np.arange(counts.size), counts + warmups)
    position = np.arange(owner.size) - np.repeat(np.cumsum(counts + warmups) - counts - warmups, counts + warmups)
    ahead = warmups[owner]
    if ahead.any():
        rows = (np.cumsum(counts) - counts)[owner] + np.maximum(position - ahead, 0)
        table = table.take(pa.array(rows))
        shifted = pc.add(table["after_request_id"], pa.array(ahead))
        table = table.set_column(table.schema.get_field_index("after_request_id"), "after_request_id", shifted)
    table = table.add_column(0, "load_id", load_ids.cast(pa.string()).take(pa.array(owner)))
    table = table.add_column(1, "request_id", pa.array(position))
    return table.add_column(table.num_columns - 2, "warmup", pa.array(position < ahead))
