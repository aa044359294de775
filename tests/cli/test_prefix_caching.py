"""Prefix caching from a request file to the tables: hits per request, the hit rate, and what switches it off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kernelsight.session import connect
from tests.cli.conftest import SIMULATE, simulate_all

# a system prompt of one hash for three users, then a second turn of the first one; long after each other
PROMPTS = [(100, [0, 1]), (100, [0, 2]), (100, [0, 3]), (180, [0, 1, 4])]
PREFIXES = (256, 272, 288)
SHARED = ("--request-rate", 1, "--num-prompts", 10, "--isl", 100, "--osl", 4, "--enable-prefix-caching")


class Served(NamedTuple):
    """The summary of a scenario, and each request's cached tokens."""

    summary: dict[str, Any]
    cached: list[int]

    @property
    def rate(self) -> float:
        """The hit rate of the prefix cache."""
        return self.summary["prefix_cache_hit_rate"]


def trace(folder: Path, tokens: int) -> Path:
    """Write a request file whose prompts share blocks of ``tokens``; return its path."""
    path = folder / f"shared{tokens}.jsonl"
    rows = [
        {"arrival_s": 20.0 * i, "prompt_tokens": prompt, "output_tokens": 4}
        | {"hash_ids": hashes[: -(-prompt // tokens)], "hash_block_tokens": tokens}
        for i, (prompt, hashes) in enumerate(PROMPTS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Served]:
    """What each case is served, all in one call."""
    folder = tmp_path_factory.mktemp("traces")
    shared = (*SIMULATE, "--trace", trace(folder, 64))
    cases = {
        "blocks of 16": shared,
        "blocks of 1": (*shared, "--engine", "sglang"),
        "none": (*shared, "--no-enable-prefix-caching"),
        "hashes of 72": (*SIMULATE, "--trace", trace(folder, 72)),
    }
    for length in PREFIXES:
        cases[f"prefix of {length}"] = (*SIMULATE, *SHARED, "--engine", "trtllm", "--prefix-len", length)
    with connect() as session:
        summaries = simulate_all(session, cases)
        metrics = sorted(session.table("request_metrics").to_pylist(), key=lambda row: row["request_id"])
    cached = {
        case: [row["cached_tokens"] for row in metrics if row["scenario_id"] == summary["scenario_id"]]
        for case, summary in summaries.items()
    }
    return {case: Served(summary, cached[case]) for case, summary in summaries.items()}


def test_hits_in_blocks_of_16(served):
    # hash 0 is 64 tokens; of hash 1 (36 tokens in the first prompt) two full blocks of 16 were cached: 64 + 32
    assert served["blocks of 16"].cached == [0, 64, 64, 96]
    assert served["blocks of 16"].rate == pytest.approx(224 / 480)


def test_hits_token_by_token_where_the_engine_has_blocks_of_1(served):
    assert served["blocks of 1"].cached == [0, 64, 64, 100]
    assert served["blocks of 1"].rate == pytest.approx(228 / 480)


def test_without_prefix_caching_nothing_is_found(served):
    assert (served["none"].cached, served["none"].rate) == ([0, 0, 0, 0], 0.0)


def test_hits_shorten_the_time_to_the_first_token(served):
    cached, whole = served["blocks of 16"].summary, served["none"].summary
    assert cached["ttft_mean_ms"] < whole["ttft_mean_ms"]
    assert cached["steps"] == whole["steps"]


def test_kv_blocks_across_hash_blocks_are_hits_up_to_the_last_hash_that_agrees(served):
    # hash 0 is 72 tokens: four blocks of 16 lie in it, the fifth also in the hash that follows it
    cached, rate = served["hashes of 72"].cached, served["hashes of 72"].rate
    assert cached[0] == 0 and all(tokens % 16 == 0 for tokens in cached) and min(cached[1:]) >= 64
    assert 0 < rate < 1


def test_a_prefix_of_any_length_is_shared_by_engines_with_other_blocks(served):
    rates = [served[f"prefix of {length}"].rate for length in PREFIXES]
    # blocks of 32: of 272 tokens 256 are whole blocks
    assert rates[1] == pytest.approx(9 * 256 / (10 * 372)) and rates[0] == pytest.approx(9 * 256 / (10 * 356))
    assert rates[2] == pytest.approx(9 * 288 / (10 * 388))
