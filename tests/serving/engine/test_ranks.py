"""Data-parallel ranks that share experts: worlds worked out by hand, and random ones against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.serving.costs.cuda_graphs import padded_tokens
from kernelsight.serving.engine import inputs, packed_costs, records, replica
from kernelsight.serving.engine.served import ServedScenario
from kernelsight.serving.engine.steps import STAGE_WAIT
from kernelsight.serving.runs.simulation_inputs import routing_of
from kernelsight.session import connect
from tests.conftest import random_worlds
from tests.serving.engine.reference_costs import PHASES, Costs
from tests.serving.engine.reference_pipeline import Parts, Pipeline
from tests.serving.engine.reference_ranks import ranks_of
from tests.serving.engine.reference_scenario import serve_scenario
from tests.serving.engine.reference_scheduler import Work
from tests.serving.engine.test_pipeline import check_requests, check_steps
from tests.serving.engine.worlds import Fleet, World, constant_world, fleets, in_time, reference_requests


def with_experts(world: World, experts_us: np.ndarray) -> World:
    """Give a world routed experts, whose time goes by the tokens of all ranks."""
    surface = world.surface._replace(experts_us=experts_us, experts_communication_us=experts_us / 2.0)
    return world._replace(surface=surface)


def run_ranks(world: World, ranks: int, routing: inputs.Routing | None = None, engines: int = 0) -> ServedScenario:
    """Run the compiled loop on ``engines`` engines (as many as ranks, unless stated), ``ranks`` of them together."""
    costs = packed_costs.pack(world.surface)
    pool = replica.Pool(world.limits, world.host, costs, engines or ranks, ranks=ranks)
    return in_time(lambda: replica.serve_scenario(world.load, [pool], routing, keep_steps=True))


def spans(served: ServedScenario, engine: int) -> list[list[int]]:
    """Start, end, prompt and decode tokens of each step of a rank, and what it waited for the others."""
    return served.steps[engine][:, [0, 1, 2, 3, STAGE_WAIT]].astype(int).tolist()


def two_ranks(requests: list[tuple[float, int, int]], slope: float = 1.0, **limits: object) -> World:
    """Return a world whose steps take 100 us, and ``slope`` us for each token that a rank sends to the experts."""
    world = constant_world(requests, **limits)
    return with_experts(world, slope * np.arange(world.surface.token_us.size))


# ---------------------------------------------------------------- worked out by hand


def test_a_step_lasts_as_long_as_its_slowest_rank() -> None:
    # requests go to ranks in turn: A (8 tokens) to the first, B (2) to the second; the mean of 8 and 2 is 5 tokens
    world = two_ranks([(0, 8, 2), (0, 2, 2)])
    token_us = world.surface.token_us + 10.0 * np.arange(world.surface.token_us.size)
    served = run_ranks(world._replace(surface=world.surface._replace(token_us=token_us)), 2)
    assert spans(served, 0) == [[0, 185, 8, 0, 0], [185, 296, 0, 1, 0]]
    assert spans(served, 1) == [[0, 185, 2, 0, 60], [185, 296, 0, 1, 0]]
    assert [totals.gpu_us for totals in served.totals] == [296, 236]
    assert [totals.idle_us for totals in served.totals] == [0, 60]


def test_a_rank_without_requests_waits_for_the_others() -> None:
    # B comes at 10, when the first rank's step is under way: it begins with the next one, at 104
    served = run_ranks(two_ranks([(0, 8, 2), (10, 4, 1)]), 2)
    assert spans(served, 0) == [[0, 104, 8, 0, 0], [104, 207, 0, 1, 0]]
    assert spans(served, 1) == [[104, 207, 4, 0, 0]]
    assert served.totals[1].idle_us == 104


def test_ranks_with_drafts_wait_for_each_other() -> None:
    # B's prompt of 2 tokens would end at 125: its first token comes with A's, at 185; then each decodes with a draft
    world = two_ranks([(0, 8, 2), (0, 2, 2)], drafts=1, acceptance=0.0)
    token_us = world.surface.token_us + 10.0 * np.arange(world.surface.token_us.size)
    served = run_ranks(world._replace(surface=world.surface._replace(token_us=token_us)), 2)
    assert spans(served, 1) == [[0, 185, 2, 0, 60], [185, 307, 0, 2, 0]]
    assert served.out.first_token_us.tolist() == [185, 185]
    assert served.out.finish_us.tolist() == [307, 307]


def test_graphs_pad_ranks_to_the_largest_batch_and_some_engines_every_step() -> None:
    # A, C and E are on the first rank, B and D on the second: decodes of 3 and 2 tokens, in a graph as if both had 3
    requests = [(0, 1, 3)] * 5
    eager = run_ranks(two_ranks(requests, slope=10.0), 2)
    assert spans(eager, 0)[-1][:4] == [260, 390, 0, 3]
    uneven = [(0, 1, 3)] * 4 + [(0, 4, 3)]
    # 6 and 2 tokens: 4 in the mean; then 3 and 2 decodes: 3 in the mean, rounded up, as in the graph
    assert [row[1] for row in spans(run_ranks(two_ranks(uneven, slope=10.0), 2), 0)] == [140, 270, 400]
    three = [(0, 1, 3)] * 7 + [(0, 9, 1)]
    # ranks of 4 and 12 tokens, then 4 and 3 decodes
    graphs = two_ranks(three, slope=10.0, host={"graph_max_tokens": 8})
    assert [row[1] for row in spans(run_ranks(graphs, 2), 0)] == [180, 320, 460]
    lone = [(0, 2, 3), (0, 2, 1)]
    # after the first step one rank decodes alone: half a token in the mean, rounded up; in a graph as if both did
    assert [row[1] for row in spans(run_ranks(two_ranks(lone, slope=10.0), 2), 0)] == [120, 230, 340]
    four = [(0, 1, 2), (0, 1, 1), (0, 1, 2), (0, 1, 1), (0, 1, 2), (0, 1, 1)]
    # three decodes beside none: two in the mean without a graph, three with one
    assert [row[1] for row in spans(run_ranks(two_ranks(four, slope=10.0), 2), 0)] == [130, 250]
    padded = two_ranks(four, slope=10.0, host={"graph_max_tokens": 4})
    assert [row[1] for row in spans(run_ranks(padded, 2), 0)] == [130, 260]
    # the graph of 4 tokens is the smallest that holds three decodes
    coarse = padded._replace(surface=padded.surface._replace(padded_tokens=padded_tokens(64, 4)))
    assert [row[1] for row in spans(run_ranks(coarse, 2), 0)] == [130, 270]
    # where ranks are padded in every step, prompts are too: 6 and 2 tokens are 6, and 3 and 2 decodes are 3
    every = two_ranks(uneven, slope=10.0, host={"ranks_padded": True})
    assert [row[1] for row in spans(run_ranks(every, 2), 0)] == [160, 290, 420]


def test_balance_holds_prompts_until_every_rank_has_one() -> None:
    # both ranks decode when C comes to the first one at 150; the second has no prompt, and after three such steps
    # the first goes on without it
    requests = [(0, 1, 9), (0, 1, 9), (150, 4, 1)]
    limits = {"balance": True, "attention_dp_batching_wait_iters": 0}
    served = run_ranks(two_ranks(requests, slope=0.0, attention_dp_timeout_iters=4, **limits), 2)
    prompts = [row[0] for row in spans(served, 0) if row[2] == 4]
    # steps at 100, 200, 300 had an unbalanced rank; the fourth, at 400, is the time-out
    assert prompts == [400]
    at_once = run_ranks(two_ranks(requests, slope=0.0, **limits, attention_dp_timeout_iters=0), 2)
    assert [row[0] for row in spans(at_once, 0) if row[2] == 4] == [200]
    # D comes to the second rank at 250: both are computed at 300
    paired = run_ranks(two_ranks([*requests, (250, 4, 1)], slope=0.0, attention_dp_timeout_iters=9, **limits), 2)
    assert [[row[0] for row in spans(paired, rank) if row[2] == 4] for rank in range(2)] == [[300], [300]]
    # with a batching wait of two steps: at 500
    limits["attention_dp_batching_wait_iters"] = 2
    later = run_ranks(two_ranks([*requests, (250, 4, 1)], slope=0.0, attention_dp_timeout_iters=9, **limits), 2)
    assert [row[0] for row in spans(later, 0) if row[2] == 4] == [500]


def test_balance_holds_no_prompts_while_a_rank_decodes_nothing() -> None:
    # B has ended at 100: C, which comes to the first rank at 150, is computed in the next step
    limits = {"balance": True, "attention_dp_batching_wait_iters": 0, "attention_dp_timeout_iters": 9}
    served = run_ranks(two_ranks([(0, 1, 20), (0, 1, 1), (150, 4, 1)], slope=0.0, **limits), 2)
    assert [row[0] for row in spans(served, 0) if row[2] == 4] == [200]


def test_steps_without_any_prompt_count_as_unbalanced() -> None:
    # steps at 100, 200 and 300 are unbalanced, the third lets prompts in, and again at 600: C, seen at 800, in the
    # second of the next three, is computed at 900
    requests = [(0, 1, 20), (0, 1, 20), (750, 4, 1)]
    limits = {"balance": True, "attention_dp_batching_wait_iters": 0, "attention_dp_timeout_iters": 3}
    served = run_ranks(two_ranks(requests, slope=0.0, **limits), 2)
    assert [row[0] for row in spans(served, 0) if row[2] == 4] == [900]


def test_prompts_are_computed_in_every_fourth_step() -> None:
    # both ranks decode from 100 on; C comes at 150, D at 450: the steps for prompts begin at 0, 400 and 800
    requests = [(0, 1, 20), (0, 1, 20), (150, 4, 1), (450, 4, 1)]
    served = run_ranks(two_ranks(requests, slope=0.0, prefill_schedule_interval=4), 2)
    assert [[row[0] for row in spans(served, rank) if row[2] == 4] for rank in range(2)] == [[400], [800]]
    # C and E come to a rank that takes four tokens beside its decode: E is left, and does not wait for 800
    crowd = [*requests[:3], (150, 4, 1), (150, 4, 1)]
    full = run_ranks(two_ranks(crowd, slope=0.0, prefill_schedule_interval=4, max_num_batched_tokens=5), 2)
    assert [row[0] for row in spans(full, 0) if row[2] == 4] == [400, 500]


def test_a_prompt_sent_later_to_another_rank_may_be_seen_earlier() -> None:
    # steps of 100 us begin at 1; C (50 tokens) and D (4), both sent at 980, are seen at 1030 and 984
    requests = [(0, 1, 40), (0, 1, 40), (980, 50, 1), (980, 4, 1)]
    world = two_ranks(requests, slope=0.0, host={"per_prompt_token_us": 1.0})
    served = run_ranks(world, 2)
    assert [[row[0] for row in spans(served, rank) if row[2]][-1] for rank in range(2)] == [1101, 1001]


def test_two_replicas_of_ranks_do_not_wait_for_each_other() -> None:
    # requests in turn: the long prompt is on the first replica's first rank, the second replica ends its step earlier
    world = two_ranks([(0, 16, 1), (0, 2, 1), (0, 2, 1), (0, 2, 1)])
    token_us = world.surface.token_us + 10.0 * np.arange(world.surface.token_us.size)
    served = run_ranks(world._replace(surface=world.surface._replace(token_us=token_us)), 2, engines=4)
    assert [spans(served, engine)[0][1] for engine in range(4)] == [269, 269, 122, 122]


# ---------------------------------------------------------------- random worlds


@st.composite
def rank_fleets(draw: st.DrawFn) -> tuple[Fleet, int]:
    """Draw 1 to 2 replicas of 2 to 3 ranks."""
    fleet, ranks = draw(fleets()), draw(st.integers(2, 3))
    world = fleet.world
    slopes = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).integers(0, 30, world.surface.token_us.size)
    slopes[0] = 0
    limits = world.limits._replace(
        balance=draw(st.booleans()),
        attention_dp_timeout_iters=draw(st.sampled_from([0, 1, 3, 50])),
        attention_dp_batching_wait_iters=draw(st.sampled_from([0, 0, 1, 4])),
        prefill_schedule_interval=draw(st.sampled_from([1, 1, 2, 5])),
    )
    world = with_experts(world._replace(limits=limits), np.cumsum(slopes).astype(float))
    return fleet._replace(world=world, engines=ranks * draw(st.integers(1, 2))), ranks


@random_worlds(800)
@given(drawn=rank_fleets())
def test_ranks_agree_with_reference(drawn: tuple[Fleet, int]) -> None:
    fleet, ranks = drawn
    world = fleet.world
    requests = reference_requests(world.load)
    surface, costs = world.surface, Costs(world.surface, world.limits.window_tokens)

    def parts(work: Work) -> Parts:
        return Parts(0.0, 0.0, surface.sampled_us[work.sampled])

    pipelines = [Pipeline((1,), world.host, costs.gpu_time, parts) for _ in range(fleet.engines)]
    start = float(requests[0].arrival_us)
    made, groups = ranks_of(world.limits, pipelines, surface, world.load.hash_tokens, start, ranks)
    told = (world.load, world.limits, world.host, costs.gpu_time, fleet.routing, fleet.engines)
    runs, replicas = serve_scenario(requests, *told, made=made)
    served = run_ranks(world, ranks, fleet.routing, fleet.engines)
    ranks_of_a_replica_step_together(fleet, ranks, served)
    assert served.out.replica.tolist() == replicas
    check_requests(served.out, requests)
    for run, steps, totals in zip(runs, served.steps, served.totals, strict=True):
        check_steps(steps, run)
        assert totals.idle_us == pytest.approx(run.idle_us, rel=1e-9, abs=1e-4)
        whole_us = totals.last_us - totals.first_us
        assert totals.gpu_us + totals.host_us + totals.idle_us == pytest.approx(whole_us, rel=1e-9, abs=1e-3)
    wanted = np.zeros((3, surface.experts_us.size))
    for group in groups:
        for phase, tokens in group.experts:
            wanted[PHASES.index(phase), tokens] += 1.0
    assert np.array_equal(served.uses[0].experts, wanted)


def ranks_of_a_replica_step_together(fleet: Fleet, ranks: int, served: ServedScenario) -> None:
    for first in range(0, fleet.engines, ranks):
        ends: dict[float, set[float]] = {}
        for engine in range(first, first + ranks):
            for row in served.steps[engine]:
                ends.setdefault(row[1], set()).add(engine)
        # no step of a rank reaches into a later step of another
        moments = sorted(ends)
        for engine in range(first, first + ranks):
            for row in served.steps[engine]:
                later = [moment for moment in moments if row[0] < moment < row[1]]
                assert not later
    done = served.out.status == records.FINISHED
    assert np.all(served.out.finish_us[done] >= 0.0)


# ---------------------------------------------------------------- as a deployment


@pytest.fixture(scope="module")
def uneven():
    load = {"input_len": 600, "output_len": 50, "range_ratio": 0.2, "num_prompts": 120, "request_rate": 60.0}
    plan = {"model": "qwen3-30b-a3b", "gpu": "h100_sxm", "data_parallel_size": 2, "enable_expert_parallel": True}
    with connect() as session:
        run = session.simulate(**plan, **load)
        run.session.compute("kernel_breakdown", "replica_totals", "steps")
        yield run


def rows_of(run, query: str) -> list[dict]:
    return run.sql(query).to_arrow_table().to_pylist()


def test_the_breakdown_of_ranks_adds_up(uneven) -> None:
    """Experts are priced by the tokens of both ranks, and everything by the weights of its knots."""
    (totals,) = rows_of(uneven, "select sum(gpu_ns) / 1e3 as gpu_us, count(*) as ranks from replica_totals")
    breakdown = rows_of(uneven, "select name, sum(total_us) as us from kernel_breakdown group by name")
    assert totals["ranks"] == 2
    assert sum(row["us"] for row in breakdown) == pytest.approx(totals["gpu_us"], rel=1e-6)
    assert {"experts", "moe_dispatch", "moe_combine"} <= {row["name"] for row in breakdown}


def test_steps_of_ranks_end_together_and_say_what_they_waited(uneven) -> None:
    rows = rows_of(
        uneven,
        "select start_ns, end_ns, host_ns, stage_wait_ns, end_ns - start_ns - host_ns - stage_wait_ns as gpu_ns,"
        " count(*) over (partition by end_ns) as together from steps",
    )
    assert sum(row["together"] == 2 for row in rows) > 0.8 * len(rows)
    assert sum(row["stage_wait_ns"] > 0 for row in rows) > 0.2 * len(rows)
    assert all(row["gpu_ns"] > 0 and row["stage_wait_ns"] >= 0 for row in rows)


def test_requests_go_to_the_rank_with_the_fewest_unless_a_router_is_stated(uneven) -> None:
    """SGLang's ranks take them in turn, as every router that is stated does what it says."""
    session = uneven.session
    assert session.table("deployment_settings")["rank_router"].to_pylist() == ["least_loaded"]
    world = {"lock_step": True, "rank_router": "least_loaded"}
    unstated = dict.fromkeys(("router", *(f"router_{name}" for name in inputs.Routing._fields[1:])))
    assert routing_of(unstated, world, {}).router == records.LEAST_LOADED
    assert routing_of(unstated, world | {"lock_step": False}, {}).router == records.ROUND_ROBIN
    assert routing_of(unstated | {"router": "round_robin"}, world, {}).router == records.ROUND_ROBIN
