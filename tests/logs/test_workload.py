"""What logs show of their load, on loads whose loop, process and repetitions are known."""

from __future__ import annotations

import heapq

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.logs import read_logs
from kernelsight.logs.workload import arrival_processes, loops, repeated_prompts
from tests.conftest import random_worlds
from tests.logs.written import DATA


def load(sent_s, e2e_ms, **other):
    """Return requests of one log in the columns that are looked at."""
    count = len(sent_s)
    columns = {"log_id": ["a"] * count, "request_id": range(count), "status": ["ok"] * count}
    return pa.table(columns | {"sent_s": sent_s, "arrival_s": sent_s, "e2e_ms": e2e_ms} | other)


def closed_loop(count, limit, seed, reaction_s=0.001):
    """Return the sendings and E2E times of a client that keeps ``limit`` requests in flight."""
    draws = np.random.default_rng(seed).uniform(0.5, 1.5, count)
    ends, sent = [], []
    for number in range(count):
        now = 0.001 * number if number < limit else heapq.heappop(ends) + reaction_s
        sent.append(now)
        heapq.heappush(ends, now + draws[number])
    return sent, [1e3 * draw for draw in draws]


@pytest.mark.parametrize("limit", [1, 4, 32])
def test_a_closed_loop_is_recognised_with_its_limit(limit):
    [row] = loops(load(*closed_loop(300, limit, seed=limit))).to_pylist()
    assert (row["loop"], row["in_flight_max"]) == ("closed", limit)
    assert row["share_at_max"] > 0.95 and row["reaction_ms"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("rate", [0.2, 2.0, 20.0])
def test_an_open_loop_is_none(rate):
    draws = np.random.default_rng(int(10 * rate))
    sent = np.cumsum(draws.exponential(1 / rate, 300))
    [row] = loops(load(sent, 1e3 * draws.uniform(0.5, 1.5, 300))).to_pylist()
    assert row["loop"] == "open"


def test_constant_arrivals_that_never_meet_are_open():
    # one request in flight at most, as in a closed loop of one: but the next one waits for its time
    [row] = loops(load([2.0 * n for n in range(50)], [500.0] * 50)).to_pylist()
    assert (row["loop"], row["in_flight_max"], row["reaction_ms"]) == ("open", 1, 1500.0)


def test_all_at_once_is_a_burst():
    [row] = loops(load([1e-4 * n for n in range(50)], [5000.0] * 50)).to_pylist()
    assert (row["loop"], row["in_flight_max"]) == ("burst", 50)


def test_few_or_untimed_requests_say_nothing():
    assert loops(load([0.0, 1.0], [5.0, 5.0]))["loop"].to_pylist() == ["unknown"]
    untimed = load(pa.nulls(50, pa.float64()), [5.0] * 50)
    assert loops(untimed)["loop"].to_pylist() == ["unknown"]
    assert arrival_processes(untimed)["process"].to_pylist() == ["unknown"]


@random_worlds(100)
@given(st.integers(0, 2**32), st.integers(1, 16))
def test_loops_of_any_limit(seed, limit):
    [row] = loops(load(*closed_loop(120, limit, seed))).to_pylist()
    assert (row["loop"], row["in_flight_max"]) == ("closed", limit)


def processes(gaps):
    return arrival_processes(load(np.cumsum(gaps), [1.0] * len(gaps))).to_pylist()[0]


def test_poisson_processes_are_recognised():
    draws = np.random.default_rng(7)
    named = [processes(draws.exponential(0.1, 400))["process"] for _ in range(200)]
    # by the test's own level 1 % are not
    assert named.count("poisson") >= 190 and set(named) <= {"poisson", "gamma"}
    found = processes(draws.exponential(0.1, 4000))
    assert found["rate"] == pytest.approx(10, rel=0.1) and found["burstiness"] == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("shape", [0.25, 4.0])
def test_other_burstiness_is_recognised(shape):
    found = processes(np.random.default_rng(3).gamma(shape, 0.1 / shape, 2000))
    assert found["process"] == "gamma" and found["burstiness"] == pytest.approx(shape, rel=0.2)


def test_constant_arrivals_are_recognised_with_the_jitter_of_a_client():
    gaps = 0.1 + np.random.default_rng(5).normal(0, 0.001, 200)
    assert processes(gaps)["process"] == "constant"
    assert processes([0.1] * 200)["cv"] == pytest.approx(0, abs=1e-9)


def test_warmups_are_no_part_of_the_process():
    sent = [0.0, 50.0] + [100.0 + 0.5 * n for n in range(40)]
    requests = load(sent, [1.0] * 42).set_column(2, "status", [["warmup"] * 2 + ["ok"] * 40])
    assert arrival_processes(requests)["process"].to_pylist() == ["constant"]


def hashed(*ids, block=16, prompt=100):
    count = len(ids)
    lists = pa.array(ids, pa.list_(pa.int64()))
    lengths = {"prompt_tokens": [prompt] * count, "hash_block_tokens": [block] * count}
    return repeated_prompts(load(range(count), [1.0] * count, hash_ids=lists, **lengths)).to_pylist()


def test_leading_blocks_that_were_seen():
    found = hashed([1, 2, 3], [1, 2, 4], [9, 2, 3], None, [], [1, 2, 4])
    assert [row["repeated_tokens"] for row in found] == [0, 32, 0, 0, 48]
    assert [row["whole"] for row in found] == [False, False, False, False, True]
    assert [row["request_id"] for row in found] == [0, 1, 2, 4, 5]


def test_the_last_block_may_not_be_full():
    assert hashed([1, 2], [1, 2], prompt=20)[1]["repeated_tokens"] == 20


def test_blocks_of_one_request_do_not_repeat_themselves():
    assert hashed([5, 5, 5])[0]["repeated_tokens"] == 0


@random_worlds(100)
@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=6))
def test_repeated_blocks_against_a_loop(ids):
    seen: set[int] = set()
    expected = []
    for row in ids:
        leading = 0
        while leading < len(row) and row[leading] in seen:
            leading += 1
        expected.append(min(16 * leading, 100))
        seen |= set(row)
    assert [row["repeated_tokens"] for row in hashed(*ids)] == expected


def test_logs_are_looked_at_separately():
    tables = read_logs([DATA / "vllm_bench.json", DATA / "profile_export.jsonl"])
    for found in (loops(tables["production_requests"]), arrival_processes(tables["production_requests"])):
        assert found["log_id"].to_pylist() == ["vllm_bench#1", "vllm_bench#2", "profile_export"]
