"""Adapters of one engine, one small world each, worked out by hand: slots, who waits, loads, eviction.

Every step takes 100 us; requests are (arrival us, prompt, output, adapter); -1: none.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.serving.engine import packed_costs
from kernelsight.serving.engine.input_checks import check_inputs
from kernelsight.serving.engine.replica import Pool, serve_scenario
from kernelsight.serving.engine.served import Served
from kernelsight.session import Session
from tests.serving.engine.worlds import World, constant_world, run_loop, run_reference, with_levels


def world_of(requests: list[tuple], **limits: object) -> World:
    slots = {"max_loras": 1, "adapter_places": limits.get("max_loras", 1)} | limits
    world = constant_world([request[:3] for request in requests], **slots)
    return world._replace(load=world.load._replace(adapter=np.array([request[3] for request in requests], np.int64)))


def serve(requests: list[tuple], **limits: object) -> Served:
    """Run the loop; the reference must admit and finish the same."""
    world = world_of(requests, **limits)
    served, run = run_loop(world), run_reference(world)
    assert served.out.scheduled_us.tolist() == [request.scheduled_us for request in run.requests]
    assert served.out.finish_us.tolist() == [request.finish_us for request in run.requests]
    return served


def test_a_request_without_a_slot_is_passed_over_or_holds_back_the_others() -> None:
    # A has the one slot until 300; B waits for it, and C, with A's adapter, goes before it; D needs no slot.
    # Held back, C waits for B's adapter to go, and D behind it
    requests = [(0, 4, 3, 7), (0, 4, 1, 8), (0, 4, 1, 7), (0, 4, 1, -1)]
    assert serve(requests).out.scheduled_us.tolist() == [0, 300, 0, 0]
    assert serve(requests, adapter_head_waits=True).out.scheduled_us.tolist() == [0, 300, 400, 400]
    assert serve(requests, max_loras=2).out.scheduled_us.tolist() == [0, 0, 0, 0]


def test_the_step_that_admits_a_request_waits_for_its_adapter() -> None:
    # two adapters of 30 us for the first step; the third request finds its own; with 0.5 ms from disk for each
    requests = [(0, 4, 1, 0), (0, 4, 1, 1), (500, 4, 1, 0)]
    assert serve(requests, max_loras=2, adapter_load_us=30.0).out.finish_us.tolist() == [160, 160, 600]
    slow = serve(requests, max_loras=2, adapter_load_us=30.0, adapter_read_us=70.0)
    assert slow.out.finish_us.tolist() == [300, 300, 600]
    assert slow.totals.idle_us == 200 + 200  # for the loads, and from 300 to 500


@pytest.mark.parametrize(("places", "ends"), [(2, 2170), (3, 2130)])
def test_the_least_recently_used_adapter_leaves_the_gpu_and_host_memory(places: int, ends: float) -> None:
    # 0 and 1 are loaded, 0 is used again, 2 takes the place of 1 on the GPU; 0 is still there at 1500, and 1 is
    # read from disk once more at 2000 unless host memory has three places
    requests = [(0, 4, 1, 0), (200, 4, 1, 1), (400, 4, 1, 0), (600, 4, 1, 2), (1500, 4, 1, 0), (2000, 4, 1, 1)]
    timing = {"adapter_load_us": 30.0, "adapter_read_us": 40.0}
    out = serve(requests, max_loras=2, adapter_places=places, **timing).out
    assert out.finish_us.tolist() == [170, 370, 500, 770, 1600, ends]


def test_a_preempted_request_gives_its_slot_to_others() -> None:
    # 5 blocks of 4 tokens: A (7 tokens, then 8) and B (8, then 9) need a third and a fourth block at 200: B goes, and
    # with it the use of its adapter; C, with another one, is before it in no queue
    limits = {"max_loras": 2, "capacity_units": 4, "block_size": 4}
    served = serve([(0, 7, 6, 0), (0, 8, 3, 1)], **limits)
    assert served.out.preemptions.tolist() == [0, 1]


def test_steps_cost_by_their_adapters_and_without_one_as_without() -> None:
    # with one adapter a step takes 150 us, with two 200; launches take 40 us of each. A and B decode until 400 and 590,
    # C, which has none, until 690; engines that launch kernels nevertheless take 190 us for the last step
    world = world_of([(0, 4, 2, 0), (0, 4, 3, 1), (0, 4, 4, -1)], max_loras=2)
    host = world.host._replace(exposed_us=40.0, gap_us=40.0, adapter_gap_us=40.0)
    world = world._replace(surface=with_levels(world.surface, [1, 2]), host=host)
    for launched, ends in ((0, [480, 670, 770]), (1, [480, 670, 860])):
        one = world._replace(limits=world.limits._replace(launched_tokens=launched))
        served, run = run_loop(one), run_reference(one)
        assert served.out.finish_us.tolist() == ends == [request.finish_us for request in run.requests]


def test_requests_of_a_load_that_names_no_adapters_have_one_of_all() -> None:
    # of two adapters one request has one, two requests are expected to have 1.5: two; a step takes 150 and 200 us
    world = constant_world([(0, 4, 2), (0, 4, 1)], max_loras=2, adapter_places=2)
    served = run_loop(world._replace(surface=with_levels(world.surface, [1, 2])))
    assert served.out.finish_us.tolist() == [350, 200]
    stages = world._replace(surface=with_levels(world.surface, [1, 2]))
    pool = Pool(stages.limits._replace(drafts=1, acceptance=0.0), stages.host, packed_costs.pack(stages.surface))
    assert serve_scenario(stages.load, [pool]).out.finish_us.tolist() == [350, 200]


def test_each_rank_costs_by_its_own_adapters() -> None:
    # the first rank's request has an adapter: 150 us a step, for which the second waits
    world = world_of([(0, 4, 2, 0), (0, 4, 2, -1)])
    surface = with_levels(world.surface, [1])._replace(experts_us=np.zeros(65), experts_communication_us=np.zeros(65))
    pool = Pool(world.limits, world.host, packed_costs.pack(surface), 2, ranks=2)
    served = serve_scenario(world.load, [pool])
    assert served.out.finish_us.tolist() == [300, 300]
    assert [totals.gpu_us for totals in served.totals] == [300, 200]


SKIPS = [("vllm", "0.19", True), ("vllm", "0.10", False), ("sglang", "0.5.9", False)]


@pytest.mark.parametrize(("engine", "version", "skips"), SKIPS)
def test_steps_without_adapters_cost_as_on_a_server_without(
    session: Session, tmp_path: Path, engine: str, version: str, skips: bool
) -> None:
    """Where the engine skips the kernels; graphs of older vLLM, and SGLang, launch them all the same."""
    trace = tmp_path / "trace.jsonl"
    rows = [{"prompt_tokens": 300, "output_tokens": 20, "arrival_s": s, "adapter": a} for s, a in ((0, None), (9, "a"))]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    flags = {"model": "qwen3-0.6b", "gpu": "l4", "engine": engine, "engine_version": version, "trace": str(trace)}
    plain, served = (
        session.simulate(**flags, enable_lora=lora).table("request_metrics")["e2e_ms"].to_pylist()
        for lora in (False, True)
    )
    assert (served[0] == pytest.approx(plain[0], rel=1e-9)) == skips
    assert served[1] > served[0] >= plain[0] * (1 - 1e-9)


def test_more_adapters_than_places_are_refused() -> None:
    world = world_of([(0, 4, 1, 0)], max_loras=300)
    pool = Pool(world.limits, world.host, packed_costs.pack(world.surface))
    with pytest.raises(InvalidInput, match="300 adapters on the GPU and 300 in host memory; give 256 at most"):
        check_inputs(world.load, [pool])
