"""DuckDB: a Ctrl-C within a query, or while a file is written, is a Ctrl-C, and leaves no file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from kernelsight.dataflow.engine import private_cursor
from kernelsight.dataflow.storage import attach, change_tables, read_table, save_file
from kernelsight.session import connect


class Interrupted:
    """A table during whose reading the user presses Ctrl-C."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise KeyboardInterrupt


class Relation:
    """A query during which the user presses Ctrl-C: DuckDB's own error."""

    def to_arrow_table(self) -> pa.Table:
        raise RuntimeError("Query interrupted")


class Connection(Relation):
    """A connection all whose queries are interrupted."""

    def execute(self, _: str) -> None:
        """The rows are what is waited for."""


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
