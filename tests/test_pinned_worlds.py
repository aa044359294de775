"""Worlds that once failed a test are replayed; ``benches/worlds.py`` finds, shrinks and keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given

from benches import worlds
from tests import pinned_worlds
from tests.conftest import random_worlds
from tests.serving.engine.reference_scheduler import Request, Scheduler
from tests.serving.engine.worlds import World, constant_world, reference_requests, requests_drawn

PINNED = sorted(pinned_worlds.FOLDER.glob("*.json"))
AGREES = "tests.serving.engine.test_loop_against_reference:test_loop_agrees_with_reference"
CONTEXT = "tests.test_pinned_worlds:up_to_the_context"


@pytest.mark.parametrize("path", PINNED, ids=[path.stem for path in PINNED])
def test_a_pinned_world_passes_its_test(path: Path) -> None:
    pinned_worlds.replay(pinned_worlds.read_world(path))


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
    assume(world.load.arrival_us.size != 2)  # worlds that are passed over are neither counted nor pinned
    scheduler = Scheduler(world.limits, 0)
    for request in reference_requests(world.load):
        fits = request.prompt_tokens + request.output_tokens <= 40
        assert (scheduler.verdict(request) == "finished") == fits, "the context"


@pytest.mark.whole
def test_a_planted_fault_is_found_pinned_and_fails_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Scheduler.verdict

    def one_token_less(scheduler: Scheduler, request: Request) -> str:
        whole = request.prompt_tokens + request.output_tokens
        return "too_long" if whole == scheduler.limits.max_model_len else verdict(scheduler, request)

    with monkeypatch.context() as fault:
        fault.setattr(Scheduler, "verdict", one_token_less)
        (path,) = worlds.search([CONTEXT], first=5, cpu_s=float("inf"), folder=tmp_path)
        case = pinned_worlds.read_world(path)
        with pytest.raises(AssertionError, match="the context"):
            pinned_worlds.replay(case)
    pinned_worlds.replay(case)
    load = pinned_worlds.value_of(case.arguments["world"]).load
    assert load.arrival_us.tolist() == [0.0] and load.prompt_tokens[0] + load.output_tokens[0] == 40
    assert case.reason.startswith("AssertionError: the context") and path.name.startswith("up_to_the_context-")


def test_worlds_that_fail_are_counted_and_none_is_pinned_where_none_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, failing = worlds.failing_worlds(CONTEXT, 7)
    assert drawn >= 60 and failing == []
    assert worlds.failure_of(CONTEXT, 7) is None
    assert worlds.search([CONTEXT], first=7, cpu_s=0.0, folder=tmp_path) == [] == list(tmp_path.iterdir())
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


def test_a_world_is_read_as_it_was_written(tmp_path: Path) -> None:
    world = constant_world([(0.5, 4, 3), (2.0, 1, 9)])
    case = pinned_worlds.PinnedWorld(AGREES, "AssertionError", {"world": pinned_worlds.spelled(world)})
    again = pinned_worlds.read_world(pinned_worlds.pin(case, tmp_path))
    assert again == case
    read = pinned_worlds.value_of(again.arguments["world"])
    assert read.limits == world.limits and read.load.arrival_us.dtype == world.load.arrival_us.dtype
    assert pinned_worlds.spelled(read) == case.arguments["world"]


@pytest.mark.parametrize("name", ["os:system", "json:loads"])
def test_a_file_names_no_class_and_no_test_but_ours(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        pinned_worlds.value_of({"class": name, "fields": {}})
    with pytest.raises(ValueError, match=name):
        pinned_worlds.function_of(name)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(TypeError, match="a set cannot be pinned"):
        pinned_worlds.spelled({"hashes": {1}})
