"""Reads and writes tables of DuckDB files: of an attached file in one transaction, or a whole file atomically."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.durable import draft_of
from kernelsight.dataflow.contract import Contract, ddl
from kernelsight.dataflow.databases import first_line, literal, quote, stop_if_interrupted
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.files.bounded_files import (
    TOO_MUCH_MEMORY,
    Refuse,
    check_file,
    most_of_table,
    open_file,
    too_many_rows,
)

# DuckDB 2 writes storage version 2.0 by default, which the 1.x command line cannot open
STORAGE_VERSION = "v1.5.0"
# of a new file: at DuckDB's default of 256 KiB the many small tables of a run take 26 MB, at its least 10 MB
BLOCK_BYTES = 16_384
# file name endings of other formats
OTHER_ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow", ".html", ".txt", ".xlsx")


def attach(connection: duckdb.DuckDBPyConnection, path: Path, alias: str, *, read_only: bool) -> set[str]:
    """Attach a DuckDB file, created if absent, and return its tables; InvalidInput if it cannot be opened."""
    if not path.exists():
        if read_only:
            raise InvalidInput(f"file {path} does not exist; `kernelsight simulate ... -o {path.name}` writes one.")
        _check_folder(path)
        options = f"storage_version '{STORAGE_VERSION}', block_size {BLOCK_BYTES}"
    else:
        options = "read_only" if read_only else "read_write"
        foreign = _foreign(path, read_only)
        if foreign:
            raise InvalidInput(f"{path} cannot be opened as a DuckDB file: {foreign}.")
    query = "select table_name from duckdb_tables() where database_name = ? and schema_name = 'main'"
    try:
        connection.execute(f"attach {literal(str(path))} as {quote(alias)} ({options})")
        return {name for (name,) in connection.execute(query, [alias]).fetchall()}
    except duckdb.Error as error:
        why = first_line(error)
        if "already attached" in why:
            why = "another session of this program has it open; close that one, or open a copy of the file"
        raise InvalidInput(f"{path} cannot be opened as a DuckDB file: {why}.") from None


def _foreign(path: Path, read_only: bool) -> str:
    """Return why a file cannot be a DuckDB file, by its first bytes; empty where it may be one."""
    if not path.is_file():
        return "it is not a file"
    try:
        with open_file(path, InvalidInput) as file:
            start = file.read(12)
    except InvalidInput as error:
        return str(error)
    if not start:
        return "it is empty" if read_only else ""
    if start[8:12] == b"DUCK":
        return ""
    return "it is a Parquet file" if start[:4] == b"PAR1" else "its first bytes are not those of DuckDB"


def read_table(connection: duckdb.DuckDBPyConnection, alias: str, table: str, origin: object = "the file") -> pa.Table:
    """Read a table of an attached file; InvalidInput: the file, ``origin`` in the message, is damaged or too large."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"table {table} of {origin} {problem}; read a part of it with DuckDB.")

    source = f"{quote(alias)}.main.{quote(table)}"
    try:
        if isinstance(origin, Path):
            _check_unpacked(connection, source, origin, refuse)
        return connection.sql(f"select * from {source}").to_arrow_table()
    except (duckdb.OutOfMemoryException, MemoryError):
        raise refuse(TOO_MUCH_MEMORY) from None
    except (duckdb.Error, RuntimeError) as error:
        stop_if_interrupted(error)
        raise InvalidInput(
            f"table {table} of {origin} cannot be read: {first_line(error)}; the file is damaged, use another copy."
        ) from None


def _check_unpacked(connection: duckdb.DuckDBPyConnection, source: str, path: Path, refuse: Refuse) -> None:
    """Check what the rows of a table unpack to: a column of equal values takes no space in its file."""
    columns = [(quote(row[0]), row[1]) for row in connection.execute(f"describe {source}").fetchall()]
    sizes = (
        f"coalesce(sum(strlen({name})), 0)" if kind == "VARCHAR"
        else f"coalesce(8 * sum(len({name})), 0)" if kind.endswith("[]") else "8 * count(*)"
        for name, kind in columns
    )  # fmt: skip
    rows, size = connection.execute(f"select count(*), {' + '.join(sizes)} from {source}").fetchall()[0]
    most = most_of_table(check_file(path, refuse))
    if size > most:
        raise refuse(too_many_rows(rows, size, most))


def change_tables(
    connection: duckdb.DuckDBPyConnection,
    alias: str,
    contracts: Mapping[str, Contract],
    written: Mapping[str, pa.Table],
    dropped: Iterable[str] = (),
) -> None:
    """Write some tables of an attached file and drop others in one transaction; RunFailed if the write fails."""
    try:
        with _transaction(connection):
            for table in dropped:
                connection.execute(f"drop table if exists {quote(alias)}.main.{quote(table)}")
            for table, rows in written.items():
                _write_table(connection, alias, table, rows, contracts.get(table))
    except duckdb.Error as error:
        stop_if_interrupted(error)
        raise RunFailed(f"the tables {', '.join(written)} could not be written: {first_line(error)}.") from None


@contextlib.contextmanager
def _transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Run the block in one transaction, which an error in it rolls back."""
    try:
        connection.execute("begin transaction")
        yield
        connection.execute("commit")
    except BaseException:  # Ctrl-C too
        # a failed commit has already ended the transaction
        with contextlib.suppress(duckdb.TransactionException):
            connection.execute("rollback")
        connection.unregister("rows_written")
        raise


def _write_table(
    connection: duckdb.DuckDBPyConnection, alias: str, table: str, rows: pa.Table, contract: Contract | None
) -> None:
    """Replace a table of an attached file, with the columns of its contract, or else with those of its rows."""
    target = f"{quote(alias)}.main.{quote(table)}"
    connection.execute(f"drop table if exists {target}")
    connection.register("rows_written", rows)
    if contract is None:
        connection.execute(f"create table {target} as select * from rows_written")
    else:
        connection.execute(ddl(contract, alias))
        for column in filter(partial(_is_single, rows), rows.column_names):
            connection.execute(f"alter table {target} alter column {quote(column)} type float[]")
        connection.execute(f"insert into {target} select * from rows_written")
    connection.unregister("rows_written")


def _is_single(rows: pa.Table, column: str) -> bool:
    """Return whether a column's arrays hold numbers of single precision: half the bytes, and read as the same ones."""
    values = rows[column].combine_chunks()
    if not pa.types.is_list(values.type) or not pa.types.is_float64(values.type.value_type):
        return False
    numbers = values.flatten().drop_null()
    return bool(pc.all(pc.equal(numbers, numbers.cast(pa.float32(), safe=False).cast(pa.float64()))).as_py())


def check_ending(path: Path) -> None:
    """Raise InvalidInput for a path with another format's ending: a session is saved as a DuckDB file.

    >>> check_ending(Path("run.duckdb"))
    """
    if path.suffix.lower() in OTHER_ENDINGS:
        raise InvalidInput(
            f"{path} ends in {path.suffix}, but a DuckDB file is saved; name it {path.stem}.duckdb, or write one table "
            "with pyarrow or polars."
        )


def _check_folder(path: Path) -> None:
    """Raise InvalidInput where the folder of a new file does not exist, or links lead in a circle."""
    file = Path(os.path.realpath(path))
    if os.path.islink(file):
        raise InvalidInput(f"{path} is a link that leads nowhere; give a file name.")
    if not file.parent.is_dir():
        raise InvalidInput(f"{path} cannot be written: folder {file.parent} does not exist.")


def save_file(path: Path, contracts: Mapping[str, Contract], tables: Mapping[str, pa.Table]) -> None:
    """Write tables to a new DuckDB file, which replaces ``path`` only once it is complete and on disk.

    InvalidInput: its folder does not exist, or it is a link that leads nowhere. RunFailed: it cannot be written.
    """
    _check_folder(path)
    try:
        with draft_of(path) as draft:
            _write_database(draft, contracts, tables)
    except (OSError, duckdb.Error, InvalidInput) as error:
        stop_if_interrupted(error)
        why = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0].rstrip(".")
        raise RunFailed(f"{path} could not be written: {why}.") from None


def _write_database(path: Path, contracts: Mapping[str, Contract], tables: Mapping[str, pa.Table]) -> None:
    # a separate database: another thread could use the same alias in a shared one
    connection = duckdb.connect(":memory:")
    try:
        attach(connection, path, "draft", read_only=False)
        with _transaction(connection):
            for table, rows in tables.items():
                _write_table(connection, "draft", table, rows, contracts.get(table))
        connection.execute("detach draft")
    finally:
        connection.close()
        path.with_name(f"{path.name}.wal").unlink(missing_ok=True)
