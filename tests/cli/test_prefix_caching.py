"""Prefix caching from a request file to the tables: hits per request, the hit rate, and what switches it off."""

from __future__ import annotations

import json

import duckdb
import pytest

SIMULATE = ("simulate", "--model", "qwen3-0.6b", "--gpu", "l4")
# a system prompt of one hash for three users, then a second turn of the first one; long after each other
PROMPTS = [(100, [0, 1]), (100, [0, 2]), (100, [0, 3]), (180, [0, 1, 4])]


@pytest.fixture
def trace(tmp_path):
    """A request file whose prompts share blocks of ``tokens``; returns its path."""

    def write(tokens=64):
        path = tmp_path / f"shared{tokens}.jsonl"
        rows = [
            {"arrival_s": 20.0 * i, "prompt_tokens": prompt, "output_tokens": 4}
            | {"hash_ids": hashes[: -(-prompt // tokens)], "hash_block_tokens": tokens}
            for i, (prompt, hashes) in enumerate(PROMPTS)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def served(command, path, *words):
    """Return the hit rates of summary and answer, and each request's cached tokens."""
    run = path.with_suffix(".duckdb")
    answer = command(*SIMULATE, "--trace", path, *words, "-o", run, "--format", "json")
    assert answer.status == 0, answer.err
    with duckdb.connect(run, read_only=True) as file:
        cached = file.execute("select cached_tokens from request_metrics order by request_id").fetchall()
        [(rate,)] = file.execute("select prefix_cache_hit_rate from scenario_summary").fetchall()
    run.unlink()
    assert answer.json["prefix_cache_hit_rate"] == rate
    return [tokens for (tokens,) in cached], rate


def test_hits_in_blocks_of_16(command, trace):
    # hash 0 is 64 tokens; of hash 1 (36 tokens in the first prompt) two full blocks of 16 were cached: 64 + 32
    cached, rate = served(command, trace())
    assert cached == [0, 64, 64, 96]
    assert rate == pytest.approx(224 / 480)


def test_hits_token_by_token_where_the_engine_has_blocks_of_1(command, trace):
    cached, rate = served(command, trace(), "--engine", "sglang")
    assert cached == [0, 64, 64, 100]
    assert rate == pytest.approx(228 / 480)


def test_without_prefix_caching_nothing_is_found(command, trace):
    assert served(command, trace(), "--no-enable-prefix-caching") == ([0, 0, 0, 0], 0.0)


def test_hits_shorten_the_time_to_the_first_token(command, trace):
    words = (*SIMULATE, "--trace", trace(), "--format", "json")
    cached, whole = command(*words).json, command(*words, "--no-enable-prefix-caching").json
    assert cached["ttft_ms"]["mean"] < whole["ttft_ms"]["mean"]
    assert cached["steps"] == whole["steps"]


def test_kv_blocks_across_hash_blocks_are_hits_up_to_the_last_hash_that_agrees(command, trace):
    # hash 0 is 72 tokens: four blocks of 16 lie in it, the fifth also in the hash that follows it
    cached, rate = served(command, trace(72))
    assert cached[0] == 0 and all(tokens % 16 == 0 for tokens in cached) and min(cached[1:]) >= 64
    assert 0 < rate < 1


def test_a_prefix_of_any_length_is_shared_by_engines_with_other_blocks(command):
    words = ("simulate", "--model", "qwen3-0.6b", "--gpu", "l4", "--request-rate", 1, "--num-prompts", 10)
    words += ("--isl", 100, "--osl", 4, "--format", "json", "--enable-prefix-caching", "--engine", "trtllm")
    rates = [command(*words, "--prefix-len", length).json["prefix_cache_hit_rate"] for length in (256, 272, 288)]
    # blocks of 32: of 272 tokens 256 are whole blocks
    assert rates[1] == pytest.approx(9 * 256 / (10 * 372)) and rates[0] == pytest.approx(9 * 256 / (10 * 356))
    assert rates[2] == pytest.approx(9 * 288 / (10 * 388))
