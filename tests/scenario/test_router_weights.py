"""Weights of a router that scores replicas: how they are written, and what is refused."""

from __future__ import annotations

import pytest

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flag_values import SCORERS, parse_weights, typed_value
from kernelsight.serving.engine import records
from kernelsight.serving.engine.inputs import Weights
from kernelsight.serving.runs.simulation_inputs import routing_of
from tests.asked import refusals


def test_one_spelling_whatever_the_order() -> None:
    assert typed_value("router_weights", "queue=2.0, prefix=3") == "prefix=3,queue=2"


@pytest.mark.parametrize(
    ("text", "words"),
    refusals("scenario/test_router_weights::test_refusals"),
)
def test_refusals(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_weights(text)


def test_stated_weights_replace_all_rows_but_that_of_tiers() -> None:
    rows = {row["scorer"]: row["weight"] for row in facts("router_scorers").to_pylist()}
    assert set(rows) == set(SCORERS) == set(Weights._fields) == set(records.WEIGHTS.names)
    scenario = {"router": "scored", "router_weights": None}
    scenario |= {
        f"router_{name}": None for name in ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold")
    }
    deployment = {"lock_step": False}
    assert routing_of(scenario, deployment, rows).weights._asdict() == rows
    stated = routing_of(scenario | {"router_weights": "queue=4"}, deployment, rows)
    assert stated.weights == Weights(queue=4.0, tier=0.8)
    assert routing_of(scenario | {"router": "least_loaded"}, deployment, rows).weights == Weights()
