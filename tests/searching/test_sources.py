"""What a search learns from: other GPUs and forecasts; sources that mislead are dropped, and said so."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.searching.arrays import OK, space_arrays
from kernelsight.searching.forecasts import chance_to_work
from kernelsight.searching.history import History, empty_history
from kernelsight.searching.scenarios import scenario_rows
from kernelsight.searching.search import search
from kernelsight.searching.space_files import read_forecasts, space_tables
from kernelsight.searching.targets import misleading, target_of, truth_of, with_forecasts
from tests.searching.made_spaces import GPUS, latency, made_rows, made_tables

SCENARIO = scenario_rows([{"space": "made", "gpu": "two", "budget_measurements": 60}])[0]


def with_source(change) -> pa.Table:
    """Return the made-up rows with the latencies of one GPU changed."""
    rows = made_rows().to_pylist()
    for row in rows:
        if row["gpu"] == "one" and row["latency_us"] is not None:
            row["latency_us"] = change(row["latency_us"])
    return pa.Table.from_pylist(rows, schema=made_rows().schema)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda time: time * 1e3, "source one is not used: its times differ by a factor above 100: other units?"),
        (lambda time: 1e5 / time, "source one is not used: its order contradicts what was measured"),
    ],
)
def test_a_source_that_misleads_is_dropped_and_named(change, sentence):
    found = search(space_tables(with_source(change), "made.parquet"), SCENARIO)
    summary = found["search_summary"].to_pylist()[0]
    assert sentence in summary["notes"]
    assert summary["regret"] <= 0.02


def test_sound_sources_are_kept():
    assert search(made_tables(), SCENARIO)["search_summary"]["notes"].to_pylist() == [None]


def test_a_shuffled_source_does_not_keep_a_search_from_the_optimum():
    rows = made_rows(GPUS[:2]).to_pylist()
    own = [row for row in rows if row["gpu"] == "one" and row["status"] == "ok"]
    times = np.random.default_rng(0).permutation([row["latency_us"] for row in own])
    for row, time in zip(own, times, strict=True):
        row["latency_us"] = float(time)
    tables = space_tables(pa.Table.from_pylist(rows, schema=made_rows().schema), "made.parquet")
    assert search(tables, SCENARIO)["search_summary"]["regret"].to_pylist()[0] <= 0.05


def test_a_source_of_which_few_were_measured_is_filled_in():
    rows = made_rows().to_pylist()
    draw = np.random.default_rng(1)
    kept = [row for row in rows if row["gpu"] != "one" or draw.random() < 0.2]
    tables = space_tables(pa.Table.from_pylist(kept, schema=made_rows().schema), "made.parquet")
    arrays = space_arrays(tables.kernel_candidates, tables.kernel_measurements, "made")
    target = target_of(arrays, "two", ["one"])
    truth = np.array([latency(*_numbers(name), 0) for name in target.ids])
    gaps = (arrays.gpus["one"].status != OK) & (target.fails == 0)
    assert gaps.sum() > 150
    assert np.corrcoef(target.logs[gaps, 0], np.log(truth[gaps]))[0, 1] > 0.8


def _numbers(name: str) -> tuple[int, int, int, int]:
    values = dict(part.split("=") for part in name.split(","))
    return tuple(int(values[key]) for key in ("block_size_x", "tile_size_x", "vector", "cached"))


def test_fewer_than_ten_shared_candidates_are_no_source():
    rows = made_rows().to_pylist()
    few = [row for place, row in enumerate(rows) if row["gpu"] != "one" or place < 8]
    tables = space_tables(pa.Table.from_pylist(few, schema=made_rows().schema), "made.parquet")
    arrays = space_arrays(tables.kernel_candidates, tables.kernel_measurements, "made")
    found = target_of(arrays, "two")
    assert found.sources == ("three",)
    assert found.notes == ("source one measured 8 of these candidates, fewer than 10: not used",)


def test_forecasts_join_as_one_more_source(tmp_path):
    tables = made_tables(("two",))
    arrays = space_arrays(tables.kernel_candidates, tables.kernel_measurements, "made")
    target = target_of(arrays, "two")
    truth = truth_of(arrays, "two", target.ids)
    known = np.flatnonzero(truth.status == OK)[::4]
    good = pa.table({"candidate_id": target.ids[known].tolist(), "latency_us": truth.latency_us[known] * 1.3})
    pq.write_table(good, tmp_path / "f.parquet")
    joined = with_forecasts(target, read_forecasts(tmp_path / "f.parquet"))
    assert joined.sources == ("forecasts",)
    scenario = SCENARIO | {"budget_measurements": 20}
    alone, helped = (
        search(tables, scenario, forecasts=each)["search_summary"]["regret"].to_pylist()[0]
        for each in (None, lambda target: good)
    )
    assert helped <= 0.11
    assert helped <= alone
    few = with_forecasts(target, good.slice(0, 3))
    assert (few.sources, few.notes[-1]) == ((), "forecasts forecast 3 of these candidates, fewer than 10: not used")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"candidate_id": ["a"]}, "has no column latency_us; forecasts have candidate_id and latency_us"),
        ({"candidate_id": ["a"], "latency_us": [float("nan")]}, "1 forecasts have no finite latency above 0"),
    ],
)
def test_forecasts_that_cannot_be_used_are_refused(tmp_path, table, sentence):
    pq.write_table(pa.table(table), tmp_path / "f.parquet")
    with pytest.raises(InvalidInput, match=sentence):
        read_forecasts(tmp_path / "f.parquet")


def test_words_are_features():
    rows = made_rows().to_pylist()
    for row in rows:
        parameters = json.loads(row["parameters"])
        parameters["layout"] = "row" if parameters.pop("cached") else "column"
        row["parameters"] = json.dumps(parameters)
    tables = space_tables(pa.Table.from_pylist(rows, schema=made_rows().schema), "made.parquet")
    summary = search(tables, SCENARIO)["search_summary"].to_pylist()[0]
    assert "layout=row" in summary["best_candidate"]
    assert summary["regret"] <= 0.02


def test_failures_that_other_gpus_share_are_learned_from_a_few_measurements():
    rows = made_rows().to_pylist()
    for row in rows:
        if row["gpu"] == "one" and json.loads(row["parameters"])["vector"] == 8:
            row |= {"latency_us": None, "status": "compile_failed"}
    tables = space_tables(pa.Table.from_pylist(rows, schema=made_rows().schema), "made.parquet")
    arrays = space_arrays(tables.kernel_candidates, tables.kernel_measurements, "made")
    target = target_of(arrays, "two")
    some = np.flatnonzero((target.fails > 0) & (target.fails < 1))
    every = np.arange(len(target.ids))
    before = chance_to_work(target, empty_history(), every)

    def after(logs: float) -> np.ndarray:
        empty = np.full(4, np.nan)
        found = History(
            *(some[:4], np.full(4, logs), np.full(4, 1e-4), np.ones(4, int), np.ones(4, int), np.zeros(4, bool)),
            *(np.ones(4), empty, empty),
        )
        return chance_to_work(target, found, every)

    far = some[np.abs(target.features[some] - target.features[some[0]]).sum(1) > 1.0]
    assert len(far) > 5
    assert before[far] == pytest.approx(0.55)
    assert (after(np.nan)[far] < 0.2).all() and (after(5.0)[far] > 0.85).all()
    sound = target.fails == 0
    assert np.array_equal(after(5.0)[sound], before[sound])


def test_misleading_needs_measurements():
    arrays = space_arrays(*made_tables()[1:], "made")
    target = target_of(arrays, "two")
    assert misleading(target, np.zeros(0, dtype=int), np.zeros(0)) == {}
