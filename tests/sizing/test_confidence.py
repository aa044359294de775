"""What is left out by its cost is left out at the confidence too: bounds, second looks, and searches that end early."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from kernelsight.errors import KernelSightError
from kernelsight.session import Session
from kernelsight.sizing import search
from kernelsight.sizing.candidates import Candidate
from kernelsight.sizing.daily import Day
from kernelsight.sizing.decision import ANY_RATE, Demand
from kernelsight.sizing.probability import Chances
from kernelsight.sizing.prospects import LeftOut, Prospect, miss_of, rate_below
from kernelsight.sizing.sentences import nearest_of, unfinished
from kernelsight.sweeps.capacity import Capacity
from kernelsight.sweeps.rate_search import HighestRate

from .conftest import FLAGS, LOAD, SLO

pytestmark = pytest.mark.usefixtures("kept_trials")

CANDIDATE = Candidate({}, "s", "d", {"l4": 2}, 3.0)
ASKED = {"gpus": ["h100_sxm"], "slo": SLO, "max_gpus": 2, "tune": False, "rate": 60.0} | FLAGS | LOAD


@pytest.fixture
def doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make deployments of one GPU hold at a twentieth of their rate alone, others at all of it."""
    known = search.evidence_of

    def evidence_of(opened: Any, plan: Any, sized: Any, *others: Any) -> Any:
        alone = sized.candidate.gpu_count == 1
        chances = Chances((0.05, 0.06, 1.0), (4.0, -4.0, -4.0)) if alone else Chances((0.5, 1.0), (4.0, 3.0))
        return known(opened, plan, sized, *others)._replace(chances=chances)

    monkeypatch.setattr(search, "evidence_of", evidence_of)


def test_deployments_are_compared_by_their_costs_at_the_confidence(session: Session, doubted: None) -> None:
    plain = session.size(**ASKED)
    assert plain.chosen["tensor_parallel_size"] == 2 and plain.chosen["instances"] == 1 and plain.complete
    assert next(row["instances"] for row in plain.rows if row["tensor_parallel_size"] == 1) > 2


def test_without_the_doubt_it_is_left_out_with_a_bound(session: Session) -> None:
    found = session.size(**ASKED)
    assert found.chosen["tensor_parallel_size"] == 1 and found.complete
    for row in found.left_out:
        assert row["bound"] >= found.chosen["gpus"]


def test_what_was_left_out_against_a_cost_that_rises_is_looked_at_again_or_said_to_be_open(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sure = search.SizeSearch._make_sure

    def with_a_dearer_best(found: search.SizeSearch) -> None:
        (name,) = found.options
        found.options[name] = found.options[name]._replace(instances=9)
        found._sure.add(name)
        if goes_on:
            make_sure(found)

    monkeypatch.setattr(search.SizeSearch, "_make_sure", with_a_dearer_best)
    goes_on = False
    found = session.size(**ASKED)
    assert not found.complete and "; 1 deployment may be cheaper, at 2 GPUs or more; " in found.answer
    (row,) = found.left_out
    assert row["reason"].startswith("it may be cheaper") and row["bound"] < found.chosen["gpus"] == 9
    goes_on = True
    again = session.size(**ASKED)
    assert again.complete and again.chosen["tensor_parallel_size"] == 2


@pytest.mark.parametrize(
    ("demand", "rate", "cost"),
    [
        (Demand(10.0), 4.0, 9.0),
        (Demand(12.0), 4.0, 9.0),
        (Demand(10.0, margin=0.5), 4.0, 15.0),
        (Demand(10.0, day=Day((1.0, 10.0), "made up")), 4.0, 6.0),
        (Demand(1.0), 4.0, 3.0),
    ],
)
def test_least_costs(demand: Demand, rate: float, cost: float) -> None:
    assert demand.least_cost(CANDIDATE, rate) == pytest.approx(cost)


def test_least_costs_of_a_fixed_number_of_gpus_fall_with_the_rate() -> None:
    fixed = CANDIDATE._replace(gpus_taken=4.0)
    assert Demand(ANY_RATE, total_gpus=8).least_cost(fixed, 5.0) == pytest.approx(4.0 * ANY_RATE / 5.0)


def test_the_rate_from_which_a_candidate_is_cheaper() -> None:
    # 4 instances cost 12, 3 cost 9: below 12 from a third of 10 requests/s on
    assert rate_below(Demand(10.0).least_cost, CANDIDATE, 12.0) == pytest.approx(10.0 / 3.0)
    assert rate_below(Demand(10.0).least_cost, CANDIDATE, 3.0) == float("inf")


def test_effort_doubles_what_may_be_simulated(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ALLOWANCES", (12_000, 12_000, 12_000))
    short = session.size(**ASKED)
    assert not short.complete and "--effort 2 goes on from here." in short.answer
    assert session.size(**ASKED, effort=5).complete
    for effort in (0, 6, True, 1.5):
        with pytest.raises(KernelSightError, match="give a whole number from 1 to 5"):
            session.size(**ASKED, effort=effort)


def found(*not_tried: float, **left_out: LeftOut) -> Any:
    return SimpleNamespace(
        **{"left_out": left_out, "options": {"a": 1}, "ended": None, "is_stopped": False, "is_complete": False},
        not_tried=[SimpleNamespace(candidate=CANDIDATE, cost=cost) for cost in not_tried],
        still_open=list,
        cheaper_if_exact=list,
        least_cost=lambda one: one.cost,
    )


def test_the_nearest_is_one_that_misses_and_grown_latencies_are_no_miss() -> None:
    grows = LeftOut({"gpu": "l4"}, "no rate keeps the objectives: latencies grow throughout the run")
    misses = LeftOut({"gpu": "h20", "tensor_parallel_size": 2}, "no rate keeps the objectives: TTFT", 1.25)
    both = nearest_of(found(a=grows, b=misses), [])
    assert both.endswith("; the nearest is h20 at TP 2, 25% above: TTFT.")
    alone = nearest_of(found(a=grows), [])
    assert alone.endswith(": l4 at TP 1: latencies grow throughout the run.") and "above" not in alone


def test_growing_latencies_are_no_miss_of_an_objective() -> None:
    def miss(pressure: float) -> float | None:
        tried: Any = SimpleNamespace(verdict=SimpleNamespace(pressure=pressure))
        return miss_of(HighestRate(None, None, None, False, 0, tried, tried, Capacity(None, 1.0, None)))

    assert (miss(0.22), miss(1.5), miss(float("inf"))) == (None, 1.5, None)


def test_how_to_go_on() -> None:
    complete = found()
    complete.is_complete = True
    assert unfinished(complete, Demand(1.0), 1) == []
    ended = found(7.5, 3.0)
    ended.ended = "its allowance of simulated requests is spent"
    said = unfinished(ended, Demand(1.0), 5)[0]
    assert said == (
        "Not proven to be the cheapest: its allowance of simulated requests is spent; 2 deployments may be "
        "cheaper, at 3 $/h or more; ask about fewer GPUs or values."
    )
    # of a number of GPUs all cost the same
    assert " is spent; 2 deployments may be cheaper; " in unfinished(ended, Demand(1.0, total_gpus=8), 5)[0]
    ended.ended, ended.is_stopped = "it was interrupted", True
    assert unfinished(ended, Demand(1.0), 1)[0].endswith("; the same command goes on from here.")


def test_the_rates_of_prefill_and_decode_replicas_bound_every_ratio_of_them() -> None:
    known: list[Prospect] = []

    def split(prefill: int, decode: int, capacity: float | None = None, root: Prospect | None = None) -> Prospect:
        replicas = {"prefill_replicas": prefill, "decode_replicas": decode}
        searched: Any = SimpleNamespace(**({} if capacity is None else {"capacity": SimpleNamespace(most=capacity)}))
        candidate = Candidate(replicas, "s", "d", {"l4": prefill + decode}, None)
        nothing: Any = SimpleNamespace()
        prospect = Prospect(candidate, nothing, nothing, nothing, searched, root, known)
        if capacity is not None:
            prospect.compute_capacity()
        return prospect

    root = split(1, 1)._replace(candidate=CANDIDATE._replace(gpus={"l4": 1}))
    root.search.capacity = SimpleNamespace(most=6.0)  # type: ignore[misc,assignment]
    variant = split(2, 1, root=root)
    # nothing bounds it: it is tried where three GPUs reach three times as much as one
    assert variant.bound == math.inf and variant.guess == 3 * 6.0
    # a prefill replica serves 2 a second, a decode replica 10
    split(1, 6, 2.0), split(6, 1, 10.0)
    assert split(6, 1).bound == split(5, 1).bound == pytest.approx(1.1 * 10.0)
    assert variant.bound == variant.guess == pytest.approx(1.1 * 4.0)
    assert split(2, 1, 3.0).bound == 3.0
