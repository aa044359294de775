"""`kernelsight tables`: lists all tables, or the columns of one."""

from __future__ import annotations

import argparse
import re

import pyarrow as pa

from kernelsight.cli.options import TABLE_ENDINGS, show_table
from kernelsight.present.output import check_ending, write_table

LISTED = ("table", "kind", "grain", "doc")
STRUCT = re.compile(r"struct<([^<>]*)>")
SHOWN_COLUMNS = ("column", "type", "nullable", "unit", "key", "reference", "doc")


def by_field(columns: pa.Table) -> pa.Table:
    """Return the columns of a table with a row for each field of a struct, whose type names them all."""
    rows = []
    for row in columns.to_pylist():
        fields = STRUCT.fullmatch(row["type"])
        rows.append(row | ({"type": "struct"} if fields else {}))
        names = [field.split(": ") for field in fields[1].split(", ")] if fields else []
        rows += [dict.fromkeys(row, None) | {"column": f"  .{name}", "type": of} for name, of in names]
    return pa.Table.from_pylist(rows, columns.schema)


def run(arguments: argparse.Namespace) -> None:
    """List the tables, or the columns of one."""
    from kernelsight.session import connect

    target = check_ending(arguments.output, TABLE_ENDINGS)
    with connect() as session:
        if arguments.table is not None:
            columns = session.columns(arguments.table).select(SHOWN_COLUMNS)
            if target:
                write_table(columns, target)
            shown = columns if arguments.format in ("json", "csv") else by_field(columns)
            show_table(shown, arguments, written=True)
        else:
            show_table(session.tables().select(LISTED), arguments)
