"""Scores by campaign, and constants that are fitted on all campaigns but one."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.evaluation.runs.campaigns import METRICS, campaign_scores, compared, scored_of_campaigns
from kernelsight.evaluation.runs.run_scores import is_fitting
from kernelsight.laboratory.runs.campaign_fit import CONSTANTS, LAUNCHES, PRIOR, EngineHost, fit_over_campaigns
from kernelsight.laboratory.runs.run_classes import spread_runs

RUN = {"campaign": "mine", "engine": "vllm", "model": "m", "gpu": "g", "tp": 1, "ttft_ms": 100.0, "tpot_ms": None}
KEY = ("vllm", "request_us")


def test_a_run_is_compared_in_what_it_measured() -> None:
    found = {"predicted": {"ttft_mean_ms": 110.0, "tpot_mean_ms": 9.0}, "factors": {"ttft": (0.8, 1.2)}}
    ends = {"low": pytest.approx(88.0), "high": pytest.approx(132.0)}
    assert compared(RUN, found) == {
        "ttft_mean": {"measured": 100.0, "predicted": 110.0, "error": pytest.approx(0.1), "covered": True, **ends}
    }
    # without an interval nothing but the figure itself is covered
    assert not compared(RUN, found | {"factors": {}})["ttft_mean"]["covered"]


def test_throughput_of_a_loop_that_stays_full_is_that_of_its_users() -> None:
    run = {"output_throughput": 400.0, "max_concurrency": 8, "osl": 90}
    predicted = {"output_throughput": 300.0, "request_throughput": 3.0, "e2e_mean_ms": 1600.0}
    for full, expected in ((True, 500.0), (None, 300.0)):
        found = compared(run | {"while_full": full}, {"predicted": predicted, "factors": {}})
        assert found["throughput"]["predicted"] == expected
    full = {"predicted": predicted | {"full_output_throughput": 450.0}, "factors": {}}
    assert compared(run | {"while_full": True}, full)["throughput"]["predicted"] == 450.0


def test_scores_are_of_each_campaign_and_metric_without_what_was_fitted_on() -> None:
    ids = [str(number) for number in range(40)]
    rows = [
        {
            **{"run_id": name, "campaign": campaign, "fitting": is_fitting(name), "scored_separately": reason},
            "compared": {"e2e_mean": {"error": error, "covered": error < 0.2}},
        }
        for campaign, error in (("inferencex", 0.1), ("mine", -0.3))
        for name, reason in [*((name, None) for name in ids), ("x", "another kind")]
    ]
    found = campaign_scores(scored_of_campaigns(rows))
    kept = sum(not is_fitting(name) for name in ids)
    assert 0 < kept < 40
    assert [(name, scores["e2e_mean"]["n"]) for name, scores in found.items()] == [("inferencex", kept), ("mine", 40)]
    assert found["mine"]["e2e_mean"]["bias"] == pytest.approx(-0.3)
    assert [scores["e2e_mean"]["coverage_90"] for scores in found.values()] == [1.0, 1.0]


def test_a_sample_is_spread_over_each_campaign() -> None:
    runs = [RUN | {"campaign": name, "run_id": f"{i:02}", "gpu": f"g{i // 5}"} for name in "ab" for i in range(10)]
    assert [runs[i]["gpu"] for i in spread_runs(runs, 2)] == ["g0", "g1"] * 2
    assert spread_runs(runs, 100) == list(range(20))


def test_the_campaign_that_is_left_out_decides_nothing() -> None:
    """Two campaigns want 20 ms a request, a third, of more runs, 3 ms."""
    wants = {"a": 20_000.0, "b": 20_000.0, "c": 3_000.0}
    runs = [{"campaign": name, "engine": "vllm"} for name in "abc" for _ in range(50 if name == "c" else 5)]
    start = np.full((len(runs), len(METRICS)), np.nan)
    start[:, 0] = [np.log(PRIOR[KEY] / wants[run["campaign"]]) for run in runs]
    moves = {}
    for each in CONSTANTS:
        for value in each.grid:
            added = np.zeros_like(start)
            if (each.loop, each.column) == KEY:
                added[:] = np.log(value / each.prior)
            moves[each.loop, each.column, value] = added
    assert fit_over_campaigns(runs, start, moves)[KEY] == 20_000.0  # campaigns count alike, however many runs
    assert fit_over_campaigns(runs, start, moves, without="c")[KEY] == 20_000.0
    both = [i for i, run in enumerate(runs) if run["campaign"] != "b"]
    few = {key: added[both] for key, added in moves.items()}
    kept = [runs[i] for i in both]
    # one campaign decides nothing alone, and what no other campaign ran stays a priori
    assert fit_over_campaigns(kept, start[both], few, without="a") == PRIOR
    assert fit_over_campaigns(kept[:5], start[both][:5], {k: v[:5] for k, v in few.items()}, without="a") == PRIOR


def test_constants_are_those_of_the_engine() -> None:
    host = EngineHost({("vllm", "request_us"): 1.0, ("sglang", "request_us"): 2.0, ("sglang", LAUNCHES): 30.0})

    def of(engine: str, from_version: str, delay_us: float = 0.0) -> dict[str, float]:
        row = {"engine": engine, "from_version": from_version}
        return host.host(row | {"request_delay_us": delay_us})

    assert of("sglang", "0.5.6") == {"request_us": 2.0, LAUNCHES: 30.0}
    assert of("vllm", "0.10") == {"request_us": 1.0}
    assert of("vllm", "0.10", delay_us=160.0) == {"request_us": 1.0}  # a delay that a recipe fits on the campaign
    assert of("vllm", "0.14") == of("trtllm", "0") == {}
