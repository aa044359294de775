"""The cheapest deployment at a rate: against a full search of all of them, its answer, and what is refused."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest

import kernelsight as ks
from kernelsight.errors import KernelSightError
from kernelsight.session import Session
from kernelsight.sizing.answer import Sizing
from kernelsight.sweeps.trials import Trials
from kernelsight.sweeps.work_budget import SearchEnded, TimeIsOver, Work
from tests.asked import refusals

from .conftest import FLAGS, LOAD, SLO

# what a deployment served at a rate is served once for all questions
pytestmark = pytest.mark.usefixtures("kept_trials")

PRICES = {"l4": 0.7, "h100_sxm": 2.5}
ROW = (
    *("gpu", "tensor_parallel_size", "rate", "rate_low", "rate_high", "steady", "instances", "price_per_hour"),
    *("cost_per_million_tokens", "limit", "tier", "not_measured"),
)
LIMITS = ("prefill compute", "token budget", "decode bandwidth", "KV cache", "seats", "host", "link")


def size(session: Session, **asked: Any) -> Sizing:
    return session.size(**{"gpus": list(PRICES), "slo": SLO, "max_gpus": 2, "tune": False} | FLAGS | LOAD | asked)


@pytest.fixture(scope="module")
def found(session: Session) -> Sizing:
    return size(session, rate=60.0, prices=PRICES)


@pytest.mark.whole
def test_the_winner_is_that_of_a_full_search(session: Session, found: Sizing) -> None:
    pairs = list(itertools.product(PRICES, (1, 2)))
    grid = [FLAGS | LOAD | {"gpu": gpu, "tensor_parallel_size": tp} for gpu, tp in pairs]
    rates = session.find_rates(grid, SLO)["max_request_rate"].to_pylist()
    for rate in (3.0, 400.0):
        answer = size(session, rate=rate, prices=PRICES, confidence=0.5)
        costs = [math.ceil(rate / own) * tp * PRICES[gpu] for (gpu, tp), own in zip(pairs, rates, strict=True) if own]
        assert answer.chosen["price_per_hour"] <= 1.02 * min(costs)
        assert answer.chosen["instances"] * answer.chosen["rate"] >= rate * (1 - 1e-9)


def test_rows_say_what_the_contract_lists(found: Sizing) -> None:
    assert found.chosen == found.rows[0] and found.chosen["price_per_hour"] == min(
        row["price_per_hour"] for row in found.rows
    )
    for row in found.rows:
        assert (
            set(ROW) <= set(row)
            and (row["limit"] in LIMITS or row in found.rows[2:])
            and row["tier"] in ("target-measured", "gpu-measured", "cross-generation")
        )
        assert row["ttft_p95_low_ms"] < row["ttft_p95_ms"] < row["ttft_p95_high_ms"]
        assert row["rate_if_slow"] < row["rate"] < row["rate_if_fast"] and 0.9 <= row["probability"] <= 1.0
        assert row["load"] == pytest.approx(60.0 / (row["instances"] * row["rate"])) and row["served"] == 60.0
        assert row["rate_low"] <= row["rate"] <= row["rate_high"] and row["steady"] is (row["search"] == "full")
        assert row["gpus"] == row["instances"] * row["tensor_parallel_size"]
        assert row["price_per_hour"] == pytest.approx(row["gpus"] * PRICES[row["gpu"]])
        for kind, tokens in (("", 312), ("input_", 300), ("output_", 12)):
            wanted = row["price_per_hour"] / (60.0 * tokens * 3600 / 1e6)
            assert row[f"cost_per_million_{kind}tokens"] == pytest.approx(wanted)
        assert row["max_num_seqs"] == 16 and row["ttft_p95_ms"] <= SLO["ttft_p95_ms"]
    # every GPU that can is there, so that it can be seen why it was not chosen
    assert {row["gpu"] for row in found.rows} == set(PRICES)
    assert found.as_dict()["answer"] == found.answer and repr(found) == f"Sizing({found.answer})"
    assert found._repr_html_().count("<tr>") == 1 + len(found.rows) == 1 + found.table().num_rows


def test_the_answer_is_a_sentence_and_a_command(found: Sizing) -> None:
    row = found.chosen
    begin = f"{row['gpus']} × {row['gpu']} at TP {row['tensor_parallel_size']}, "
    assert found.answer.startswith(begin)
    assert f"{row['price_per_hour']:.3g} $/h" in found.answer and f"; the limit is {row['limit']}." in found.answer
    assert f"60 requests/s take {row['instances']} instance" in found.answer
    (line,) = found.launch
    stated = ks.read_launch_line(line).flags
    assert stated.get("tensor_parallel_size", 1) == row["tensor_parallel_size"]
    assert stated["max_num_seqs"] == 16 and stated["max_num_batched_tokens"] == 512


@pytest.mark.parametrize("name", ["llama-3.1-8b-instruct", "llama-3.1-8b"])
@pytest.mark.whole
def test_the_command_serves_the_model_that_a_user_names(session: Session, name: str) -> None:
    (line,) = size(session, rate=1.0, model=name, gpus=["h100_sxm"], max_gpus=1).launch
    wanted = "meta-llama/Llama-3.1-8B" + ("-Instruct" if "nstruct" in name else "")
    assert ks.read_launch_line(line).flags["model"] == wanted


def test_longer_runs_keep_the_winners_rate(session: Session, found: Sizing) -> None:
    row = found.chosen
    deployment = FLAGS | {name: row[name] for name in ("gpu", "tensor_parallel_size")}
    load = LOAD | {"request_rate": row["rate"], "num_prompts": 10 * row["num_prompts"]}
    runs = session.sweep([deployment | load | {"seed": seed} for seed in (5, 6, 7)], slo=SLO)
    assert sum(runs.summary["meets_slo"].to_pylist()) >= 2


def test_without_prices_gpus_are_counted(session: Session) -> None:
    found = size(session, rate=60.0)
    assert found.chosen["gpus"] == min(row["gpus"] for row in found.rows)
    assert all(row["price_per_hour"] is None and row["cost_per_million_tokens"] is None for row in found.rows)
    assert "Without prices the ranking is by GPUs needed; --prices GPU=DOLLARS ranks by cost." in found.answer


def test_requests_per_day_are_a_rate(session: Session) -> None:
    one = {"gpus": ["h100_sxm"], "max_gpus": 1, "prices": PRICES}
    a_day = size(session, requests_per_day=86_400.0 * 3, **one)
    assert a_day.rows == size(session, rate=3.0, **one).rows


@pytest.mark.whole
def test_other_sizes_of_a_step_are_tried(session: Session) -> None:
    flags = {"gpus": ["h100_sxm"], "max_gpus": 1, "max_num_batched_tokens": None, "prices": PRICES}
    name, sizes = "max_num_batched_tokens", [None, 1024, 2048, 4096, 16384]
    grid = [{**FLAGS, **LOAD, "gpu": "h100_sxm", name: each} for each in sizes]
    rate_of = dict(zip(sizes, session.find_rates(grid, SLO)["max_request_rate"].to_pylist(), strict=True))
    # five instances at the highest rate of all, more at the others
    first = max(rate_of.values())
    asked = 4.5 * first
    found = size(session, rate=asked, tune=True, confidence=0.5, **flags)
    assert sorted(str(row.get(name)) for row in [*found.rows, *found.left_out]) == sorted(map(str, sizes))
    needed = {each: math.ceil(asked / rate) for each, rate in rate_of.items()}
    assert found.complete and found.chosen["instances"] == min(needed.values())
    for row in found.left_out:  # each for its cost, and rightly so: a rate is found to 2 %
        assert "cheaper than another" in row["reason"] or "dearer" in row["reason"]
        assert math.ceil(0.98 * asked / rate_of[row.get(name)]) >= found.chosen["instances"]
        assert row["bound"] >= found.chosen["price_per_hour"]


@pytest.mark.whole
def test_flags_are_searched_where_asked(session: Session) -> None:
    search = {"quantization": [None, "fp8"], "prefill_replicas": [None, 1]}
    found = size(session, rate=20.0, gpus=["h100_sxm"], max_gpus=1, prices=PRICES, search=search)
    rows = [*found.rows, *found.left_out]
    assert {(row.get("quantization"), row.get("prefill_replicas")) for row in rows} == set(
        itertools.product((None, "fp8"), (None, 1))
    )
    apart = [row for row in found.rows if row.get("prefill_replicas")]
    # an instance that computes prompts apart has a GPU more
    assert all(row["gpus"] == 2 * row["instances"] for row in apart)


def test_values_to_search_that_do_not_exist_are_listed(session: Session) -> None:
    one = {"rate": 20.0, "gpus": ["h100_sxm"], "max_gpus": 1}
    found = size(session, search={"quantization": [None, "fp9"]}, **one)
    assert found.chosen and "quantization" not in found.chosen
    (row,) = found.left_out
    assert row["quantization"] == "fp9" and row["reason"].startswith("unknown quantization 'fp9'")
    for name, wrong, words in (
        ("engine", "tgi", "engine is 'tgi'; give one of vllm, sglang, trtllm, or none, which leaves it to the engine."),
        ("max_num_seqs", "default", "max_num_seqs is 'default'; give a whole number of at least 1, or none, which"),
    ):
        with pytest.raises(KernelSightError, match=re.escape(words)):
            size(session, search={name: [None, wrong]}, **(one | {name: None}))


def test_no_deployment_keeps_them(session: Session) -> None:
    found = size(session, rate=60.0, prices=PRICES, slo={"ttft_p50_ms": 11.0})
    assert found.chosen is None and found.rows == [] and found.launch == []
    first, _, rest = found.answer.partition("; ")
    assert first == "No deployment keeps TTFT p50 of 11 ms"
    assert re.match(r"the nearest is (h100_sxm|l4) at TP \d", rest) and " above: TTFT p50 of 11 ms is asked for" in rest


def test_engines_that_do_not_exist_for_a_gpu_are_skipped_and_said(session: Session) -> None:
    sentence = "TensorRT-LLM does not exist for mi300x; use vllm or sglang"
    pair = {"gpus": ["mi300x", "h100_sxm"], "prices": {"mi300x": 0.1, "h100_sxm": 9.0}, "max_gpus": 1}
    both = size(session, rate=3.0, search={"engine": ["vllm", "trtllm"]}, **pair)
    assert {(row["gpu"], row.get("engine", "vllm")) for row in both.rows} == {
        ("mi300x", "vllm"),
        ("h100_sxm", "vllm"),
        ("h100_sxm", "trtllm"),
    }
    assert f" {sentence}." in both.answer
    assert [(row["gpu"], row["reason"]) for row in both.left_out] == [("mi300x", sentence)]
    with pytest.raises(KernelSightError, match=f"^no deployment can run: {sentence}\\.$"):
        size(session, rate=3.0, engine="trtllm", **pair | {"gpus": ["mi300x"]})


@pytest.mark.parametrize(
    ("asked", "sentence"),
    refusals("sizing/test_size::test_questions_that_cannot_be_answered"),
)
def test_questions_that_cannot_be_answered(session: Session, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(KernelSightError) as caught:
        size(session, **{"rate": 5.0} | asked)
    assert str(caught.value) == sentence


def test_unknown_names_get_the_nearest(session: Session) -> None:
    for asked, words in (
        ({"gpus": ["h101"]}, "unknown GPU 'h101'."),
        ({"slo": {"ttft_p100_ms": 5.0}}, "unknown latency statistic 'ttft_p100_ms'."),
        ({"search": {"request_rate": [1]}}, "unknown flag to search 'request_rate'."),
        ({"prices": "h101=2"}, "unknown GPU 'h101'."),
    ):
        with pytest.raises(KernelSightError) as caught:
            size(session, **{"rate": 5.0} | asked)
        assert str(caught.value).startswith(words)


def test_more_confidence_a_margin_and_a_peak_take_more(session: Session) -> None:
    one = {"gpus": ["h100_sxm"], "max_gpus": 1, "prices": PRICES}
    plain = size(session, rate=600.0, confidence=0.5, **one).chosen
    surer = size(session, rate=600.0, confidence=0.95, **one).chosen
    spare = size(session, rate=600.0, confidence=0.5, margin=0.4, **one).chosen
    peak = size(session, rate=600.0, confidence=0.5, peak=2.0, **one).chosen
    assert plain["instances"] == math.ceil(600.0 / plain["rate"]) and plain["probability"] >= 0.5
    assert surer["instances"] > plain["instances"] and surer["probability"] >= 0.95
    assert spare["instances"] == math.ceil(600.0 / 0.6 / spare["rate"]) and spare["load"] <= 0.6
    assert peak["instances"] == math.ceil(1200.0 / peak["rate"]) and peak["served"] == 1200.0
    # what runs for the peak is paid all the time, by the tokens of the mean rate
    for row in (plain, peak):
        tokens_per_hour = 600.0 * 3600.0 * (LOAD["input_len"] + LOAD["output_len"])
        assert row["cost_per_million_tokens"] == pytest.approx(row["price_per_hour"] / tokens_per_hour * 1e6)


@pytest.mark.whole
def test_what_is_not_measured_is_said_and_what_is_sure_goes_before_a_gamble(session: Session) -> None:
    # the cheap GPU was never measured: it may be a factor of 4 off
    pair = {"gpus": ["gaudi3", "h100_sxm"], "prices": {"gaudi3": 0.1, "h100_sxm": 9.0}, "max_gpus": 1}
    tight = {"slo": {"tpot_p90_ms": 4.0}, "rate": 3.0}
    gamble = size(session, confidence=0.5, **pair, **tight)
    found = size(session, **pair, **tight)
    assert gamble.chosen["gpu"] == "gaudi3" and gamble.chosen["probability"] < 0.9
    assert gamble.chosen["tier"] == "unmeasured-vendor"
    assert "gemm" in gamble.answer and "on a GPU of INTEL: general constants stand in" in gamble.answer
    assert found.chosen["gpu"] == "h100_sxm" and found.chosen["probability"] >= 0.9
    assert "cheaper and less sure" in found.answer
    assert found.decides is None or "calibrate" in found.decides
    alone = size(session, **pair | {"gpus": ["gaudi3"]}, **tight)
    assert ": a gamble, as no deployment keeps them with 90%." in alone.answer


@pytest.mark.whole
def test_what_a_number_of_gpus_can_serve(session: Session) -> None:
    found = size(session, rate=None, total_gpus=2, prices=PRICES, gpus=["h100_sxm"], confidence=0.5)
    for row in found.rows:
        assert row["gpus"] == 2 and row["served"] == pytest.approx(row["instances"] * row["rate"])
    assert found.chosen["served"] == max(row["served"] for row in found.rows)
    assert f"They serve {found.chosen['served']:.4g} requests/s" in found.answer
    # of three GPUs one stays idle where an instance takes two
    three = size(session, rate=None, total_gpus=3, gpus=["h100_sxm"], tensor_parallel_size=2, confidence=0.5)
    assert three.chosen["gpus"] == 2 and three.chosen["instances"] == 1


def test_users_are_a_closed_loop(session: Session) -> None:
    one = {"gpus": ["h100_sxm"], "max_gpus": 1, "prices": PRICES, "confidence": 0.5, "rate": None}
    found = size(session, users=100, **one)
    row = found.chosen
    assert row["users_low"] <= row["users"] <= row["users_high"] and row["users"] == round(row["users"])
    assert row["instances"] == math.ceil(100 / row["users"]) and row["served"] == 100
    assert f"100 users take {row['instances']} instances, each up to {row['users']:.3g} users (" in found.answer
    # as many keep the objectives in a closed loop, and a tenth more do not
    deployment = FLAGS | {"gpu": "h100_sxm"} | LOAD | {"num_prompts": 4000, "seed": 5}
    levels = [round(row["users"]), math.ceil(1.15 * row["users"])]
    runs = session.sweep([deployment | {"max_concurrency": level} for level in levels], slo=SLO).summary.to_pylist()
    # in its beginning everybody starts at once: TTFT is that of the whole run here
    assert [run["tpot_p90_ms"] <= SLO["tpot_p90_ms"] for run in runs] == [True, row["users"] >= 16 or False]
    assert row["rate"] == pytest.approx(runs[0]["request_throughput"], rel=0.1)


def test_users_have_seats_where_nothing_is_said_of_waiting(session: Session) -> None:
    one = {"gpus": ["h100_sxm"], "max_gpus": 1, "confidence": 0.5, "rate": None, "users": 40}
    row = size(session, slo={"tpot_p90_ms": 1000.0}, **one).chosen
    assert row["users"] == row["users_high"] == FLAGS["max_num_seqs"] and row["instances"] == 3


def test_instances_follow_the_hours_of_a_day(session: Session) -> None:
    one = {"gpus": ["l4"], "max_gpus": 1, "prices": PRICES, "confidence": 0.5}
    found = size(session, rate=60.0, daily_peak=2.5, startup_seconds="5min", **one)
    row, day = found.chosen, found.day
    assert row["served"] == pytest.approx(150.0) and len(day["hours"]) == 24
    assert max(hour["instances"] for hour in day["hours"]) == row["instances"]
    for hour in day["hours"]:
        assert hour["instances"] == max(math.ceil(hour["asked"] / row["rate"] * (1 - 1e-9)), 1)
    started = sum(hour["started"] for hour in day["hours"])
    hours = sum(hour["instances"] for hour in day["hours"]) + started * 300.0 / 3600.0
    assert day["cost_per_day"] == pytest.approx(0.7 * hours) == row["cost_per_day"] < day["cost_per_day_at_the_peak"]
    tokens = 86_400.0 * 60.0 * (LOAD["input_len"] + LOAD["output_len"]) / 1e6
    assert row["cost_per_million_tokens"] == pytest.approx(row["cost_per_day"] / tokens, rel=1e-3)
    assert "instances do: " in found.answer and "; a start takes 300 s." in found.answer
    own = size(session, rate=60.0, daily_peak=2.5, disk_rate="500MB/s", **one)
    assert own.day["startup_s"] > 64.0 and " at 0.5 GB/s and 64 s of the engine (assumed)" in own.answer


@pytest.mark.whole
def test_a_model_like_another_is_sized(session: Session) -> None:
    asked = {"model": "my-model", "model_like": "qwen3-0.6b", "gpus": ["h100_sxm"], "max_gpus": 1}
    found = size(session, rate=5.0, **asked)
    plain = size(session, rate=5.0, gpus=["h100_sxm"], max_gpus=1)
    assert found.chosen["rate"] == plain.chosen["rate"]


@pytest.mark.parametrize("stop", ["work", "interrupt", "time"])
def test_a_search_that_ends_early_answers_with_the_best_so_far(
    session: Session, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    said: list[str] = []
    take = Work.take

    def ending(work: Work, requests: int) -> None:
        if any(str(text).startswith("best so far") for text in said):
            if stop == "interrupt":
                raise KeyboardInterrupt
            if stop == "time":
                raise TimeIsOver("its time limit of 1 s is over")
            if "all of it" not in said:
                said.append("all of it")
                raise SearchEnded("its allowance of simulated requests is spent")
        take(work, requests)

    monkeypatch.setattr(Work, "take", ending)
    found = size(session, rate=60.0, prices=PRICES, report=said.append)
    # what is not tried is left out where its bound is above the cost of the best
    assert found.chosen is not None and found.complete is (stop == "work" and not found.not_tried)
    assert (found.chosen["search"] == "full") is (stop == "work")
    assert ("Not proven to be the cheapest: " in found.answer) is not found.complete
    if found.not_tried:
        count, least = len(found.not_tried), min(row["bound"] for row in found.not_tried)
        assert f"; {count} deployment{'s' if count > 1 else ''} may be cheaper, at {least:.3g} $/h or " in found.answer
    for row in found.left_out:
        assert row["bound"] >= found.chosen["price_per_hour"]
    shown = {(row["gpu"], row["tensor_parallel_size"]) for row in [*found.rows, *found.left_out, *found.not_tried]}
    assert shown == set(itertools.product(PRICES, (1, 2)))


@pytest.mark.parametrize(
    "place", ["kernelsight.sizing.evidence.intervals_at", "kernelsight.sizing.option_findings.cliff_of"]
)
def test_ctrl_c_after_the_search_keeps_its_answer(
    session: Session, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    found = size(session, rate=60.0, gpus=["h100_sxm"], max_gpus=1, prices=PRICES)
    assert found.chosen["rate"] > 0.0 and "Not proven to be the cheapest: it was interrupted" in found.answer
    assert "None" not in found.answer


def test_what_lacks_the_confidence_is_left_out_before_its_rate_is_searched(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"rate": 2000.0, "prices": PRICES, "confidence": 0.99}
    short = size(session, **asked)
    monkeypatch.setattr("kernelsight.sizing.search.may_hold", lambda *_: True)
    long = size(session, **asked)
    assert short.chosen == long.chosen and short.complete and long.complete
    assert len(short.rows) < len(long.rows) and {row["gpu"] for row in short.rows} == set(PRICES)


def test_a_question_that_is_asked_again_is_answered_from_kept_trials(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELSIGHT_CACHE", str(tmp_path))
    served: list[int] = []
    serve = Trials.serve_again

    def counting(trials: Trials, name: str, requests: int, seeds: Any, **load: Any) -> Any:
        served.append(requests)
        return serve(trials, name, requests, seeds, **load)

    monkeypatch.setattr(Trials, "serve_again", counting)
    one = {"gpus": ["h100_sxm"], "max_gpus": 1, "prices": PRICES}
    first, before = size(session, rate=60.0, **one), len(served)
    # asked otherwise where the search takes the same way
    again = size(session, rate=60.0, **one | {"prices": {"h100_sxm": 5.0}})
    assert 2 * (len(served) - before) < before
    assert {**again.chosen, "price_per_hour": 0, "cost_per_million_tokens": 0} | {
        name: first.chosen[name] for name in first.chosen if name.startswith(("price", "cost"))
    } == first.chosen


def test_a_model_that_no_gpu_holds(session: Session) -> None:
    with pytest.raises(KernelSightError) as caught:
        session.size(model="llama-3.1-70b", gpus=["l4"], rate=1, slo=SLO, max_gpus=2, **LOAD)
    text = str(caught.value)
    assert text.startswith(
        "no GPU of the search holds the model: llama-3.1-70b does not fit on l4 with tensor-parallel"
    )
    assert "GiB more; the smallest tensor-parallel size that fits is 8." in text
