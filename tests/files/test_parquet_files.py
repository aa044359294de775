"""Parquet of other people: one regular file, every value of it checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.files import bounded_files
from kernelsight.files.parquet_files import check_parquet, read_parquet, read_schema
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


def repeated(path: Path, rows: int, columns: int, length: int) -> None:
    """Write texts that are each the only word of a dictionary: a few bytes, whatever they unpack to."""
    word = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array(["x" * length]))
    table = pa.table({f"c{number}": word for number in range(columns)})
    pq.write_table(table, path, compression="zstd", store_schema=False)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a small file unpack to 16 MiB at most."""
    monkeypatch.setattr(bounded_files, "FREE_TABLE", 1 << 24)
    return 1 << 24


def peak_bytes(path: Path, words: str) -> int:
    """Return the most bytes that Arrow held while it refused a file."""
    pool = pa.system_memory_pool()
    usual = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    most_before = pool.max_memory()
    try:
        for read in (read_parquet, lambda path, refuse: check_parquet(path, path.stat().st_size, refuse)):
            with pytest.raises(InvalidInput, match=words):
                read(path, refuse)
    finally:
        pa.set_memory_pool(usual)
    return max(pool.max_memory() - most_before, 0)


def test_texts_that_are_few_on_disk_are_counted_before_they_are_unpacked(tmp_path: Path, little: int) -> None:
    """300 rows of 60 texts of 1 MiB are 18 GB; the file has 25 kB."""
    path = tmp_path / "grid.parquet"
    repeated(path, 300, 60, 1 << 20)
    assert path.stat().st_size < 1 << 15
    words = r"holds 300 rows, which unpack to more than 18\.9 GB; the most for a file of its size is 0\.0168 GB"
    assert peak_bytes(path, words) < 400 << 20


def test_rows_that_are_few_on_disk_are_refused_by_the_footer(tmp_path: Path, little: int) -> None:
    path, rows = tmp_path / "trace.parquet", 5_000_000
    pq.write_table(pa.table({"arrival_s": np.zeros(rows), "n": np.ones(rows, np.int64)}), path, compression="zstd")
    assert peak_bytes(path, r"holds 5,000,000 rows, which unpack to 0\.08 GB") < 1 << 20


def test_a_footer_that_lies_is_found_out_while_it_is_read(tmp_path: Path, little: int) -> None:
    """The footer says that the column of texts has 1 byte; its pages have 64 MiB."""
    path = tmp_path / "lies.parquet"
    texts = pa.array(["y" * (1 << 16)] * 1024)
    pq.write_table(pa.table({"c": texts}), path, compression="zstd", use_dictionary=False, write_statistics=False)
    size = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    true, false = zigzag(size), zigzag(1)
    content = path.read_bytes()
    head, foot = content[: -(1 << 10)], content[-(1 << 10) :]
    assert foot.count(true) >= 1
    path.write_bytes(
        head + foot.replace(true, false[:-1] + bytes([false[-1] | 0x80]) + b"\x80" * (len(true) - 2) + b"\0")
    )
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 1
    with pytest.raises(InvalidInput, match="holds .* rows, which unpack to more than 0"):
        read_parquet(path, refuse)


def zigzag(number: int) -> bytes:
    """Return a number as Thrift's compact protocol writes it."""
    number, pieces = number << 1, []
    while number > 0x7F:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*pieces, number])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.list_(pa.string())])
def test_a_large_file_that_is_sound_is_read_as_it_is(tmp_path: Path, little: int, kind: pa.DataType) -> None:
    """More than any small file may unpack to, and less than the file's own size allows."""
    path, rows = tmp_path / "sound.parquet", 400_000
    words = [f"word {number % 5000} of a longer text" for number in range(rows)]
    values = pa.array([[word, word] for word in words] if pa.types.is_list(kind) else words, kind)
    table = pa.table({"word": values, "x": np.random.default_rng(1).random(rows)})
    pq.write_table(table, path)
    assert table.nbytes > little or path.stat().st_size * 100 > little
    found = read_parquet(path, refuse)
    assert found.equals(table) and found.schema.equals(table.schema)
    assert read_parquet(path, refuse, ["x", "word"]).column_names == ["x", "word"]


def test_out_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1]}), path)

    def exhausted(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 9 failed")

    monkeypatch.setattr(pq, "ParquetFile", exhausted)
    with pytest.raises(InvalidInput, match="it does not fit into the memory of this machine"):
        read_parquet(path, refuse)
