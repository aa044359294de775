"""`kernelsight sql`: runs a SQL query over input and derived tables, or over a saved run."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernelsight.cli.options import TABLE_ENDINGS, open_session, show_table
from kernelsight.errors import InvalidInput, MissingTable
from kernelsight.present.output import check_ending, note, progress, write_table

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.session import Session


def run(arguments: argparse.Namespace) -> None:
    """Run a query, over a saved run if --db is given."""
    target = check_ending(arguments.output, TABLE_ENDINGS)
    if arguments.db == "":
        raise InvalidInput("--db is empty; give the path of a saved run (.duckdb), or remove --db.")
    if arguments.db and arguments.gpus:
        raise InvalidInput("--gpus cannot be used with --db: a saved run has its own GPUs; remove one of them.")
    with _session_for(arguments) as session:
        session.progress = progress
        session.offer("sweep_points", lambda: _sweep_points(arguments.sweep or []))
        try:
            rows = _with_unique_names(session.query(arguments.query))
        except MissingTable as error:
            if arguments.db:
                raise
            raise MissingTable(
                f"{error} Save a run with `kernelsight simulate ... -o run.duckdb`, then query it with "
                "`kernelsight sql QUERY --db run.duckdb`."
            ) from None
        if target:
            write_table(rows, target)
        show_table(rows, arguments, written=True)


def _sweep_points(paths: Sequence[str]) -> pa.Table:
    """Return the table sweep_points from files, or from the installed package."""
    from kernelsight.fitting.sweep_files import sweep_points

    rows = sweep_points([Path(name) for name in paths])
    if not paths:
        note("sweep_points: of the installed package; --sweep reads what `kernelsight calibrate import` wrote")
    return rows


def _with_unique_names(rows: pa.Table) -> pa.Table:
    """Return rows with duplicate column names numbered (x, x_1), so that none is lost when rows become dicts."""
    names: list[str] = []
    for name in rows.column_names:
        free = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        names.append(next(candidate for candidate in free if candidate not in names))
    return rows.rename_columns(names)


def _session_for(arguments: argparse.Namespace) -> Session:
    if arguments.db is not None:
        from kernelsight.session import connect

        return connect(arguments.db, read_only=True, files=not arguments.no_files)
    return open_session(arguments)
