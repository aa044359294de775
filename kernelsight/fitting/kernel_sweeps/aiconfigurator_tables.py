"""Schemas of the tables of ``aiconfigurator-core``: the kernel family of each, and its fields as expressions.

They are rows of ``aiconfigurator_tables.json``, which says what they mean and where units and constants are from.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from kernelsight.files.own import own_json, own_text

_ROWS: dict[str, Any] = own_json(own_text(Path(__file__).with_suffix(".json")))
# files of which one row has a measurement of each of its tables; tables of whole layers, and what these are
SPLIT, MODULES = frozenset(_ROWS["split"]), _ROWS["modules"]
OPTIONAL = {"window_size": pl.Int64, "default_eligible": pl.Boolean} | dict.fromkeys(
    ("score_mode", "framework", "version", "device"), pl.String
)


class Table(NamedTuple):
    """Schema of one table: its family, and expressions for the shape, the labels, the latency in us, and bad rows."""

    family: str
    shape: dict[str, pl.Expr]
    labels: dict[str, pl.Expr]
    latency_us: pl.Expr
    kernel_source: pl.Expr
    faults: tuple[tuple[str, pl.Expr], ...]
    element_bytes: pl.Expr  # of the label, null where it is unknown; a column that the shape may read

    def expressions(self) -> list[pl.Expr]:
        """Return all expressions of the table's own columns."""
        faults = (bad for _, bad in self.faults)
        return [*self.shape.values(), *self.labels.values(), self.latency_us, self.kernel_source, *faults]


def _labels(kind: str, *names: str) -> dict[str, pl.Expr]:
    """Return dtype (the cell), format (of the weight or cache) and math of a table's label columns, by their kind."""
    if kind == "constant":
        columns = map(pl.lit, names)
    elif kind == "weights":
        label = pl.col(names[0])
        meanings = zip(*_ROWS["formats"].values(), strict=True)
        columns = (
            label.replace_strict(dict(zip(_ROWS["formats"], meaning, strict=True)), default=label)
            for meaning in meanings
        )
    else:
        math, *cache_dtype = (pl.sql_expr(name).replace(_ROWS["short"]) for name in names)
        columns = (
            (math + "/" + cache_dtype[0], cache_dtype[0], math)
            if cache_dtype
            else (math, math, pl.lit(None, pl.String))
        )
    return dict(zip(("dtype", "format", "math"), columns, strict=True))


def _table(row: Mapping[str, Any]) -> Table:
    def sql(text: str) -> pl.Expr:
        return pl.sql_expr(text.format_map(_ROWS["named"]))

    labels = _labels(*row["labels"].split())
    element_bytes = labels["dtype"].replace_strict(_ROWS["element_bytes"], default=None, return_dtype=pl.Float64)
    if "distribution" in row:
        labels["distribution"] = sql(row["distribution"])
    return Table(
        row["family"],
        {name: sql(text) for name, text in row["shape"].items()},
        labels,
        sql(row.get("latency_us", "latency * 1e3")),
        sql(row.get("kernel_source", "kernel_source")),
        tuple((reason, sql(text)) for reason, text in row.get("faults", {}).items()),
        element_bytes,
    )


# file stem -> its tables by op_name; "" takes every row
TABLES: dict[str, dict[str, Table]] = {
    stem: {operation: _table(row) for operation, row in rows.items()} for stem, rows in _ROWS["tables"].items()
}


@cache
def known_columns() -> frozenset[str]:
    """Return every column that a table's fields are read from, or that is known and not read."""
    fields = [field for tables in TABLES.values() for table in tables.values() for field in table.expressions()]
    known = {name for field in fields for name in field.meta.root_names()}
    return frozenset(known | set(_ROWS["left_out"]) | OPTIONAL.keys())
