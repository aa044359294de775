"""Speculative decoding: worlds worked out by hand, and random ones against the reference."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.scenario.speculation import MOST_DRAFTS
from kernelsight.serving.compilation.compiled import entry
from kernelsight.serving.engine import drafts, inputs, packed_costs, records, replica
from kernelsight.serving.engine.served import Served, Uses
from tests.conftest import random_worlds
from tests.serving.engine.near import near
from tests.serving.engine.reference_costs import PARTS, PHASES, Costs, priced_tokens
from tests.serving.engine.reference_pipeline import Parts, Pipeline
from tests.serving.engine.reference_scenario import Prefills, serve_scenario
from tests.serving.engine.reference_scheduler import Request, Run, Work
from tests.serving.engine.test_pipeline import check_requests, check_steps, pipelines, spans, with_parts
from tests.serving.engine.worlds import (
    World,
    constant_world,
    draw_surface,
    fleets,
    in_time,
    load_with_last,
    reference_requests,
    units_of_blocks,
)

UNITS = 6


accepted_drafts = entry(drafts.accepted_drafts.py_func)


class Speculative(NamedTuple):
    """A world of one engine with stages and drafts; ``draft``: costs of the model that proposes, None: no model."""

    world: World
    layers: tuple[int, ...]
    draft: inputs.Surface | None = None
    window_tokens: int = 0

    @property
    def pool(self) -> replica.Pool:
        """The engine as the loop takes it."""
        world = self.world
        draft = replica.Draft(packed_costs.pack(self.draft), self.window_tokens) if self.draft else None
        return replica.Pool(world.limits, world.host, packed_costs.pack(world.surface), 1, self.layers, draft)

    def draft_us(self, work: Work) -> float:
        """GPU time of the drafts of a step."""
        if self.draft is None:
            return 0.0
        return Costs(self.draft, self.window_tokens).draft_time(work, self.world.limits)

    def gpu_us(self, work: Work) -> float:
        """GPU time of a step, drafts included."""
        return Costs(self.world.surface, self.world.limits.window_tokens).gpu_time(work) + self.draft_us(work)

    def pipeline(self) -> Pipeline:
        """The reference's stages; the last one proposes."""
        surface = self.world.surface

        def parts(work: Work) -> Parts:
            padded = priced_tokens(surface, work)
            apart = (surface.embedding_us[padded], surface.transfer_us[padded]) if len(self.layers) > 1 else (0.0, 0.0)
            return Parts(*apart, surface.sampled_us[work.sampled] + self.draft_us(work), self.draft_us(work))

        return Pipeline(self.layers, self.world.host, self.gpu_us, parts)


def run_drafts(drawn: Speculative, **kept: object) -> Served:
    """Run the compiled loop on one engine."""
    world, pool = drawn.world, drawn.pool
    told = (world.load, pool.limits, pool.host, pool.costs)
    return in_time(lambda: replica.serve(*told, layers=pool.layers, draft=pool.draft, keep_steps=True, **kept))


def run_reference(drawn: Speculative) -> tuple[list[Request], Run]:
    """Run the reference on one engine."""
    world, requests = drawn.world, reference_requests(drawn.world.load)
    told = (world.load, world.limits, world.host, drawn.gpu_us, inputs.Routing(), 1)
    [run], _ = serve_scenario(requests, *told, pipeline=drawn.pipeline)
    return requests, run


def stated(requests: list[tuple[float, int, int]], draft_us: float | None = None, **limits: object) -> Speculative:
    """Return a world where a step takes 100 us, and one of the model that proposes ``draft_us``."""
    world = constant_world(requests, **limits)
    surface = world.surface._replace(sampled_us=np.zeros(world.surface.token_us.size))
    draft = None if draft_us is None else surface._replace(token_us=np.full_like(surface.token_us, draft_us))
    return Speculative(world._replace(surface=surface), (1,), draft)


# ---------------------------------------------------------------- worked out by hand


def test_the_gpu_waits_for_launches_of_drafts_that_take_longer() -> None:
    # a step of 100 us and drafts of 10, whose launches take 60: prompt, then two decodes of one token each
    drawn = stated([(0, 4, 3)], draft_us=10.0, drafts=1, acceptance=0.0)
    host = drawn.world.host._replace(drafts_us=60.0)
    slow = drawn._replace(world=drawn.world._replace(host=host))
    (request,), _ = run_reference(slow)
    assert run_drafts(slow).out.finish_us.tolist() == [480] == [request.finish_us]
    assert run_drafts(drawn).out.finish_us.tolist() == [330]
    fast = drawn._replace(world=drawn.world._replace(host=host._replace(drafts_us=5.0)))
    assert run_drafts(fast).out.finish_us.tolist() == [330]


def test_all_drafts_accepted_give_one_token_more_than_proposed() -> None:
    # the prompt gives 1 token, every step after it 3: 1 + 3 + 3; with 2 drafts the last step has one that is lost
    served = run_drafts(stated([(0, 4, 7)], drafts=2, acceptance=1.0))
    assert spans(served) == [[0, 100, 4, 0], [100, 200, 0, 3], [200, 300, 0, 3]]
    assert served.out.finish_us.tolist() == [300]
    served = run_drafts(stated([(0, 4, 6)], drafts=2, acceptance=1.0))
    assert served.out.finish_us.tolist() == [300]
    assert (served.totals.draft_tokens, served.totals.accepted_tokens) == (4, 4)
    # one gap between tokens for each step: what comes together is one chunk for a client
    assert (served.histogram.sum(), served.totals.gap_sum_us) == (2, 200)


def test_no_draft_accepted_is_one_token_a_step() -> None:
    served = run_drafts(stated([(0, 4, 4)], drafts=3, acceptance=0.0))
    assert spans(served) == [[0, 100, 4, 0], *([100 * s, 100 * s + 100, 0, 4] for s in (1, 2, 3))]
    assert (served.totals.draft_tokens, served.totals.accepted_tokens) == (9, 0)
    # blocks of 4: a token and three drafts reach from 5 to 8, then from 6 to 9 and 7 to 10; what was rejected stays
    assert served.steps[:, UNITS].tolist() == [1, 2, 3, 3]


def test_the_budget_cuts_drafts() -> None:
    # a budget of 4 for two requests with two drafts each: three tokens for the older, one for the other
    served = run_drafts(stated([(0, 2, 4), (0, 2, 4)], drafts=2, acceptance=1.0, max_num_batched_tokens=4))
    assert spans(served) == [[0, 100, 4, 0], [100, 200, 0, 4], [200, 300, 0, 3]]
    # the older one has its 4 tokens at 200, the other 2 there and 3 more at 300, one of them beyond its last
    assert served.out.finish_us.tolist() == [200, 300]


def test_drafts_end_with_the_longest_sequence() -> None:
    # 10 tokens at most: with 8 known there is room for one draft, with 9 for none
    served = run_drafts(stated([(0, 4, 6)], drafts=3, acceptance=0.0, max_model_len=10))
    assert served.steps[:, 3].tolist() == [0, 4, 4, 3, 2, 1]


def test_the_model_that_proposes_passes_once_for_each_draft() -> None:
    # 10 us a pass: three beside every step; its first one sees the prompt too
    served = run_drafts(stated([(0, 4, 3)], draft_us=10.0, drafts=3, acceptance=0.0))
    assert [end - start for start, end, *_ in spans(served)] == [130, 130, 130]
    # a chunk that does not end its prompt has nothing to propose: one pass
    served = run_drafts(stated([(0, 6, 1)], draft_us=10.0, drafts=3, acceptance=0.0, max_num_batched_tokens=4))
    assert [end - start for start, end, *_ in spans(served)] == [110, 130]


def test_acceptance_is_the_share_that_it_says() -> None:
    always = np.full(MOST_DRAFTS, 0.6)
    counts = np.array([accepted_drafts(number, known, 3, always) for number in range(200) for known in range(50)])
    # 0.6 + 0.36 + 0.216 of three, within four standard errors
    assert counts.mean() == pytest.approx(1.176, abs=4 * counts.std() / 100)
    by_position = np.array([0.9, 0.5, 0.25, 1.0])
    counts = np.array([accepted_drafts(number, known, 4, by_position) for number in range(200) for known in range(50)])
    shares = [(counts > position).mean() for position in range(4)]
    assert shares == pytest.approx([0.9, 0.45, 0.1125, 0.1125], abs=0.02)


def test_a_block_head_passes_once_for_all_drafts() -> None:
    # 10 us a pass, whatever it holds; a chunk that does not end its prompt proposes nothing
    served = run_drafts(stated([(0, 4, 3)], draft_us=10.0, drafts=3, acceptance=0.0, draft_block=True))
    assert [end - start for start, end, *_ in spans(served)] == [110, 110, 110]
    told = {"draft_us": 10.0, "drafts": 3, "acceptance": 0.0, "max_num_batched_tokens": 4, "draft_block": True}
    served = run_drafts(stated([(0, 6, 1)], **told))
    assert [end - start for start, end, *_ in spans(served)] == [100, 110]


# ---------------------------------------------------------------- random worlds


@st.composite
def speculative(draw: st.DrawFn) -> Speculative:
    """Draw a world of ``pipelines`` on 1 to 5 stages, with drafts of a model or of none."""
    world, layers = draw(pipelines())
    return draw(with_drafts(world, draw(st.sampled_from([(1,), (1,), layers]))))


@st.composite
def with_drafts(draw: st.DrawFn, world: World, layers: tuple[int, ...], whole: bool = False) -> Speculative:
    """Draw drafts for a world; its step costs reach as far as there are tokens to sample."""
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    limits = world.limits._replace(
        drafts=draw(st.integers(1, 4)),
        acceptance=draw(st.sampled_from([0.0, 0.3, 0.8, 1.0, (0.9, 0.5, 0.7, *[0.2] * (MOST_DRAFTS - 3))])),
        draft_block=draw(st.booleans()),
        draft_depth=draw(st.integers(1, 5)),
        draft_branches=draw(st.integers(1, 3)),
    )
    surface = draw_surface(dice, limits, whole, constant=whole)
    sampled_us = np.cumsum(dice.integers(0, 4, limits.max_num_batched_tokens + 1)).astype(float)
    host = world.host._replace(drafts_us=draw(st.sampled_from([0.0, 90.0])))
    world = world._replace(limits=limits, host=host, surface=world.surface._replace(sampled_us=sampled_us))
    draft = draw(st.sampled_from([None, surface._replace(token_us=surface.token_us / 8, sampled_us=sampled_us / 2)]))
    return Speculative(world, layers, draft, draw(st.sampled_from([0, 5, 30])))


@random_worlds(1000)
@given(drawn=speculative())
def test_drafts_agree_with_reference(drawn: Speculative) -> None:
    requests, run = run_reference(drawn)
    served = run_drafts(drawn)
    check_requests(served.out, requests)
    check_steps(served.steps, run)
    check_uses(Costs(drawn.world.surface, drawn.world.limits.window_tokens).uses(run), served.uses)
    if drawn.draft is not None:
        own = Costs(drawn.draft, drawn.window_tokens)
        check_uses(own.uses(run, drawn.world.limits), served.draft_uses)
    all_blocks_come_back(drawn)
    totals = served.totals
    assert totals.steps == len(run.steps)
    assert totals.preemptions == sum(r.preemptions for r in requests)
    assert totals.idle_us == pytest.approx(run.idle_us, rel=1e-9, abs=1e-4)
    assert (totals.draft_tokens, totals.accepted_tokens) == (run.proposed, run.accepted)
    times = [sorted(set(r.token_times_us)) for r in requests]
    gaps = [b - a for each in times for a, b in zip(each, each[1:], strict=False)]
    assert totals.gap_sum_us == near(sum(gaps))
    assert served.histogram.sum() == len(gaps)


def check_uses(expected: dict, uses: Uses) -> None:
    for number, phase in enumerate(PHASES):
        for part in PARTS:
            counted = getattr(uses, part)[number]
            wanted = np.zeros_like(counted)
            for (name, i, j), weight in expected[phase].items():
                if name == part:
                    wanted[(i, j)[: wanted.ndim]] += weight
            assert counted.ravel().tolist() == near(wanted.ravel(), 1e-7), (phase, part)


@st.composite
def halves(draw: st.DrawFn) -> tuple:
    """Draw a world whose prompts some engines compute, with or without drafts, and others decode, with drafts."""
    fleet = draw(fleets())
    world = with_parts(fleet.world, 0.0, 0.0)
    prefill = draw(with_drafts(world, (1,), whole=True))
    decode = draw(with_drafts(world._replace(limits=replica.decode_limits(world.limits)), (1,), whole=True))
    return fleet, prefill, decode, draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))


@random_worlds(300)
@given(drawn=halves(), transfer=st.sampled_from([inputs.Transfer(0.0), inputs.Transfer(2.0, 1.0, 7, 5.0, 16.0)]))
def test_halves_with_drafts_agree_with_reference(drawn: tuple, transfer: inputs.Transfer) -> None:
    fleet, prefill, decode, engines = drawn
    world = prefill.world
    first = Prefills(world.limits, world.host, prefill.gpu_us, engines[0], transfer, prefill.pipeline)
    requests = reference_requests(world.load)
    told = (world.load, decode.world.limits, world.host, decode.gpu_us, fleet.routing, engines[1], first)
    runs, replicas = serve_scenario(requests, *told, pipeline=decode.pipeline)
    pools = [each.pool._replace(engines=count) for each, count in zip((prefill, decode), engines, strict=True)]
    serve = replica.serve_scenario
    served = in_time(lambda: serve(world.load, pools, fleet.routing, transfer=transfer, keep_steps=True))
    assert served.out.replica.tolist() == replicas
    check_requests(served.out, requests)
    for run, steps in zip(runs, served.steps, strict=True):
        assert steps[:, 1].tolist() == near([s.end_us for s in run.steps])


def all_blocks_come_back(drawn: Speculative) -> None:
    """Assert INV-4: a request of one token long after all others finds the memory empty."""
    world = drawn.world
    served = run_drafts(drawn._replace(world=world._replace(load=load_with_last(world.load))))
    limits = world.limits
    one = units_of_blocks(limits, 1)
    if served.out.status[-1] == records.FINISHED:
        assert served.steps[-1, UNITS] == one
