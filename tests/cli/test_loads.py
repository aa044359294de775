"""Loads of `kernelsight simulate` beyond a constant rate and lengths: from the flags to what is served."""

from __future__ import annotations

from typing import Any

import pytest

from kernelsight.session import Session
from kernelsight.sweeps.assumed_sentences import assumed_of
from kernelsight.sweeps.runs import Run
from tests.cli.conftest import SIMULATE, flags_of, simulate_all

LENGTHS = ("--num-prompts", 6, "--isl", 64, "--osl", 4)
RAMP_UP = ("--ramp-up-strategy", "exponential", "--ramp-up-start-rps", 5, "--ramp-up-end-rps", 50)
OPEN = (*LENGTHS, "--request-rate", 50)
ALONE = (*LENGTHS, "--max-concurrency", 1)
PAIRS = (*LENGTHS, "--max-concurrency", 2)
TURNS = (*ALONE, "--num-turns", 3, "--think-time", 2, "--think-time-cv", 0)
# the third turn of each session is longer than the model's 160 tokens, so that the fourth is never sent
TOO_LONG = ("--num-prompts", 8, "--isl", 64, "--osl", 4, "--request-rate", 5, "--num-turns", 4, "--max-model-len", 160)
REPLICAS = ("--num-prompts", 12, "--isl", 640, "--osl", 8, "--num-turns", 3, "--max-concurrency", 3, "-dp", 2)
ROUTERS = {
    "round_robin": (),
    "least_loaded": (),
    "prefix_aware": ("--router-cache-threshold", 0.4),
    "scored": ("--router-weights", "queue=1,prefix=3"),
}
# tokens of a prefix, and those of them that are whole blocks
PREFIXES = {8: 0, 100: 96, 640: 640}
CASES = {
    "ramp-up": (*LENGTHS, *RAMP_UP),
    "steady": (*LENGTHS, "--request-rate", 5),
    "open": OPEN,
    "open, spread": (*OPEN, "--input-len-cv", 0.8),
    "open, 1 warm-up": (*OPEN, "--num-warmups", 1),
    "open, 20 warm-ups": (*OPEN, "--num-warmups", 20),
    "open, 1 position": (*OPEN, "--max-position-embeddings", 1),
    "open, 1000 positions": (*OPEN, "--max-position-embeddings", 1000),
    "pairs": PAIRS,
    "pairs, 4 warm-ups": (*PAIRS, "--num-warmups", 4),
    "turns": (*TURNS, "--enable-prefix-caching"),
    "turns, uncached": (*TURNS, "--no-enable-prefix-caching"),
    "turns, too long": TOO_LONG,
    "alone": ALONE,
    "alone, 2 replicas": (*ALONE, "-dp", 2),
    **{router: (*REPLICAS, "--router", router, *words) for router, words in ROUTERS.items()},
    **{
        f"prefix of {length}": (*ALONE, "--prefix-len", length, "--num-prefixes", 2, "--enable-prefix-caching")
        for length in PREFIXES
    },
}


@pytest.fixture(scope="module")
def simulated(session: Session, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The summary of each case."""
    path = tmp_path_factory.mktemp("lengths") / "lengths.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,80,3\n500,80,3\n")
    recorded = ("--request-rate", 50, "--num-prompts", 5, "--lengths-from", path)
    cases = {name: (*SIMULATE, *words) for name, words in (CASES | {"recorded": recorded}).items()}
    return simulate_all(session, cases)


def assumed(session: Session, *words: object) -> list[str]:
    """Return the sentences on the assumptions of a scenario."""
    run = Run.of(session, flags_of(*SIMULATE, *words))
    (row,) = run.table("scenario_summary").to_pylist()
    settings = {each["deployment_id"]: each for each in run.table("deployment_settings").to_pylist()}
    return assumed_of(run.session, row, settings)


def test_lengths_from_a_trace_and_from_a_spread(simulated):
    recorded, spread, fixed = (simulated[name] for name in ("recorded", "open, spread", "open"))
    assert recorded["completed"] == 5 and recorded["duration_s"] < 100
    assert recorded["output_throughput"] == pytest.approx(15 / recorded["duration_s"])
    assert spread["output_throughput"] * spread["duration_s"] == pytest.approx(24)
    assert spread["total_throughput"] * spread["duration_s"] != pytest.approx(6 * 68)
    assert fixed["total_throughput"] * fixed["duration_s"] == pytest.approx(6 * 68)


def test_warmups_are_in_no_count(command, simulated):
    warm, cold = simulated["pairs, 4 warm-ups"], simulated["pairs"]
    assert warm["duration_s"] == pytest.approx(cold["duration_s"], rel=0.05)
    assert warm["output_throughput"] == pytest.approx(cold["output_throughput"], rel=0.05)
    printed = command(*SIMULATE, *PAIRS, "--num-warmups", 4, "--format", "json").json
    assert printed["requests"] == printed["completed"] == 6 and printed["status"] == {"finished": 6}
    assert printed["duration_s"] == warm["duration_s"] and printed["ttft_ms"]["p99"] == warm["ttft_p99_ms"]


def test_turns_after_one_that_is_turned_away_are_listed(command):
    answer = command(*SIMULATE, *TOO_LONG, "--format", "json").json
    assert answer["status"] == {"finished": 4, "rejected_too_long": 2, "rejected_earlier_turn": 2}
    assert (answer["requests"], answer["completed"]) == (8, 4)


def test_a_prefix_aware_router_says_where_it_sees_no_prefixes(session):
    words = (*OPEN, "--router", "prefix_aware")
    least = "the prefix-aware router sends each request to the least loaded replica"
    assert f"the requests have no block hashes: {least}" in assumed(session, *words, "-dp", 2)
    off = assumed(session, *words, "-dp", 2, "--prefix-len", 64, "--no-enable-prefix-caching")
    assert f"prefix caching is off: {least}" in off
    # one replica needs no router, and prefixes are seen where they are stated
    for seen in (assumed(session, *words), assumed(session, *words, "-dp", 2, "--prefix-len", 64)):
        assert seen and not [sentence for sentence in seen if "prefix-aware" in sentence]


def test_priority_levels_that_no_queue_goes_by_are_called_so(session):
    words = (*OPEN, "--num-priorities", 3)
    said = "the 3 priority levels have no effect: the scheduling policy is fcfs, not priority"
    assert said in assumed(session, *words)
    for heeded in ((*words, "--scheduling-policy", "priority"), (*words[:-1], 1)):
        found = assumed(session, *heeded)
        assert found and not [sentence for sentence in found if "priority level" in sentence]


def test_burstiness_without_a_rate_is_called_so(session):
    said = "burstiness has no effect: requests do not arrive at a rate"
    closed = ("--max-concurrency", 2, "--num-prompts", 6, "--input-len", 100, "--output-len", 4)
    assert said in assumed(session, *closed, "--burstiness", 2)
    assert said in assumed(session, *closed, "--burstiness", 2, "--request-rate", "inf")
    assert said not in assumed(session, *closed)
    assert said not in assumed(session, *OPEN, "--burstiness", 2)


def test_a_router_without_a_choice_is_called_so(session):
    said = "router scored has no effect: one replica serves all requests"
    assert said in assumed(session, *OPEN, "--router", "scored")
    assert said not in assumed(session, *OPEN, "--router", "scored", "--replicas", 2)
    assert not [sentence for sentence in assumed(session, *OPEN, "--router", "round_robin") if "router" in sentence]


def test_a_trace_with_fewer_requests_than_asked_for_is_called_so(session, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,10,2\n")
    said = "the trace has 2 requests, fewer than num_prompts 3: all are served once"
    assert said in assumed(session, "--trace", trace, "--num-prompts", 3)
    assert said in assumed(session, "--trace", trace, "--num-prompts", 3, "--num-warmups", 2)
    for words in (("--num-prompts", 2), ()):
        assert not [sentence for sentence in assumed(session, "--trace", trace, *words) if "the trace has" in sentence]


def test_a_model_that_reaches_less_far_takes_shorter_sequences(session, simulated, refusal):
    short = simulated["open, 1 position"]
    assert (short["rejected_too_long"], short["completed"]) == (6, 0)
    assert simulated["open, 1000 positions"]["completed"] == 6
    # sequences that are within fewer positions anyhow do not change the model
    words = (*SIMULATE, *OPEN, "--max-position-embeddings", 1000, "--max-model-len")
    run = Run.of(session, flags_of(*words, 1000))
    assert run.table("deployment_settings")["model"].to_pylist() == ["qwen3-0.6b"]
    said = refusal(*words, 2000)
    assert said.startswith("max_model_len 2000 exceeds the 1000 tokens that qwen3-0.6b-1000-positions supports")
