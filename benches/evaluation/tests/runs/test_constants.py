"""Host constants: interpolated between simulated points, found again where they are known, and for whom they stand."""

from __future__ import annotations

import csv

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.evaluation.runs.simulate_runs import with_host
from kernelsight.laboratory.runs.constants import constants_of
from kernelsight.laboratory.runs.fit_host import fit, fit_near, loss
from kernelsight.laboratory.runs.host_constants import HOST_PRIORS, REQUESTS_HALF, Constants, a_priori, priors
from kernelsight.laboratory.runs.responses import GRID, Response, means_of

TRUTH = Constants(30.0, 20.0, eager_launch_us=45.0, per_prompt_token_us=4.0)
NOTHING = Constants(0.0, 0.0)
# time of each of 50 running requests of which 20 us are seen
TWENTY = 20.0 * (1.0 + 50.0 / REQUESTS_HALF)


def response(base_ms: float, running: float, prompt_tokens: float = 1000.0, gaps_ms: float = 0.0) -> Response:
    """Return a run whose TPOT is the step, and whose TTFT is three steps, 100 launches and the request.

    One step in 1000 / running has a prompt, and its launches.
    """
    step, request, launch = np.meshgrid(*GRID, indexing="ij")
    ttft = 3 * (base_ms + step) + request + 0.1 * launch
    return Response(ttft, base_ms + step + 0.1 * launch * running / 1000.0, running, prompt_tokens, gaps_ms)


def means_at(found: Response, at: Constants) -> tuple[float, float]:
    """Return TTFT and TPOT of one run in ms at constants."""
    return tuple(means_of(Response.together([found]), at)[0].tolist())


def run_of(found: Response, at: Constants, **names: object) -> dict:
    """Return the measurements of a run with host time ``at``."""
    ttft, tpot = means_at(found, at)
    group = {"model": "m", "gpu": "h100_sxm", "engine": "vllm", "quantization": None}
    return {**group, "ttft_ms": ttft, "tpot_ms": tpot, **names}


def world(at: Constants, **names: object) -> list[tuple[dict, Response]]:
    """Return runs of models of different size under different load."""
    loads = [(2.0, 8000.0), (30.0, 200.0), (100.0, 2000.0)]
    models = [(3.0, 0.3), (8.0, 1.2), (20.0, 0.9)]
    found = [response(base, *load, gaps_ms) for base, gaps_ms in models for load in loads]
    return [(run_of(one, at, **names), one) for one in found]


def test_means_are_read_between_the_simulated_points() -> None:
    found = response(5.0, 50.0)
    assert means_at(found, NOTHING) == pytest.approx((15.0, 5.0))
    # 50 requests of 20 us that are seen, and half a millisecond of gaps between kernels: 1.5 ms a step
    gaps = response(5.0, 50.0, gaps_ms=0.5)
    assert means_at(gaps, NOTHING) == pytest.approx((16.5, 5.5))
    assert means_at(gaps, Constants(TWENTY, 7.5)) == pytest.approx((3 * 6.5 + 7.5, 6.5))
    assert means_at(gaps, Constants(TWENTY, 7.5, gap=0.0)) == pytest.approx((3 * 6.0 + 7.5, 6.0))
    # 100 launches of 20 us, of which one step in twenty pays
    assert means_at(found, Constants(0.0, 0.0, eager_launch_us=20.0)) == pytest.approx((15.0 + 2.0, 5.0 + 0.1))
    # 5 us for each of 1,000 tokens
    assert means_at(gaps, Constants(TWENTY, 2.5, per_prompt_token_us=5.0)) == pytest.approx((3 * 6.5 + 7.5, 6.5))
    # beyond the grid its last lines go on
    assert means_at(found, Constants(12.0 * TWENTY, 300.0)) == pytest.approx((3 * 17.0 + 300.0, 17.0))


def test_slower_kernels_are_the_same_run_in_another_unit_of_time() -> None:
    # kernels take 1.2 times as long, host time what is stated
    slow = response(5.0, 50.0, gaps_ms=0.5)
    assert means_at(slow, Constants(TWENTY, 7.5, 1.2)) == pytest.approx((3 * 7.5 + 7.5, 7.5))
    figures = ("launch_gap_us", "request_us", "request_delay_us", "per_eager_launch_us", "per_prompt_token_us")
    schema = pa.schema(
        [("deployment_id", pa.string()), ("engine", pa.string())]
        + [("step_exposed_us", pa.float64()), ("exposed_per_request_us", pa.float64())]
        + [(name, pa.float64()) for name in figures]
    )
    plain = {
        "engine": "vllm",
        "request_us": 1.0,
        "request_delay_us": 0.0,
        "per_prompt_token_us": 5.0,
        "launch_gap_us": 1.3,
    }
    rows = [
        plain | {"deployment_id": "a"},
        plain | {"deployment_id": "b"},
        plain | {"deployment_id": "c", "request_delay_us": 12000.0},
        plain | {"deployment_id": "d"},
    ]
    at = Constants(24.0, 6.0, 1.2, 2.4, 60.0, 3.0)
    given = with_host(
        pa.Table.from_pylist(rows, schema=schema),
        lambda row: at.host(row) if row["deployment_id"] in "ac" else None,
        {"d"},
    )
    a, b, c, d = given.to_pylist()
    assert (a["launch_gap_us"], a["exposed_per_request_us"]) == pytest.approx((2.6, 20.0))
    assert (a["per_eager_launch_us"], a["per_prompt_token_us"], a["request_us"]) == pytest.approx((50.0, 2.5, 5000.0))
    # a stated delay of requests scales with the unit of time
    assert c["request_us"] == pytest.approx(15000.0)
    assert (b["request_us"], b["per_prompt_token_us"]) == (1.0, 5.0)  # what has no constants stays as it is
    assert d["per_prompt_token_us"] == 0.0  # prose


def test_known_constants_are_found_again() -> None:
    pairs = world(TRUTH)
    assert loss(pairs, TRUTH) == pytest.approx(0.0, abs=1e-9)
    assert fit(pairs) == TRUTH
    assert fit([]) == a_priori()


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


def test_a_large_group_does_not_outvote_the_others() -> None:
    # nine runs that fit, and four times nine that do not: weights of 3 and 6, not 9 and 36
    small, large = world(TRUTH, model="a"), world(TRUTH._replace(gap=3.0), model="b")
    assert loss(small + 4 * large, TRUTH) == pytest.approx(loss(large, TRUTH) * 6 / 9)


def test_each_level_takes_the_runs_that_it_may() -> None:
    other = Constants(0.0, 60.0, gap=3.0, eager_launch_us=45.0)
    pairs = world(TRUTH, model="a") + world(other, model="b") + world(TRUTH, model="c")[:1]
    fitting, found = [run for run, _ in pairs], [one for _, one in pairs]
    groups = {"a": ("a", "h100_sxm", "vllm", None), "b": ("b", "h100_sxm", "vllm", None)}
    few = ("c", "h100_sxm", "vllm", None)
    unseen = {**fitting[0], "model": "d"}
    assert set(constants_of("none", fitting, [], []).values()) == {a_priori()}
    everyone = constants_of("all", [*fitting, unseen], fitting, found)
    assert len(set(everyone.values())) == 1
    group = constants_of("group", [*fitting, unseen], fitting, found)
    assert group[groups["a"]].gap < 1.6 < group[groups["b"]].gap
    # one run is too few for constants of its own, and so is none
    assert group[few] == group["d", "h100_sxm", "vllm", None] == everyone[few]
    transfer = constants_of("transfer", [*fitting, unseen], fitting, found)
    # what was fitted on the other groups alone
    assert loss(world(TRUTH, model="b"), transfer[groups["b"]]) < 0.03
    assert loss(world(other, model="b"), transfer[groups["a"]]) < loss(world(other, model="b"), everyone[few])
    assert transfer["d", "h100_sxm", "vllm", None] == everyone[few]


def test_published_times_have_an_interval_and_a_source() -> None:
    with HOST_PRIORS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["constant"] for row in rows} == set(priors())
    assert all(float(row["low"]) < float(row["value"]) <= float(row["high"]) and row["source"] for row in rows)
