"""``benches/worlds.py`` finds and shrinks worlds that fail a test, and counts those in which a fault shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given

from benches import worlds
from tests.conftest import random_worlds
from tests.serving.engine.reference_scheduler import Request, Scheduler
from tests.serving.engine.worlds import World, constant_world, reference_requests, requests_drawn

AGREES = "tests.serving.engine.test_loop_against_reference:test_loop_agrees_with_reference"
CONTEXT = "tests.test_worlds:up_to_the_context"


def test_every_test_of_the_loop_is_drawn_from() -> None:
    names = worlds.random_world_tests()
    for rule in ("fleets", "ranks", "pipelines", "drafts", "halves_with_drafts", "disaggregated_fleets"):
        assert any(f"test_{rule}_agree_with_reference" in name for name in names), rule
    assert {AGREES, "tests.serving.engine.test_tiers:test_loop_agrees_with_reference"} <= set(names)
    assert worlds.random_world_tests(["inv_3"]) == [
        "tests.invariants.test_invariants:test_inv_1_inv_3_and_inv_5_hold_in_every_world"
    ]


@random_worlds(100)
@given(world=requests_drawn(whole=True).map(lambda requests: constant_world(requests, max_model_len=40)))
def up_to_the_context(world: World) -> None:
    """Hold the reference's reason to refuse requests against what the context says; not a test by its name."""
    assume(world.load.arrival_us.size != 2)  # worlds that are passed over are not counted
    scheduler = Scheduler(world.limits, 0)
    for request in reference_requests(world.load):
        fits = request.prompt_tokens + request.output_tokens <= 40
        assert (scheduler.verdict(request) == "finished") == fits, "the context"


@pytest.mark.whole
def test_a_planted_fault_is_found_and_its_smallest_world_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = Scheduler.verdict

    def one_token_less(scheduler: Scheduler, request: Request) -> str:
        whole = request.prompt_tokens + request.output_tokens
        return "too_long" if whole == scheduler.limits.max_model_len else verdict(scheduler, request)

    monkeypatch.setattr(Scheduler, "verdict", one_token_less)
    reason, world = worlds.search([CONTEXT], first=5, cpu_s=float("inf"))[CONTEXT].splitlines()
    assert reason.startswith("AssertionError: the context")
    assert "arrival_us=array([0.])" in world


def test_worlds_that_fail_are_counted_and_none_is_told_where_none_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, failing = worlds.failing_worlds(CONTEXT, 7)
    assert drawn >= 60 and failing == []
    assert worlds.failure_of(CONTEXT, 7) is None
    assert worlds.search([CONTEXT], first=7, cpu_s=0.0) == {}
    monkeypatch.setattr(Scheduler, "verdict", lambda scheduler, request: "finished")
    drawn, failing = worlds.failing_worlds(CONTEXT, 7)
    assert 0 < len(failing) < drawn and failing == sorted(set(failing))


def test_faults_are_counted_in_a_copy_and_tried_without_worlds_where_few_show_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rule.py").write_text("a < b\n")

    def counts_in(tree: Path, tests: tuple[str, ...], number: int) -> dict[str, tuple[int, list[int]]]:
        text = (tree / "rule.py").read_text()
        return {"test_rule": (100, [9, 12] if text == "a <= b\n" else list(range(50)))}

    tried = []
    monkeypatch.setattr(worlds.mutation, "copy_tree", lambda target: None)
    monkeypatch.setattr(worlds, "counts_in", counts_in)
    monkeypatch.setattr(worlds.mutation, "verdict", lambda tree, tests: tried.append(tests) or worlds.mutation.SURVIVED)
    faults = [worlds.Fault("", "rule.py", "<", new, ("test_rule.py",)) for new in ("<=", ">")]
    rare, plain = worlds.attempts(faults, tmp_path, 3)
    assert (rare["worlds"], rare["without_worlds"]) == (228, worlds.mutation.SURVIVED)
    assert (plain["worlds"], plain["without_worlds"]) == (7, "not tried")
    assert tried == [("-m", "not hypothesis", "test_rule.py")]
    assert (tmp_path / "rule.py").read_text() == "a < b\n"
