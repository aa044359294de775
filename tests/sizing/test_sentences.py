"""What is said of a choice: gambles by their name, and what would decide between the first two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kernelsight.scenario.objectives import objective_of
from kernelsight.sizing import sentences
from kernelsight.sizing.decision import Demand, Option
from kernelsight.sizing.evidence import Evidence
from kernelsight.sizing.option_findings import OptionFindings
from kernelsight.sizing.sentences import what_decides

SLO = [objective_of("ttft_p95_ms", 500.0)]


def option(gpu: str, weight: float, slow: float | None, probability: float | None, holds: bool) -> Option:
    candidate = SimpleNamespace(
        flags={"gpu": gpu}, weight=weight, price=weight, gpus={gpu: 1}, gpu_count=1, unit="requests/s", gpus_taken=None
    )
    sized: Any = SimpleNamespace(candidate=candidate, highest=SimpleNamespace(rate=5.0))
    evidence = Evidence({}, slow, 7.0 if slow is not None else None, "host", None)
    return Option(sized, evidence, 2, 8.0, 0.8, probability, holds)


def said(chosen: Option) -> str:
    return sentences._probability([chosen], [{}], SLO, Demand(8.0))


def test_what_fails_where_kernels_are_slow_is_called_a_gamble() -> None:
    assert "gamble" not in said(option("l4", 1.0, 4.0, 0.95, True))
    assert said(option("l4", 1.0, 0.0, 0.95, True)).endswith(
        "holds with 95% probability, a gamble: if kernels and host are slow, no rate keeps them."
    )
    unsure = said(option("l4", 1.0, 0.0, 0.4, False))
    assert "at no rate: a gamble, as no deployment keeps them with 90%." in unsure
    assert said(option("l4", 1.0, None, None, False)).endswith("is not known: a gamble.")
    assert "At that load of under 1%, " in said(option("l4", 1.0, 4.0, 0.95, True)._replace(load=0.002))


@pytest.mark.parametrize(("tier", "measured"), [("points-measured", True), ("cross-generation", False)])
def test_a_few_measured_points_count_as_measured(tier: str, measured: bool) -> None:
    row = {"tier": tier, "not_measured": "kernels on l4", "limit": "host", "num_prompts": 1000, "steady": True}
    row |= {"tensor_parallel_size": 1, "price_per_hour": 2.0, "cost_per_million_tokens": 0.1}
    row |= {"gpu": "l4", "search": "full"}
    chosen = option("l4", 1.0, 4.0, 0.95, True)
    chosen.sized.highest.low, chosen.sized.highest.high = 4.5, 5.5
    answer = sentences.sentence_of([chosen], [row], SLO, Demand(8.0))
    assert ("Not measured" not in answer) is measured and "to compare GPUs" not in answer
    others = [row | {"gpu": gpu, "search": "rough"} for gpu in ("t4", "l4")]
    beside = sentences.sentence_of([chosen] * 3, [row, *others], SLO, Demand(8.0))
    assert beside.endswith(" t4 was searched only until shown to be dearer: to compare GPUs, ask for each alone.")


def test_the_kernels_in_doubt_decide_between_the_first_two() -> None:
    first, second = option("l4", 1.0, 2.0, 0.95, True), option("t4", 1.1, 3.0, 0.95, True)
    looks = [OptionFindings(None, None, ("moe", "gemm", "norm")), OptionFindings(None, None, ("gemm",))]
    assert what_decides([first, second], looks, "m", ["gemm", "norm"]) == (
        "Between the first two, gemm and norm on l4 would decide: kernelsight calibrate plan --gpu l4 --models m "
        "--families gemm,norm --points 3 -o suite.json"
    )
    alone = what_decides([first, second], [OptionFindings(None, None, ("moe",)), looks[1]], "m", ["gemm"])
    assert alone == (
        "Between the first two, moe on l4 would decide, which calibrate does not measure: run both on the load."
    )
    clear = option("t4", 20.0, 3.0, 0.95, True)
    assert what_decides([first, clear], looks, "m", ["gemm"]) is None
