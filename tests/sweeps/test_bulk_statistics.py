"""Statistics of a sweep's requests against the queries that say what they mean, bit for bit."""

from __future__ import annotations

import pytest

from kernelsight.session import Session
from kernelsight.sweeps.sweep import sweep

from .conftest import rows_of

LOADS = {
    "warm-ups": {"num_warmups": 3, "max_concurrency": 4},
    "objectives": {"goodput_ttft_ms": 40.0, "goodput_tpot_ms": 9.0, "max_concurrency": 8},
    "one token": {"output_len": 1, "range_ratio": 1.0, "request_rate": 5.0},
    "some turned away": {"input_len": 1020, "output_len": 9, "range_ratio": 0.9, "request_rate": 5.0},
    "all turned away": {"input_len": 2000, "range_ratio": 1.0, "request_rate": 5.0, "goodput_e2el_ms": 1.0},
    "stages": {"pipeline_parallel_size": 3, "data_parallel_size": 2, "max_concurrency": 9},
    "replicas": {"data_parallel_size": 3, "max_concurrency": 7, "goodput_e2el_ms": 100.0},
}


@pytest.fixture(scope="module")
def grid() -> list[dict]:
    return [{**row, **load} for load in LOADS.values() for row in rows_of(tp=[1, 2], seed=[1, 2])]


def test_every_load_says_what_the_queries_say(session: Session, grid: list[dict]):
    told = {row["scenario_id"]: row for row in session.what_if(grid).to_pylist()}
    rows = sweep(session, grid).to_pylist()
    assert len(rows) == len(grid)
    for row in rows:
        other = told[row["scenario_id"]]
        assert {name: row[name] for name in row if name in other} == {
            name: other[name] for name in other if name in row
        }
    assert {row["completed"] < row["requests"] for row in rows} == {True, False}
    assert any(row["completed"] == 0 and row["requests"] > 0 for row in rows)
    assert len({row["goodput"] is None for row in rows}) == 2
    assert any(row["tpot_mean_ms"] is None and row["completed"] for row in rows)
