"""Users: their number where they pause, where nothing bounds their waiting, and closed loops of any size."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benches import closed_loops
from kernelsight.session import Session
from kernelsight.sizing.answer import Sizing
from kernelsight.sweeps.capacity import pause_s

from .conftest import FLAGS, LOAD, SLO

pytestmark = pytest.mark.usefixtures("kept_trials")

PAUSES = {"num_turns": 3, "think_time_s": 3.0, "max_model_len": 2048}


def size(session: Session, **asked: Any) -> Sizing:
    return session.size(**{"gpus": ["l4"], "slo": SLO, "max_gpus": 1, "tune": False} | FLAGS | LOAD | asked)


def test_equal_lengths_give_as_many_users_as_lengths_with_a_little_spread(session: Session) -> None:
    equal = size(session, users=500, **PAUSES)
    spread = size(session, users=500, **PAUSES, input_len_cv=0.1, output_len_cv=0.1)
    for found in (equal, spread):
        assert found.complete and found.chosen["steady"] and found.chosen["users"] > 16
    assert equal.chosen["users"] == pytest.approx(spread.chosen["users"], rel=0.1)
    # users who pause are more than those whom the seats hold, by Little's law: rate x pause
    busy = equal.chosen["users"] - equal.chosen["rate"] * 2.0 / 3.0 * 3.0
    assert 0.0 < busy < 2 * FLAGS["max_num_seqs"]


@pytest.mark.parametrize(("turns", "limit_s", "mean_s"), [(5, None, 16.0), (None, None, 0.0), (5, 10.0, 8.0)])
def test_pauses_before_a_request(turns: int | None, limit_s: float | None, mean_s: float) -> None:
    assert pause_s({"num_turns": turns, "think_time_s": 20.0, "think_time_limit_s": limit_s}) == mean_s


def test_turns_without_pauses_are_not_taken_to_drift(session: Session) -> None:
    found = size(session, users=40, num_turns=3, max_model_len=2048)
    assert found.chosen["steady"] and found.chosen["users"] > 1


def test_a_ramp_is_left_to_those_who_ask(session: Session) -> None:
    found = size(session, users=200, **PAUSES, concurrency_ramp_s=30.0)
    other = size(session, users=200, **PAUSES)
    assert found.chosen["users"] == pytest.approx(other.chosen["users"], rel=0.1)


def test_without_an_objective_on_waiting_users_are_at_most_what_the_cache_holds(session: Session) -> None:
    loose, tokens = {"tpot_p90_ms": 500.0}, 3 * 320
    found = size(session, users=7, slo=loose, kv_cache_tokens=tokens)
    assert found.chosen["users"] == 3.0 and found.chosen["instances"] == 3
    assert "No objective bounds how long users wait: at that rate TTFT p50 is " in found.answer
    bounded = size(session, users=7, slo=loose | {"ttft_p95_ms": 60_000.0}, kv_cache_tokens=tokens)
    assert bounded.chosen["users"] > 3.0 and "No objective bounds" not in bounded.answer


def test_prefixes_that_users_share_are_held_once(session: Session) -> None:
    loose = {"tpot_p90_ms": 500.0}
    found = size(session, users=9, slo=loose, kv_cache_tokens=4 * 320 + 32, prefix_len=320)
    assert found.chosen["users"] == 3.0


@pytest.mark.parametrize("part", range(3))
def test_closed_loops_end_with_an_answer_or_a_sentence(session: Session, part: int) -> None:
    ends = []
    for number in range(20 * part, 20 * part + 20):
        verb, row = closed_loops.drawn(random.Random(f"suite {number}"))
        row["gpu"] = "l4"
        verb = verb if verb in ("what_if", "serve") or number % 20 == 0 else "what_if"
        ends.append((closed_loops.ended(session, verb, row), verb, row))
    assert [end for end in ends if end[0] not in ("answer", "refused")] == []
    assert sum(end[0] == "answer" for end in ends) >= 10


def test_a_search_ends_at_the_highest_rate_that_is_tried(session: Session) -> None:
    """Outputs of two tokens keep objectives at any rate: the search raised its factor until it overflowed."""
    verb, row = closed_loops.drawn(random.Random("0 876"))
    assert (verb, closed_loops.ended(session, verb, row)) == ("size", "answer")
