"""Statistics of requests against queries over rows of requests, which say what they mean, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelsight.serving.runs.scenario_summary import NONE_SERVED
from kernelsight.session import Session, connect
from tests.asked import give_plan
from tests.sweeps.conftest import rows_of

ORACLES = {path.stem: path.read_text() for path in (Path(__file__).parents[2] / "oracles").glob("*.sql")}
LOADS = {
    "warm-ups": {"num_warmups": 3, "max_concurrency": 4},
    "objectives": {"goodput_ttft_ms": 40.0, "goodput_tpot_ms": 9.0, "max_concurrency": 8},
    "one token": {"output_len": 1, "range_ratio": 1.0, "request_rate": 5.0},
    "some turned away": {"input_len": 1020, "output_len": 9, "range_ratio": 0.9, "request_rate": 5.0},
    "all turned away": {"input_len": 2000, "range_ratio": 1.0, "request_rate": 5.0, "goodput_e2el_ms": 1.0},
    "preemptions": {"kv_cache_tokens": 1040, "input_len": 300, "output_len": 300, "max_concurrency": 8},
    "stages": {"pipeline_parallel_size": 3, "data_parallel_size": 2, "max_concurrency": 9},
    "replicas": {"data_parallel_size": 3, "max_concurrency": 7, "goodput_e2el_ms": 100.0},
}
SUMMARIES = ("request_statistics", "itl_percentiles", "itl_histogram", "replica_totals", "scenario_summary")


@pytest.fixture(scope="module")
def sessions() -> tuple[Session, Session]:
    """Return the same scenarios in a session that serves summaries alone, and in one that keeps details."""
    rows = [{**row, **load} for load in LOADS.values() for row in rows_of(tp=[1, 2], seed=[1, 2])]
    lean, whole = connect(), connect()
    for session in (lean, whole):
        give_plan(session, rows)
    whole.compute("request_events", "scenario_summary")
    return lean, whole


def rows_of_table(session: Session, table: str) -> list[dict[str, Any]]:
    return session.query(f"select * from {table} order by all").to_pylist()


def test_a_summary_alone_is_what_it_is_with_details(sessions: tuple[Session, Session]):
    lean, whole = sessions
    lean.compute("scenario_summary")
    assert "request_events" not in lean.available() and "step_cost_uses" not in lean.available()
    assert {"request_events", "step_cost_uses", "serving_windows"} <= whole.available()
    for name in SUMMARIES:
        assert rows_of_table(lean, name) == rows_of_table(whole, name), name


def test_statistics_are_those_of_the_queries(sessions: tuple[Session, Session]):
    _, session = sessions
    metrics = {(row["scenario_id"], row["request_id"]): row for row in session.table("request_metrics").to_pylist()}
    for row in session.query(ORACLES["request_metrics"]).to_pylist():
        assert metrics.pop((row["scenario_id"], row["request_id"])) == row
    assert not metrics
    found = {row["scenario_id"]: row for row in session.table("request_statistics").to_pylist()}
    expected = session.query(ORACLES["request_statistics"]).to_pylist()
    assert len(found) == len(expected) == 4 * len(LOADS)
    for row in expected:
        assert {name: found[row["scenario_id"]][name] for name in row} == row
    gaps = {
        (row["scenario_id"], row["percentile"]): row["itl_ms"] for row in session.table("itl_percentiles").to_pylist()
    }
    for row in session.query(ORACLES["itl_percentiles"]).to_pylist():
        assert gaps.pop((row["scenario_id"], row["percentile"])) == row["itl_ms"]
    assert not gaps
    rows = list(found.values())
    assert {row["completed"] < row["requests"] for row in rows} == {True, False}
    assert any(row["completed"] == 0 and row["requests"] > 0 for row in rows)
    assert len({row["good"] is None for row in rows}) == 2
    assert any(row["tpot_mean_ms"] is None and row["completed"] for row in rows)
    recomputed = "select distinct scenario_id from request_events where recomputed_ns > 0"
    preempted = {row["scenario_id"] for row in rows if row["preempted_ns"]}
    assert {row["scenario_id"] for row in session.query(recomputed).to_pylist()} & preempted


def test_a_scenario_of_which_no_request_was_served_is_not_served(sessions: tuple[Session, Session]):
    rows = rows_of_table(sessions[0], "scenario_summary")
    assert {row["status"] for row in rows if row["completed"] == 0} == {NONE_SERVED}
    assert {row["status"] for row in rows if row["completed"]} == {"served"}


def test_rejections_are_counted_by_reason(sessions: tuple[Session, Session]):
    _, session = sessions
    query = """
        select scenario_id, status, count(*) as n from request_events where not warmup and status <> 'finished'
        group by all
    """
    counted = {(row["scenario_id"], row["status"]): row["n"] for row in session.query(query).to_pylist()}
    found = {
        (row["scenario_id"], name): row[name]
        for row in session.table("request_statistics").to_pylist()
        for name in ("rejected_too_long", "rejected_no_memory", "rejected_earlier_turn")
        if row[name]
    }
    assert found == counted and counted


def test_transfers_are_averaged_over_the_prompts_that_moved():
    with connect() as session:
        row = rows_of(max_concurrency=[4], prefill_replicas=[2])[0]
        give_plan(session, [row])
        session.compute("scenario_summary", "request_events")
        [(mean,)] = session.sql("select avg(kv_transfer_ms) from request_metrics").fetchall()
        [found] = session.table("request_statistics")["kv_transfer_mean_ms"].to_pylist()
        assert mean > 0 and found == pytest.approx(mean, rel=1e-9)
