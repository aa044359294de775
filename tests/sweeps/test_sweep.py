"""One row a scenario, whatever the workers, the partitions and the company; faults, prices, objectives, front."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.errors import KernelSightError, UnknownName
from kernelsight.scenario.objectives import cheapest, parse_slo
from kernelsight.session import Session, connect
from kernelsight.sweeps.sweep import pareto_front
from tests.asked import refusals, sweep

from .conftest import LOAD, SMALL, rows_of, table_bytes

ORDER = {
    "kernel_breakdown": [(name, "ascending") for name in ("phase", "family", "name")],
    "request_metrics": [("request_id", "ascending")],
    "cache_over_time": [(name, "ascending") for name in ("replica", "window")],
    "step_cost_uses": [(name, "ascending") for name in ("deployment_id", "phase", "step_shape_id")],
    "steps": [(name, "ascending") for name in ("replica", "step")],
}
GRID = rows_of(tp=[1, 2, 3], max_concurrency=[1, 4, 30], data_parallel_size=[1, 2])


def unnumbered(table: pa.Table) -> bytes:
    """Return the bytes of a sweep without the numbers of its rows in a grid, which another order changes."""
    return table_bytes(table.drop_columns("grid_row"))


@pytest.fixture(scope="module")
def result(session: Session) -> pa.Table:
    return sweep(session, GRID)


def test_rows_are_what_simulating_says(session: Session, result: pa.Table):
    found = {row["scenario_id"]: row for row in result.to_pylist()}
    assert result["scenario_id"].to_pylist() == sorted(found) and len(found) == 18
    for flags in [row for row in GRID if row["tp"] != 3][::5]:
        run = session.simulate(**flags)
        [row] = run.table("scenario_summary").to_pylist()
        assert {name: found[row["scenario_id"]][name] for name in row} == row


def test_every_table_of_a_scenario_is_there_without_the_others(session: Session, tmp_path: Path):
    asked = session.what_if(rows_of(tp=[1, 3], max_concurrency=[4], data_parallel_size=[1, 2]))
    names = ("kernel_breakdown", "request_metrics", "cache_over_time", "step_cost_uses", "steps")
    whole = {name: asked.table(name) for name in names}
    saved = tmp_path / "sweep.duckdb"
    asked.save(saved)
    one = next(row["scenario_id"] for row in asked.summary.to_pylist() if row["status"] == "served")
    with connect(saved, read_only=True) as reopened:
        for name, table in whole.items():
            mine = table.filter(pc.equal(table["scenario_id"], one))
            alone = asked.table(name, scenario=one)
            order = ORDER[name]
            assert mine.num_rows and table_bytes(alone.sort_by(order)) == table_bytes(mine.sort_by(order)), name
            assert table_bytes(reopened.table(name)) == table_bytes(table), name
        assert reopened.table("sweep").num_rows == 4
        facts = {row["fact"] for row in reopened.table("run_info").to_pylist()}
    assert {"gpus_sha256", "kernel_implementations_sha256", "coefficients_sha256", "command"} <= facts
    with pytest.raises(UnknownName, match="unknown scenario 'nothing'"):
        asked.scenario("nothing")


@pytest.mark.whole
def test_partitions_and_order_change_nothing(session: Session, result: pa.Table):
    shuffled = random.Random(3).sample(GRID, len(GRID))
    assert unnumbered(sweep(session, shuffled, partition_requests=200)) == unnumbered(result)
    few = [row for row in shuffled if row["tp"] == 2 and row["data_parallel_size"] == 2]
    found = sweep(session, few, partition_requests=1)
    among = result.filter(pc.is_in(result["scenario_id"], found["scenario_id"]))
    assert found.num_rows == 3 and unnumbered(found) == unnumbered(among.select(found.column_names))


@pytest.mark.usefixtures("kept_trials")
@pytest.mark.whole
def test_processes_say_the_same_of_the_sessions_own_gpus_too(tmp_path: Path):
    grid = rows_of(gpu=["mine", "l4"], tp=[1, 3], max_concurrency=[2, 4])
    elsewhere = {"workers": 2, "partition_requests": 48, "folder": tmp_path / "parts"}
    with connect() as session:
        session.extend("gpus", session.query("select * replace ('mine' as gpu) from gpus where gpu = 'l4'"))
        here = sweep(session, grid, intervals=True)
        there = sweep(session, random.Random(3).sample(grid, len(grid)), intervals=True, **elsewhere)
    assert unnumbered(here) == unnumbered(there)
    means = {(row["gpu"], row["max_concurrency"]): row["ttft_mean_ms"] for row in here.to_pylist() if row["completed"]}
    assert len(means) == 4 and all(means["mine", count] == means["l4", count] for count in (2, 4))


def test_inv_7_alone_as_among_others(session: Session, result: pa.Table):
    for row in GRID[:2] + GRID[-2:]:
        alone = session.what_if([row]).summary
        place = result["scenario_id"].to_pylist().index(alone["scenario_id"][0].as_py())
        columns = [name for name in alone.column_names if name != "grid_row"]
        assert table_bytes(alone.select(columns)) == table_bytes(result.slice(place, 1).select(columns))
        assert GRID[result["grid_row"][place].as_py() - 1] == row


def test_what_cannot_run_is_a_row(result: pa.Table):
    rows = result.to_pylist()
    faults = [row for row in rows if row["status"] != "served"]
    assert {row["tensor_parallel_size"] for row in faults} == {3}
    assert len(faults) == 6
    assert all("attention heads, not divisible by tensor-parallel size 3" in row["status"] for row in faults)
    assert all(row["completed"] == 0 and row["ttft_p99_ms"] is None for row in faults)
    assert all(row["completed"] == LOAD["num_prompts"] for row in rows if row["status"] == "served")


def test_a_grid_of_faults_alone(session: Session):
    found = sweep(session, [SMALL | LOAD | {"tp": 3, "max_concurrency": 1}]).to_pylist()
    assert [row["completed"] for row in found] == [0]


def test_models_and_layers_of_ones_own_are_given_in_order(session: Session):
    names = session.graph.by_reference({"model_layers", "models", "scenarios", "deployments", "gpus"})
    assert names.index("models") < names.index("model_layers")
    assert names.index("models") < names.index("deployments") < names.index("scenarios")


def test_prices_make_costs(session: Session):
    rows = rows_of(tp=[1, 2], max_concurrency=[8], price_per_gpu_hour=[2.0]) + rows_of(tp=[4], max_concurrency=[8])
    for row in sweep(session, rows).to_pylist():
        if row["price_per_gpu_hour"] is None:
            assert row["cost_per_million_output_tokens"] is None
            continue
        an_hour = row["output_throughput"] * 3600
        expected = 2.0 * row["tensor_parallel_size"] / an_hour * 1e6
        assert row["cost_per_million_output_tokens"] == pytest.approx(expected)


def test_objectives_and_the_cheapest(session: Session):
    rows = rows_of(tp=[1, 2, 3], max_concurrency=[1, 30], price_per_gpu_hour=[1.5])
    free = sweep(session, rows)
    limit = sorted(value for value in free["ttft_p99_ms"].to_pylist() if value is not None)[1]
    found = sweep(session, rows, slo={"ttft_p99_ms": limit}).to_pylist()
    kept = [row for row in found if row["meets_slo"]]
    assert len(kept) == 2
    assert all((row["ttft_p99_ms"] or limit + 1) <= limit for row in kept)
    assert all(row["status"] != "served" or row["ttft_p99_ms"] > limit for row in found if not row["meets_slo"])
    best = cheapest(sweep(session, rows, slo={"ttft_p99_ms": limit}))
    # per token, not per hour: two GPUs that serve more than twice as much are cheaper than one
    costs = {row["scenario_id"]: row["gpus"] * 1.5 / row["total_throughput"] / 3600 * 1e6 for row in kept}
    assert best["cost_per_million_tokens"] == pytest.approx(min(costs.values()))
    assert best["price_per_hour"] == best["gpus"] * 1.5
    tokens = {"input": best["total_throughput"] - best["output_throughput"], "output": best["output_throughput"]}
    for kind, per_s in tokens.items():
        assert best[f"cost_per_million_{kind}_tokens"] == pytest.approx(best["price_per_hour"] / per_s / 3600 * 1e6)
    assert cheapest(sweep(session, rows, slo={"ttft_p99_ms": 1e-9})) is None
    unpriced = [{name: value for name, value in row.items() if name != "price_per_gpu_hour"} for row in rows]
    fewest = cheapest(sweep(session, unpriced, slo={"ttft_p99_ms": limit}))
    assert fewest["scenario_id"] == best["scenario_id"] and "price_per_hour" not in fewest


def test_turned_away_requests_keep_no_objective(session: Session):
    rows = rows_of(max_concurrency=[2], input_len=[1020], output_len=[9], range_ratio=[0.9])
    (row,) = sweep(session, rows, slo={"ttft_p99_ms": 1e9}).to_pylist()
    assert 0 < row["completed"] < row["requests"]
    assert row["meets_slo"] is False


def dominated(row: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    axes = ("output_throughput_per_user", "output_throughput_per_gpu")
    return any(
        all(other[name] >= row[name] for name in axes) and any(other[name] > row[name] for name in axes)
        for other in rows
    )


def test_the_front_by_brute_force(session: Session, result: pa.Table):
    served = [row for row in result.to_pylist() if row["status"] == "served"]
    expected = {row["scenario_id"] for row in served if not dominated(row, served)}
    assert 0 < len(expected) < len(served)
    assert set(pareto_front(session, result)["scenario_id"].to_pylist()) == expected


def test_the_front_of_random_points(session: Session):
    draw = random.Random(5)
    names = session.graph.known("scenario_summary").column_names
    rows = []
    for number in range(300):
        values = {
            "output_throughput_per_user": draw.randrange(1, 40),
            "output_throughput_per_gpu": draw.randrange(1, 40),
        }
        rows.append(dict.fromkeys(names) | {"scenario_id": str(number), **{k: float(v) for k, v in values.items()}})
        rows[-1] |= {"deployment_id": "d", "status": "served", "requests": 1, "completed": 1, "gpus": 1}
    table = pa.Table.from_pylist(rows, schema=session.graph.known("scenario_summary").schema)
    expected = {row["scenario_id"] for row in rows if not dominated(row, rows)}
    assert set(pareto_front(session, table)["scenario_id"].to_pylist()) == expected


def test_each_load_has_a_front_of_its_own(session: Session):
    rows = rows_of(max_concurrency=[1, 8], input_len=[30, 900])
    table = sweep(session, rows)
    front = pareto_front(session, table).to_pylist()
    for length in (30, 900):
        mine = [row for row in table.to_pylist() if row["input_len"] == length]
        expected = {row["scenario_id"] for row in mine if not dominated(row, mine)}
        assert {row["scenario_id"] for row in front if row["input_len"] == length} == expected and expected
    # all of the long prompts are beaten by the short ones
    assert len({row["load"] for row in front}) == 2 and [row["load"] for row in front] == sorted(
        row["load"] for row in front
    )


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("ttft:5", "unknown metric of --slo 'ttft'. Did you mean ttft_"),
        ("ttft_p99:fast", "--slo 'ttft_p99:fast' has no positive number; give ttft_p99:MS, or ttft_p99:2s."),
        ("ttft_p99=2s", "--slo 'ttft_p99=2s' has no colon; write ttft_p99:2s."),
        ("ttft_p99:1", "--slo 'ttft_p99:1' is 1 ms; give ttft_p99:1s for seconds, or ttft_p99:1ms if it is meant."),
        ("ttft_99:200", "unknown metric of --slo 'ttft_99'. Did you mean ttft_p99? Give METRIC_STATISTIC"),
        ("ttft_p99:-1", "--slo 'ttft_p99:-1' has no positive number; give ttft_p99:MS, or ttft_p99:2s."),
        ("tpot_p50:9", "--slo has tpot_p50 twice; give it once."),
    ],
)
def test_objectives_that_cannot_be_used(word: str, sentence: str):
    with pytest.raises(KernelSightError) as caught:
        parse_slo(["tpot_p50:9", word])
    assert str(caught.value).startswith(sentence)


# ---------------------------------------------------------------- the command


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(SMALL | LOAD | {"tp": [1, 2, 3], "max_concurrency": [1, 8]}))
    return path


def test_json_of_the_command(command: Any, grid: Path):
    status, out, err = command("sweep", grid, "--format", "json", "--slo", "ttft_p99:1e6")
    answer = json.loads(out)
    assert (status, err) == (0, "")
    assert (answer["scenarios"], answer["served"], answer["faults"]) == (6, 4, 2)
    assert len(answer["rows"]) == 6
    front = {row["scenario_id"] for row in answer["pareto_front"]}
    frugal = min(answer["rows"], key=lambda row: row["energy_per_output_token_j"] or float("inf"))
    assert frugal["scenario_id"] in {row["scenario_id"] for row in answer["energy_front"]}
    served = [row for row in answer["rows"] if row["status"] == "served"]
    assert front == {row["scenario_id"] for row in served if not dominated(row, served)}


@pytest.mark.whole
def test_pages_and_files_of_the_command(command: Any, grid: Path, tmp_path: Path):
    status, out, _ = command("sweep", grid, "-o", tmp_path / "out.duckdb", "--goodput", "ttft:100")
    assert status == 0
    assert "6 scenarios, 4 served, 2 cannot run" in out and "Pareto front" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid.json", "out.duckdb"]
    query = "select count(*) as n, count(goodput) as good from sweep"
    status, out, _ = command("sql", query, "--db", tmp_path / "out.duckdb", "--format", "json")
    assert json.loads(out) == [{"n": 6, "good": 4}]
    status, out, _ = command("sweep", grid, "-o", tmp_path / "out.csv", "--format", "csv")
    assert (tmp_path / "out.csv").read_text() == out
    assert len(out.splitlines()) == 7


@pytest.mark.parametrize(
    ("words", "sentence"),
    refusals("sweeps/test_sweep::test_refusals_of_the_command"),
)
def test_refusals_of_the_command(command: Any, grid: Path, words: list[str], sentence: str):
    assert command("sweep", grid, *words) == (2, "", f"kernelsight: {sentence}\n")


def test_ray_that_is_not_installed(command: Any, grid: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    sentence = (
        "--executor ray needs Ray, which is not installed; run pip install -e '.[ray]' in the checkout, or use "
        "--executor local."
    )
    assert command("sweep", grid, "--executor", "ray") == (2, "", f"kernelsight: {sentence}\n")


def test_any_percentile_is_an_objective(session: Session):
    import numpy as np

    rows = rows_of(max_concurrency=[2, 8])
    slo = {"ttft_p95_ms": 60.0, "itl_p99.9_ms": 1e3, "queue_p25_ms": 1e3, "e2e_p90_ms": 1e9}
    found = session.sweep(rows, slo=slo)
    for row in found.summary.to_pylist():
        metrics = found.table("request_metrics", row["scenario_id"])
        assert row["ttft_p95_ms"] == pytest.approx(np.percentile(metrics["ttft_ms"].to_numpy(), 95))
        assert row["queue_p25_ms"] == pytest.approx(np.percentile(metrics["queue_ms"].to_numpy(), 25))
        assert row["itl_p99_ms"] <= row["itl_p99.9_ms"]
        assert row["meets_slo"] is (row["ttft_p95_ms"] <= 60.0)
    assert set(found.summary["meets_slo"].to_pylist()) == {True, False}
