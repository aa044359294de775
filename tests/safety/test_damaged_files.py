"""Files that are damaged, foreign or of another version, and values that Python cannot hold: no tracebacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.session import connect

TABLES = ("fabrics", "gpus", "models")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a saved file."""
    path = tmp_path_factory.mktemp("whole") / "whole.duckdb"
    with connect() as session:
        session.save(path, TABLES)
    return path.read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "run.duckdb"


def read_all(path: Path, content: bytes) -> str:
    """Return the sentence that refuses a file, or nothing where all of its tables can be read."""
    path.write_bytes(content)
    try:
        with connect(path, read_only=True) as session:
            for name in TABLES:
                session.table(name)
            session.query("select count(*) as n from gpus join models on true")
    except InvalidInput as error:
        assert "\n" not in str(error) and str(path) in str(error)
        return str(error)
    return ""


def test_the_sentence_names_the_table_that_is_lost(whole: bytes, place: Path) -> None:
    begin = 3 * 4096
    # the beginnings of DuckDB's blocks first: the ends of most are empty
    for start in sorted(range(begin, len(whole), 4096), key=lambda place: (place - begin) % 2**18):
        content = bytearray(whole)
        content[start : start + 4096] = bytes(4096)
        if "table " in (found := read_all(place, bytes(content))):
            assert found.endswith("the file is damaged, use another copy.")
            return
    raise AssertionError("no damaged block was noticed while a table was read")


def test_foreign_files_say_what_they_are(whole: bytes, place: Path, refusal: Callable, tmp_path: Path) -> None:
    assert read_all(place, whole) == ""
    newer = bytearray(whole)
    newer[12] = 200  # the storage version
    assert "cannot be opened as a DuckDB file" in read_all(place, bytes(newer))
    assert read_all(place, b"") == f"{place} cannot be opened as a DuckDB file: it is empty."
    pq.write_table(pa.table({"x": [1]}), place)
    assert read_all(place, place.read_bytes()).endswith("as a DuckDB file: it is a Parquet file.")
    assert refusal("sql", "select 1", "--db", place).endswith("it is a Parquet file.")
    assert read_all(place, b"x" * 10_000).endswith("its first bytes are not those of DuckDB.")
    assert refusal("sql", "select 1", "--db", tmp_path).endswith("it is not a file.")


def test_values_that_python_cannot_hold_are_printed(command: Callable, tmp_path: Path) -> None:
    with connect() as session:
        assert session.query("from test_all_types()").num_rows == 3
        assert session.sql("select date, timestamp from test_all_types()").to_arrow_table().num_rows == 3
    for form in ("table", "json", "csv"):
        answer = command("sql", "from test_all_types()", "--format", form)
        assert (answer.status, answer.err) == (0, "")
    dates = command("sql", "select 'infinity'::date as day, 2::hugeint as n", "--format", "json").json
    assert dates == [{"day": "infinity", "n": 2}]
    assert command("sql", "select 'infinity'::date as day", "-o", tmp_path / "d.json").status == 0
    assert json.loads((tmp_path / "d.json").read_text()) == [{"day": "infinity"}]
