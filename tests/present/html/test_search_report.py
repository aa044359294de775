"""The report of a kernel search: its figures are what the run holds, drawn in a browser where one is installed."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelsight.cli.main import main
from kernelsight.present.figures.files import figures_of
from kernelsight.searching.scenarios import scenario_rows
from kernelsight.searching.search import save_search, search
from kernelsight.session import connect
from tests.present.html.browser import FETCHED, needs_browser, open_in_browser, specs_of, without_scripts
from tests.searching.made_spaces import made_tables

pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
CHARTS = sum(figure.spec is not None for figure in figures_of("search").values())


def save(path: Path, measured: bool = False, **changes: Any) -> Path:
    tables = made_tables(cv=0.05)
    scenario = scenario_rows([{"space": "made", "gpu": "two", "budget_measurements": 40} | changes])[0]

    def measure(candidates: Any) -> Any:
        known = {row["candidate_id"]: row for row in tables.kernel_measurements.to_pylist() if row["gpu"] == "two"}
        return type(candidates).from_pylist([known[name] for name in candidates["candidate_id"].to_pylist()])

    given = tables
    if measured:
        rows = [row for row in tables.kernel_measurements.to_pylist() if row["gpu"] != "two"]
        schema = tables.kernel_measurements.schema
        given = tables._replace(kernel_measurements=type(tables.kernel_measurements).from_pylist(rows, schema))
    found = search(given, scenario, measure if measured else None)
    with connect() as session:
        save_search(session, given, scenario, found, path)
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("searches") / "run.duckdb")


@pytest.fixture(scope="module")
def page(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "search.html"
    assert main(["report", str(saved), "-o", str(path)]) == 0
    return path


def test_the_page_has_its_figures_and_the_sql_behind_them_and_fetches_nothing(page: Path, saved: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not FETCHED.search(without_scripts(text))
    assert len(specs_of(page)) == CHARTS
    said = html.unescape(text)
    assert "Kernel search: made on two" in said
    with connect(saved, read_only=True) as opened:
        for figure in figures_of("search").values():
            assert figure.sql.strip() in said
            assert opened.query(figure.sql).num_rows > 0, figure.title
        (summary,) = opened.table("search_summary").to_pylist()
    assert f"after {summary['measured']} measurements takes {summary['best_us']:.4g} us" in said
    assert f"{100 * summary['regret']:.1f}% above the fastest that the file holds" in said


def test_drawn_regret_and_measurements_are_those_of_the_run(page: Path, saved: Path) -> None:
    course, points, *_ = specs_of(page)
    with connect(saved, read_only=True) as opened:
        rounds = opened.table("search_rounds").to_pylist()
        measured = opened.table("search_measurements").to_pylist()
    drawn = {row["measured"]: row["percent"] for row in course["data"]["values"] if row["measure"].startswith("above")}
    assert drawn == pytest.approx({row["measured"]: 100 * row["regret"] for row in rounds}, rel=1e-5)
    shown = points["data"]["values"]
    assert [row["candidate_id"] for row in shown] == [row["candidate_id"] for row in measured]
    assert [row["measured"] for row in shown] == list(range(1, 41))


def test_every_candidate_is_measured_or_deferred(saved: Path) -> None:
    with connect(saved, read_only=True) as opened:
        deferred = opened.query(figures_of("search")["What was deferred"].sql).to_pylist()
        count = "select count(distinct candidate_id) as n from "
        (measured,) = opened.query(count + "search_measurements").to_pylist()
    assert sum(row["candidates"] for row in deferred) + measured["n"] == 320
    assert any(row["why"] == "expected to fail" for row in deferred)


def test_reliability_and_risk_are_those_of_the_summary(saved: Path) -> None:
    with connect(saved, read_only=True) as opened:
        points = opened.query(figures_of("search")["Reliability of the speed-up bins"].sql).to_pylist()
        risk = opened.query(figures_of("search")["Risk against coverage"].sql).to_pylist()
        forecasts = opened.query(
            "select f.*, m.latency_us as truth from kernel_forecasts f join kernel_measurements m using (candidate_id) "
            "where m.gpu = 'two' and m.status = 'ok' and f.round = (select max(round) from kernel_forecasts) "
            "and candidate_id not in (select candidate_id from search_measurements)"
        ).to_pylist()
        measured = [row["latency_us"] for row in opened.table("search_measurements").to_pylist() if row["latency_us"]]
    bins = np.array([[row[f"bin_{place}"] for place in range(1, 9)] for row in forecasts])
    speed_up = np.exp(np.median(np.log(measured))) / np.array([row["truth"] for row in forecasts])
    happened = np.searchsorted([0.25, 0.5, 0.5**0.5, 1.0, 2.0**0.5, 2.0, 4.0], speed_up, side="right")
    right = bins.argmax(1) == happened
    assert sum(row["candidates"] for row in points) == len(forecasts)
    share = sum(row["right_percent"] * row["candidates"] for row in points) / len(forecasts)
    assert share == pytest.approx(100 * right.mean())
    assert risk[-1]["coverage_percent"] == 100 and risk[-1]["wrong_percent"] == pytest.approx(100 - share)


@needs_browser
def test_a_browser_draws_every_chart_in_silence(page: Path, tmp_path: Path) -> None:
    elements, console = open_in_browser(page, tmp_path)
    assert console == []
    assert without_scripts(elements).count("<svg") == CHARTS


def test_a_search_on_the_gpu_itself_has_no_truth_and_says_so(tmp_path: Path) -> None:
    path = save(tmp_path / "run.duckdb", measured=True, budget_measurements=20)
    assert main(["report", str(path), "-o", str(tmp_path / "s.html")]) == 0
    text = html.unescape((tmp_path / "s.html").read_text(encoding="utf-8"))
    assert len(specs_of(tmp_path / "s.html")) == CHARTS - 2
    assert "No rows." not in text
    assert "above the fastest that the file holds" not in text


def test_a_policy_without_forecasts_has_a_page(tmp_path: Path) -> None:
    path = save(tmp_path / "run.duckdb", policy="random", budget_measurements=20)
    assert main(["report", str(path), "-o", str(tmp_path / "s.html")]) == 0
    assert len(specs_of(tmp_path / "s.html")) == 2


def test_refusals(saved: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(saved), "--scenario", "other", "-o", str(tmp_path / "s.html")]) == 2
    assert "holds the kernel search 'made/two/transfer/selective/0', not 'other'" in capsys.readouterr().err
    with connect() as session:
        tables = made_tables()
        for name, table in tables._asdict().items():
            session.give(name, table)
        rows = scenario_rows([{"space": "made", "gpu": gpu, "budget_measurements": 5} for gpu in ("one", "two")])
        session.give("search_scenarios", rows)
        session.save(tmp_path / "two.duckdb", [*tables._asdict(), "search_scenarios"])
    assert main(["report", str(tmp_path / "two.duckdb"), "-o", str(tmp_path / "s.html")]) == 2
    assert "the run holds 2 kernel searches; a report shows one" in capsys.readouterr().err
