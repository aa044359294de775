"""Engines with pipeline stages: worlds worked out by hand, and random ones against the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.serving.engine import inputs, packed_costs, records, replica
from kernelsight.serving.engine.served import Outcome, Served
from kernelsight.serving.engine.steps import STAGE_WAIT
from tests.conftest import random_worlds
from tests.serving.engine.near import near
from tests.serving.engine.reference_costs import PARTS, PHASES, Costs, priced_tokens
from tests.serving.engine.reference_pipeline import Parts, Pipeline
from tests.serving.engine.reference_scenario import Prefills, serve_scenario
from tests.serving.engine.reference_scheduler import Request, Run, Work
from tests.serving.engine.test_loop_against_reference import STATUS
from tests.serving.engine.worlds import (
    Fleet,
    World,
    caching_worlds,
    constant_world,
    fleets,
    in_time,
    load_with_last,
    policy_worlds,
    reference_requests,
    run_loop,
    units_of_blocks,
    worlds,
)

START, END, PROMPT, DECODE, RUNNING, WAITING, UNITS, HOST = range(8)
WORDS = STATUS | {"earlier_turn": records.EARLIER_TURN}


def with_parts(world: World, embedding: float, transfer: float) -> World:
    """Say which share of what tokens cost is the embedding, and which the transfers between stages."""
    token_us = world.surface.token_us
    parts = {"embedding_us": embedding * token_us, "transfer_us": transfer * token_us}
    return world._replace(surface=world.surface._replace(**parts))


def run_pipeline(world: World, layers: tuple[int, ...], **kept: object) -> Served:
    """Run the compiled loop on one engine with these layers on its stages."""
    costs, kept = packed_costs.pack(world.surface), {"keep_steps": True} | kept
    if len(layers) > 1:
        if not world.surface.embedding_us.size:
            costs = packed_costs.pack(with_parts(world, 0.0, 0.0).surface)
        return in_time(lambda: replica.serve(world.load, world.limits, world.host, costs, layers=layers, **kept))
    return run_loop(world)


def pipeline_of(world: World, layers: tuple[int, ...]) -> Callable[[], Pipeline] | None:
    """Return what makes the reference's stages; None for one stage."""
    if len(layers) == 1:
        return None
    surface, costs = world.surface, Costs(world.surface, world.limits.window_tokens)

    def parts(work: Work) -> Parts:
        padded = priced_tokens(surface, work)
        return Parts(surface.embedding_us[padded], surface.transfer_us[padded], surface.sampled_us[work.sampled])

    return lambda: Pipeline(layers, world.host, costs.gpu_time, parts)


def run_reference(world: World, layers: tuple[int, ...]) -> tuple[list[Request], Run]:
    """Run the reference on one engine."""
    requests = reference_requests(world.load)
    costs = Costs(world.surface, world.limits.window_tokens)
    told = (world.load, world.limits, world.host, costs.gpu_time, inputs.Routing(), 1)
    [run], _ = serve_scenario(requests, *told, pipeline=pipeline_of(world, layers))
    return requests, run


def spans(served: Served) -> list[list[int]]:
    """Start, end, prompt and decode tokens of each step."""
    return served.steps[:, :4].astype(int).tolist()


# ---------------------------------------------------------------- worked out by hand: two stages of 50 us each


def test_two_requests_are_in_two_stages_at_once() -> None:
    # A's prompt is in the first stage from 0 on, in the second from 50 on. B comes at 10, when nobody looks: at 100,
    # when A's token is back, B's prompt and A's next token are one batch.
    served = run_pipeline(constant_world([(0, 4, 3), (10, 4, 3)]), (1, 1))
    assert spans(served) == [[0, 100, 4, 0], [100, 200, 4, 1], [200, 300, 0, 2], [300, 400, 0, 1]]
    # a budget of 4: B's prompt follows A's through the stages, and both decode by turns, half a pass apart
    served = run_pipeline(constant_world([(0, 4, 3), (0, 4, 3)], max_num_batched_tokens=4), (1, 1))
    assert spans(served) == [
        *([0, 100, 4, 0], [50, 150, 4, 0], [100, 200, 0, 1], [150, 250, 0, 1]),
        *([200, 300, 0, 1], [250, 350, 0, 1]),
    ]
    assert served.out.first_token_us.tolist() == [100, 150]
    assert served.out.finish_us.tolist() == [300, 350]
    # both stages work from 50 to 300, one of them in the first and in the last 50 us
    assert (served.totals.gpu_us, served.totals.idle_us) == (600, 2 * 350 - 600)


def test_chunks_of_one_prompt_follow_each_other() -> None:
    # 8 tokens in chunks of 4: the second chunk enters when the first has left the first stage; one token comes back
    served = run_pipeline(constant_world([(0, 8, 2)], max_num_batched_tokens=4), (1, 1))
    assert spans(served) == [[0, 100, 4, 0], [50, 150, 4, 0], [150, 250, 0, 1]]
    assert served.out.first_token_us[0] == 150


def test_a_chunk_waits_for_the_one_before_it_where_requests_in_flight_are_skipped() -> None:
    # the second chunk is formed at 100, when the first has come back; another prompt goes between them
    limits = {"max_num_batched_tokens": 4, "chunks_overlap": False}
    assert spans(run_pipeline(constant_world([(0, 8, 1)], **limits), (1, 1))) == [[0, 100, 4, 0], [100, 200, 4, 0]]
    served = run_pipeline(constant_world([(0, 8, 1), (0, 8, 1)], **limits), (1, 1))
    assert spans(served) == [[0, 100, 4, 0], [50, 150, 4, 0], [100, 200, 4, 0], [150, 250, 4, 0]]
    assert served.out.finish_us.tolist() == [200, 250]


def test_the_slowest_stage_sets_the_pace() -> None:
    # layers 1 and 3 of 100 us: the second batch waits 50 us between the stages, the third is formed at 100
    served = run_pipeline(constant_world([(0, 4, 2), (0, 4, 1)], max_num_batched_tokens=4), (1, 3))
    assert spans(served) == [[0, 100, 4, 0], [25, 175, 4, 0], [100, 250, 0, 1]]
    assert served.steps[:, STAGE_WAIT].tolist() == [0, 50, 50]


def test_embedding_logits_and_transfers_have_their_stages() -> None:
    # of 100 us 20 are the embedding and 30 the transfer: 25 + 20 and 25 + 30; so B's prompt enters at 45 and waits 10
    world = constant_world([(0, 4, 1), (0, 4, 1)], max_num_batched_tokens=4)
    served = run_pipeline(with_parts(world, 0.2, 0.3), (1, 1))
    assert spans(served) == [[0, 100, 4, 0], [45, 155, 4, 0]]
    assert served.steps[:, STAGE_WAIT].tolist() == [0, 10]


def test_the_host_prepares_one_batch_after_another() -> None:
    # 40 us on the host before a batch enters: A's at 40, B's, prepared at 80, when A's has left the first stage at 90
    host = {"base_us": 40.0, "overlapped": False}
    world = constant_world([(0, 4, 2), (0, 4, 1)], max_num_batched_tokens=4, host=host)
    served = run_pipeline(world, (1, 1))
    assert spans(served) == [[0, 140, 4, 0], [90, 190, 4, 0], [140, 280, 0, 1]]
    assert served.steps[:, HOST].tolist() == [40, 0, 40]
    # beside the first stage it shows where it is the longer
    world = world._replace(host=world.host._replace(base_us=70.0, overlapped=True))
    assert spans(run_pipeline(world, (1, 1))) == [[0, 120, 4, 0], [70, 190, 4, 0], [140, 260, 0, 1]]


def test_each_stage_looks_at_all_that_run() -> None:
    # 10 us a running request: A alone takes 60 us a stage, B's prompt beside A, in another batch, 70
    world = constant_world([(0, 4, 1), (0, 4, 1)], max_num_batched_tokens=4, host={"per_active_us": 10.0})
    assert spans(run_pipeline(world, (1, 1))) == [[0, 120, 4, 0], [60, 200, 4, 0]]


def test_a_request_that_is_preempted_in_flight_gets_its_token() -> None:
    # 4 blocks. A (8 tokens) and B (7) have two each, in two batches. At 100 A needs a third: B goes, whose prompt is in
    # the second stage until 150; its first token comes back then. A ends at 300, and B's 8 known tokens are recomputed.
    world = constant_world([(0, 8, 3), (0, 7, 3)], capacity_units=4, max_num_batched_tokens=8)
    served = run_pipeline(world, (1, 1))
    assert spans(served) == [
        *([0, 100, 8, 0], [50, 150, 7, 0], [100, 200, 0, 1], [200, 300, 0, 1]),
        *([300, 400, 8, 0], [400, 500, 0, 1]),
    ]
    assert served.out.preemptions.tolist() == [0, 1]
    assert served.out.first_token_us.tolist() == [100, 150]
    assert served.out.finish_us.tolist() == [300, 500]


def test_asynchronous_batches_know_who_had_come_when_the_one_before_was_formed() -> None:
    # A and B go by turns, a batch every 50 us; C comes at 110, and is in the batch that is formed at 200, not at 150
    requests = [(0, 4, 5), (0, 4, 5), (110, 2, 1)]
    limits = {"max_num_batched_tokens": 4}
    assert run_pipeline(constant_world(requests, **limits), (1, 1)).out.scheduled_us[2] == 150
    assert run_pipeline(constant_world(requests, **limits, asynchronous=True), (1, 1)).out.scheduled_us[2] == 200


# ---------------------------------------------------------------- random worlds


@st.composite
def stages(draw: st.DrawFn) -> tuple[int, ...]:
    """Draw 2 to 5 stages of 1 to 3 layers."""
    return tuple(draw(st.lists(st.integers(1, 3), min_size=2, max_size=5)))


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[World, tuple[int, ...]]:
    """Draw a world of one engine with stages, embedding, transfers, and gaps between kernels."""
    world = with_parts(draw(worlds() | caching_worlds() | policy_worlds()), 0.125, draw(st.sampled_from([0.0, 0.25])))
    gap_us = draw(st.sampled_from([0.0, 12.0]))
    host = world.host._replace(exposed_us=world.host.exposed_us + gap_us, gap_us=gap_us)
    limits = world.limits._replace(chunks_overlap=draw(st.booleans()))
    return world._replace(host=host, limits=limits), draw(stages())


@random_worlds(1000)
@given(drawn=pipelines())
def test_pipelines_agree_with_reference(drawn: tuple[World, tuple[int, ...]]) -> None:
    world, layers = drawn
    served = run_pipeline(world, layers)
    invariants_hold(world, layers, served)
    all_blocks_come_back(world, layers)
    windows_of_overlapping_steps_count_time_once(world, layers)
    requests, run = run_reference(world, layers)
    check_requests(served.out, requests)
    check_steps(served.steps, run)
    check_uses(world, served, run)
    totals = served.totals
    assert totals.steps == len(run.steps)
    assert totals.preemptions == sum(r.preemptions for r in requests)
    assert totals.idle_us == pytest.approx(run.idle_us, rel=1e-9, abs=1e-4)
    gaps = [b - a for r in requests for a, b in zip(r.token_times_us, r.token_times_us[1:], strict=False)]
    assert totals.gap_sum_us == near(sum(gaps))
    assert served.histogram.sum() == len(gaps)


def check_requests(out: Outcome, requests: list[Request]) -> None:
    assert out.status.tolist() == [WORDS[r.status] for r in requests]
    assert out.preemptions.tolist() == [r.preemptions for r in requests]
    assert out.cached_tokens.tolist() == [r.hit_tokens for r in requests]
    for name in ("sent_us", "scheduled_us", "finish_us", "requeued_us", "recomputed_us"):
        assert getattr(out, name).tolist() == near([getattr(r, name) for r in requests]), name
    assert out.first_token_us.tolist() == near([(r.token_times_us or [-1.0])[0] for r in requests])


def check_steps(steps: np.ndarray, run: Run) -> None:
    counts = [(s.work.prompt_tokens, s.work.decode_tokens, s.running, s.waiting, s.units) for s in run.steps]
    assert steps[:, PROMPT : UNITS + 1].astype(int).tolist() == [list(row) for row in counts]
    assert steps[:, START].tolist() == near([s.start_us for s in run.steps])
    assert steps[:, END].tolist() == near([s.end_us for s in run.steps])
    assert steps[:, HOST].tolist() == near([s.host_us for s in run.steps], 1e-5)
    waits = [s.end_us - s.start_us - s.host_us - s.gpu_us for s in run.steps]
    assert steps[:, STAGE_WAIT].tolist() == near(waits, 1e-5)


def check_uses(world: World, served: Served, run: Run) -> None:
    expected = Costs(world.surface, world.limits.window_tokens).uses(run)
    for number, phase in enumerate(PHASES):
        for part in PARTS:
            counted = getattr(served.uses, part)[number]
            wanted = np.zeros_like(counted)
            for (name, i, j), weight in expected[phase].items():
                if name == part:
                    wanted[(i, j)[: wanted.ndim]] += weight
            assert counted.ravel().tolist() == near(wanted.ravel(), 1e-7), (phase, part)


@random_worlds(400)
@given(fleet=fleets(), layers=st.sampled_from([(1, 1), (1, 3), (3, 1), (1, 1, 2), (1, 1, 1, 1)]))
@pytest.mark.whole
def test_fleets_of_pipelines_agree_with_reference(fleet: Fleet, layers: tuple[int, ...]) -> None:
    # shares of a power of two: engines that are alike do things at the same time, to the last bit
    world = with_parts(fleet.world, 0.0, 0.0)
    requests = reference_requests(world.load)
    costs = Costs(world.surface, world.limits.window_tokens)
    told = (world.load, world.limits, world.host, costs.gpu_time, fleet.routing, fleet.engines)
    runs, replicas = serve_scenario(requests, *told, pipeline=pipeline_of(world, layers))
    pool = replica.Pool(world.limits, world.host, packed_costs.pack(world.surface), fleet.engines, layers)
    served = in_time(lambda: replica.serve_scenario(world.load, [pool], fleet.routing, keep_steps=True))
    assert served.out.replica.tolist() == replicas
    check_requests(served.out, requests)
    for run, steps in zip(runs, served.steps, strict=True):
        check_steps(steps, run)


@random_worlds(300)
@given(
    fleet=fleets(),
    layers=st.tuples(*[st.sampled_from([(1,), (1, 1), (1, 3), (1, 1, 2)])] * 2),
    engines=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    transfer=st.sampled_from([inputs.Transfer(0.0), inputs.Transfer(2.0, 1.0, 7, 5.0, 16.0)]),
)
@pytest.mark.whole
def test_halves_of_pipelines_agree_with_reference(
    fleet: Fleet, layers: tuple, engines: tuple[int, int], transfer: inputs.Transfer
) -> None:
    world = with_parts(fleet.world, 0.0, 0.0)
    limits = replica.decode_limits(world.limits)
    decode = world._replace(limits=limits)
    costs = [Costs(each.surface, each.limits.window_tokens) for each in (world, decode)]
    prefills = Prefills(
        world.limits, world.host, costs[0].gpu_time, engines[0], transfer, pipeline_of(world, layers[0])
    )
    requests = reference_requests(world.load)
    told = (world.load, limits, world.host, costs[1].gpu_time, fleet.routing, engines[1], prefills)
    runs, replicas = serve_scenario(requests, *told, pipeline=pipeline_of(decode, layers[1]))
    pools = [
        replica.Pool(each.limits, each.host, packed_costs.pack(each.surface), count, own)
        for each, count, own in zip((world, decode), engines, layers, strict=True)
    ]
    serve = replica.serve_scenario
    served = in_time(lambda: serve(world.load, pools, fleet.routing, transfer=transfer, keep_steps=True))
    assert served.out.replica.tolist() == replicas
    check_requests(served.out, requests)
    for run, steps in zip(runs, served.steps, strict=True):
        counts = [(s.work.prompt_tokens, len(s.work.contexts), s.running, s.units) for s in run.steps]
        assert steps[:, [PROMPT, DECODE, RUNNING, UNITS]].astype(int).tolist() == [list(row) for row in counts]
        assert steps[:, END].tolist() == near([s.end_us for s in run.steps])


# ---------------------------------------------------------------- invariants (numbers as in tests/invariants)


def invariants_hold(world: World, layers: tuple[int, ...], served: Served) -> None:
    out, steps, limits = served.out, served.steps, world.limits
    done = out.status == records.FINISHED
    plain = run_loop(world)
    # INV-1: who is served, and why not, does not depend on the stages
    assert np.array_equal(out.status, plain.out.status)
    assert np.all(out.finish_us[done] >= 0.0)
    # INV-2: what nobody preempted is computed once
    assert served.histogram.sum() == (world.load.output_tokens[done] - 1).sum()
    if served.totals.preemptions == 0:
        assert steps[:, DECODE].sum() == (world.load.output_tokens[done] - 1).sum()
        assert steps[:, PROMPT].sum() == (world.load.prompt_tokens - out.cached_tokens)[done].sum()
    # INV-3: batches pass the stages in order
    moments = [world.load.arrival_us, out.sent_us, out.scheduled_us, out.first_token_us, out.finish_us]
    for before, after in zip(moments, moments[1:], strict=False):
        assert np.all(before[done] <= after[done] + 1e-6)
    assert np.all(np.diff(steps[:, START]) >= -1e-6) and np.all(np.diff(steps[:, END]) >= -1e-6)
    # at most as many in flight as there are stages
    depth = len(layers)
    assert np.all(steps[depth:, START] >= steps[:-depth, END] - 1e-6)
    # INV-4, INV-5: memory, budget and cap
    assert np.all((steps[:, UNITS] >= 0) & (steps[:, UNITS] <= limits.capacity_units))
    tokens = steps[:, PROMPT] + steps[:, DECODE]
    assert np.all((tokens >= 1) & (tokens <= limits.max_num_batched_tokens))
    assert np.all(steps[:, RUNNING] <= limits.max_num_seqs)
    # INV-9: stages work, wait for the host, or are idle
    totals = served.totals
    whole_us = depth * (totals.last_us - totals.first_us)
    assert totals.gpu_us + totals.host_us + totals.idle_us == pytest.approx(whole_us, rel=1e-9, abs=1e-3)
    gpu_us = (steps[:, END] - steps[:, START] - steps[:, HOST] - steps[:, STAGE_WAIT]).sum()
    assert gpu_us == pytest.approx(totals.gpu_us, rel=1e-9, abs=1e-3)


def all_blocks_come_back(world: World, layers: tuple[int, ...]) -> None:
    """Assert INV-4: a request of one token long after all others finds the memory empty."""
    served = run_pipeline(world._replace(load=load_with_last(world.load)), layers)
    if served.out.status[-1] == records.FINISHED:
        assert served.steps[-1, UNITS] == units_of_blocks(world.limits, 1)


def windows_of_overlapping_steps_count_time_once(world: World, layers: tuple[int, ...]) -> None:
    served = run_pipeline(world, layers, windows_from_us=world.load.arrival_us[0])
    bare = run_pipeline(world, layers, keep_steps=False)
    assert np.array_equal(bare.out.finish_us, served.out.finish_us)
    busy, steps = served.windows.sums[:, 0], served.steps
    assert np.all(busy <= np.diff(served.windows.edges_us) + 1e-3)
    ends = np.append(np.minimum(steps[:-1, END], steps[1:, START]), steps[-1:, END])
    assert busy.sum() == pytest.approx((ends - steps[:, START]).sum(), rel=1e-6, abs=1e-3)
    assert served.windows.sums[:, 3].sum() == served.totals.steps
