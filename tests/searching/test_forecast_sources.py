"""Forecasts as one more source: believed where they explain the measurements, dropped where they do not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.searching import batches
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching.arrays import space_arrays
from kernelsight.searching.forecasts import inputs_of
from kernelsight.searching.history import empty_history, with_round
from kernelsight.searching.replays import replay
from kernelsight.searching.scenarios import scenario_rows
from kernelsight.searching.search import search
from kernelsight.searching.targets import Target, model_forecasts, target_of, truth_of, with_forecasts
from tests.searching.made_spaces import made_tables

TABLES = made_tables()


def target(sources: tuple[str, ...] = ()) -> Target:
    return target_of(space_arrays(TABLES.kernel_candidates, TABLES.kernel_measurements, "made"), "three", sources)


def truth(of: Target) -> np.ndarray:
    arrays = space_arrays(TABLES.kernel_candidates, TABLES.kernel_measurements, "made")
    return np.log(np.nan_to_num(truth_of(arrays, "three", of.ids).latency_us, nan=1e4))


def forecast_table(of: Target, logs: np.ndarray) -> pa.Table:
    return pa.table({"candidate_id": of.ids.tolist(), "latency_us": np.exp(logs), "forecaster": ["llm"] * len(logs)})


def evidence(of: Target, logs: np.ndarray, count: int = 30) -> dict[str, float]:
    """Return how well the views explain measurements of evenly spaced candidates."""
    of = with_forecasts(of, forecast_table(of, logs))
    arrays = space_arrays(TABLES.kernel_candidates, TABLES.kernel_measurements, "made")
    rows = np.unique(np.linspace(0, len(of.ids) - 1, count).astype(int))
    outcome = replay(truth_of(arrays, "three", of.ids), of.ids, 0)(rows, np.ones(len(rows), int))
    unknown = np.full(len(rows), np.nan)
    history = with_round(empty_history(), 1, rows, np.zeros(len(rows), bool), outcome, (unknown, unknown))
    views = batches.views(of, inputs_of(of))
    places = history.worked
    fits = {
        name: gp.fit(view, history.rows[places], history.logs[places], history.noise[places], gp.start(view))
        for name, view in views.items()
    }
    return batches.evidence_by_view(views, history, {name: fit.settings for name, fit in fits.items()})


@pytest.mark.parametrize("sources", [(), ("one",)])
def test_forecasts_that_know_the_times_are_believed(sources: tuple[str, ...]) -> None:
    of = target(sources)
    found = evidence(of, truth(of))
    view = batches.FORECASTS if sources else batches.ALL
    assert batches.main_view(found, 1) == view
    assert max(value for name, value in found.items() if name != view) < -batches.SWITCH


@pytest.mark.parametrize("sources", [(), ("one",), ("one", "two")])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_useless_forecasts_are_not_believed(sources: tuple[str, ...], seed: int) -> None:
    of = target(sources)
    found = evidence(of, np.random.default_rng(seed).normal(0.0, 0.5, len(of.ids)))
    if sources:
        assert batches.main_view(found, 1) != batches.FORECASTS
    else:
        assert found["none"] > found[batches.ALL]


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

    def forecasts(of: Target) -> pa.Table:
        return model_forecasts(of, TABLES, scenario, forecaster(wrong), 64)

    given = None if wrong is None else forecasts
    return float(search(TABLES, scenario, forecasts=given)["search_summary"]["regret"][0].as_py())


def test_a_wrong_model_does_not_spoil_a_search() -> None:
    assert searched(wrong=True) <= searched(wrong=None) + 0.02


def test_the_model_is_asked_about_the_most_promising_candidates_and_sees_no_time_of_the_target() -> None:
    seen = {}

    def forecast(candidates: pa.Table, measurements: pa.Table, scenario: dict) -> pa.Table:
        seen.update(names=candidates["candidate_id"].to_pylist(), on=scenario["measured_on"])
        return pa.table({"candidate_id": pa.array([], pa.string()), "latency_us": pa.array([], pa.float64())})

    of = target(("two",))
    found = with_forecasts(of, model_forecasts(of, TABLES, {"anchor": None}, forecast, 5))
    assert set(seen["names"]) == {str(of.ids[row]) for row in np.argsort(of.logs[:, 0], kind="stable")[:5]}
    assert seen["on"] == "two"
    assert found.sources == of.sources, "without any answer nothing is joined"


def test_gaps_follow_the_other_gpus() -> None:
    of = target(("one",))
    some = np.flatnonzero(of.fails == 0)[::20]
    table = pa.table({"candidate_id": [str(of.ids[row]) for row in some], "latency_us": np.exp(of.logs[some, 0] + 3.0)})
    found = with_forecasts(of, table)
    assert found.sources == ("one", "forecasts")
    assert found.weights.tolist() == [1.0, 0.0]
    assert found.logs[:, 1] - found.logs[some[0], 1] == pytest.approx(of.logs[:, 0] - of.logs[some[0], 0], abs=1e-6)
    assert found.medians[1] == pytest.approx(float(np.median(of.logs[some, 0])) + 3.0)


def test_the_last_round_of_forecasts_counts() -> None:
    of = target(("one",))
    names = [str(name) for name in of.ids]
    table = pa.table(
        {
            "candidate_id": names * 2,
            "round": [1] * len(names) + [2] * len(names),
            "latency_us": np.concatenate([np.ones(len(names)), np.exp(of.logs[:, 0])]),
        }
    )
    assert with_forecasts(of, table).logs[:, 1] == pytest.approx(of.logs[:, 0] - np.median(of.logs[:, 0]))


def test_a_space_that_was_measured_nowhere_is_refused() -> None:
    empty = TABLES._replace(kernel_measurements=TABLES.kernel_measurements.slice(0, 0))
    with pytest.raises(InvalidInput, match="no candidate of 'made' was measured on any GPU"):
        model_forecasts(target(), empty, {"anchor": None}, forecaster(False), 5)
