"""Loads of `kernelsight simulate` beyond a constant rate and lengths: from the flags to what is served."""

from __future__ import annotations

import pytest

from tests.cli.conftest import SIMULATE

LENGTHS = ("--num-prompts", 6, "--isl", 64, "--osl", 4)
RAMP_UP = ("--ramp-up-strategy", "exponential", "--ramp-up-start-rps", 5, "--ramp-up-end-rps", 50)


def served(command, *words: object) -> dict:
    """Run a simulation and return what it printed."""
    answer = command(*SIMULATE, *words, "--format", "json")
    assert answer.status == 0, answer.err
    return answer.json


def test_a_ramp_up_is_a_load(command):
    ramped, steady = (served(command, *LENGTHS, *load) for load in (RAMP_UP, ("--request-rate", 5)))
    assert ramped["completed"] == steady["completed"] == 6
    assert ramped["duration_s"] < steady["duration_s"]


def test_lengths_from_a_trace_and_from_a_spread(command, tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,80,3\n500,80,3\n")
    recorded = served(command, "--request-rate", 50, "--num-prompts", 5, "--lengths-from", path)
    assert recorded["completed"] == 5 and recorded["duration_s"] < 100
    assert recorded["output_throughput"] == pytest.approx(15 / recorded["duration_s"])
    spread = served(command, *LENGTHS, "--request-rate", 50, "--input-len-cv", 0.8)
    fixed = served(command, *LENGTHS, "--request-rate", 50)
    assert spread["output_throughput"] * spread["duration_s"] == pytest.approx(24)
    assert spread["total_throughput"] * spread["duration_s"] != pytest.approx(6 * 68)
    assert fixed["total_throughput"] * fixed["duration_s"] == pytest.approx(6 * 68)


def test_warmups_are_in_no_count(command):
    warm = served(command, *LENGTHS, "--max-concurrency", 2, "--num-warmups", 4)
    cold = served(command, *LENGTHS, "--max-concurrency", 2)
    assert warm["requests"] == warm["completed"] == 6 and warm["status"] == {"finished": 6}
    assert warm["duration_s"] == pytest.approx(cold["duration_s"], rel=0.05)
    assert warm["output_throughput"] == pytest.approx(cold["output_throughput"], rel=0.05)


def test_no_warmup_is_the_same_scenario_as_none_stated(command):
    words = (*LENGTHS, "--max-concurrency", 2)
    assert served(command, *words, "--num-warmups", 0)["scenario_id"] == served(command, *words)["scenario_id"]


def test_measured_requests_wait_for_the_warmups(command):
    # the warm-up takes as long as a request alone; the clock of the others begins when it has ended
    warm = served(command, *LENGTHS, "--request-rate", 50, "--num-warmups", 1)
    cold = served(command, *LENGTHS, "--request-rate", 50)
    for name in ("duration_s", "output_throughput"):
        assert warm[name] == pytest.approx(cold[name], rel=1e-6)
    assert warm["ttft_ms"] == pytest.approx(cold["ttft_ms"], rel=1e-6)
    assert warm["steps"] > cold["steps"]


def test_sessions_take_their_turns(command):
    # two sessions of three turns, one at a time: each turn 2 s after the one before it
    words = ("--max-concurrency", 1, "--num-turns", 3, "--think-time", 2)
    answer = served(command, *LENGTHS, *words, "--enable-prefix-caching")
    assert answer["completed"] == 6
    assert 4 * 2 < answer["duration_s"] < 4 * 2 + 1
    # prompts of 64, 132 and 200 tokens find what whole blocks of the turn before them hold: 64 and 128
    assert answer["prefix_cache_hit_rate"] == pytest.approx(2 * (64 + 128) / (2 * (64 + 132 + 200)))
    alone = served(command, *LENGTHS, *words, "--no-enable-prefix-caching")
    assert alone["prefix_cache_hit_rate"] == 0
    assert alone["ttft_ms"]["mean"] > answer["ttft_ms"]["mean"]


def test_turns_after_one_that_is_turned_away_are_listed(command):
    # the third turn of each session is longer than the model's 160 tokens, so that the fourth is never sent
    words = ("--num-prompts", 8, "--isl", 64, "--osl", 4, "--request-rate", 5, "--num-turns", 4)
    answer = served(command, *words, "--max-model-len", 160)
    assert answer["status"] == {"finished": 4, "rejected_too_long": 2, "rejected_earlier_turn": 2}
    assert (answer["requests"], answer["completed"]) == (8, 4)


@pytest.mark.parametrize("router", ["round_robin", "least_loaded", "prefix_aware", "scored"])
def test_routers_share_requests_out(command, router, tmp_path):
    lengths = ("--num-prompts", 12, "--isl", 640, "--osl", 8, "--num-turns", 3, "--max-concurrency", 3)
    stated = {"prefix_aware": ("--router-cache-threshold", 0.4), "scored": ("--router-weights", "queue=1,prefix=3")}
    threshold = stated.get(router, ())
    run = tmp_path / "run.duckdb"
    answer = served(command, *lengths, "--router", router, *threshold, "-dp", 2, "-o", run)
    assert answer["completed"] == 12
    query = "select replica, count(*)::bigint as n from request_events group by all order by all"
    counts = {row["replica"]: row["n"] for row in command("sql", query, "--db", run, "--format", "json").json}
    assert set(counts) == {0, 1} and sum(counts.values()) == 12
    # a session that stays on one replica finds all of its turn before: 640 of 1288 tokens, 1280 of 1936
    whole = pytest.approx((640 + 1280) / (640 + 1288 + 1936))
    if threshold:
        assert answer["prefix_cache_hit_rate"] == whole
    else:
        assert answer["prefix_cache_hit_rate"] < 0.45


def test_a_prefix_aware_router_says_where_it_sees_no_prefixes(command):
    words = (*LENGTHS, "--request-rate", 50, "--router", "prefix_aware")
    least = "the prefix-aware router sends each request to the least loaded replica"
    assert f"the requests have no block hashes: {least}" in served(command, *words, "-dp", 2)["assumed"]
    off = served(command, *words, "-dp", 2, "--prefix-len", 64, "--no-enable-prefix-caching")
    assert f"prefix caching is off: {least}" in off["assumed"]
    # one replica needs no router, and prefixes are seen where they are stated
    for seen in (served(command, *words), served(command, *words, "-dp", 2, "--prefix-len", 64)):
        assert not [sentence for sentence in seen["assumed"] if "prefix-aware" in sentence]


def test_priority_levels_that_no_queue_goes_by_are_called_so(command):
    words = (*LENGTHS, "--request-rate", 50, "--num-priorities", 3)
    said = "the 3 priority levels have no effect: the scheduling policy is fcfs, not priority"
    assert said in served(command, *words)["assumed"]
    for heeded in ((*words, "--scheduling-policy", "priority"), (*words[:-1], 1)):
        assert not [sentence for sentence in served(command, *heeded)["assumed"] if "priority level" in sentence]


def test_a_model_that_reaches_less_far_takes_shorter_sequences(command, refusal):
    words = (*LENGTHS, "--request-rate", 50, "--max-position-embeddings")
    assert served(command, *words, 1)["status"] == {"rejected_too_long": 6}
    assert served(command, *words, 1000)["completed"] == 6
    # sequences that are within fewer positions anyhow do not change the model
    assert served(command, *words, 1000, "--max-model-len", 1000)["model"] == "qwen3-0.6b"
    said = refusal(*SIMULATE, *words, 1000, "--max-model-len", 2000)
    assert said.startswith("max_model_len 2000 exceeds the 1000 tokens that qwen3-0.6b-1000-positions supports")


def test_warm_ups_are_beside_the_measured_requests_however_many(command):
    warm = served(command, *LENGTHS, "--request-rate", 50, "--num-warmups", 20)
    plain = served(command, *LENGTHS, "--request-rate", 50)
    assert (warm["requests"], plain["requests"]) == (6, 6) and warm["steps"] > plain["steps"]


def test_two_launch_lines_are_refused(refusal):
    lines = ("--launch", "vllm serve Qwen/Qwen3-0.6B", "--launch", "vllm serve Qwen/Qwen3-8B")
    for verb in ("simulate", "predict", "size", "compare"):
        assert refusal(verb, *lines).startswith("--launch is given twice; give one line, which states one deployment;")


def test_a_closed_loop_is_one_for_all_replicas(command):
    # one request at a time, whatever the number of replicas
    one, two = (served(command, *LENGTHS, "--max-concurrency", 1, "-dp", n) for n in (1, 2))
    assert two["duration_s"] == pytest.approx(one["duration_s"], rel=1e-6)
    assert two["idle_s"] > one["idle_s"]


def test_a_prefix_lengthens_the_prompts(command):
    plain, shared = (served(command, *LENGTHS, "--max-concurrency", 1, *more) for more in ((), ("--prefix-len", 640)))
    assert shared["total_throughput"] * shared["duration_s"] == pytest.approx(6 * (64 + 640 + 4))
    assert shared["ttft_ms"]["mean"] > plain["ttft_ms"]["mean"]


@pytest.mark.parametrize(("prefix_len", "cached"), [(8, 0), (100, 96), (640, 640)])
def test_prefix_caching_finds_the_whole_blocks_of_each_prefix_but_the_first_time(command, prefix_len, cached):
    words = ("--max-concurrency", 1, "--prefix-len", prefix_len, "--num-prefixes", 2, "--enable-prefix-caching")
    answer = served(command, *LENGTHS, *words)
    assert answer["prefix_cache_hit_rate"] == pytest.approx(4 * cached / (6 * (64 + prefix_len)))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            (*LENGTHS, *RAMP_UP, "--request-rate", 3),
            "request_rate and a ramp-up are both set. Remove one or the other.",
        ),
        ((*LENGTHS, *RAMP_UP[:4]), "the ramp-up is missing ramp_up_end_rps. Set all of its flags, or none."),
        ((*LENGTHS, *RAMP_UP, "--ramp-up-end-rps", 0), "ramp_up_end_rps is 0.0; give a finite number above 0."),
        (
            (*LENGTHS, *RAMP_UP, "--ramp-up-start-rps", 1e-300),
            "ramp_up_start_rps 1e-300 spreads 6 requests over more than 30 years; give a higher rate.",
        ),
        (
            (*LENGTHS, "--request-rate", 3, "--lengths-from", "day.csv"),
            "input_len, output_len cannot be used with empirical lengths. Remove one or the other.",
        ),
        (
            ("--request-rate", 3, "--num-prompts", 3, "--lengths-from", "/nowhere.csv"),
            "trace /nowhere.csv: the file does not exist. Give the path to a readable trace file.",
        ),
        (
            ("--request-rate", 3, "--lengths-from", "day.csv"),
            "a synthetic workload needs --num-prompts; set them, or use --trace FILE.",
        ),
        ((*LENGTHS, "--request-rate", 3, "--output-len-cv", -1), "output_len_cv is -1.0; give a finite number above"),
        ((*LENGTHS, "--request-rate", 3, "--prefix-len", -1), "prefix_len is -1; give a whole number of at least 0."),
        ((*LENGTHS, "--request-rate", 3, "--num-turns", 0), "num_turns is 0; give a whole number of at least 1."),
        (
            (*LENGTHS, "--request-rate", 3, "--num-turns", 2, "--think-time", -1),
            "think_time_s is -1.0; give a number from 0 to 1e+09.",
        ),
        (
            (*LENGTHS, "--request-rate", 3, "--think-time", 1),
            "think_time_s is set, but conversations have one turn. Set num_turns, or leave think_time_s unset.",
        ),
        (
            (*LENGTHS, "--request-rate", 3, "--router", "least_loaded", "--router-cache-threshold", 0.2),
            "router_cache_threshold is set, but the router is not prefix_aware. Set router to prefix_aware, or remove "
            "the threshold.",
        ),
        (
            (*LENGTHS, "--request-rate", 3, "--router", "prefix_aware", "--router-balance-rel-threshold", 0.5),
            "router_balance_rel_threshold is 0.5; give a number from 1 to 1e+09.",
        ),
        (
            (*LENGTHS, "--request-rate", 3, "--length-distribution", "normal"),
            "argument --length-distribution: invalid choice: 'normal'",
        ),
    ],
)
def test_loads_that_are_refused(words, sentence, refusal):
    assert refusal(*SIMULATE, *words).startswith(sentence)
