"""`kernelsight explain`: prints the nodes that compute a table, in order."""

from __future__ import annotations

import argparse

from kernelsight.cli.options import TABLE_ENDINGS, show_table
from kernelsight.present.output import check_ending, print_page, write_table


def run(arguments: argparse.Namespace) -> None:
    """Print the nodes that compute a table, in order."""
    import pyarrow as pa

    from kernelsight.dataflow.graph import steps_of
    from kernelsight.session import connect

    target = check_ending(arguments.output, TABLE_ENDINGS)
    with connect() as session:
        nodes, _ = session.graph.needed([arguments.table], session.available())
        nodes = steps_of(nodes) if arguments.open else nodes
        columns = {
            "position": pa.array(range(1, len(nodes) + 1), pa.int64()),
            "kind": pa.array([node.kind for node in nodes], pa.string()),
            "tables": pa.array([", ".join(node.names) for node in nodes], pa.string()),
            "inputs": pa.array([", ".join(node.inputs) for node in nodes], pa.string()),
            "doc": pa.array([node.doc for node in nodes], pa.string()),
        }
        if arguments.format not in ("text", "mermaid"):
            show_table(pa.table(columns), arguments)
            return
        if target:
            write_table(pa.table(columns), target)
        print_page(session.explain(arguments.table, format=arguments.format, opened=arguments.open).split("\n"))
