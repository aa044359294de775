"""How measured runs become flags: statements matched, laid over each other, and those that ship."""

from __future__ import annotations

import pytest

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.runs.recipes import flags_of, matches, tokens_of
from kernelsight.models.config import load_catalogue

RUN = {
    "run_id": "a",
    "campaign": "inferencex",
    "model": "owner/Model",
    "gpu": "b200_sxm",
    "tp": 4,
    "pp": 1,
    "dp": 1,
    "ep": 1,
    "engine": "trtllm",
    "engine_version": "1.0.0rc3",
    "quantization": "fp8",
    "measured_on": "2026-03-20",
    "isl": 1024,
    "osl": 128,
    "max_concurrency": 16,
    "workers": 1,
    "request_rate": None,
}


@pytest.mark.parametrize(
    ("statement", "holds"),
    [
        ({}, True),
        ({"engine": "trtllm", "gpu": "b200", "engine_version": "1.0.0"}, True),
        ({"engine": "vllm"}, False),
        ({"engine_version": "1.1"}, False),
        ({"from_date": "2026-03-20", "until_date": "2026-03-20"}, True),
        ({"from_date": "2026-03-21"}, False),
        ({"until_date": "2026-03-19"}, False),
        ({"largest_tp": 4}, True),
        ({"largest_tp": 2}, False),
        ({"least_dp": 1}, True),
        ({"least_dp": 2}, False),
        ({"ep": 1}, True),
        ({"ep": 4}, False),
        ({"least_concurrency": 17}, False),
        ({"precision": "fp8", "isl": 1024, "osl": 128}, True),
        ({"osl": 1024}, False),
    ],
)
def test_a_statement_holds_where_all_that_it_fills_is_met(statement: dict, holds: bool) -> None:
    assert matches(statement, RUN) is holds


def test_a_date_is_not_met_by_a_run_without_one() -> None:
    assert not matches({"from_date": "2026-01-01"}, {**RUN, "measured_on": None})


def test_later_statements_win_and_budgets_follow_the_load() -> None:
    statements = [
        {"recipe": "client", "prompts_per_concurrency": 10, "range_ratio": 1.0, "max_num_batched_tokens": "8192"},
        {"recipe": "model", "model": "owner/Model", "checkpoint": "qwen3-0.6b", "kv_cache_dtype": "fp8"},
        {"recipe": "other", "model": "owner/Other", "checkpoint": "llama-3.1-8b"},
        {
            "recipe": "budget",
            "engine": "trtllm",
            "max_num_batched_tokens": "concurrency + 2*isl + 64",
            "range_ratio": 0.8,
        },
    ]
    flags, names = flags_of(RUN, statements)
    assert names == ["client", "model", "budget"]
    assert flags["model"] == "qwen3-0.6b"
    assert flags["kv_cache_dtype"] == "fp8"
    assert flags["max_num_batched_tokens"] == 16 + 2048 + 64
    assert (flags["range_ratio"], flags["num_prompts"], flags["max_concurrency"]) == (0.8, 160, 16)


def test_engines_that_share_a_load_get_their_part_of_it() -> None:
    flags, _ = flags_of({**RUN, "max_concurrency": 33, "workers": 4}, [])
    assert (flags["max_concurrency"], flags["num_prompts"]) == (9, 90)
    assert flags["model"] == "owner/Model"


def test_workers_for_prompts_become_engines_of_their_own() -> None:
    sides = {"prefill_workers": 2, "prefill_tp": 4, "prefill_ep": 1, "decode_workers": 3}
    flags, _ = flags_of({**RUN, "tp": 8, **sides}, [])
    assert (flags["prefill_replicas"], flags["decode_replicas"]) == (2, 3)
    assert (flags["prefill_tensor_parallel_size"], flags["tensor_parallel_size"]) == (4, 8)
    assert "prefill_replicas" not in flags_of({**RUN, **dict.fromkeys(sides)}, [])[0]


def test_prompts_that_repeat_are_shared_prefixes_of_the_same_length() -> None:
    flags, _ = flags_of(RUN, [{"recipe": "again", "distinct_prompts": 100, "prompts_per_concurrency": 50}])
    assert (flags["prefix_len"] + flags["input_len"], flags["num_prefixes"]) == (RUN["isl"], 100)
    assert flags["num_prompts"] == 50 * RUN["max_concurrency"]
    assert "prefix_len" not in flags_of(RUN, [])[0]


def test_a_budget_that_is_no_sum_is_refused() -> None:
    with pytest.raises(InvalidInput, match="recipes: '2 x isl' is not a sum of numbers"):
        tokens_of("2 x isl", {"isl": 1})


def test_a_sum_may_take_away_and_is_at_least_one() -> None:
    assert tokens_of("concurrency - 1", {"concurrency": 8}) == 7
    assert tokens_of("concurrency - 1", {"concurrency": 1}) == 1


def test_the_statements_that_ship_name_what_exists_and_say_what_they_rest_on() -> None:
    models = {row["model"] for row in load_catalogue()[0]}
    quantizations = set(facts("quantizations")["quantization"].to_pylist())
    for row in facts("recipes").to_pylist():
        assert row["checkpoint"] is None or row["checkpoint"] in models, row["recipe"]
        assert row["quantization"] is None or row["quantization"] in quantizations, row["recipe"]
        assert len(row["source"]) > 10, row["recipe"]
        if row["max_num_batched_tokens"]:
            assert tokens_of(row["max_num_batched_tokens"], {"isl": 1024, "osl": 1024, "concurrency": 4}) > 0
