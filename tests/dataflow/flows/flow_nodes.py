"""Python nodes of the tests' little flow; ``CALLS`` counts how often each ran."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces

CALLS: list[str] = []


@produces("best_item", "worst_item")
def extremes(item_totals: pa.Table) -> dict[str, pa.Table]:
    """The items at both ends.

    Only the first line is the description.
    """
    CALLS.append("extremes")
    order = pc.sort_indices(item_totals, [("total", "descending")])
    names = item_totals.column("item").take(order)
    return {"best_item": pa.table({"item": names[:1]}), "worst_item": pa.table({"item": names[-1:]})}


def hidden(orders: pa.Table) -> pa.Table:
    """Makes nothing."""
    raise AssertionError("a function that is not marked is no node")
