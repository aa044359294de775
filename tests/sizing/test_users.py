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


def test_tokens_of_users_and_of_conversations_are_those_of_their_turns(session: Session) -> None:
    """Users who take turns paid for the tokens of as many conversations as they send requests."""
    load, prices = {"num_turns": 3, "think_time_s": 3.0, "max_model_len": 2048}, {"prices": "l4=0.7"}
    # each prompt includes the turns before it
    prompts = [300 * turn + 12 * (turn - 1) for turn in (1, 2, 3)]
    users = size(session, users=300, **load, **prices).chosen
    per_s = users["rate"] * users["served"] / users["users"]  # as many fewer users send proportionally fewer
    per_hour = per_s * (sum(prompts) / 3 + 12) * 3600.0
    assert users["cost_per_million_tokens"] == pytest.approx(1e6 * users["price_per_hour"] / per_hour, rel=0.02)
    found = size(session, rate=per_s / 3, **load, **prices)
    assert f"{per_s / 3:.4g} conversations/s take " in found.answer and "requests/s take" not in found.answer
    # whole instances, and in a closed loop slower kernels leave fewer users than conversations
    assert found.chosen["cost_per_million_tokens"] == pytest.approx(users["cost_per_million_tokens"], rel=0.5)
    # the bound counts conversations too
    (bound,) = found.table("size_bounds").to_pylist()
    assert found.chosen["rate"] <= bound["most_load"] < 3.0 * found.chosen["rate"]


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


def test_users_do_not_queue_unseen_behind_prefill_replicas(session: Session) -> None:
    """TTFT and a percentile of ITL do not show the wait for a decode replica: 3,074 users waited an hour there."""
    slo, split = {"ttft_p95_ms": 500.0, "itl_p95_ms": 60.0}, {"prefill_replicas": 1, "decode_replicas": 2}
    held = {"output_len": 212, "kv_cache_tokens": 3 * 512} | split
    found = size(session, users=60, slo=slo, **held)
    # two decode replicas hold 6 requests; a few more are in prefill
    assert 6 <= found.chosen["users"] <= 6 + 2 * 0.5 * found.chosen["rate"] + 1 and found.chosen["instances"] > 4
    seen = size(session, users=60, slo=slo | {"e2e_p95_ms": 60_000.0}, **held)
    assert seen.chosen["users"] > 2 * found.chosen["users"]


@pytest.mark.whole
def test_conversations_of_fixed_lengths_take_about_as_much_as_others(session: Session) -> None:
    """Users in step were taken to drift: 500 GPUs for 500 users, where 6 do (field 047)."""
    asked = {"model": "llama-3.1-8b", "gpus": "a100_sxm", "users": 500, "num_turns": 5, "think_time_s": 30.0}
    asked |= {"slo": {"ttft_p95_ms": 2000.0, "tpot_p95_ms": 50.0}, "tune": False, "max_gpus": 1}
    load = {"input_len": 800, "output_len": 300}
    fixed = session.size(**asked, **load).chosen
    drawn = session.size(**asked, **load, input_len_cv=0.6, output_len_cv=0.6).chosen
    assert 4 <= fixed["gpus"] <= 7 and abs(fixed["gpus"] - drawn["gpus"]) <= 1
    assert fixed["users"] == pytest.approx(drawn["users"], rel=0.35)


@pytest.mark.whole
def test_long_prompts_are_as_many_as_the_cache_holds(session: Session) -> None:
    """Five users of 100,000 tokens shared one cache of 246,320: each waited 106 s (field 048)."""
    asked = {"model": "meta-llama/Llama-3.3-70B-Instruct", "quantization": "fp8", "gpus": "h100_sxm", "users": 5}
    asked |= {"input_len": 100_000, "output_len": 1000, "max_model_len": 131_072, "tensor_parallel_size": 2}
    found = session.size(**asked, slo={"tpot_p95_ms": 60.0}, tune=False)
    assert (found.chosen["instances"], found.chosen["users"]) == (3, 2.0)
    assert "No objective bounds how long users wait" in found.answer


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
