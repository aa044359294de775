"""Host time of a step: whole steps in Python and steps of the compiled simulation take the same."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from kernelsight.serving.engine.costs import host_times
from kernelsight.serving.engine.host import host_of
from kernelsight.serving.engine.records import HOST
from tests.sql.test_sql_tables import made

STEPS = 300


@numba.njit
def times(requests: int, tokens: int, prompts: int, hosts: np.ndarray) -> tuple:
    """Call a rule that is compiled into its callers alone: (hidden, exposed) microseconds."""
    return host_times(requests, tokens, prompts, hosts[0])[:2]


def drawn(random: np.random.Generator, number: int) -> dict[str, dict[str, Any]]:
    """Draw one step with its kernels, the settings of its deployment, and the overheads of its engine."""
    key = {"deployment_id": f"d{number}"}
    decodes, prompts, chunk = (int(random.integers(0, most)) for most in (200, 4, 600))
    figures = {name: float(random.choice([0.0, random.uniform(0.0, most)])) for name, most in FIGURES.items()}
    settings = {
        "tier": str(random.choice(["auto", "cross-generation", "roofline"], p=[0.6, 0.3, 0.1])),
        "graph_max_tokens": int(random.choice([0, 256, 512])),
        "prompt_graphs": str(random.choice(["piecewise", "none"])),
        "query_tokens": int(random.choice([1, 4])),
        # a deployment that does not schedule ahead hides no host time in the simulation, whatever its engine can
        "async_scheduling": True,
        "batch_wait_timeout_ms": 0.0,
    }
    tokens = {"tokens": decodes + prompts * chunk, "decode_requests": decodes, "prefill_requests": prompts}
    return {
        "step_shapes": {**key, **tokens, "prefill_tokens": chunk},
        "kernel_latencies": {
            **{**key, "call": "kernel", "count": int(random.integers(1, 500))},
            **dict.fromkeys(("latency_us", "latency_p05_us", "latency_p95_us"), float(random.integers(1, 100))),
        },
        "deployment_settings": {**key, **settings},
        "host_settings": {
            **{
                **key,
                **figures,
                "overlapped": bool(random.integers(2)),
                "ranks_padded": False,
                "piecewise_launches": int(random.integers(1, 200)),
                "inner_launches": int(random.integers(0, 400)),
                "adapter_launches": 0,
                "draft_launches": 0,
                "front_ends": int(random.integers(1, 4)),
                "exposed_requests_half": random.choice([None, 64.0]),
            }
        },
    }


# a figure of host_settings: the largest that is drawn, microseconds
FIGURES = {
    **{"step_exposed_us": 500.0, "step_base_us": 3000.0, "per_request_us": 20.0, "per_token_us": 1.0},
    **{"per_captured_launch_us": 5.0, "per_eager_launch_us": 60.0, "launch_gap_us": 2.0, "request_us": 0.0},
    **{"per_prompt_token_us": 0.0, "exposed_per_request_us": 30.0, "per_output_token_us": 100.0},
    **{"per_active_us": 0.0, "eager_dispatch_us": 2000.0, "chat_us": 0.0},
}


def test_a_whole_step_and_a_simulated_one_take_the_same_host_time() -> None:
    random = np.random.default_rng(0)
    steps = [drawn(random, number) for number in range(STEPS)]
    rows = made("step_totals", {name: [step[name] for step in steps] for name in steps[0]})
    found = {row["deployment_id"]: row for row in rows}
    hidden_ones = 0
    for step in steps:
        shape, kernel, settings, overheads = step.values()
        host = host_of(overheads, settings, kernel["count"])
        requests = shape["decode_requests"] + shape["prefill_requests"]
        hidden_us, exposed_us = times(
            requests, shape["tokens"], shape["prefill_requests"], np.array([tuple(host)], HOST)
        )
        gpu_us = kernel["count"] * kernel["latency_us"]
        row = found[shape["deployment_id"]]
        assert row["gpu_us"] == gpu_us
        assert row["total_us"] == pytest.approx(exposed_us + max(hidden_us, gpu_us), rel=1e-12)
        assert row["host_us"] == pytest.approx(exposed_us + max(hidden_us - gpu_us, 0.0), rel=1e-12, abs=1e-9)
        hidden_ones += hidden_us > gpu_us
    assert 0 < hidden_ones < STEPS  # steps whose pace the host sets, and steps whose pace the GPU sets


def test_graphs_of_decode_steps_are_sized_by_requests_where_drafts_are_verified() -> None:
    settings = drawn(np.random.default_rng(1), 0)["deployment_settings"] | {"tier": "auto", "graph_max_tokens": 8}
    overheads = dict.fromkeys(FIGURES, 1.0) | {
        "piecewise_launches": 3,
        "inner_launches": 0,
        "adapter_launches": 0,
        "draft_launches": 0,
        "front_ends": 1,
        "overlapped": True,
        "ranks_padded": False,
        "exposed_requests_half": None,
    }

    def largest(**stated: object) -> tuple[int, int]:
        host = host_of(overheads, settings | stated, 100)
        return host.graph_max_tokens, host.prompt_graph_max_tokens

    assert largest(prompt_graphs="none", query_tokens=4) == (32, 0)
    assert largest(prompt_graphs="none", query_tokens=1) == (8, 0)
    assert largest(prompt_graphs="piecewise", query_tokens=4) == (8, 8)
    assert largest(prompt_graphs="chunk", query_tokens=1, max_num_batched_tokens=512) == (8, 512)
    assert largest(prompt_graphs="chunk", query_tokens=1, max_num_batched_tokens=512, graph_max_tokens=0) == (0, 0)


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_host_that_is_corrected_below_nothing_leaves_the_gaps_between_kernels(overlapped: bool):
    host = np.zeros(1, HOST)
    host["exposed_us"], host["gap_us"], host["base_us"], host["exposed_requests_half"] = -9000.0, 30.0, 400.0, np.inf
    host["overlapped"] = overlapped
    hidden, exposed = times(3, 3, 0, host)
    assert (hidden, exposed) == ((400.0, 30.0) if overlapped else (0.0, 30.0))


@pytest.mark.parametrize(("front_ends", "expected_us"), [(1, 6400.0), (2, 3200.0), (8, 1500.0)])
def test_a_front_end_that_streams_more_slowly_than_steps_end_sets_their_pace(
    front_ends: int, expected_us: float
) -> None:
    """64 sequences at 100 us a token, steps of 1,500 us: several processes share the tokens, and prompts have none."""
    row = dict.fromkeys(FIGURES, 0.0) | {"per_output_token_us": 100.0, "front_ends": front_ends}
    row |= {"step_exposed_us": 500.0, "overlapped": True, "piecewise_launches": 1, "exposed_requests_half": None}
    row |= {"ranks_padded": False, "inner_launches": 0, "adapter_launches": 0, "draft_launches": 0}
    settings = {"tier": "auto", "graph_max_tokens": 512, "prompt_graphs": "piecewise", "query_tokens": 1}
    settings |= {"async_scheduling": True, "batch_wait_timeout_ms": 0.0}
    host = np.array([tuple(host_of(row, settings, 10))], HOST)
    for prompts in (0, 3):
        hidden_us, exposed_us = times(64 + prompts, 64 + 100 * prompts, prompts, host)
        assert exposed_us + max(hidden_us, 1000.0) == pytest.approx(expected_us)
