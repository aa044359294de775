"""Runs are replayed as their clients ran them: turns, ramps, warm-ups, means of gaps, prompts of unknown length."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernelsight.evaluation.runs.backtests import replay
from kernelsight.session import connect

RUN = {
    **{"run_id": "r", "campaign": "given", "model": "qwen3-0.6b", "gpu": "l4", "tp": 1, "pp": 1, "dp": 1, "ep": 1},
    **{"engine": "vllm", "engine_version": None, "quantization": None, "measured_on": None, "workers": 1},
    **{"isl": 200, "osl": 40, "num_prompts": 96, "max_concurrency": None, "request_rate": 4.0, "task": "chat"},
    **{"ttft_ms": 50.0, "tpot_ms": 8.0, "itl_p50_ms": 8.0, "itl_mean_ms": 8.0, "source": "a test"},
}
STATED: dict[str, dict[str, Any]] = {
    "plain": {},
    "ramp": {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 60.0},
    "warm-up": {"num_warmups": 32},
    "turns": {"num_turns": 4, "think_time_s": 0.5},
}
WIDE = {"isl_low": 50, "isl_high": 2000}


@pytest.fixture(scope="module")
def replayed() -> dict[str, dict[str, Any]]:
    runs = {name: RUN | {"stated_flags": json.dumps(flags)} for name, flags in STATED.items()}
    runs |= {"unknown length": RUN | WIDE, "copies": RUN | WIDE | {"stated_flags": json.dumps({"distinct_prompts": 8})}}
    limits = {"length_distribution": "lognormal", "output_len_cv": 1.0, "output_len_limit": 64}
    for name, further in (("limited", {}), ("limited copies", {"distinct_prompts": 8})):
        runs[name] = RUN | WIDE | {"stated_flags": json.dumps(limits | further)}
    runs["over requests"] = RUN | {"itl_over": "requests", "stated_flags": json.dumps({"num_turns": 4})}
    runs["over gaps"] = RUN | {"stated_flags": json.dumps({"num_turns": 4})}
    runs = {name: run | {"run_id": name} for name, run in runs.items()}
    with connect() as session:
        session.progress = None
        rows, _ = replay(session, list(runs.values()))
    return {row["run_id"]: row for row in rows["shipped"]}


@pytest.mark.whole
def test_flags_that_a_run_states_are_those_of_its_client(replayed) -> None:
    plain = replayed["plain"]
    assert {row["status"] for row in replayed.values()} == {"served"}
    # later requests of a ramp come closer to each other, and a turn holds the turns before it
    assert replayed["ramp"]["tpot_mean_ms"] > 1.1 * plain["tpot_mean_ms"]
    assert replayed["turns"]["flags"]["num_turns"] == 4
    # warm-ups are in no mean, and the measured requests are the same
    assert replayed["warm-up"]["ttft_mean_ms"] == pytest.approx(plain["ttft_mean_ms"], rel=0.02)


def test_an_unknown_length_widens_intervals_by_what_it_changes(replayed) -> None:
    plain, wide, copies = (replayed[name]["compared"] for name in ("plain", "unknown length", "copies"))
    for metric in ("ttft_mean", "tpot_mean"):
        assert wide[metric]["predicted"] == plain[metric]["predicted"]
        assert wide[metric]["low"] <= plain[metric]["low"] and wide[metric]["high"] >= plain[metric]["high"]
    assert wide["ttft_mean"]["high"] > 2.0 * plain["ttft_mean"]["high"]
    # prompts that are found in the cache cost little, whatever their length
    assert copies["ttft_mean"]["high"] / copies["ttft_mean"]["predicted"] < 3.0
    # where lengths come from a file, too
    limited, again = (replayed[name]["compared"]["ttft_mean"] for name in ("limited", "limited copies"))
    assert limited["high"] / limited["predicted"] > 1.3 * again["high"] / again["predicted"]


def test_gaps_are_counted_as_the_client_counts_them(replayed) -> None:
    gaps, requests = (replayed[name]["compared"] for name in ("over gaps", "over requests"))
    assert requests["itl_mean"]["predicted"] == requests["tpot_mean"]["predicted"]
    # most gaps are those of steps without a prompt; every request meets some with one
    assert requests["itl_p50"]["predicted"] > gaps["itl_p50"]["predicted"]
