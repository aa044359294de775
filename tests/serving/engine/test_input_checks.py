"""What would crash the compiled loop, or never end, is refused in one sentence before it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kernelsight as ks
from kernelsight.errors import InvalidInput
from kernelsight.serving.engine.inputs import Load, Waits
from kernelsight.serving.engine.many_scenarios import Columns, Loads, Workspace, serve_loads
from kernelsight.serving.engine.replica import Pool, serve_scenario
from kernelsight.serving.runs.step_times import deploy
from tests.asked import refusals

TWO = np.full(2, 8, np.int64)
LOAD = Load(np.zeros(2), TWO, TWO, max_concurrency=1)


@pytest.fixture(scope="module")
def pool() -> Pool:
    """The engine of a small deployment."""
    with ks.connect() as session:
        return deploy(session, {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 4, "max_model_len": 64}).pool


def test_what_is_not_refused_is_served(pool: Pool) -> None:
    assert (serve_scenario(LOAD, [pool]).out.finish_us > 0.0).all()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"max_concurrency": 0}, "max_concurrency is 0"),
        ({"max_concurrency": -5}, "max_concurrency is -5"),
        ({"user_us": math.nan}, "concurrency_ramp_s"),
        ({"user_us": math.inf}, "concurrency_ramp_s"),
        ({"arrival_us": np.zeros(0)}, "no request is given"),
        ({"arrival_us": np.array([0.0, math.nan])}, "arrival_s"),
        ({"prompt_tokens": np.array([8, 0])}, "prompt_tokens of 0"),
        ({"output_tokens": np.array([0, 8])}, "output_tokens of 0"),
        ({"output_tokens": np.array([8, -(2**62)])}, "output_tokens of -4611686018427387904"),
        ({"warmups": 3}, "3 of 2 requests are warm-ups"),
        ({"hashes": np.array([-7])}, "negative number"),
        ({"hash_offsets": np.array([0, 1, 2**40])}, "hash_ids"),
        ({"waits": Waits(np.array([1]), np.array([2]), np.zeros(1))}, "waits for one that the load lacks"),
        ({"waits": Waits(np.array([1]), np.array([0]), np.array([math.inf]))}, "think_s"),
        ({"waits": Waits(np.array([1]), np.array([0]), np.array([-1.0]))}, "think_s"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_loads_that_cannot_be_served_are_refused(pool: Pool, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        serve_scenario(LOAD._replace(**changed), [pool])


@pytest.mark.parametrize(
    ("limits", "said"),
    refusals("serving/engine/test_input_checks::test_limits_that_no_engine_has_are_refused"),
)
def test_limits_that_no_engine_has_are_refused(pool: Pool, limits: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        serve_scenario(LOAD, [pool._replace(limits=pool.limits._replace(**limits))])


def test_times_that_are_no_numbers_are_refused(pool: Pool) -> None:
    for name in ("request_us", "exposed_us", "gap_us"):
        with pytest.raises(InvalidInput, match=f"host time {name}"):
            serve_scenario(LOAD, [pool._replace(host=pool.host._replace(**{name: math.nan}))])
    costs = pool.costs._replace(values=np.full_like(pool.costs.values, math.nan))
    with pytest.raises(InvalidInput, match="step cost"):
        serve_scenario(LOAD, [pool._replace(costs=costs)])
    for changed in ({"engines": 0}, {"ranks": 0}, {"layers": ()}):
        with pytest.raises(InvalidInput, match="give"):
            serve_scenario(LOAD, [pool._replace(**changed)])


@pytest.mark.parametrize("fewest", [0, -3])
def test_many_scenarios_are_refused_for_one_without_a_session(pool: Pool, fewest: int) -> None:
    columns = Columns(np.zeros(2), TWO, TWO, np.zeros(2, np.int64), np.zeros(2, np.bool_))
    one, none = np.ones(2, np.int64), np.zeros(2, np.int64)
    loads = Loads(np.array([0, 1]), one, none, np.array([1, fewest]), np.zeros(2), np.full((2, 3), np.inf))
    with pytest.raises(InvalidInput, match=f"max_concurrency is {fewest}"):
        serve_loads(columns, loads, pool, Workspace.of(2, 2, pool.costs.values.size))
