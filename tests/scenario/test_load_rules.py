"""Loads that are stated by halves or twice: each refusal by its words, and none for what goes together."""

from __future__ import annotations

import pytest

from kernelsight.scenario.load_rules import first_fault
from tests.asked import refusals

SYNTHETIC = {"num_prompts": 8, "input_len": 100, "output_len": 10, "range_ratio": 1.0}
RAMP_UP = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0}


@pytest.mark.parametrize(
    ("row", "found"),
    refusals("scenario/test_load_rules::test_refusals"),
)
def test_refusals(row, found):
    assert first_fault(row)[0] == found


@pytest.mark.parametrize(
    "row",
    [
        SYNTHETIC,
        SYNTHETIC | RAMP_UP | {"max_concurrency": 4},
        SYNTHETIC | {"length_distribution": "fixed"},
        SYNTHETIC | {"length_distribution": "uniform", "range_ratio": 0.5},
        SYNTHETIC | {"length_distribution": "lognormal", "output_len_cv": 0.5},
        {"num_prompts": 9, "lengths_from": "day.csv", "prefix_len": 64, "num_prefixes": 2, "range_ratio": 1.0},
        SYNTHETIC | {"num_turns": 3, "think_time_s": 0.0},
        SYNTHETIC | {"num_warmups": 4, "max_concurrency": 2},
        SYNTHETIC | {"num_warmups": 3, "request_rate": 2.0},
        {"trace": "day.csv", "num_warmups": 4, "router": "prefix_aware", "router_cache_threshold": 0.0},
        {"trace": "day.csv", "num_prompts": 3, "max_concurrency": 2},
        SYNTHETIC | {"router": "scored", "router_weights": "prefix=1"},
    ],
)
def test_what_goes_together(row):
    assert first_fault(row) is None
