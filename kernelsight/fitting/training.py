"""Training rows: measured kernels with the call columns that their family's expression reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.catalog.tables import facts
from kernelsight.dataflow.databases import literal, quote
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.work import work_cursor

IDENTITY = ("gpu", "implementation", "engine", "engine_version", "dtype")
# families in which a key counts once, however many engine versions measured it: predicted steps came closer to the
# fitting runs with it for matrix products, and no closer for the other families
ONCE = frozenset({"gemm"})


def training_rows(
    sweeps: Sequence[Path | str],
    family: str,
    gpus: Sequence[str] | None = None,
    extra: str = "",
    sustained: bool = False,
) -> pa.Table:
    """Return the measured rows of a family: identity, math, distribution, call columns (float64), latency_us.

    ``sweeps``: Parquet files in the ``sweep_points`` contract; ``gpus``: those wanted, None for all; ``extra``: a
    further SQL condition, "and ..."; ``sustained``: those measured once the GPU had worked for seconds, else in bursts.
    Rows are sorted by their key, whatever the order of the files.
    """
    work, given = dict(FAMILIES[family].columns), {name for path in sweeps for name in pq.read_schema(path).names}
    if "worked_s" in given:
        extra += f" and (worked_s is not null) = {sustained}"
    elif sustained:
        extra += " and false"
    if "working_set_bytes" in work and "working_set_bytes" in given:
        # the row's own working set, cold or warm; else the one known of the family's collectors
        work["working_set_bytes"] = f"coalesce(points.working_set_bytes, {work['working_set_bytes']})"
    wanted = "" if gpus is None else f" and gpu in ({', '.join(map(literal, gpus))})"
    files = ", ".join(literal(str(path)) for path in sweeps)
    relation = f"read_parquet([{files}], union_by_name = true)"
    order = ", ".join([*IDENTITY, *map(quote, work), "distribution", "latency_us"])
    return _selected(
        work_cursor(), relation, work, f"family = {literal(family)} and not_fitted is null {wanted} {extra}", order
    )


def to_learn(family: str, table: pa.Table) -> pa.Table:
    """Return the rows of :func:`training_rows` that a family's fit learns from."""
    return once_a_key(table) if family in ONCE else table


def once_a_key(table: pa.Table) -> pa.Table:
    """Merge rows of :func:`training_rows` that several engine versions measured, as their geometric mean.

    Otherwise an engine with many measured versions would outweigh the others in a fit. A key is at the position of its
    first row, and its ``engine_version`` is the last one by name.
    """
    rows = pl.from_arrow(table)
    key = [name for name in rows.columns if name not in ("engine_version", "latency_us")]
    mean_us = pl.col("latency_us").log().mean().exp()
    # in order, so that results do not depend on the number of threads
    merged = rows.group_by(key, maintain_order=True).agg(pl.col("engine_version").max(), mean_us)
    return merged.select(rows.columns).to_arrow().cast(table.schema)


def call_rows(points: pa.Table, family: str) -> pa.Table:
    """Return points that are not measured yet in the columns of :func:`training_rows`, in the same order.

    ``points``: rows of ``sweep_points``, all of one family, with any latency.
    """
    cursor = work_cursor()
    numbered = points.append_column("number", pa.array(range(points.num_rows), pa.int64()))
    cursor.register("unmeasured", numbered)
    return _selected(cursor, "unmeasured", FAMILIES[family].columns, "true", "number")


def _selected(
    cursor: duckdb.DuckDBPyConnection, relation: str, work: Mapping[str, str], condition: str, order: str
) -> pa.Table:
    columns = ", ".join(f"({sql})::double as {quote(name)}" for name, sql in work.items())
    cursor.register("formats", facts("number_formats"))
    return cursor.sql(
        f"""
        select {", ".join(IDENTITY)}, points.math, points.format, distribution, latency_us, {columns}
        from {relation} as points left join formats using (format)
        where {condition}
        order by {order}
        """
    ).to_arrow_table()
