"""A language model beside the search: believed where it explains the measurements, ignored where it does not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.searching import batches
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching.arrays import space_arrays
from kernelsight.searching.forecasts import inputs_of
from kernelsight.searching.history import extended, nothing
from kernelsight.searching.llm_view import VIEW, column_of, with_forecasts
from kernelsight.searching.replay import replay
from kernelsight.searching.scenarios import scenario_rows
from kernelsight.searching.search import search
from kernelsight.searching.targets import Target, target_of, truth_of
from tests.searching.made_spaces import made_tables

TABLES = made_tables()


def target(sources: tuple[str, ...] = ()) -> Target:
    return target_of(space_arrays(TABLES.kernel_candidates, TABLES.kernel_measurements, "made"), "three", sources)


def truth(of: Target) -> np.ndarray:
    arrays = space_arrays(TABLES.kernel_candidates, TABLES.kernel_measurements, "made")
    return np.log(np.nan_to_num(truth_of(arrays, "three", of.ids).latency_us, nan=1e4))


def evidence(of: Target, column: np.ndarray, count: int = 30) -> dict[str, float]:
    """Return how well the views explain measurements of evenly spaced candidates."""
    of = of._replace(beside=((VIEW, column),))
    arrays = space_arrays(TABLES.kernel_candidates, TABLES.kernel_measurements, "made")
    rows = np.unique(np.linspace(0, len(of.ids) - 1, count).astype(int))
    outcome = replay(truth_of(arrays, "three", of.ids), of.ids, 0)(rows, np.ones(len(rows), int))
    unknown = np.full(len(rows), np.nan)
    history = extended(nothing(), 1, rows, np.zeros(len(rows), bool), outcome, (unknown, unknown))
    views = batches.views(of, inputs_of(of, True))
    places = history.worked
    fits = {
        name: gp.fit(view, history.rows[places], history.logs[places], history.noise[places], gp.start(view))
        for name, view in views.items()
    }
    return batches.explained(views, history, {name: fit.settings for name, fit in fits.items()})


@pytest.mark.parametrize("sources", [(), ("one",)])
def test_a_model_that_knows_the_times_is_believed(sources: tuple[str, ...]) -> None:
    of = target(sources)
    assert batches.main_view(evidence(of, truth(of) - np.median(truth(of))), 1) == VIEW


@pytest.mark.parametrize("sources", [(), ("one",), ("one", "two")])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_useless_model_is_not_believed(sources: tuple[str, ...], seed: int) -> None:
    of = target(sources)
    noise = np.random.default_rng(seed).normal(0.0, 0.5, len(of.ids))
    assert batches.main_view(evidence(of, noise), 1) != VIEW


def forecaster(wrong: bool):
    """Return a forecaster that knows the times, or states the reverse."""

    def forecast(candidates: pa.Table, measurements: pa.Table, scenario: dict) -> pa.Table:
        of = target()
        logs = dict(zip(of.ids.tolist(), truth(of) * (-1.0 if wrong else 1.0), strict=True))
        names = candidates["candidate_id"].to_pylist()
        return pa.table({"candidate_id": names, "latency_us": [float(np.exp(logs[name])) for name in names]})

    return forecast


def searched(wrong: bool | None, budget: int = 30) -> float:
    scenario = scenario_rows(
        [{"space": "made", "gpu": "three", "source_gpus": ["one"], "budget_measurements": budget, "forecaster": "llm"}]
    )[0]

    def beside(of: Target) -> Target:
        return of if wrong is None else with_forecasts(of, TABLES, scenario, forecaster(wrong), 64)

    return float(search(TABLES, scenario, beside=beside)["search_summary"]["regret"][0].as_py())


def test_a_wrong_model_does_not_spoil_a_search() -> None:
    assert searched(wrong=True) <= searched(wrong=None) + 0.02


def test_the_model_is_asked_about_the_most_promising_candidates_and_sees_no_time_of_the_target() -> None:
    seen = {}

    def forecast(candidates: pa.Table, measurements: pa.Table, scenario: dict) -> pa.Table:
        seen.update(names=candidates["candidate_id"].to_pylist(), on=scenario["measured_on"])
        return pa.table({"candidate_id": pa.array([], pa.string()), "latency_us": pa.array([], pa.float64())})

    of = target(("two",))
    found = with_forecasts(of, TABLES, {"anchor": None}, forecast, 5)
    assert set(seen["names"]) == {str(of.ids[row]) for row in np.argsort(of.logs[:, 0], kind="stable")[:5]}
    assert seen["on"] == "two"
    assert found.beside[0][1].tolist() == [0.0] * len(of.ids), "without any answer the view says nothing"


def test_gaps_follow_the_other_gpus() -> None:
    of = target(("one",))
    some = [str(name) for name in of.ids[:4]]
    table = pa.table({"candidate_id": some, "latency_us": np.exp(of.logs[:4, 0] + 3.0)})
    column = column_of(of, table)
    assert column - column[0] == pytest.approx(of.logs[:, 0] - of.logs[0, 0])


def test_a_space_that_was_measured_nowhere_is_refused() -> None:
    empty = TABLES._replace(kernel_measurements=TABLES.kernel_measurements.slice(0, 0))
    with pytest.raises(InvalidInput, match="no candidate of 'made' was measured on any GPU"):
        with_forecasts(target(), empty, {"anchor": None}, forecaster(False), 5)
