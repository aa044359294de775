"""Engine steps and kernels beside the requests: what they say of factors, which are used, and what they separate."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.catalog.tables import contracts
from kernelsight.comparison.compared_log import Question
from kernelsight.comparison.comparison import REQUESTS, Comparison
from kernelsight.comparison.explanation import explained
from kernelsight.comparison.factors import PARAMETERS, prior_covariance
from kernelsight.comparison.likelihood import LEAST_SD, Predicted, StepLikelihoods, likelihood
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.observed_steps import MOST_STEPS, ObservedSteps, observed_steps_of
from kernelsight.comparison.replay import KERNELS, Variant, give_log
from kernelsight.dataflow.rows import as_table
from kernelsight.logs.read_logs import TABLES, read_table
from kernelsight.session import Session
from tests.comparison.test_comparison import FLAGS, N, drawn, log_of

PRIOR = prior_covariance(dict.fromkeys(KERNELS, 0.1))
SETTINGS = {"pp": 1, "async_scheduling": True}


def at(name: str) -> int:
    return PARAMETERS.index(name)


def made(n: int = 120, noise: float = 0.0) -> tuple[ObservedSteps, Predicted]:
    """Steps of two kinds: decode of few tokens, and prompts whose products take longer the longer they are."""
    dice = np.random.default_rng(3)
    kernels = np.zeros((n, len(KERNELS)))
    prompts = np.arange(n) % 2 == 1
    kernels[:, KERNELS.index("decode_gemm")] = np.where(prompts, 500.0, 6000.0)
    kernels[:, KERNELS.index("decode_attention")] = dice.uniform(200.0, 4000.0, n)
    kernels[:, KERNELS.index("prefill_gemm")] = np.where(prompts, dice.uniform(4000.0, 60_000.0, n), 0.0)
    predicted = Predicted(kernels, np.full(n, -50.0), np.full(n, 1000.0), np.full(n, 300.0))
    truth = kernels.copy()
    truth[:, KERNELS.index("decode_attention")] *= 1.3
    us = (300.0 + truth.sum(axis=1) - 50.0 + 800.0) * np.exp(noise * dice.standard_normal(n))
    everything = np.ones((n, len(KERNELS)), bool)
    seen = ObservedSteps([], np.arange(n), everything, np.ones(n, bool), np.ones(n, bool), np.log(us), n, 0, [])
    return seen, predicted


def steps_table(rows: list[dict]) -> pa.Table:
    missing = dict.fromkeys(name for name in contracts()["production_steps"].column_names)
    base = missing | {"log_id": "steps", "replica": "0", "clock": "schedule_to_update", "wall_us": 1000.0}
    base |= {"prefill_requests": 0, "prefill_tokens": 0, "decode_requests": 4}
    return as_table(contracts()["production_steps"], [base | {"step": n} | row for n, row in enumerate(rows)])


def logs(**given_tables: pa.Table) -> dict[str, pa.Table]:
    return {name: contracts()[name].schema.empty_table() for name in TABLES} | given_tables


def seen(**other) -> ObservedSteps:
    asked = {"settings": SETTINGS, "until_s": 70.0, "fitted_share": 0.7, "context": 500} | other
    return observed_steps_of(asked.pop("logs"), **asked)


def test_steps_of_several_sizes_separate_host_time_from_kernels_that_take_as_long() -> None:
    found = likelihood(*made(noise=0.02), PRIOR)
    sd = np.sqrt(np.diag(np.linalg.inv(found.precision + np.linalg.inv(PRIOR))))
    for name, truth in (("host", 0.8), ("decode_attention", np.log(1.3)), ("decode_gemm", 0.0)):
        assert abs(found.at[at(name)] - truth) < 3.0 * sd[at(name)]
    assert sd[at("host")] < 0.25 and sd[at("decode_attention")] < 0.05 < sd[at("moe")]
    # what a step does not hold is not learned
    assert found.precision[at("front_end")].any() == found.precision[at("moe")].any() == False  # noqa: E712


def test_values_that_explain_steps_less_well_misfit_more() -> None:
    found = likelihood(*made(), PRIOR)
    assert found.sd == LEAST_SD and found.misfit < 1.0
    wrong = np.zeros(len(PARAMETERS))
    wrong[at("decode_gemm")] = 0.15
    assert found.misfit_at(wrong) > found.misfit_at(np.zeros(len(PARAMETERS))) * 0.2 > found.misfit + 10.0
    assert found.pull(found.at + wrong)[at("decode_gemm")] < 0.0 < found.pull(found.at - wrong)[at("decode_gemm")]


def test_a_context_that_is_not_stated_leaves_decode_attention_open() -> None:
    seen, predicted = made()
    known, unknown = (
        likelihood(seen._replace(context_known=np.full(seen.log_us.size, stated)), predicted, PRIOR)
        for stated in (True, False)
    )
    place = at("decode_attention")
    assert unknown.precision[place, place] < 0.3 * known.precision[place, place]


def test_steps_of_later_time_are_held_out() -> None:
    rows = [{"at_s": float(n), "decode_requests": 1 + n} for n in range(100)]
    table = steps_table(rows)
    log = {"log_id": "steps", "path": "a", "format": "fpm", "clock": "unix", "start_unix_s": 1e9, "requests": 0}
    mine = log | {"log_id": "mine", "start_unix_s": 1e9 - 20.0, "requests": 5, "completed": 5}
    both = as_table(contracts()["production_logs"], [log | {"completed": 0}, mine])
    found = seen(logs=logs(production_steps=table, production_logs=both))
    # from 20 s before the first step to 70 s after it
    assert max(row["decode_requests"] for row in found.shapes) == 51
    shares = seen(logs=logs(production_steps=table))
    assert max(row["decode_requests"] for row in shares.shapes) == 70


def test_steps_are_taken_evenly_over_their_sizes() -> None:
    rows = [
        {"decode_requests": 1 + n % 300, "prefill_tokens": 64 * (n % 2), "prefill_requests": n % 2} for n in range(3000)
    ]
    found = seen(logs=logs(production_steps=steps_table(rows)), fitted_share=1.0)
    assert found.steps == 2 * MOST_STEPS
    assert {row["prefill_requests"] for row in found.shapes} == {0, 1}
    assert max(row["decode_requests"] for row in found.shapes) == 300


@pytest.mark.parametrize(
    ("row", "settings", "words"),
    [
        ({"clock": "iteration"}, {}, "engine steps have no time of their own with asynchronous scheduling"),
        ({}, {"pp": 2}, "engine steps of several pipeline stages overlap: they are not used"),
        ({"decode_tokens": 9}, {}, None),
    ],
)
def test_steps_that_say_nothing_are_not_used(row: dict, settings: dict, words: str | None) -> None:
    table = steps_table([row] * 50)
    found = seen(logs=logs(production_steps=table), settings=SETTINGS | settings)
    assert found.steps == 0 and [text[: len(words)] for text in found.unused] == [words] if words else not found.steps


def test_the_time_between_steps_counts_where_execution_is_no_step() -> None:
    table = steps_table([{"clock": "iteration", "period_us": 5000.0}] * 50)
    assert np.exp(seen(logs=logs(production_steps=table)).log_us) == pytest.approx(5000.0)
    table = steps_table([{"clock": "gpu_span", "period_us": 5000.0}] * 50)
    found = seen(logs=logs(production_steps=table))
    assert np.exp(found.log_us) == pytest.approx(1000.0) and not found.with_host.any()


def kernels_table(query: list[int] | None, kv: list[int] | None, factor: float = 1.0) -> pa.Table:
    times = {"gemm": 4000.0, "norm": 100.0, None: 50.0, "decode_attention": 900.0}
    rows = [
        {"log_id": f"case.rank{rank}", "step_shape": "case", "rank": rank, "name": str(family), "family": family}
        | {"calls": 10.0, "total_us": us * factor, "forwards": 1, "query_lens": query, "kv_lens": kv}
        for rank in (0, 1)
        for family, us in times.items()
    ]
    return as_table(contracts()["production_kernels"], rows)


def test_kernels_of_a_stated_shape_are_ratios_of_their_part() -> None:
    found = seen(logs=logs(production_kernels=kernels_table([1] * 32, [2048] * 32)))
    assert (found.steps, found.kernels, len(found.shapes)) == (0, 2, 1)
    shape = found.shapes[0]
    assert (shape["decode_requests"], shape["decode_context"], shape["prefill_requests"]) == (32, 2048, 0)
    us = dict(zip((KERNELS[row.argmax()] for row in found.parts), np.exp(found.log_us), strict=True))
    assert us == {"decode_gemm": pytest.approx(4150.0), "decode_attention": pytest.approx(900.0)}
    prompts = seen(logs=logs(production_kernels=kernels_table([512, 512], [2048, 1024])))
    shape = prompts.shapes[0]
    assert (shape["prefill_tokens"], shape["prefill_cached"], shape["tokens"]) == (512, 1024, 1024)
    nothing = seen(logs=logs(production_kernels=kernels_table(None, None)))
    assert nothing.kernels == 0 and nothing.unused[0].startswith("kernels of a profile over many steps say nothing")


def test_measured_kernels_are_learned(session: Session) -> None:
    found = []
    for factor in (1.0, 1.1):
        profile = seen(logs=logs(production_kernels=kernels_table([1] * 32, [2048] * 32, factor)))
        likelihoods = StepLikelihoods(session, profile, PRIOR)
        found.append(likelihoods.of_deployments([FLAGS])[0])
    parts = [at("decode_gemm"), at("decode_attention")]
    # the same kernels, a tenth longer: factors a tenth larger, and nothing else is learned
    assert (found[1].at - found[0].at)[parts] == pytest.approx(np.log(1.1), rel=0.1)
    assert np.diag(found[0].precision)[parts].min() > 500.0 and np.count_nonzero(found[0].precision) == 2
    assert likelihoods.of_deployments([{**FLAGS, "gpu": "no such GPU"}]) == [None]


def test_a_profile_times_kernels_that_a_step_hides(session: Session) -> None:
    """vLLM hides shared experts beside the routed ones: a step does not wait for them, and a profile still has them."""
    profile = seen(logs=logs(production_kernels=kernels_table([1] * 32, [2048] * 32)))
    flags = {"model": "deepseek-v3", "gpu": "h200_sxm", "tp": 8, "quantization": "fp8_block"}

    def products_us(said: ObservedSteps) -> list[float]:
        engines = [{**flags, "engine": engine} for engine in ("vllm", "trtllm")]
        predicted = StepLikelihoods(session, said, PRIOR)._predict(engines)
        return [times.kernels[0, KERNELS.index("decode_gemm")] for times in predicted]

    profiled, as_step = products_us(profile), products_us(profile._replace(steps=1))
    # 58 layers, four kernels each of more than a microsecond
    assert profiled[0] > as_step[0] + 58 * 4 and profiled[1] == pytest.approx(as_step[1], rel=1e-9)


def test_a_log_with_steps_separates_what_requests_do_not(session: Session) -> None:
    load, truth = drawn(), Variant(FLAGS, step_us=400.0)
    served = LogReplayer(session, load).serve([truth])[0]
    with session.fork() as fork:
        give_log(fork, load, [truth])
        rows = fork.table("steps").to_pylist()
    steps = steps_table(
        [
            {"prefill_tokens": row["prefill_tokens"], "prefill_requests": min(row["prefill_tokens"], 1)}
            | {"decode_requests": row["decode_tokens"], "wall_us": (row["end_ns"] - row["start_ns"]) / 1e3}
            for row in rows
        ]
    )
    tables = read_table(log_of(load, served))
    question = Question(FLAGS, suspects="none")
    without, beside = (
        Comparison(session.fork(), tables | extra, question, REQUESTS) for extra in ({}, {"production_steps": steps})
    )
    assert without.summary["evidence"] == {"steps": 0, "kernels": 0, "not_used": []}
    ratios = [
        {row["part"]: row["posterior_ratio"] for row in found.summary["parts"] if row["posterior_ratio"]}
        for found in (without, beside)
    ]
    assert beside.summary["evidence"]["steps"] > MOST_STEPS
    assert ratios[1]["host"] < 0.7 * ratios[0]["host"] and ratios[1]["decode_gemm"] < ratios[0]["decode_gemm"]
    (cause,) = beside.summary["causes"]
    assert cause["name"] == "host" and cause["value"] == pytest.approx(0.4, rel=0.2)
    own = explained(beside.log, served, session)
    assert own.fitted.values[at("host")] == pytest.approx(0.4, abs=0.15)
    assert len(beside.log.measured.sent_s) == N
