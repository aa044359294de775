"""Tables and parsed queries that are kept on disk between processes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kernelsight import connect
from kernelsight.dataflow import kept
from kernelsight.dataflow.sql_nodes import parse_node, parse_query

ROW = {"deployment_id": "d", "model": "qwen3-0.6b", "gpu": "l4", "tp": 1, "pp": 1, "dp": 1, "ep": 1, "engine": "vllm"}
TABLES = ("memory_plan", "step_costs", "assumptions", "kernel_latencies", "deployment_settings")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def answers(row: dict = ROW) -> tuple[dict[str, pa.Table], list[str]]:
    """Return tables of one deployment, and the tables that a node ran for."""
    ran: list[str] = []
    with connect() as session:
        session.progress = lambda names, seconds: ran.extend(names.split(", "))
        session.give("deployments", [row])
        return {name: session.table(name) for name in TABLES}, ran


def test_another_session_takes_the_same_tables(place: Path) -> None:
    first, computed = answers()
    again, ran = answers()
    assert set(TABLES) <= set(computed)
    assert not set(TABLES) & set(ran)
    for name in TABLES:
        assert again[name].equals(first[name], check_metadata=True), name


def test_other_rows_are_computed(place: Path) -> None:
    first, _ = answers()
    other, ran = answers({**ROW, "gpu": "h100_sxm"})
    assert set(TABLES) <= set(ran)
    assert not other["step_costs"].equals(first["step_costs"])


def test_given_facts_are_part_of_the_key(place: Path) -> None:
    first, _ = answers()
    with connect() as session:
        rows = [row for row in session.table("gpus").to_pylist() if row["gpu"] == "l4"]
        session.extend("gpus", [{**rows[0], "memory_bandwidth_bytes_per_s": 1e12}])
        session.give("deployments", [ROW])
        assert not session.table("kernel_latencies").equals(first["kernel_latencies"])


def test_what_replays_correct_is_not_kept(place: Path) -> None:
    first, _ = answers()
    before = set(place.iterdir())
    with connect() as session:
        session.give("deployments", [ROW])
        session.give("corrections", [{"deployment_id": "d", "part": "host", "factor": 1.0, "exposed_us": 500.0}])
        slower = {name: session.table(name) for name in ("step_costs", "host_settings", "memory_plan")}
    assert slower["memory_plan"].equals(first["memory_plan"])
    assert slower["host_settings"]["step_exposed_us"][0].as_py() >= 500.0
    assert set(place.iterdir()) == before


def test_a_damaged_file_is_computed_anew(place: Path) -> None:
    first, _ = answers()
    for path in place.iterdir():
        path.write_bytes(path.read_bytes()[:-3] + b"xxx")
    again, ran = answers()
    assert set(TABLES) <= set(ran)
    for name in TABLES:  # a join promises no order of rows
        assert sorted(map(repr, again[name].to_pylist())) == sorted(map(repr, first[name].to_pylist())), name


def test_nothing_is_kept_where_others_may_write(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)
    answers()
    assert not list(place.iterdir())


def test_nothing_is_kept_where_the_variable_is_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(kept.VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answers()
    assert not list(tmp_path.iterdir())


def test_the_folder_stays_small(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LARGEST_FOLDER", 250)
    place.mkdir(mode=0o700)
    for number in range(5):
        (place / str(number)).write_bytes(bytes(100))
    kept.kept_folder.cache_clear()
    kept.keep("new", b"rows")
    assert len(list(place.iterdir())) == 3


def test_a_long_process_keeps_the_folder_small(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LARGEST_FOLDER", 8_000)
    for number in range(100):
        kept.keep(str(number), bytes(500))
    assert sum(path.stat().st_size for path in place.iterdir()) <= 8_000 + 1_000 + 3 * 532


def test_a_program_is_told_apart_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text("x = 1")
    before = kept.program_digest(tmp_path)
    (tmp_path / "rule.py").write_text("x = 2")
    assert kept.program_digest(tmp_path) != before


def test_a_parsed_query_is_the_same_from_disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "with c as (select * from gpus) select * from c join models using (x)"
    first = parse_node(text)
    monkeypatch.setattr("kernelsight.dataflow.sql_nodes.parse_query", lambda text: pytest.fail("parsed again"))
    assert parse_node(text) == first == parse_query(text)
