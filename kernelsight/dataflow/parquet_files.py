"""Reads untrusted Parquet files: one regular file, every value validated."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kernelsight.dataflow.bounded_files import Refuse, check_file

if TYPE_CHECKING:
    import pyarrow as pa


def read_parquet(path: str | os.PathLike[str], refuse: Refuse, columns: list[str] | None = None) -> pa.Table:
    """Read a Parquet file as a table, all of it or some columns; ``refuse`` makes the error that is raised.

    >>> from kernelsight.errors import InvalidInput
    >>> read_parquet("none.parquet", lambda found: InvalidInput(f"the grid none.parquet {found}."))
    Traceback (most recent call last):
    kernelsight.errors.InvalidInput: the grid none.parquet does not exist.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_file(path, refuse)
    try:
        table = pq.read_table(path, columns=columns, partitioning=None)
        table.validate(full=True)  # the reader accepts text that is not UTF-8
        _ = table.column_names  # in names too
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as problem:
        raise refuse(unreadable(problem)) from None
    return table


def read_schema(path: str | os.PathLike[str], refuse: Refuse) -> pa.Schema:
    """Read the schema of a Parquet file alone; see :func:`read_parquet`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_file(path, refuse)
    try:
        schema = pq.read_schema(path)
        _ = schema.names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
        raise refuse(unreadable(problem)) from None
    return schema


def unreadable(problem: Exception) -> str:
    """Return why Arrow or polars cannot read a Parquet file, as a predicate.

    >>> unreadable(ValueError("Invalid: no footer.\\nat byte 3"))
    'cannot be read as Parquet (Invalid: no footer)'
    """
    reason = str(problem).splitlines()[0].rstrip(".") if str(problem) else type(problem).__name__
    return f"cannot be read as Parquet ({reason})"
