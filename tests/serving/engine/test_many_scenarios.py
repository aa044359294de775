"""Scenarios of one compiled call against the same scenarios by themselves, on random small worlds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelsight.serving.engine import inputs, packed_costs, records, replica, statistics
from kernelsight.serving.engine.many_scenarios import Columns, Loads, Results, Workspace, serve_loads
from tests.serving.engine.worlds import World, in_time, policy_worlds, worlds


def in_one_call(loads: list[inputs.Load], world: World) -> Results:
    """Serve loads on engines of one world, one after the other in the same workspace."""
    count = np.array([load.arrival_us.size for load in loads])
    plain = [load.priority if load.priority.size else np.zeros(load.arrival_us.size, np.int64) for load in loads]
    warmups = np.array([load.warmups for load in loads])
    columns = Columns(
        *(
            np.concatenate([getattr(load, name) for load in loads])
            for name in ("arrival_us", "prompt_tokens", "output_tokens")
        ),
        np.concatenate(plain),
        np.concatenate([np.arange(size) < warm for size, warm in zip(count, warmups, strict=True)]),
    )
    concurrency = np.array([load.max_concurrency for load in loads])
    users = np.array([load.user_us for load in loads])
    objectives = np.full((count.size, 3), np.inf)
    pool = replica.Pool(world.limits, world.host, packed_costs.pack(world.surface))
    workspace = Workspace.of(int(count.max()), world.limits.max_num_seqs, pool.costs.values.size)
    asked = Loads(np.cumsum(count) - count, count, warmups, concurrency, users, objectives)
    return in_time(lambda: serve_loads(columns, asked, pool, workspace))


@settings(max_examples=30, deadline=None)
@given(st.one_of(worlds(), policy_worlds()), worlds())
def test_scenarios_of_one_call_are_what_each_is_alone(world: World, other: World) -> None:
    loads = [load._replace(hash_tokens=0) for load in (world.load, other.load, world.load)]
    told = in_one_call(loads, world)
    starts = np.cumsum(told.filled) - told.filled
    for number, load in enumerate(loads):
        alone = replica.serve(load, world.limits, world.host, packed_costs.pack(world.surface))
        assert [told.engines[number][name] for name in replica.TOTALS] == list(alone.totals)
        filled = slice(starts[number], starts[number] + told.filled[number])
        assert np.array_equal(told.bins[filled], np.flatnonzero(alone.histogram))
        assert np.array_equal(told.gaps[filled], alone.histogram[alone.histogram > 0])
        finished = alone.out.status == records.FINISHED
        finished[: load.warmups] = False
        counts = told.counts[number]
        assert counts[statistics.REQUESTS] == finished.size - load.warmups
        assert counts[statistics.COMPLETED] == finished.sum()
        assert counts[statistics.OUTPUT_TOKENS] == load.output_tokens[finished].sum()
        sent, first = (np.rint(times[finished] * 1e3) for times in (alone.out.sent_us, alone.out.first_token_us))
        ttft_ms = told.samples[number, statistics.SAMPLES.index("ttft"), : finished.sum()]
        assert np.array_equal(ttft_ms, (first - sent) / 1e6)
