"""A node whose parameter is no table."""

from __future__ import annotations

import pyarrow as pa

from kernelsight.dataflow.python_nodes import produces


@produces("best_item")
def best_item(items: pa.Table, limit: int = 1) -> pa.Table:
    """Has a knob."""
    return items.slice(0, limit)
