"""Parquet of other people: one regular file, every value of it checked."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.dataflow.parquet_files import read_parquet, read_schema
from kernelsight.errors import InvalidInput
from tests.special_files import SPECIAL, special_file


def refuse(found: str) -> InvalidInput:
    return InvalidInput(f"it {found}.")


@pytest.mark.parametrize("read", [read_parquet, read_schema])
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_refused(read, kind: str, tmp_path: Path, in_time: None) -> None:
    with pytest.raises(InvalidInput, match=f"it {SPECIAL[kind]}."):
        read(special_file(tmp_path / "a.parquet", kind), refuse)


def test_folders_of_a_path_are_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "gpu=l4" / "a.parquet"
    path.parent.mkdir()
    table = pa.table({"x": [1, 2], "word": ["a", None]})
    pq.write_table(table, path)
    assert read_parquet(path, refuse) == table
    assert read_schema(path, refuse).names == ["x", "word"]


def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": pa.array([b"\xff\xfe"]).view(pa.string())}), path)
    with pytest.raises(InvalidInput, match="it cannot be read as Parquet .*UTF"):
        read_parquet(path, refuse)
    path.write_bytes(path.read_bytes()[:-9])
    for read in (read_parquet, read_schema):
        with pytest.raises(InvalidInput, match=r"it cannot be read as Parquet \(.*\)\."):
            read(path, refuse)
