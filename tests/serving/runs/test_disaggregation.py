"""Engines that prefill and engines that decode: worlds worked out by hand, and random ones against the reference.

In the worlds by hand every step takes 100 us; requests are (arrival us, prompt, output).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.serving.engine import inputs, packed_costs, records, replica
from kernelsight.serving.engine.served import ServedScenario, Uses
from tests.conftest import random_worlds
from tests.serving.engine.near import near
from tests.serving.engine.reference_costs import PARTS, PHASES, Costs
from tests.serving.engine.reference_pipeline import Parts, Pipeline
from tests.serving.engine.reference_ranks import RankEngine, ranks_of
from tests.serving.engine.reference_scenario import Prefills, serve_scenario
from tests.serving.engine.reference_scheduler import Run, Work
from tests.serving.engine.test_loop_against_reference import STATUS
from tests.serving.engine.test_prefix_worlds import shared_world
from tests.serving.engine.test_ranks import with_experts
from tests.serving.engine.worlds import (
    World,
    adapters_drawn,
    capacities,
    constant_world,
    draw_surface,
    fleets,
    hosts_drawn,
    in_time,
    limits_drawn,
    policies_drawn,
    reference_requests,
)

PREFILL_ENGINE, DECODE_ENGINE = 0, 1


def no_parts(work: Work) -> Parts:
    return Parts(0.0, 0.0, 0.0)


class Halves(NamedTuple):
    """A world of engines that prefill, one of engines that decode (its load is not read), and what is between them."""

    prefill: World
    decode: World
    transfer: inputs.Transfer
    routing: inputs.Routing = inputs.Routing()
    engines: tuple[int, int] = (1, 1)
    ranks: int = 1  # decode engines that step together


def serve(halves: Halves) -> ServedScenario:
    pools = [
        replica.Pool(world.limits, world.host, packed_costs.pack(world.surface), engines, ranks=ranks)
        for world, engines, ranks in zip(halves[:2], halves.engines, (1, halves.ranks), strict=True)
    ]
    load, transfer = halves.prefill.load, halves.transfer
    return in_time(lambda: replica.serve_scenario(load, pools, halves.routing, transfer=transfer, keep_steps=True))


def halves_of(world: World, transfer: inputs.Transfer, engines: tuple[int, int] = (1, 1), **decode: object) -> Halves:
    """The same limits on both sides, but for what is stated of the decode engines."""
    limits = replica.decode_limits(world.limits)._replace(**decode)
    return Halves(world, world._replace(limits=limits), transfer, engines=engines)


def step_counts(served: ServedScenario, engine: int) -> list[list[int]]:
    """Start, prompt tokens, decode tokens, running, waiting and KV units of an engine's steps."""
    return served.steps[engine][:, [0, 2, 3, 4, 5, 6]].astype(int).tolist()


# ---------------------------------------------------------------- worked out by hand


def test_the_first_token_comes_from_the_prefill_engine_and_the_others_after_the_transfer() -> None:
    # prompt computed by 100; 4 tokens of 10 us and a latency of 7 us: 147. Two decode steps end at 247 and 347.
    served = serve(halves_of(constant_world([(0, 4, 3)]), inputs.Transfer(10.0, latency_us=7.0)))
    out = served.out
    assert (out.scheduled_us[0], out.first_token_us[0], out.received_us[0], out.finish_us[0]) == (0, 100, 147, 347)
    assert (out.prefill_replica[0], out.replica[0]) == (PREFILL_ENGINE, DECODE_ENGINE)
    assert step_counts(served, PREFILL_ENGINE) == [[0, 4, 0, 1, 0, 1]]
    # the prompt's block of 4 tokens, and one for the tokens after it
    assert step_counts(served, DECODE_ENGINE) == [[147, 0, 1, 1, 0, 2], [247, 0, 1, 1, 0, 2]]
    # gaps between tokens: 147 with the transfer in it, and 100
    assert sum(totals.gap_sum_us for totals in served.totals) == 247
    assert served.histogram.sum() == 2
    assert [totals.prompt_tokens for totals in served.totals] == [4, 0]


def test_one_token_is_all_that_is_asked_for() -> None:
    served = serve(halves_of(constant_world([(0, 4, 1)]), inputs.Transfer(10.0)))
    assert (served.out.replica[0], served.out.prefill_replica[0], served.out.received_us[0]) == (0, -1, -1.0)
    assert served.out.finish_us[0] == 100
    assert len(served.steps[DECODE_ENGINE]) == 0


def test_prompts_go_over_the_link_one_after_another() -> None:
    # both prompts end at 100: the first is there at 100 + 40 + 5, the second 60 us later
    served = serve(halves_of(constant_world([(0, 4, 2), (0, 6, 2)]), inputs.Transfer(10.0, latency_us=5.0)))
    assert served.out.received_us.tolist() == [145, 205]
    # a link for each engine: side by side
    served = serve(halves_of(constant_world([(0, 4, 2), (0, 6, 2)]), inputs.Transfer(10.0, latency_us=5.0), (2, 1)))
    assert served.out.received_us.tolist() == [145, 165]


def test_windows_send_their_window_and_states_are_sent_whole() -> None:
    transfer = inputs.Transfer(1.0, window_token_us=10.0, window_tokens=3, sequence_us=100.0)
    served = serve(halves_of(constant_world([(0, 8, 2)]), transfer))
    assert served.out.received_us[0] == 100 + 100 + 8 + 30


def test_decodes_go_on_while_others_prefill() -> None:
    # B's prompt is computed beside A's decodes, not between them; B joins the decode step that begins after 250
    served = serve(halves_of(constant_world([(0, 4, 5), (150, 4, 2)]), inputs.Transfer(0.0)))
    assert served.out.first_token_us.tolist() == [100, 250]
    assert served.out.finish_us.tolist() == [500, 400]
    assert [row[:3] for row in step_counts(served, DECODE_ENGINE)] == [
        *([100, 0, 1], [200, 0, 1], [300, 0, 2], [400, 0, 1])
    ]


def test_who_does_not_fit_the_decode_engine_waits_there() -> None:
    # three blocks: A has two from 100 on; B waits until A has ended
    world = constant_world([(0, 4, 3), (0, 4, 2)])
    served = serve(halves_of(world, inputs.Transfer(0.0), capacity_units=3))
    assert served.out.received_us.tolist() == [100, 100]
    assert served.out.finish_us.tolist() == [300, 400]
    assert [row[3:] for row in step_counts(served, DECODE_ENGINE)] == [[1, 1, 2], [1, 1, 2], [1, 0, 2]]


def test_preempted_there_recomputed_there() -> None:
    # Both fill a block of 4 with their prompt and one more with answers: at 9 tokens each needs a third one of 5.
    # B gives way at 500 and is recomputed when A has ended at 600: 8 tokens, in one step that gives its sixth token.
    served = serve(halves_of(constant_world([(0, 4, 6), (0, 4, 6)]), inputs.Transfer(0.0), capacity_units=5))
    assert served.out.preemptions.tolist() == [0, 1]
    assert served.out.finish_us.tolist() == [600, 700]
    assert served.out.requeued_us.tolist() == [0, 100]
    assert served.out.recomputed_us.tolist() == [0, 100]
    assert [totals.prompt_tokens for totals in served.totals] == [8, 9]
    assert served.totals[DECODE_ENGINE].preemptions == 1


def test_what_can_never_be_decoded_is_turned_away_at_once() -> None:
    world = constant_world([(0, 4, 30), (0, 4, 30), (0, 4, 1)])
    served = serve(halves_of(world, inputs.Transfer(0.0), capacity_units=8))
    assert served.out.status.tolist() == [records.NO_MEMORY, records.NO_MEMORY, records.FINISHED]
    served = serve(halves_of(world, inputs.Transfer(0.0), max_model_len=33))
    assert served.out.status.tolist() == [records.TOO_LONG, records.TOO_LONG, records.FINISHED]


def test_prefixes_are_cached_where_prompts_are_computed() -> None:
    # the whole prompt is transferred nevertheless
    world = shared_world([(0, 8, 2, "ab"), (1000, 8, 2, "ac")])
    served = serve(halves_of(world, inputs.Transfer(10.0)))
    assert served.out.cached_tokens.tolist() == [0, 4]
    assert (served.out.received_us - served.out.first_token_us).tolist() == [80, 80]


def test_decode_engines_take_turns_or_the_least_loaded_is_taken() -> None:
    requests = [(0, 4, 9), (300, 4, 2), (600, 4, 9), (900, 4, 2)]
    halves = halves_of(constant_world(requests), inputs.Transfer(0.0), (1, 2))
    assert serve(halves).out.replica.tolist() == [1, 2, 1, 2]
    # at 700 the first decode engine still has A, the second nobody; at 1000 A has ended, the other has C
    halves = halves._replace(routing=inputs.Routing(records.LEAST_LOADED))
    assert serve(halves).out.replica.tolist() == [1, 2, 2, 1]


def test_ranks_that_decode_wait_for_adapters() -> None:
    # prompts end at 100 and go to one rank each, idle until then; the first loads an adapter, and the second waits too
    world = constant_world([(0, 4, 3), (0, 4, 3)])
    world = world._replace(load=world.load._replace(adapter=np.array([0, -1])))
    halves = halves_of(world, inputs.Transfer(0.0), (1, 2), max_loras=1, adapter_places=1, adapter_load_us=30.0)
    decode = with_experts(halves.decode, np.zeros(65))
    served = serve(halves._replace(decode=decode, ranks=2))
    assert served.out.finish_us.tolist() == [330, 330]
    assert [totals.idle_us for totals in served.totals[1:]] == [130, 130]


# ---------------------------------------------------------------- random worlds


@st.composite
def disaggregated(draw: st.DrawFn) -> Halves:
    """Draw engines that prefill (any policies, often a prefix cache), others that decode, and a link."""
    fleet = draw(fleets())
    load = fleet.world.load
    limits = replica.decode_limits(draw(limits_drawn()))
    limits = limits._replace(**(draw(policies_drawn(limits.max_num_batched_tokens)) if draw(st.booleans()) else {}))
    requests = list(zip(load.arrival_us, load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True))
    limits = replica.decode_limits(limits)._replace(capacity_units=draw(capacities(limits, requests)))
    if load.adapter.size and draw(st.booleans()):
        limits = limits._replace(**draw(adapters_drawn()))
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    surface = draw_surface(dice, limits, whole=True, constant=True)
    token_us = 50.0 + np.cumsum(dice.integers(0, draw(st.sampled_from([1, 9, 60])), surface.token_us.size))
    nothing = (np.zeros(1), np.zeros(1), np.zeros((1, 1)))
    surface = inputs.Surface(
        token_us.astype(float), surface.padded_tokens, np.zeros(limits.max_num_seqs + 1), *nothing, *nothing, *nothing
    )
    transfer = inputs.Transfer(
        *(draw(st.sampled_from([0.0, 1.0, 40.0])), draw(st.sampled_from([0.0, 3.0])), draw(st.integers(0, 20))),
        *(draw(st.sampled_from([0.0, 11.0])), draw(st.sampled_from([0.0, 5.0, 500.0]))),
    )
    decode = World(limits, draw(hosts_drawn(whole=True)), surface, load)
    ranks = draw(st.sampled_from([1, 1, 2]))
    if ranks > 1:
        decode = with_experts(decode, np.arange(float(token_us.size)))
    engines = fleet.engines, ranks * draw(st.integers(1, 3))
    return Halves(fleet.world, decode, transfer, fleet.routing, engines, ranks)


@random_worlds(600)
@given(halves=disaggregated())
def test_disaggregated_fleets_agree_with_reference(halves: Halves) -> None:
    served = serve(halves)
    invariants_hold_over_both_pools(halves, served)
    requests = reference_requests(halves.prefill.load)
    front, back = halves.prefill, halves.decode
    prices = [Costs(world.surface, world.limits.window_tokens) for world in (front, back)]
    prefills = Prefills(front.limits, front.host, prices[0].gpu_time, halves.engines[0], halves.transfer)
    told = (front.load, back.limits, back.host, prices[1].gpu_time, halves.routing, halves.engines[1], prefills)
    made = rank_engines(back, halves.ranks, halves.engines[1]) if halves.ranks > 1 else None
    runs, replicas = serve_scenario(requests, *told, made=made)
    out = served.out
    assert out.status.tolist() == [(STATUS | {"earlier_turn": records.EARLIER_TURN})[r.status] for r in requests]
    assert out.replica.tolist() == replicas
    for name in ("prefill_replica", "sent_us", "scheduled_us", "received_us", "finish_us", "preemptions"):
        assert getattr(out, name).tolist() == [getattr(r, name) for r in requests], name
    assert out.cached_tokens.tolist() == [r.hit_tokens for r in requests]
    assert out.first_token_us.tolist() == [(r.token_times_us or [-1.0])[0] for r in requests]
    assert out.requeued_us.tolist() == near([r.requeued_us for r in requests])
    assert out.recomputed_us.tolist() == near([r.recomputed_us for r in requests])
    for run, steps, totals in zip(runs, served.steps, served.totals, strict=True):
        expected = [
            [s.start_us, s.end_us, s.work.prompt_tokens, len(s.work.contexts), s.running, s.waiting, s.units]
            for s in run.steps
        ]
        assert steps[:, :7].tolist() == expected
        assert (totals.steps, totals.idle_us) == (len(run.steps), run.idle_us)
        assert totals.gpu_us == near(sum(s.gpu_us for s in run.steps))
    measured = requests[front.load.warmups :]
    gaps = [b - a for r in measured for a, b in zip(r.token_times_us, r.token_times_us[1:], strict=False)]
    assert served.histogram.sum() == len(gaps)
    assert sum(totals.gap_sum_us for totals in served.totals) == near(sum(gaps))
    for pool, uses in enumerate(served.uses):
        own = runs[: halves.engines[0]] if pool == 0 else runs[halves.engines[0] :]
        check_uses(prices[pool], uses, own)


def rank_engines(world: World, ranks: int, engines: int) -> list[RankEngine]:
    pipelines = [Pipeline((1,), world.host, Costs(world.surface, 0).gpu_time, no_parts) for _ in range(engines)]
    start = float(world.load.arrival_us[0])
    return ranks_of(world.limits, pipelines, world.surface, world.load.hash_tokens, start, ranks)[0]


def check_uses(costs: Costs, uses: Uses, runs: list[Run]) -> None:
    """Each pool pays for its own steps, by phase."""
    for number, phase in enumerate(PHASES):
        for part in PARTS:
            counted = getattr(uses, part)[number]
            wanted = np.zeros_like(counted)
            for run in runs:
                for (name, i, j), weight in costs.uses(run)[phase].items():
                    if name == part:
                        wanted[(i, j)[: wanted.ndim]] += weight
            assert counted.ravel().tolist() == near(wanted.ravel(), 1e-7), (phase, part)


def invariants_hold_over_both_pools(halves: Halves, served: ServedScenario) -> None:
    out, load = served.out, halves.prefill.load
    done = out.status == records.FINISHED
    # INV-1, INV-2: no request is lost, every answer has its tokens, every prompt is computed once, and again after a
    # preemption, when more of it may be cached than cached_tokens counts, which are those of the first admission
    assert np.all((out.finish_us >= 0) == done)
    measured = done & (np.arange(done.size) >= load.warmups)
    assert served.histogram.sum() == (load.output_tokens[measured] - 1).sum()
    computed = sum(totals.prompt_tokens for totals in served.totals)
    asked = (load.prompt_tokens - out.cached_tokens)[done].sum()
    if not out.preemptions.any():
        assert computed == asked
    elif not halves.prefill.limits.prefix_caching:
        assert computed >= asked
    # INV-3
    moved = done & (load.output_tokens > 1)
    assert np.all(out.sent_us[done] <= out.scheduled_us[done])
    assert np.all(out.scheduled_us[done] <= out.first_token_us[done])
    assert np.all(out.first_token_us[moved] <= out.received_us[moved])
    assert np.all(out.received_us[moved] < out.finish_us[moved])
    assert np.array_equal(out.prefill_replica >= 0, moved)
    # INV-4, INV-5, and clocks of engines
    pools = [halves.prefill.limits] * halves.engines[0] + [halves.decode.limits] * halves.engines[1]
    for limits, steps, totals in zip(pools, served.steps, served.totals, strict=True):
        assert np.all((steps[:, 6] >= 0) & (steps[:, 6] <= limits.capacity_units))
        assert np.all(steps[:, 2] + steps[:, 3] <= limits.max_num_batched_tokens)
        assert np.all(steps[:, 4] <= limits.max_num_seqs)
        assert np.all(steps[1:, 0] >= steps[:-1, 1])
        spent_us = totals.gpu_us + totals.host_us + totals.idle_us
        assert spent_us == pytest.approx(totals.last_us - totals.first_us, abs=1e-3)
