"""Host constants: interpolated between simulated points, found again where they are known, and for whom they stand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.backtest.constants import constants_of
from kernelsight.backtest.fitting import fit, fit_near, loss
from kernelsight.backtest.host_constants import NONE, Constants, with_host
from kernelsight.backtest.responses import GRID, Response, means_of

TRUTH = Constants(0.6, 30.0, 20.0, eager_launch_us=45.0, per_prompt_token_us=4.0)


def response(base_ms: float, running: float, prompt_tokens: float = 1000.0) -> Response:
    """Return a run whose TPOT is the step, and whose TTFT is three steps, 100 launches and the request.

    One step in 1000 / running has a prompt, and its launches.
    """
    step, request, launch = np.meshgrid(*GRID, indexing="ij")
    ttft = 3 * (base_ms + step) + request + 0.1 * launch
    return Response(ttft, base_ms + step + 0.1 * launch * running / 1000.0, running, prompt_tokens)


def means_at(found: Response, at: Constants) -> tuple[float, float]:
    """Return TTFT and TPOT of one run in ms at constants."""
    values = np.stack([found.ttft_ms, found.tpot_ms])[None]
    return tuple(means_of(values, np.array([found.running]), np.array([found.prompt_tokens]), at)[0].tolist())


def run_of(found: Response, at: Constants, **names: object) -> dict:
    """Return the measurements of a run with host time ``at``."""
    ttft, tpot = means_at(found, at)
    group = {"model": "m", "gpu": "h100_sxm", "engine": "vllm", "quantization": None, "host_version": "0.13"}
    return {**group, "ttft_ms": ttft, "tpot_ms": tpot, **names}


def world(at: Constants, **names: object) -> list[tuple[dict, Response]]:
    """Return runs of models of different size under different load."""
    loads = [(2.0, 8000.0), (30.0, 200.0), (100.0, 2000.0)]
    found = [response(base, *load) for base in (3.0, 8.0, 20.0) for load in loads]
    return [(run_of(one, at, **names), one) for one in found]


def test_means_are_read_between_the_simulated_points() -> None:
    found = response(5.0, 50.0)
    assert means_at(found, NONE) == pytest.approx((15.0, 5.0))
    # 50 requests of 20 us, and half a millisecond: 1.5 ms a step
    assert means_at(found, Constants(0.5, 20.0, 7.5)) == pytest.approx((3 * 6.5 + 7.5, 6.5))
    # 100 launches of 20 us, of which one step in twenty pays
    assert means_at(found, Constants(0.0, 0.0, 0.0, eager_launch_us=20.0)) == pytest.approx((15.0 + 2.0, 5.0 + 0.1))
    # 5 us for each of 1,000 tokens
    assert means_at(found, Constants(0.5, 20.0, 2.5, per_prompt_token_us=5.0)) == pytest.approx((3 * 6.5 + 7.5, 6.5))
    # beyond the grid its last lines go on
    assert means_at(found, Constants(12.0, 0.0, 300.0)) == pytest.approx((3 * 17.0 + 300.0, 17.0))


def test_slower_kernels_are_the_same_run_in_another_unit_of_time() -> None:
    # kernels take 1.2 times as long, host time what is stated
    assert means_at(response(5.0, 50.0), Constants(0.5, 20.0, 7.5, 1.2)) == pytest.approx((3 * 7.5 + 7.5, 7.5))
    schema = pa.schema(
        [("deployment_id", pa.string()), ("step_exposed_us", pa.float64()), ("exposed_per_request_us", pa.float64())]
        + [
            (name, pa.float64())
            for name in ("launch_gap_us", "request_us", "per_eager_launch_us", "per_prompt_token_us")
        ]
    )
    table = pa.Table.from_pylist([{"deployment_id": "a"}, {"deployment_id": "b", "request_us": 1.0}], schema=schema)
    given = {"a": Constants(1.2, 24.0, 6.0, 1.2, 60.0, 3.0)}
    a, b = with_host(table, given.get).to_pylist()
    assert a["step_exposed_us"] == pytest.approx(1000.0)
    assert (a["exposed_per_request_us"], a["request_us"]) == pytest.approx((20.0, 5000.0))
    assert (a["per_eager_launch_us"], a["per_prompt_token_us"]) == pytest.approx((50.0, 2.5))
    assert b["request_us"] == 1.0  # what has no constants stays as it is


def test_known_constants_are_found_again() -> None:
    pairs = world(TRUTH)
    assert loss(pairs, TRUTH) == pytest.approx(0.0, abs=1e-9)
    assert fit(pairs) == TRUTH
    assert fit([]) == NONE


def test_a_group_finds_its_pace_and_a_few_runs_stay_near_the_others() -> None:
    slow = TRUTH._replace(pace=1.162)
    assert fit_near(world(slow), TRUTH) == slow
    # one run says nothing of what it is due to: what moves it least far from the others explains it
    run = run_of(response(8.0, 30.0), slow)
    near = fit_near([(run, response(8.0, 30.0))], TRUTH)
    assert near.pace > 1.0
    assert near.per_request_us == TRUTH.per_request_us


def test_one_run_that_is_far_off_moves_nothing() -> None:
    pairs = world(TRUTH)
    strange = {**pairs[0][0], "ttft_ms": 1e6, "tpot_ms": 1e-3}
    assert fit([*pairs, (strange, pairs[0][1])]) == TRUTH


def test_a_group_of_several_versions_has_that_of_most_of_its_runs() -> None:
    pairs = world(TRUTH)
    runs = [run for run, _ in pairs]
    runs.append({**runs[0], "host_version": "0.10"})  # the last, and alone
    [(_, found)] = constants_of("version", runs, runs[:-1], [one for _, one in pairs]).items()
    assert found == TRUTH


def test_each_level_takes_the_runs_that_it_may() -> None:
    other = Constants(3.0, 0.0, 60.0, eager_launch_us=45.0)
    pairs = world(TRUTH, model="a") + world(other, model="b") + world(TRUTH, model="c", host_version="0.10")[:1]
    fitting, found = [run for run, _ in pairs], [one for _, one in pairs]
    groups = {"a": ("a", "h100_sxm", "vllm", None), "b": ("b", "h100_sxm", "vllm", None)}
    few = ("c", "h100_sxm", "vllm", None)
    assert set(constants_of("none", fitting, [], []).values()) == {NONE}
    version = constants_of("version", fitting, fitting, found)
    assert version[groups["a"]] == version[groups["b"]] != version[few]
    group = constants_of("group", fitting, fitting, found)
    assert group[groups["a"]].step_ms < 1.5 < group[groups["b"]].step_ms
    assert group[few] == version[few]  # one run is too few for constants of its own
    transfer = constants_of("transfer", fitting, fitting, found)
    # what was fitted on the other group alone
    assert loss(world(other, model="b"), transfer[groups["a"]]) < 0.02
    assert loss(world(TRUTH, model="a"), transfer[groups["b"]]) < 0.02
    assert transfer[few] == NONE
