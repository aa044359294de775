"""SQL of a user reads and does nothing else: in a session, over a saved run, and as the grid of a sweep."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from kernelsight.errors import InvalidInput, KernelSightError
from kernelsight.scenario.grid import read_grid
from kernelsight.session import Session, connect
from tests.safety.attacks import ATTACKS, READS


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a saved file with some facts."""
    path = tmp_path_factory.mktemp("saved") / "keep.duckdb"
    with connect() as opened:
        opened.save(path, ["gpus", "fabrics"])
    return path


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("where", ["session", "db", "grid"])
def test_an_attack_is_refused_and_leaves_nothing(
    attack: str, where: str, session: Session, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "keep.txt"
    victim.write_text("mine")
    before, gpus = contents(saved.parent), session.table("gpus")
    for target in (victim, tmp_path / "new"):
        query = ATTACKS[attack].format(out=target)
        with pytest.raises(KernelSightError) as refusal:
            if where == "db":
                with connect(saved, read_only=True) as opened:
                    opened.query(query)
            elif where == "grid" and query.split(None, 1)[0] in ("select", "with"):
                read_grid(session, query)
            else:
                session.query(query)
        assert "\n" not in str(refusal.value)
    assert {path.name for path in tmp_path.iterdir()} == {"keep.txt"} and victim.read_text() == "mine"
    assert contents(saved.parent) == before
    assert session.query("select count(*) as n from gpus")["n"].to_pylist() == [gpus.num_rows]


@pytest.mark.parametrize("query", READS)
def test_what_only_reads_is_answered(query: str, session: Session) -> None:
    assert session.query(READS[query]).num_columns >= 1


def test_the_sentence_says_what_was_found(session: Session) -> None:
    with pytest.raises(
        InvalidInput, match=r"only reads, such as a SELECT, but it contains: copy\. Remove that part\.$"
    ):
        session.query("with x as (copy (select 1) to 'a.csv') select * from x")
    with pytest.raises(InvalidInput, match="calls enable_logging, which does more than to read rows; remove the call"):
        session.query("select * from enable_logging(storage='file')")
    with pytest.raises(InvalidInput, match="expected one query, such as a SELECT, but got: call"):
        session.query("call enable_logging()")


def test_extensions_stay_away_and_the_settings_are_locked(session: Session) -> None:
    query = "select name, value from duckdb_settings() where name in ('autoload_known_extensions', "
    query += "'autoinstall_known_extensions', 'lock_configuration', 'enable_external_access') order by name"
    assert session.sql(query).fetchall() == [
        ("autoinstall_known_extensions", "false"),
        ("autoload_known_extensions", "false"),
        ("enable_external_access", "true"),
        ("lock_configuration", "true"),
    ]
    with session.fork() as fork, pytest.raises(duckdb.Error, match="locked"):
        fork._connection.execute("set enable_external_access = true")


def test_local_files_are_read_unless_files_are_off(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("gpu\nt4\n")
    query = f"select * from '{tmp_path / 'mine.csv'}'"
    with connect() as opened:
        assert opened.query(query).to_pylist() == [{"gpu": "t4"}]
    for path in (None, saved):
        with connect(path, read_only=path is not None, files=False) as opened:
            frame = pa.table({"x": [1]})
            assert opened.query("select x from frame").to_pylist() == [{"x": 1}] and frame.num_rows == 1
            assert opened.query("select count(*) as n from gpus")["n"][0].as_py() > 10
            for reading in (query, f"select * from read_text('{tmp_path}/*')", f"select * from glob('{tmp_path}/*')"):
                with pytest.raises(InvalidInput, match="disabled by configuration"):
                    opened.query(reading)


def test_a_session_without_files_still_keeps_what_it_is_given(tmp_path: Path) -> None:
    with connect(tmp_path / "mine.duckdb", files=False) as opened:
        opened.give("my_rows", [{"a": 1}])
        opened.save(tmp_path / "mine.duckdb", ["my_rows"])
    with connect(tmp_path / "mine.duckdb", read_only=True) as opened:
        assert opened.query("from my_rows").to_pylist() == [{"a": 1}]


def test_the_command_line_refuses_and_takes_no_files(command: Callable, refusal: Callable, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("model,gpu\nqwen3-0.6b,t4\n")
    query = f"select * from '{tmp_path / 'mine.csv'}'"
    assert command("sql", query, "--format", "csv").out == "model,gpu\nqwen3-0.6b,t4\n"
    assert "disabled by configuration" in refusal("sql", query, "--no-files")
    assert "disabled by configuration" in refusal("sweep", query, "--no-files")
    attack = ATTACKS["copy in a CTE"].format(out=tmp_path / "out.csv")
    assert "it contains: copy" in refusal("sweep", attack)
    assert not (tmp_path / "out.csv").exists()
    assert refusal("sql", "select 1", "--db", "").startswith("--db is empty; give the path of a saved run")
    assert refusal("tables", "").startswith("unknown table ''")
