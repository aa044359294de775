"""Table contracts: the columns of each table, read from one JSON file per table and checked against its rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from kernelsight.dataflow.databases import literal, quote
from kernelsight.dataflow.types import Column, duckdb_type
from kernelsight.dataflow.violations import cast_column, check_faults, duplicate_fault, value_fault
from kernelsight.errors import InvalidInput, breaks_contract, mixed_column, name_shown, nearest
from kernelsight.files.own import own_json, own_text

# unknown columns that an error names
MOST_NAMES = 20
NAME = re.compile(r"[a-z][a-z0-9_]*")
# what a column that is like another one takes from it
_INHERITED = ("name", "type", "unit", "doc")


@dataclass(frozen=True)
class Contract:
    """The contract of a table: its grain, its columns in order, and its kind.

    ``kind``: given, an input; derived; or internal, derived and read by other nodes alone: typed, without texts.
    """

    table: str
    kind: str
    grain: str
    doc: str
    columns: tuple[Column, ...]

    @cached_property
    def key(self) -> list[str]:
        """The columns that together identify a row."""
        return [column.name for column in self.columns if column.key]

    @cached_property
    def column_names(self) -> list[str]:
        """The columns in order."""
        return [column.name for column in self.columns]

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema, with unit and doc in each field's metadata."""
        return arrow_schema(self)


def load_contracts(folder: Path) -> dict[str, Contract]:
    """Read every ``<table>.json`` of a folder, by table name; a test holds them against ``table.schema.json``."""
    files = sorted(path for path in folder.glob("*.json") if path.name != "table.schema.json")
    declarations = {path.stem: own_json(own_text(path)) for path in files}
    for declaration in declarations.values():
        declaration["columns"] = [_complete(column, declarations) for column in declaration.get("columns", ())]
    return {
        name: Contract(
            *(name, stated["kind"], stated.get("grain", ""), stated.get("doc", "")),
            tuple(_read_column(column) for column in _all_columns(name, declarations)),
        )
        for name, stated in declarations.items()
    }


def _complete(column: dict[str, Any], declarations: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a declared column with the name, type, unit and doc of the one in its ``like``, if it has one."""
    if "like" not in column:
        return column
    table, _, name = column["like"].partition(".")
    other = next(other for other in declarations[table]["columns"] if other.get("name") == name)
    own = {field: value for field, value in column.items() if field != "like"}
    return {field: other[field] for field in _INHERITED if field in other} | own


def _all_columns(table: str, declarations: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a table's declared columns: its own, then those of the tables in ``like``, except those in ``without``.

    ``optional``: the columns of ``like`` may be null here.
    """
    declaration = declarations[table]
    like, without = declaration.get("like", []), declaration.get("without", [])
    others = [like] if isinstance(like, str) else like
    inherited = [column for other in others for column in _all_columns(other, declarations)]
    optional = {"nullable": True} if declaration.get("optional") else {}
    return declaration["columns"] + [column | optional for column in inherited if column["name"] not in without]


def _read_column(declaration: Mapping[str, Any]) -> Column:
    stated = dict(declaration)
    allowed, compare = tuple(stated.pop("in", ())), stated.pop("compare", {})
    return Column(**stated, allowed=allowed, compare=tuple((name, _frozen(other)) for name, other in compare.items()))


def _frozen(other: Any) -> Any:
    """Return what a column is compared to: a column, columns, or a column with the values that it may have."""
    if isinstance(other, dict):
        return next((name, *values) for name, values in other.items())
    return tuple(other) if isinstance(other, list) else other


def arrow_schema(contract: Contract) -> pa.Schema:
    """Return the contract's Arrow schema: types, nullability, and unit and doc in each field's metadata."""
    fields = []
    for column in contract.columns:
        metadata = {"doc": column.doc, **({"unit": column.unit} if column.unit else {})}
        fields.append(pa.field(column.name, column.arrow_type, column.nullable, metadata))
    return pa.schema(fields)


def ddl(contract: Contract, database: str = "") -> str:
    """Return the DuckDB statements that create the empty table, with its comments, in an attached ``database``.

    NOT NULL is declared; a primary key is not, because its index would slow every bulk load.
    """
    table = f"{quote(database)}.main.{quote(contract.table)}" if database else quote(contract.table)
    columns = ", ".join(
        f"{quote(column.name)} {duckdb_type(column.arrow_type)}{'' if column.nullable else ' NOT NULL'}"
        for column in contract.columns
    )
    lines = [f"CREATE TABLE {table} ({columns});"]
    if contract.doc:
        lines.append(f"COMMENT ON TABLE {table} IS {literal(f'{contract.doc} Grain: {contract.grain}.')};")
    for column in (one for one in contract.columns if one.doc):
        comment = f"{column.doc} [{column.unit}]" if column.unit else column.doc
        lines.append(f"COMMENT ON COLUMN {table}.{quote(column.name)} IS {literal(comment)};")
    return "\n".join(lines)


def conform(
    data: Any,
    contract: Contract,
    *,
    trusted: bool = False,
    encoded: bool = False,
    origin: str = "",
    rows: Sequence[int] | None = None,
) -> pa.Table:
    """Return ``data`` as the contract's Arrow table, or raise ContractBroken, which lists all violations.

    ``data`` is anything with ``__arrow_c_stream__``. ``trusted`` skips rules and duplicate keys, for the
    outputs of nodes. ``encoded``: dictionary-encoded strings stay so. ``origin``: where the rows come from, and
    ``rows``: the number of each row there, for the message (default: from 1).
    """
    table = as_arrow(data, contract.table)
    times = Counter(table.column_names)
    faults = _name_faults(times, contract)
    valid: dict[str, pa.ChunkedArray] = {}
    for column in contract.columns:
        if times[column.name] == 1:
            values, fault = cast_column(table.column(column.name), column, encoded=encoded)
            fault = fault or value_fault(values, column, rows)
            if fault:
                faults.append(fault)
            else:
                valid[column.name] = values
        elif column.nullable and not times[column.name]:
            valid[column.name] = pa.chunked_array([pa.nulls(table.num_rows, column.arrow_type)])
    if not trusted:
        faults += _row_faults(pa.table(valid), contract, rows)
    if faults:
        raise breaks_contract(contract.table, faults, origin)
    schema = contract.schema
    if encoded:
        schema = pa.schema([field.with_type(valid[field.name].type) for field in schema])
    return pa.Table.from_arrays([valid[name] for name in contract.column_names], schema=schema)


def check_values(table: pa.Table, contract: Contract, origin: str) -> None:
    """Raise ContractBroken for values that violate a contract, in a table with only some of its columns, or more.

    Types, finite numbers, and the checks over columns of the table are verified; the check of a column with nulls that
    the contract does not allow is skipped.
    """
    filled = {name for name in table.column_names if table[name].null_count < table.num_rows}
    columns = []
    for column in contract.columns:
        if column.name in filled:
            may_check = column.nullable or not table[column.name].null_count
            checked = column if may_check and column.checked_with <= filled else column.unchecked()
            columns.append(replace(checked, nullable=True, key=False))
    names = [column.name for column in columns]
    conform(table.select(names), replace(contract, columns=tuple(columns)), origin=origin)


def as_arrow(data: Any, table: str) -> pa.Table:
    """Convert anything with ``__arrow_c_stream__`` to an Arrow table.

    InvalidInput names ``table``, its destination: other data, or a column with values that no Arrow type holds.
    """
    if isinstance(data, pa.Table):
        return data
    if not hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.RecordBatch):
        raise InvalidInput(
            f"table {table!r} cannot be read from a {type(data).__name__}; pass a pyarrow table, a polars or pandas "
            "DataFrame, a DuckDB relation, or a list of dicts."
        )
    try:
        return pa.table(data)
    except pa.ArrowException as error:
        raise mixed_column(table, error) from None


def _name_faults(occurrences: Mapping[str, int], contract: Contract) -> list[str]:
    """Return the violations in the column names: duplicate, missing or unknown."""
    known = contract.column_names
    duplicates = sorted(name for name, times in occurrences.items() if times > 1)
    missing = [column.name for column in contract.columns if column.name not in occurrences and not column.nullable]
    others = sorted(set(occurrences) - set(known))

    def shown(name: str) -> str:
        # the names of a file that is something else are its content
        return name_shown(name, known, "of another name") if len(missing) > 2 else name

    faults = [f"column {shown(name)} occurs {occurrences[name]} times" for name in duplicates[:MOST_NAMES]]
    if missing:
        faults.append(f"missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    for name in others[:MOST_NAMES]:
        close = nearest(name, known, limit=1) if shown(name) == name else None
        faults.append(f"unknown column {shown(name)}" + (f" (nearest: {close[0]})" if close else ""))
    if len(others) > MOST_NAMES:
        faults.append(f"{len(others) - MOST_NAMES:,} more unknown columns")
    return faults


def _row_faults(table: pa.Table, contract: Contract, rows: Sequence[int] | None) -> list[str]:
    """Return the violations of checks and keys, over the columns that are valid so far."""
    # a rule that reads an invalid column is skipped: only that column is reported
    names = set(table.column_names)
    faults = check_faults(table, [column for column in contract.columns if column.checked_with <= names], rows)
    if set(contract.key) <= set(table.column_names):
        duplicate = duplicate_fault(table, contract.key)
        faults += [duplicate] if duplicate else []
    return faults
