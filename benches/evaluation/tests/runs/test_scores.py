"""Errors by hand, the fitting fifth, signs in the measurements, and the attribution of a miss that is known."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from kernelsight.evaluation.runs.report import report
from kernelsight.evaluation.runs.run_scores import is_fitting, score, stated_again, with_errors
from kernelsight.laboratory.runs.error_parts import PARTS, attribute, parts_of
from kernelsight.laboratory.runs.implausible_runs import FRONT_END, MANY_WORKERS, STALLS, signs_of
from kernelsight.laboratory.runs.peer_scores import behind, calibrated, compared_with, report_of_peer
from kernelsight.laboratory.runs.published_runs import by_basis, by_fitted_flags
from kernelsight.laboratory.runs.run_classes import over_groups, repeats

RUN = {
    "campaign": "inferencex",
    "model": "m",
    "gpu": "h100_sxm",
    "engine": "vllm",
    "engine_version": None,
    "quantization": "fp8",
    "tp": 1,
    "ep": 1,
    "measured_on": None,
    "isl": 1000,
    "osl": 101,
    "max_concurrency": 4,
    "workers": 1,
    "ttft_ms": 100.0,
    "tpot_ms": 10.0,
}


def test_scores_by_hand() -> None:
    found = score([0.1, -0.3, 0.2, -0.4])
    assert found == pytest.approx(
        {"n": 4, "median_ape": 0.25, "mape": 0.25, "p90_ape": 0.37, "bias": -0.1, "median_error": -0.1}
    )
    assert score([])["n"] == 0
    assert score([])["mape"] is None


def test_throughput_is_derived_from_both_times() -> None:
    errors = with_errors(RUN, 200.0, 9.0)
    # 4 x 101 tokens in 100 + 10 x 100 ms against 200 + 9 x 100 ms: the same
    assert errors == pytest.approx({"ttft": 1.0, "tpot": -0.1, "throughput": 0.0})


def test_the_fitting_fifth_is_chosen_by_the_hash_of_the_id() -> None:
    ids = [f"run{number}" for number in range(500)]
    assert [is_fitting(one) for one in ids] == [
        int(hashlib.sha256(one.encode()).hexdigest(), 16) % 5 == 0 for one in ids
    ]


def test_runs_that_state_a_scored_measurement_once_more_are_known() -> None:
    scored = next(f"r{number}" for number in range(99) if not is_fitting(f"r{number}"))
    other = next(f"s{number}" for number in range(99) if not is_fitting(f"s{number}"))
    fitting = [f"r{number}" for number in range(99) if is_fitting(f"r{number}")]
    runs = [
        {**RUN, "run_id": scored, "ttft_ms": 100.0049},
        {**RUN, "run_id": fitting[0], "ttft_ms": 100.0},
        {**RUN, "run_id": fitting[1], "ttft_ms": 100.02},
        {**RUN, "run_id": fitting[2], "tpot_ms": 10.02},
        {**RUN, "run_id": fitting[3], "tp": 2},
        {**RUN, "run_id": other},
    ]
    assert repeats(runs) == {fitting[0]}


def test_signs_are_seen_in_the_measurements_alone() -> None:
    runs = [
        {**RUN, "ttft_ms": 500.0, "max_concurrency": 4},
        {**RUN, "ttft_ms": 200.0, "max_concurrency": 8},
        {**RUN, "ttft_ms": 100.0, "max_concurrency": 16, "osl": 101},
        {**RUN, "ttft_ms": 300.0, "max_concurrency": 16, "osl": 1000},
        {**RUN, "model": "other", "workers": 8},
    ]
    assert signs_of(runs) == [STALLS, None, None, FRONT_END, MANY_WORKERS]


def served(prefill: float, decode: float, communication: float, host: float, load: int, factor: float) -> dict:
    """Return a run whose decode kernels really take ``factor`` times what was predicted, and all else is right."""
    tokens = load * 1000
    row = {
        **RUN,
        "prefill_kernels_s": prefill * load,
        "decode_kernels_s": decode * tokens,
        "prefill_communication_s": 0.0,
        "decode_communication_s": communication * tokens,
        "host_exposed_s": host * tokens,
        "ttft_mean_ms": 60.0 + load,
        "queue_ms": 20.0,
    }
    row["gpu_s"] = row["prefill_kernels_s"] + (decode + communication) * tokens
    total = row["gpu_s"] + row["host_exposed_s"]
    row["tpot_mean_ms"] = 10.0 * total / tokens
    row["ttft_ms"] = row["ttft_mean_ms"]
    row["tpot_ms"] = row["tpot_mean_ms"] + 10.0 * (factor - 1) * decode
    return row


def test_the_parts_of_a_run_add_up_to_its_prediction() -> None:
    row = served(0.5, 0.6, 0.2, 0.1, 4, 1.0)
    ttft, tpot = parts_of(row)
    assert sum(ttft.values()) == pytest.approx(row["ttft_mean_ms"])
    assert sum(tpot.values()) == pytest.approx(row["tpot_mean_ms"])
    assert ttft["scheduling"] == pytest.approx(20.0)
    assert set(ttft) == set(tpot) == set(PARTS)


def test_a_miss_is_laid_on_the_part_that_makes_it() -> None:
    generator = np.random.default_rng(0)
    rows = [served(*generator.uniform(0.05, 1.0, 4), load, 1.6) for load in range(2, 42)]
    found = attribute(rows)
    assert found["tpot"]["miss"] > 0.1
    assert found["tpot"]["decode_kernels"] == pytest.approx(found["tpot"]["miss"], abs=0.03)
    assert abs(found["tpot"]["communication"]) < 0.03
    assert found["tpot"]["unexplained"] < 0.03
    assert abs(found["ttft"]["miss"]) < 1e-9


def test_the_report_scores_held_out_runs_and_counts_the_others() -> None:
    def run(name: str, **more: object) -> dict:
        base = served(0.5, 0.6, 0.2, 0.1, 4, 1.0) | {
            "run_id": name,
            "status": "served",
            "is_moe": False,
            "fitting": False,
        }
        return base | {"errors": {"ttft": 0.1, "tpot": -0.1, "throughput": 0.1}} | more

    rows = [
        run("a"),
        run("b", is_moe=True, engine="sglang", errors={"ttft": 0.5, "tpot": 0.3, "throughput": -0.2}),
        run("c", fitting=True),
        run("d", errors=None, status="it does not fit"),
        run("e", prefill_workers=2, fitting=True, errors={"ttft": 0.9, "tpot": 0.4, "throughput": 0.4}),
        run("f", scored_separately="of its own", errors={"ttft": 0.7, "tpot": 0.2, "throughput": 0.2}),
        run("g", scored_separately="of its own", fitting=True),
    ]
    answer = report(rows)
    assert (answer["ttft"]["n"], answer["dense"]["ttft"]["n"], answer["moe"]["ttft"]["n"]) == (2, 1, 1)
    assert answer["ttft"]["mape"] == pytest.approx(0.3)
    assert [(group["engine"], group["n"]) for group in answer["groups"]] == [("sglang", 1), ("vllm", 1)]
    assert answer["not_simulated"] == [{"reason": "it does not fit", "n": 1}]
    # prompts on engines of their own: apart, whatever fifth they are of, as none of them is fitted on
    assert (answer["disaggregated"]["ttft"]["n"], answer["disaggregated"]["ttft"]["mape"]) == (1, pytest.approx(0.9))
    [separate] = answer["separate"]
    assert (separate["reason"], separate["ttft"]["n"], separate["ttft"]["mape"]) == ("of its own", 1, 0.7)
    beside = report_of_peer({"shipped": rows}, {"a": (80.0, 10.0)})
    assert beside["n"] == 1
    assert beside["not_predicted"] == 1
    assert beside["ours"]["ttft"]["mape"] == pytest.approx(0.1)
    assert beside["peer"]["ttft"]["mape"] == pytest.approx(abs(80.0 / rows[0]["ttft_ms"] - 1))


def test_another_tool_is_scored_only_where_it_predicts() -> None:
    assert compared_with([], {}, {})["n"] == 0


def scored_run(name: str, ttft_error: float = 0.1, **more: object) -> dict:
    """Return a run that was served with an error of TTFT, outside the fitting fifth unless stated."""
    errors = {"ttft": ttft_error, "tpot": 0.1, "throughput": 0.1}
    return {**RUN, "run_id": name, "fitting": False, "is_moe": False, "recipes": [], "errors": errors} | more


def names(fitting: bool) -> list[str]:
    """Return ids of runs inside or outside the fitting fifth."""
    return [f"q{number}" for number in range(99) if is_fitting(f"q{number}") is fitting]


def test_a_measurement_that_several_rows_state_is_scored_once() -> None:
    first, again, other, *_ = names(fitting=False)
    runs = [
        scored_run(first),
        scored_run(again, 0.5, ttft_ms=100.004),
        scored_run(other, 0.3, ttft_ms=101.0),
        scored_run(names(fitting=True)[0], fitting=True),
    ]
    assert stated_again(runs) == {again}
    answer = report([{**row, "status": "served", **PARTS_OF_A_RUN} for row in runs])
    assert (answer["ttft"]["n"], answer["ttft"]["mape"]) == (2, pytest.approx(0.2))


PARTS_OF_A_RUN = {
    **dict.fromkeys(("prefill_kernels_s", "decode_kernels_s", "prefill_communication_s", "gpu_s"), 1.0),
    **dict.fromkeys(("decode_communication_s", "host_exposed_s"), 0.1),
    **{"ttft_mean_ms": 110.0, "tpot_mean_ms": 11.0, "queue_ms": 1.0},
}


def test_another_tool_gets_one_factor_a_metric_and_group() -> None:
    scored, other, *_ = names(fitting=False)
    fitting = names(fitting=True)[:3]
    rows = [scored_run(scored, -0.2), scored_run(other, model="alone", ttft_ms=50.0)]
    rows += [scored_run(name, fitting=True, ttft_ms=90.0 + i) for i, name in enumerate(fitting)]
    peer = dict.fromkeys([scored, other, *fitting], (50.0, 5.0))
    found = calibrated(rows, peer)
    # the middle one of 90, 91 and 92 / 50, and of 10 / 5; no run of the other group is fitted on
    assert found[scored] == pytest.approx((91.0, 10.0))
    assert found[other] == (50.0, 5.0)
    compared = compared_with(rows[:2], found, peer)
    assert compared["calibrated"]["ttft"]["mape"] == pytest.approx((0.09 + 0.0) / 2)
    # one group is met exactly by the other tool's TTFT, which is half of the other's measured one
    assert behind(rows, peer) == {"groups": 2, "ttft": 1, "tpot": 0}
    # all levels on the runs that the other tool predicts, and on no others
    both = report_of_peer({"first": rows, "second": rows}, {scored: (50.0, 5.0)})
    assert both["n"] == both["levels"]["second"]["all"]["ttft"]["n"] == 1
    assert both["levels"]["second"]["all"]["ttft"]["mape"] == pytest.approx(0.2)


def test_runs_are_split_by_the_basis_of_their_flags() -> None:
    first, second, third, *_ = names(fitting=False)
    rows = [
        scored_run(first, 0.1, recipes=["client", "script"]),
        scored_run(second, 0.3, recipes=["client", "guess"], tp=2),
        scored_run(third, 0.5, recipes=["client", "fit"], tp=4, is_moe=True),
    ]
    basis = {"client": "fitted", "script": "published", "guess": "assumed", "fit": "fitted", "unused": "fitted"}
    found = by_basis(rows, basis)
    assert found["published"]["all"]["ttft"]["mape"] == pytest.approx(0.1)
    assert found["fitted_or_assumed"]["dense"]["ttft"]["mape"] == pytest.approx(0.3)
    assert found["fitted_or_assumed"]["moe"]["ttft"]["n"] == 1
    assert [(each["recipe"], each["scored"]) for each in found["recipes"]] == [("client", 3), ("guess", 1), ("fit", 1)]


def test_a_group_is_called_fitted_by_its_recipes_and_the_median_goes_over_groups() -> None:
    first, second, third, fourth, *_ = names(fitting=False)
    rows = [
        scored_run(first, 0.1, recipes=["client", "script"], model="a"),
        scored_run(second, 0.3, recipes=["client", "script"], model="b"),
        # one run of the group has fitted flags: so has the group
        scored_run(third, 0.5, recipes=["client", "fit"], model="c"),
        scored_run(fourth, 0.7, recipes=["client", "script"], model="c"),
    ]
    found = by_fitted_flags(rows, {"client": "fitted", "script": "published", "fit": "fitted"})
    assert (found["fitted"]["groups"], found["not_fitted"]["groups"]) == (1, 2)
    assert found["fitted"]["dense"]["ttft"]["mape"] == pytest.approx(0.6)
    assert found["not_fitted"]["all"]["ttft"]["n"] == 2
    # medians of the groups: 0.1, 0.3 and 0.6; of the runs it would be 0.4
    assert over_groups(rows)["all"]["groups"] == 3
    assert over_groups(rows)["all"]["ttft"] == pytest.approx(0.3)
    assert over_groups(rows)["moe"] == {"groups": 0, "ttft": None, "tpot": None, "throughput": None}
