"""One input of each form of log, result, profile and trace (cases.yaml, which the site shows): what is read of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelsight.comparison.stage_logs import stages_and_lacks
from kernelsight.logs import read_logs
from kernelsight.logs.registry import formats
from kernelsight.serving.load.recorded_loads import read_trace
from tests.logs.asked import faults, settings, statistics
from tests.logs.written import DATA

CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text(encoding="utf-8"))


def input_of(case: dict[str, Any], folder: Path) -> Path:
    """Return the file of a case, written where the case holds its text."""
    if "file" in case:
        return DATA / case["file"]
    path = folder / case.get("name", "log.txt")
    if "sql" in case:
        connection = sqlite3.connect(path)
        connection.executescript(case["sql"])
        connection.close()
    else:
        path.write_text(case["text"], encoding="utf-8")
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_what_is_read_of_a_form(case: dict[str, Any], tmp_path: Path) -> None:
    path, role = input_of(case, tmp_path), case.get("role", "requests")
    if case["form"] == "trace":
        rows_are(read_trace(path).to_pylist(), case["read"]["trace"])
        return
    tables = read_logs([path]) if role == "requests" else read_logs(**{role: [path]})
    [log] = {row["format"]: row for row in tables["production_logs"].to_pylist()}.values()
    assert log["format"] == case["form"]
    assert {name: log[name] for name in case.get("logs", {})} == case.get("logs", {})
    if "load" in case:
        check_load(tables, dict(case["load"]))
    for table, expected in case.get("read", {}).items():
        if table == "production_summaries":
            found = {" ".join(key): value for key, value in statistics(tables).items()}
            assert {name: found[name] for name in expected} == pytest.approx(expected)
        elif table == "production_settings":
            assert settings(tables).items() >= expected.items()
        else:
            rows_are(tables[table].to_pylist(), expected)
    if "faults" in case:
        assert faults(tables) == case["faults"]


def rows_are(rows: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """Check the number of rows, fields of the first and the last one, and sums."""
    assert len(rows) == expected.get("rows", len(rows))
    for place, name in ((0, "first"), (-1, "last")):
        for field, value in expected.get(name, {}).items():
            near = pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value
            assert rows[place].get(field) == near, field
    for field, total in expected.get("sum", {}).items():
        assert sum(row[field] for row in rows) == pytest.approx(total)


def check_load(tables: dict[str, Any], load: dict[str, Any]) -> None:
    """Check that statistics become the stages of a load, of which the last one is as stated."""
    found, lacks = stages_and_lacks(tables["production_summaries"], {})
    stage = found[-1]
    assert (len(found), lacks) == (load.pop("runs"), [])
    assert (stage.requests, stage.max_concurrency) == (load.pop("requests"), load.pop("max_concurrency"))
    for name in ("prompt_tokens", "output_tokens"):
        assert getattr(stage, name)["mean"] == pytest.approx(load.pop(name), rel=1e-3)
    assert stage.rate == pytest.approx(load.pop("rate"), rel=1e-3)
    assert {name: stage.measured[name, "mean"] for name in load} == pytest.approx(load, rel=1e-3)


def test_every_form_has_a_case() -> None:
    assert {case["form"] for case in CASES} == {log_format.name for log_format in formats()} | {"trace"}
