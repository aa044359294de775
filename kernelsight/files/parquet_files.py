"""Reads untrusted Parquet files: one regular file, bounded in what it unpacks to, every value validated.

A column of a few bytes may hold millions of equal rows, or of long texts. What a file says of itself is asked first,
and what is unpacked is counted as it is read: texts while they are still numbers of a dictionary.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from kernelsight.files.bounded_files import (
    TOO_MUCH_MEMORY,
    Refuse,
    check_file,
    most_of_table,
    too_many_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# rows that are unpacked at once
BATCH_ROWS = 1 << 16
# bytes of a value by physical type; those of BYTE_ARRAY are counted, and narrow ones as the numbers that they become
NUMBER_BYTES = 8
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}


def read_parquet(path: str | os.PathLike[str], refuse: Refuse, columns: list[str] | None = None) -> pa.Table:
    """Read a Parquet file as a table, all of it or some columns; ``refuse`` makes the error that is raised."""
    return read_source(path, check_file(path, refuse), refuse, columns)


def read_source(
    source: str | os.PathLike[str] | pa.Buffer, size: int, refuse: Refuse, columns: list[str] | None = None
) -> pa.Table:
    """Read a Parquet file, or its bytes in memory, of ``size`` bytes, as :func:`read_parquet` does."""
    import pyarrow as pa

    with _faults(refuse):
        schema, batches = _bounded(source, size, refuse, columns)
        table = pa.Table.from_batches(list(batches), schema).select(columns or schema.names)
        table.validate(full=True)  # the reader accepts text that is not UTF-8
        _ = table.column_names  # in names too
    return table


def check_parquet(
    source: str | os.PathLike[str] | pa.Buffer, size: int, refuse: Refuse, columns: Collection[str] | None = None
) -> None:
    """Check what the columns of a Parquet file unpack to, for another reader; the error says by how much it is more."""
    with _faults(refuse):
        for _ in _bounded(source, size, refuse, columns, only_doubtful=True)[1]:
            pass


def read_schema(source: str | os.PathLike[str] | pa.Buffer, refuse: Refuse) -> pa.Schema:
    """Read the schema of a Parquet file, or of its bytes in memory, alone; see :func:`read_parquet`."""
    import pyarrow.parquet as pq

    if isinstance(source, str | os.PathLike):
        check_file(source, refuse)
    with _faults(refuse):
        schema = pq.read_schema(source)
        _ = schema.names
    return schema


@contextlib.contextmanager
def _faults(refuse: Refuse) -> Iterator[None]:
    """Raise the error of ``refuse`` for what Arrow cannot read."""
    import pyarrow as pa

    try:
        yield
    except MemoryError:
        raise refuse(TOO_MUCH_MEMORY) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as problem:
        raise refuse(unreadable(problem)) from None


def unreadable(problem: Exception) -> str:
    """Return why Arrow or polars cannot read a Parquet file, as a predicate.

    >>> unreadable(ValueError("Invalid: no footer.\\nat byte 3"))
    'cannot be read as Parquet (Invalid: no footer)'
    """
    reason = str(problem).splitlines()[0].rstrip(".") if str(problem) else type(problem).__name__
    return f"cannot be read as Parquet ({reason})"


def _bounded(
    source: str | os.PathLike[str] | pa.Buffer,
    size: int,
    refuse: Refuse,
    columns: Collection[str] | None,
    *,
    only_doubtful: bool = False,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of some columns and their batches, which raise ``refuse`` once they are too much.

    ``only_doubtful``: no batches of a file whose footer says enough.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(source)
    names = [name for name in file.schema_arrow.names if columns is None or name in columns]
    schema = pa.schema([file.schema_arrow.field(name) for name in names], file.schema_arrow.metadata)
    most = most_of_table(size)
    known, texts = _stated_bytes(file.metadata, set(names))
    if known > most:
        raise refuse(too_many_rows(file.metadata.num_rows, known, most))
    doubtful = known + sum(texts.values()) > most
    if only_doubtful and not doubtful:
        return schema, iter(())
    if doubtful and texts:
        file = pq.ParquetFile(source, read_dictionary=list(texts))
    return schema, _counted(file.iter_batches(BATCH_ROWS, columns=names), schema, most, refuse)


def _counted(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, most: int, refuse: Refuse
) -> Iterator[pa.RecordBatch]:
    """Yield batches with their texts decoded, and count their bytes before that."""
    import pyarrow as pa

    total = rows = 0
    for batch in batches:
        rows += batch.num_rows
        total += sum(map(_decoded_bytes, batch.columns))
        if total > most:
            raise refuse(too_many_rows(rows, total, most, "more than "))
        yield pa.RecordBatch.from_arrays(
            [column if column.type == field.type else column.cast(field.type)
             for column, field in zip(batch.columns, schema, strict=True)], schema=schema)  # fmt: skip


def _decoded_bytes(column: pa.Array) -> int:
    """Return the bytes of a column whose texts are decoded, those in lists and structs too, without decoding them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind) and _is_text(kind.value_type):
        lengths = pc.fill_null(pc.take(pc.binary_length(column.dictionary), column.indices), 0)
        return (pc.sum(lengths).as_py() or 0) + 4 * len(column)
    if pa.types.is_struct(kind):
        return sum(_decoded_bytes(column.field(index)) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return 4 * len(column) + _decoded_bytes(column.keys) + _decoded_bytes(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 4 * len(column) + _decoded_bytes(column.flatten())
    return column.nbytes


def _stated_bytes(metadata: pq.FileMetaData, names: Collection[str]) -> tuple[int, dict[str, int]]:
    """Return the unpacked bytes of columns of numbers, and by path of each text the most that it may have."""
    known, texts = 0, dict[str, int]()
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(metadata.num_columns):
            chunk = row_group.column(index)
            path = chunk.path_in_schema
            if path.partition(".")[0] not in names:
                continue
            if chunk.physical_type == "BYTE_ARRAY":
                # each value may be the longest of the dictionary
                times = chunk.num_values if chunk.has_dictionary_page else 1
                texts[path] = texts.get(path, 0) + chunk.total_uncompressed_size * max(times, 1) + 4 * chunk.num_values
            else:
                width = WIDTHS.get(chunk.physical_type) or metadata.schema.column(index).length
                known += chunk.num_values * max(width, NUMBER_BYTES)
    return known, texts


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)
