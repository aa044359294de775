"""The tables ``catalogue_tables`` and ``catalogue_columns``: what a graph's contracts declare, as rows."""

from __future__ import annotations

import pyarrow as pa

from kernelsight.dataflow.graph import Graph

CATALOGUE = ("catalogue_tables", "catalogue_columns")


def catalogue_table(name: str, graph: Graph) -> pa.Table:
    """Return ``catalogue_tables``, of those that users read, or ``catalogue_columns`` over a graph's contracts."""
    contracts = [graph.contracts[table] for table in sorted(graph.contracts)]
    if name == "catalogue_columns":
        return pa.Table.from_pylist(
            [
                {
                    "table": contract.table,
                    "column": column.name,
                    "type": column.type,
                    "nullable": column.nullable,
                    "unit": column.unit or None,
                    "key": column.key,
                    "reference": column.reference or None,
                    "check": column.check or None,
                    "doc": column.doc,
                }
                for contract in contracts
                for column in contract.columns
            ],
            schema=graph.contracts[name].schema,
        )
    rows = []
    for contract in (one for one in contracts if one.kind != "internal"):
        node = graph.node(contract.table)
        rows.append(
            {
                "table": contract.table,
                "kind": contract.kind,
                "grain": contract.grain,
                "doc": contract.doc,
                "node": node.label if node else None,
                "inputs": list(node.inputs) if node else [],
            }
        )
    return pa.Table.from_pylist(rows, schema=graph.contracts[name].schema)
