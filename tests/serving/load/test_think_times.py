"""Pauses of users: drawn around their mean by default, and starts that are spread over them."""

from __future__ import annotations

import numpy as np
import pytest

import kernelsight as ks
from kernelsight.errors import KernelSightError
from kernelsight.serving.load.arrivals import ramp_s_of, think_times
from kernelsight.serving.load.dependencies import LONGEST_S
from kernelsight.serving.load.requests import draw_loads
from tests.serving.load.test_requests import SYNTHETIC, scenarios

USERS = {"num_turns": 3, "think_time_s": 4.0, "max_concurrency": 5, "num_prompts": 15, "input_len": 40, "output_len": 4}
SMALL = {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 16, "max_model_len": 1024}


@pytest.mark.parametrize(("stated", "cv"), [(None, 1.0), (0.25, 0.25), (2.0, 2.0)])
def test_mean_and_spread_are_those_stated(stated: float | None, cv: float) -> None:
    drawn = think_times(np.random.default_rng(3), 200_000, 20.0, stated)
    assert drawn.mean() == pytest.approx(20.0, rel=0.02) and drawn.std() == pytest.approx(20.0 * cv, rel=0.03)
    assert drawn.min() >= 0.0


def test_the_default_is_exponential_and_no_spread_is_none() -> None:
    drawn = think_times(np.random.default_rng(4), 200_000, 1.0, None)
    assert (drawn > 1.0).mean() == pytest.approx(np.exp(-1.0), abs=0.005)
    assert think_times(np.random.default_rng(4), 3, 7.5, 0.0).tolist() == [7.5] * 3
    assert think_times(np.random.default_rng(4), 50, 9e8, 3.0).max() == LONGEST_S


def test_pauses_are_drawn_and_leave_lengths_and_arrivals_as_they_are() -> None:
    row = SYNTHETIC | {"num_prompts": 40, "num_turns": 4, "think_time_s": 30.0, "request_rate": 1.0, "range_ratio": 0.2}
    drawn, equal = (draw_loads(scenarios(row | {"think_time_cv": cv})) for cv in (1.0, 0.0))
    pauses = drawn.load_dependencies["think_s"].to_numpy()
    assert np.unique(pauses).size == pauses.size == 30
    assert set(equal.load_dependencies["think_s"].to_pylist()) == {30.0}
    for name in ("prompt_tokens", "output_tokens"):
        assert sorted(drawn.load_requests[name].to_pylist()) == sorted(equal.load_requests[name].to_pylist())
    # a turn stands where its own pauses put it
    rows, waits = drawn.load_requests.to_pylist(), drawn.load_dependencies.to_pylist()
    for wait in waits:
        earlier = rows[wait["after"]]["arrival_s"]
        assert rows[wait["request_id"]]["arrival_s"] == pytest.approx(earlier + wait["think_s"])


@pytest.mark.parametrize(("ramp_s", "wanted_s"), [(None, 8.0), (0.0, 0.0), (2.0, 2.0)])
def test_users_start_over_their_pauses_unless_stated(ramp_s: float | None, wanted_s: float) -> None:
    assert ramp_s_of(USERS | {"concurrency_ramp_s": ramp_s}) == wanted_s
    ramp = {} if ramp_s is None else {"concurrency_ramp_s": ramp_s}
    with ks.connect() as session:
        sent = (
            session.simulate(**SMALL, **USERS, **ramp, think_time_cv=0.0).table("request_events")["sent_ns"].to_numpy()
            / 1e9
        )
    starts = np.sort(sent)[:5] if wanted_s == 0.0 else np.sort(sent)
    firsts = np.linspace(0.0, wanted_s, 5)
    # the starts of the five users are among what is sent
    assert all(np.abs(starts - first).min() < 1e-6 for first in firsts)
    assert (np.abs(starts) < 1e-6).sum() == (5 if wanted_s == 0.0 else 1)


def test_without_pauses_all_start_at_once() -> None:
    assert ramp_s_of({"num_turns": None, "think_time_s": None}) == 0.0
    assert ramp_s_of({"num_turns": 3, "think_time_s": None, "concurrency_ramp_s": None}) == 0.0


def test_a_spread_without_pauses_is_refused() -> None:
    with ks.connect() as session, pytest.raises(KernelSightError, match="think_time_cv is set without think_time_s"):
        session.simulate(**SMALL, **(USERS | {"think_time_s": None}), think_time_cv=0.5)
