"""`kernelsight tables`, `explain` and `sql`: the list of tables, how each is computed, and queries over them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.rows import python_rows
from kernelsight.errors import InvalidInput, MissingTable
from kernelsight.report.output import check_ending, print_rows, progress, write_table

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.session import Session

TABLE_ENDINGS = (".parquet", ".csv", ".json")
LISTED = ("table", "kind", "grain", "doc")
SHOWN_COLUMNS = ("column", "type", "nullable", "unit", "key", "reference", "doc")


def run(arguments: Any) -> None:
    """Run the verb for parsed arguments."""
    {"tables": show_tables, "explain": show_plan, "sql": answer}[arguments.action](arguments)


def show_tables(arguments: Any) -> None:
    """List the tables, or the columns of one."""
    from kernelsight.session import connect

    check_ending(arguments.output, TABLE_ENDINGS)
    with connect() as session:
        if arguments.table is not None:
            _show(session.columns(arguments.table).select(SHOWN_COLUMNS), arguments)
        else:
            _show(session.tables().select(LISTED), arguments)


def show_plan(arguments: Any) -> None:
    """Show the nodes that compute a table, in order."""
    import pyarrow as pa

    from kernelsight.session import connect

    target = check_ending(arguments.output, TABLE_ENDINGS)
    with connect() as session:
        nodes, _ = session.graph.needed([arguments.table], session.available())
        columns = {
            "position": pa.array(range(1, len(nodes) + 1), pa.int64()),
            "kind": pa.array([node.kind for node in nodes], pa.string()),
            "tables": pa.array([", ".join(node.names) for node in nodes], pa.string()),
            "inputs": pa.array([", ".join(node.inputs) for node in nodes], pa.string()),
            "doc": pa.array([node.doc for node in nodes], pa.string()),
        }
        if arguments.format not in ("text", "mermaid"):
            _show(pa.table(columns), arguments)
            return
        if target:
            write_table(pa.table(columns), target)
        print(session.explain(arguments.table, format=arguments.format))


def answer(arguments: Any) -> None:
    """Run a query, over a saved run if --db is given."""
    from kernelsight.session import connect

    target = check_ending(arguments.output, TABLE_ENDINGS)
    if arguments.db == "":
        raise InvalidInput("--db is empty; give the path of a saved run (.duckdb), or remove --db.")
    if arguments.db and arguments.gpus:
        raise InvalidInput("--gpus cannot be used with --db: a saved run has its own GPUs; remove one of them.")
    with _session_for(arguments, connect) as session:
        session.progress = progress
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
        _show(rows, arguments, written=True)


def _with_unique_names(rows: pa.Table) -> pa.Table:
    """Number columns of the same name (x, x_1), so that none is lost when rows become dicts."""
    names: list[str] = []
    for name in rows.column_names:
        free = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(1)))
        names.append(next(candidate for candidate in free if candidate not in names))
    return rows.rename_columns(names)


def _session_for(arguments: Any, connect: Any) -> Session:
    if arguments.db is not None:
        return connect(arguments.db, read_only=True, files=not arguments.no_files)
    from kernelsight.cli.options import open_session

    return open_session(arguments)


def _show(table: pa.Table, arguments: Any, written: bool = False) -> None:
    target = None if written else check_ending(arguments.output, TABLE_ENDINGS)
    if target:
        write_table(table, target)
    form = arguments.format if arguments.format in ("json", "csv") else "table"
    print_rows(python_rows(table), table.column_names, form)
