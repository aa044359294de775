"""`kernelsight tables`: lists all tables, or the columns of one."""

from __future__ import annotations

import argparse

from kernelsight.cli.options import TABLE_ENDINGS, show_table
from kernelsight.present.output import check_ending

LISTED = ("table", "kind", "grain", "doc")
SHOWN_COLUMNS = ("column", "type", "nullable", "unit", "key", "reference", "doc")


def run(arguments: argparse.Namespace) -> None:
    """List the tables, or the columns of one."""
    from kernelsight.session import connect

    check_ending(arguments.output, TABLE_ENDINGS)
    with connect() as session:
        if arguments.table is not None:
            show_table(session.columns(arguments.table).select(SHOWN_COLUMNS), arguments)
        else:
            show_table(session.tables().select(LISTED), arguments)
