"""Loads that are stated by halves or twice: each refusal by its words, and none for what goes together."""

from __future__ import annotations

import pytest

from kernelsight.scenario.load_rules import first_fault

SYNTHETIC = {"num_prompts": 8, "input_len": 100, "output_len": 10, "range_ratio": 1.0}
RAMP_UP = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 2.0}


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"num_prompts": 3}, "the synthetic workload is missing input_len, output_len"),
        ({"lengths_from": "day.csv"}, "the synthetic workload is missing num_prompts"),
        (
            {"trace": "day.csv", "prefix_len": 7},
            "trace and prefix_len are both set, but a trace has its own arrivals and lengths",
        ),
        (SYNTHETIC | {"ramp_up_strategy": "linear"}, "the ramp-up is missing ramp_up_start_rps, ramp_up_end_rps"),
        (SYNTHETIC | {"ramp_up_end_rps": 2.0}, "the ramp-up is missing ramp_up_strategy, ramp_up_start_rps"),
        (SYNTHETIC | RAMP_UP | {"request_rate": 1.0}, "request_rate and a ramp-up are both set"),
        (
            SYNTHETIC | {"length_distribution": "fixed", "range_ratio": 0.5},
            "range_ratio cannot be used with fixed lengths",
        ),
        (
            SYNTHETIC | {"length_distribution": "uniform", "output_len_cv": 0.5},
            "output_len_cv cannot be used with uniform lengths",
        ),
        (SYNTHETIC | {"length_distribution": "lognormal"}, "lognormal lengths need input_len_cv or output_len_cv"),
        (SYNTHETIC | {"input_len_cv": 1.0, "range_ratio": 0.5}, "range_ratio cannot be used with lognormal lengths"),
        (SYNTHETIC | {"length_distribution": "empirical"}, "empirical lengths need lengths_from"),
        (
            SYNTHETIC | {"lengths_from": "day.csv"},
            "input_len, output_len cannot be used with empirical lengths",
        ),
        (SYNTHETIC | {"num_prefixes": 4}, "num_prefixes is set without prefix_len"),
        (SYNTHETIC | {"think_time_s": 4.0}, "think_time_s is set, but conversations have one turn"),
        (
            SYNTHETIC | {"router_cache_threshold": 0.1, "router_balance_abs_threshold": 3},
            "router_cache_threshold, router_balance_abs_threshold are set, but the router is not prefix_aware",
        ),
        (
            {"trace": "day.csv", "router": "least_loaded", "router_balance_rel_threshold": 2.0},
            "router_balance_rel_threshold is set, but the router is not prefix_aware",
        ),
        (SYNTHETIC | {"router_weights": "prefix=1"}, "router_weights is set, but the router is not scored"),
    ],
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
