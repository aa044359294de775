"""Charts of runs and grids for notebooks."""

from __future__ import annotations

from typing import Any

import pytest

import kernelsight as ks
from kernelsight.errors import UnknownName
from kernelsight.present.figures.charts import points_of
from kernelsight.present.html.page import plain
from kernelsight.present.pages.size import _front_lines

LOAD = {"model": "qwen3-0.6b", "num_prompts": 8, "input_len": 64, "output_len": 8}


def rows_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a chart, which altair keeps in a place of their own."""
    (rows,) = chart["datasets"].values()
    return rows


def test_charts_hold_the_rows_of_runs_and_grids() -> None:
    pytest.importorskip("altair")
    with ks.connect() as session:
        run = session.simulate(gpu="l4", max_concurrency=2, **LOAD)
        waiting = run.plot("Batch and queue").to_dict()
        assert waiting["title"] == "Batch and queue"
        assert {row["measure"] for row in rows_of(waiting)} == {"running", "waiting"}
        grid = session.what_if({"gpu": ["l4", "h100_sxm"], "max_concurrency": [1, 4]} | LOAD)
        chart = grid.plot(x="max_concurrency", y="ttft_p99_ms", color="gpu").to_dict()
        found = {(row["gpu"], row["max_concurrency"]): row["ttft_p99_ms"] for row in rows_of(chart)}
        wanted = grid.summary.to_pylist()
        assert found == {(row["gpu"], row["max_concurrency"]): plain(row)["ttft_p99_ms"] for row in wanted}
        assert chart["encoding"]["color"] == {"field": "gpu", "type": "nominal"}
        assert "strokeDash" not in chart["encoding"]
        more = {"gpu": ["l4", "h100_sxm"], "max_concurrency": [1, 4], "enforce_eager": [False, True]}
        lines = session.what_if(more | LOAD | {"output_len": [8, 9]}).plot(x="max_concurrency", y="ttft_p99_ms")
        encoding = lines.to_dict()["encoding"]
        apart = {encoding["strokeDash"]["field"], *(one["field"] for one in encoding["detail"])}
        assert apart == {"gpu", "enforce_eager", "output_len"}  # a line's points differ in x alone
        step = session.predict(gpu="l4", model="qwen3-0.6b", context_len=100)
        kernels = {row["name"] for row in rows_of(step.plot().to_dict()) if row.get("name")}
        assert kernels == {row["name"] for row in step.kernels.to_pylist() if row["flops"]} != set()
        with pytest.raises(UnknownName, match="unknown column 'ttft_p98_ms'. Did you mean ttft_p99_ms"):
            grid.plot(y="ttft_p98_ms")
        with pytest.raises(UnknownName, match="unknown figure 'Queue'"):
            run.plot("Queue")


def test_an_axis_of_widely_different_values_is_logarithmic() -> None:
    pytest.importorskip("altair")
    rows = [{"rate": 1.0, "late": 20.0}, {"rate": 2.0, "late": 50_000.0}]
    encoding = points_of(rows, ["rate", "late"], ["rate"], "rate", "late", "").to_dict()["encoding"]
    assert encoding["y"]["scale"] == {"type": "log"} and "scale" not in encoding["x"]
    none_late = points_of([*rows, {"rate": 4.0, "late": 0.0}], ["rate", "late"], [], "rate", "late", "").to_dict()
    assert "scale" not in none_late["encoding"]["y"]


def test_a_grid_is_printed_with_its_front() -> None:
    with ks.connect() as session:
        text = str(session.what_if({"gpu": ["l4", "h100_sxm"], "max_concurrency": [1, 4]} | LOAD))
    assert "Pareto front" in text and "*: on the front" in text


def test_a_sizing_draws_cost_against_latency_where_they_conflict() -> None:
    question = {"slo": [{"statistic": "ttft_p99_ms", "most_ms": 900.0}]}
    rows = [{"price_per_hour": cost, "ttft_p99_ms": late} for cost, late in [(1.0, 800.0), (2.0, None), (4.0, 100.0)]]
    drawn = _front_lines([*rows, {"price_per_hour": 8.0, "ttft_p99_ms": 400.0}], question)
    # two on the front, and the head that says so
    assert ["".join(drawn).count(mark) for mark in "*."] == [3, 1]
    assert _front_lines(rows[:2], question) == []
