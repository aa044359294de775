"""DuckDB: a Ctrl-C within a query, or while a file is written, is a Ctrl-C, and leaves no file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest

from kernelsight.dataflow.databases import open_database, private_cursor, stop_if_interrupted
from kernelsight.dataflow.storage import attach, change_tables, read_table, save_file
from kernelsight.errors import InvalidInput, RunFailed, UnknownName
from kernelsight.files import bounded_files
from kernelsight.session import connect


class Interrupted:
    """A table during whose reading the user presses Ctrl-C."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise KeyboardInterrupt


class Relation:
    """A query during which the user presses Ctrl-C: DuckDB's own error."""

    def to_arrow_table(self) -> pa.Table:
        raise RuntimeError("Query interrupted")


class Connection:
    """A connection all whose queries are interrupted."""

    def execute(self, _: str) -> Relation:
        return Relation()


def test_ctrl_c_within_a_query_of_a_user_or_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    with connect() as session:
        monkeypatch.setattr(session, "sql", lambda _: Relation())
        with pytest.raises(KeyboardInterrupt):
            session.query("select 1")
        with monkeypatch.context() as patch:
            patch.setattr(session, "_connection", Connection())
            node = SimpleNamespace(inputs=(), names=("t",), text="select 1", label="t.sql")
            with pytest.raises(KeyboardInterrupt):
                session._run_query(node)


def test_ctrl_c_while_a_table_is_handed_to_duckdb() -> None:
    with connect() as session:
        session._tables["gpus"] = Interrupted()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            session._register("gpus")


def test_a_signal_is_told_from_an_error_that_quotes_or_follows_one() -> None:
    """What DuckDB, Arrow and pybind make of a signal ends a command as one; a sentence of ours stays the answer."""
    signal = KeyboardInterrupt()
    behind, after = SystemError("returned a result with an exception set"), RuntimeError("query failed")
    behind.__cause__, after.__context__ = signal, RuntimeError("Query interrupted")
    text = "Invalid Input Error: reading the schema of the object registered as 'corrections' failed: "
    for error in (behind, after, RunFailed("a node failed"), ValueError(text + "KeyboardInterrupt: ")):
        if isinstance(error, RunFailed):
            error.__cause__ = after
        with pytest.raises(KeyboardInterrupt):
            stop_if_interrupted(error)
    told = RunFailed("interrupted; the file holds what was measured.")
    told.__context__, told.__suppress_context__ = signal, True
    for error in (told, UnknownName("no GPU is called KeyboardInterrupt"), ValueError('no column "KeyboardInterrupt"')):
        stop_if_interrupted(error)


ENDLESS = """
import os, signal, threading
from kernelsight.dataflow.databases import open_database, rows_of
signal.signal(signal.SIGINT, signal.default_int_handler)
pairs = "from range(1000000) a, range(1000000) b where (a.range * b.range) % 7 = 3"
for _ in range(4):
    database = open_database()
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        rows_of(database, f"select count(*) {pairs}")
    except KeyboardInterrupt:
        print("ended", rows_of(database, "select 1 as one").to_pylist())
"""


def test_ctrl_c_ends_a_query_that_never_would() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=100)
    assert (ended.stdout, ended.stderr) == ("ended [{'one': 1}]\n" * 4, "")


def test_ctrl_c_while_a_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        save_file(tmp_path / "run.duckdb", {}, {"t": Interrupted()})
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_tables_are_changed_leaves_them(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    save_file(path, {}, {"t": pa.table({"x": [1]})})
    connection = private_cursor()
    attach(connection, path, "run", read_only=False)
    with pytest.raises(KeyboardInterrupt):
        change_tables(connection, "run", {}, {"t": Interrupted()})
    assert read_table(connection, "run", "t").to_pylist() == [{"x": 1}]
    connection.execute("detach run")
    connection.close()


def test_links_in_a_circle_are_no_file(tmp_path: Path) -> None:
    for name, other in (("a.duckdb", "b.duckdb"), ("b.duckdb", "a.duckdb")):
        (tmp_path / name).symlink_to(tmp_path / other)
    with connect() as session, pytest.raises(InvalidInput, match="a.duckdb is a link that leads nowhere"):
        session.save(tmp_path / "a.duckdb", ["gpus"])
    with pytest.raises(InvalidInput, match="a.duckdb is a link that leads nowhere"):
        connect(tmp_path / "a.duckdb")


def test_a_saved_table_of_more_rows_than_its_file_can_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal values take no space in a DuckDB file: ten million rows of one are a few hundred kilobytes."""
    monkeypatch.setattr(bounded_files, "FREE_TABLE", 1 << 24)
    monkeypatch.setattr(bounded_files, "MOST_RATIO", 1)
    path = tmp_path / "run.duckdb"
    connection = duckdb.connect(str(path))
    connection.execute("create table t as select 7 as x, 'word' as w, [1, 2] as l from range(1000000)")
    connection.execute("create table small as select 7 as x")
    connection.close()
    with connect(path, read_only=True) as session:
        assert session.table("small").num_rows == 1
        with pytest.raises(
            InvalidInput, match=rf"table t of {path} holds 1,000,000 rows, which unpack to 0\.028 GB; the"
        ):
            session.table("t")


def test_out_of_memory_is_no_damage_of_a_saved_table(tmp_path: Path) -> None:
    class Exhausted:
        def sql(self, _: str) -> None:
            raise duckdb.OutOfMemoryException("failed to allocate")

    with pytest.raises(InvalidInput, match="does not fit into the memory of this machine"):
        read_table(Exhausted(), "run", "t")  # type: ignore[arg-type]


def test_what_does_not_fit_into_memory_leaves_nothing_where_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, spilled = tmp_path / "here", tmp_path / "temporary"
    place.mkdir(), spilled.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr("tempfile.tempdir", str(spilled))
    with open_database() as database:
        database.execute("set memory_limit = '40MB'")
        database.execute("create table numbers as select hash(range)::varchar as n from range(2000000)")
        assert list(spilled.iterdir())
        assert database.execute("select count(*) from (from numbers order by n)").fetchall() == [(2_000_000,)]
    assert not list(place.iterdir()) and not list(spilled.iterdir())
