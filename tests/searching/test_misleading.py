"""Other GPUs that mislead: a search with them ends no worse than one that learns from its own GPU alone."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.searching import batches, proposals
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching.arrays import SpaceArrays, space_arrays
from kernelsight.searching.forecasts import inputs_of
from kernelsight.searching.replays import replay
from kernelsight.searching.rounds import plan_of, rounds
from kernelsight.searching.scenarios import DEFAULTS
from kernelsight.searching.search_tables import regrets
from kernelsight.searching.space_files import space_tables
from kernelsight.searching.targets import Target, target_of, truth_of
from tests.searching.made_spaces import made_rows

SEEDS = 3
HARM = 0.02


def lured() -> SpaceArrays:
    """Return the made-up space in which a corner that is slow on all other GPUs is the fastest on ``two``."""
    rows = made_rows().to_pylist()
    for row in rows:
        parameters = json.loads(row["parameters"])
        if row["gpu"] == "two" and parameters["tile_size_x"] == 7 and parameters["vector"] == 8 and row["latency_us"]:
            row["latency_us"] *= 0.4
    tables = space_tables(pa.Table.from_pylist(rows, schema=made_rows().schema), "made.parquet")
    return space_arrays(tables.kernel_candidates, tables.kernel_measurements, "made")


@pytest.fixture(scope="module")
def arrays() -> SpaceArrays:
    return lured()


def altered(target: Target, how: str, seed: int) -> Target:
    if how == "inverted":
        return target._replace(logs=-target.logs)
    if how == "shuffled":
        return target._replace(logs=target.logs[np.random.default_rng(seed).permutation(len(target.ids))])
    return target


def end(arrays: SpaceArrays, how: str, **changes) -> float:
    """Return the median regret over seeds after 60 measurements."""
    target = target_of(arrays, "two")
    truth = truth_of(arrays, "two", target.ids)
    found = []
    for seed in range(SEEDS):
        scenario = DEFAULTS | {"seed": seed, "budget_measurements": 60} | changes
        last = list(rounds(altered(target, how, seed), scenario, replay(truth, target.ids, seed)))[-1]
        found.append(regrets(last.best[-1:], np.log(truth.latency_us))[0])
    return float(np.median(found))


@pytest.fixture(scope="module")
def alone(arrays) -> float:
    return end(arrays, "as they are", forecaster="gp")


@pytest.mark.parametrize("how", ["as they are", "shuffled", "inverted"])
@pytest.mark.whole
def test_other_gpus_never_cost_more_than_two_points(arrays, alone, how):
    assert end(arrays, how) <= alone + HARM


def test_every_second_round_is_without_other_gpus(arrays):
    target = target_of(arrays, "two")
    truth = truth_of(arrays, "two", target.ids)
    made = list(rounds(target, DEFAULTS | {"budget_measurements": 40}, replay(truth, target.ids, 0)))
    alone = [each.number for each in made if each.decisions.reasons.count("other view") >= 3]
    assert alone == [4, 6, 8]


def test_a_search_without_other_gpus_knows_nothing_of_their_failures(arrays):
    plan = plan_of(target_of(arrays, "two"), DEFAULTS | {"forecaster": "gp"})
    assert target_of(arrays, "two").fails.any()
    assert not plan.target.fails.any() and not plan.scores.any() and plan.target.sources == ()


def test_what_fails_elsewhere_is_not_taken_for_fast():
    rows = made_rows().to_pylist()
    for row in rows:
        if row["gpu"] == "one" and json.loads(row["parameters"])["tile_size_x"] == 4:
            row |= {"latency_us": None, "status": "compile_failed"}
    tables = space_tables(pa.Table.from_pylist(rows, schema=made_rows().schema), "made.parquet")
    target = target_of(space_arrays(tables.kernel_candidates, tables.kernel_measurements, "made"), "two")
    failed = np.array(["tile_size_x=4" in name for name in target.ids])
    assert (target.logs[failed, target.sources.index("one")] >= 0.0).all()


def test_views_worse_than_none_are_not_drawn():
    draw = np.random.default_rng(0)
    evidence = {"none": 0.0, "all": -40.0, "maker": -2.0}
    assert {batches.drawn_view(evidence, "none", draw) for _ in range(50)} == {"maker"}
    assert batches.drawn_view({"none": 0.0, "all": -40.0}, "none", draw) is None


def test_of_other_views_the_one_that_explains_more_is_drawn_more_often():
    """Half of the draws are even, the other half go by density: 1 to exp(-2), so that 69 % are the better view's."""
    draw = np.random.default_rng(0)
    evidence = {"none": 0.0, "source one": 0.0, "source three": -2.0}
    drawn = [batches.drawn_view(evidence, "none", draw) for _ in range(1000)]
    assert drawn.count("source one") / 1000 == pytest.approx(0.25 + 0.5 / (1.0 + np.exp(-2.0)), abs=0.05)
    assert drawn.count("source one") + drawn.count("source three") == 1000


def test_slopes_are_those_of_the_density(arrays):
    target = target_of(arrays, "two")
    inputs = inputs_of(target)
    draw = np.random.default_rng(0)
    rows, values = draw.choice(len(target.ids), 25, replace=False), draw.normal(size=25)
    pairs, noise = gp._Pairs(inputs, rows), np.full(25, 1e-3)
    settings = gp.start(inputs) + draw.normal(0.0, 0.3, len(gp.start(inputs)))
    slopes = gp._log_density(pairs, values, noise, settings)[1]
    for place, step in enumerate(1e-5 * np.eye(len(settings))):
        up, down = (gp._log_density(pairs, values, noise, settings + sign * step)[0] for sign in (1, -1))
        assert slopes[place] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-5)


def test_a_jump_at_one_value_is_learned_from_other_values_of_the_rest():
    levels = np.array([[one, other] for one in range(6) for other in range(6)])
    inputs = gp.Inputs(
        *(np.zeros((36, 0)), levels / 5.0, np.zeros(36, int), np.zeros(36), *gp.words_of(levels)),
    )
    truth = np.where(levels[:, 0] == 3, -1.0, 0.0) + 0.1 * levels[:, 1]
    known = np.flatnonzero(levels[:, 1] % 2 == 0)
    found, settings = None, gp.start(inputs)
    for _ in range(3):
        found = gp.fit(inputs, known, truth[known], np.full(len(known), 1e-4), settings)
        settings = found.settings
    mean = gp.predict(inputs, found, np.arange(36))[0]
    assert np.abs(mean - truth).max() < 0.15


def test_the_pool_of_a_large_space_is_drawn_anew_each_round(arrays, monkeypatch):
    monkeypatch.setattr(proposals, "POOL", 40)
    target = target_of(arrays, "two")
    scores = target.logs.mean(1)
    pools = [set(proposals.base_pool(target, DEFAULTS, scores, number).tolist()) for number in (1, 1, 2)]
    fastest = set(np.argsort(scores, kind="stable")[:20].tolist())
    assert pools[0] == pools[1] != pools[2]
    assert all(len(each) == 40 and fastest <= each for each in pools)
