"""Table contracts: the columns of each table, read from one JSON file per table and checked against its rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from kernelsight.dataflow.column import Column
from kernelsight.dataflow.conditions import columns_of, parse
from kernelsight.dataflow.engine import quote
from kernelsight.dataflow.types import arrow_type, duckdb_type
from kernelsight.dataflow.violations import cast_column, check_faults, duplicate_fault, value_fault
from kernelsight.errors import InvalidInput, breaks_contract, nearest

NAME = re.compile(r"[a-z][a-z0-9_]*")
_REFERENCE = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+")
_TABLE_FIELDS = {
    "table": str,
    "kind": str,
    "grain": str,
    "doc": str,
    "columns": list,
    "like": str | list,
    "without": list,
    "optional": bool,
}
_COLUMN_FIELDS = {
    "name": str,
    "type": str,
    "doc": str,
    "nullable": bool,
    "unit": str,
    "key": bool,
    "reference": str,
    "check": str,
}


@dataclass(frozen=True)
class Contract:
    """A table: its grain, its columns in order, and whether it is an input (given) or derived."""

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
    """Read every ``<table>.json`` of a folder, by table name; InvalidInput for a file that is not a contract.

    >>> from kernelsight.dataflow.locations import folder
    >>> load_contracts(folder("schemas"))["gpus"].key
    ['gpu']
    """
    files = sorted(path for path in folder.glob("*.json") if path.name != "table.schema.json")
    stated = {path.stem: _read_json(path) for path in files}
    contracts = {path.stem: _read_contract(path, stated) for path in files}
    for contract in contracts.values():
        for column in contract.columns:
            table, _, name = column.reference.partition(".")
            if table and (table not in contracts or name not in contracts[table].column_names):
                raise _malformed(
                    folder / f"{contract.table}.json",
                    f"column {column.name} references {column.reference}, which does not exist",
                )
    return contracts


def _read_json(path: Path) -> dict[str, Any]:
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise _malformed(path, f"line {error.lineno} is not JSON ({error.msg})") from None
    if isinstance(stated, dict):
        stated.pop("$schema", None)
    _check_fields(path, "the contract", stated, _TABLE_FIELDS, required=["table", "kind", "grain", "doc"])
    if "columns" not in stated and "like" not in stated:
        raise _malformed(path, "it declares its columns in 'columns', or as those of another table in 'like'")
    for word in ("without", "optional"):
        if word in stated and "like" not in stated:
            raise _malformed(path, f"{word!r} is about the columns of another table, and there is no 'like'")
    return stated


def _stated_columns(path: Path, stated: Mapping[str, dict[str, Any]], passed: tuple[str, ...] = ()) -> list[Any]:
    """Return a contract's columns: its own, then those of the tables in ``like``, except those in ``without``.

    ``optional``: those may be null here, and their checks hold for what is not.
    """
    contract, passed = stated[path.stem], (*passed, path.stem)
    columns_of_its_own = contract.get("columns", [])
    if "like" not in contract:
        return columns_of_its_own
    others = [contract["like"]] if isinstance(contract["like"], str) else contract["like"]
    theirs = []
    for other in others:
        if not isinstance(other, str) or other not in stated or other in passed:
            why = f"is {other!r}, which has no contract" if other not in passed else "refers back to itself"
            raise _malformed(path, f"its 'like' {why}")
        theirs += _stated_columns(path.with_name(f"{other}.json"), stated, passed)
    left_out = contract.get("without", [])
    unknown_names = set(left_out) - {column.get("name") for column in theirs}
    if unknown_names:
        table = " or ".join(others)
        raise _malformed(path, f"its 'without' names {sorted(unknown_names)[0]!r}, which {table} does not have")
    shared = [column for column in theirs if column.get("name") not in left_out]
    return columns_of_its_own + ([_optional(column) for column in shared] if contract.get("optional") else shared)


def _optional(column: dict[str, Any]) -> dict[str, Any]:
    check = {"check": f"{column['name']} is null or ({column['check']})"} if "check" in column else {}
    return {**column, "nullable": True, **check}


def _read_contract(path: Path, every: Mapping[str, dict[str, Any]]) -> Contract:
    stated = every[path.stem]
    if stated["table"] != path.stem or not NAME.fullmatch(path.stem):
        raise _malformed(path, f"its table is {stated['table']!r}, but must equal the file name, in lower case")
    if stated["kind"] not in ("given", "derived"):
        raise _malformed(path, f"its kind is {stated['kind']!r}, but must be 'given' or 'derived'")
    columns = tuple(_read_column(path, column) for column in _stated_columns(path, every))
    if not columns:
        raise _malformed(path, "it has no columns")
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _malformed(path, f"duplicate columns {', '.join(twice)}")
    return Contract(stated["table"], stated["kind"], stated["grain"], stated["doc"], columns)


def _read_column(path: Path, stated: Any) -> Column:
    label = f"column {stated['name']}" if isinstance(stated, dict) and "name" in stated else "a column"
    _check_fields(path, label, stated, _COLUMN_FIELDS, required=["name", "type", "doc"])
    if not NAME.fullmatch(stated["name"]):
        raise _malformed(path, f"{label}: a name may only have lower-case letters, digits and underscores")
    if stated.get("reference") and not _REFERENCE.fullmatch(stated["reference"]):
        raise _malformed(path, f"{label} has the reference {stated['reference']!r}; write 'table.column'")
    try:
        arrow_type(stated["type"])
    except ValueError as error:
        raise _malformed(path, f"{label}: {error}") from None
    try:
        parse(stated.get("check", "true"))
    except ValueError as error:
        raise _malformed(path, f"{label} has the check {stated['check']!r}: {error}") from None
    return Column(**stated)


def _check_fields(path: Path, label: str, stated: Any, known: Mapping[str, type], required: list[str]) -> None:
    if not isinstance(stated, dict):
        raise _malformed(path, f"{label} is not a JSON object")
    missing = [name for name in required if name not in stated]
    if missing:
        raise _malformed(path, f"{label} is missing {', '.join(missing)}")
    for name, value in stated.items():
        if name not in known:
            raise _malformed(path, f"{label} has the unknown field {name!r}; known fields: {', '.join(known)}")
        if not isinstance(value, known[name]):
            raise _malformed(
                path, f"{label} has {name} = {value!r}, which is not a {getattr(known[name], '__name__', known[name])}"
            )


def _malformed(path: Path, what: str) -> InvalidInput:
    return InvalidInput(f"{path.name} is not a table contract: {what}. See schemas/table.schema.json for the format.")


def arrow_schema(contract: Contract) -> pa.Schema:
    """Return the contract's Arrow schema: types, nullability, and unit and doc in each field's metadata.

    >>> from kernelsight.dataflow.locations import folder
    >>> arrow_schema(load_contracts(folder("schemas"))["gpus"]).field("tdp_w").metadata[b"unit"]
    b'W'
    """
    fields = []
    for column in contract.columns:
        metadata = {"doc": column.doc, **({"unit": column.unit} if column.unit else {})}
        fields.append(pa.field(column.name, column.arrow_type, column.nullable, metadata))
    return pa.schema(fields)


def ddl(contract: Contract, database: str = "") -> str:
    """Return the DuckDB statements that create the empty table, with its comments, in an attached ``database``.

    NOT NULL is declared; a primary key is not, because its index would slow every bulk load.

    >>> print(ddl(Contract("t", "given", "one x", "Some.", (Column("x", "int64", "an x", unit="us"),))))
    CREATE TABLE "t" ("x" BIGINT NOT NULL);
    COMMENT ON TABLE "t" IS 'Some. Grain: one x.';
    COMMENT ON COLUMN "t"."x" IS 'an x [us]';
    """
    table = f"{quote(database)}.main.{quote(contract.table)}" if database else quote(contract.table)
    columns = ", ".join(
        f"{quote(column.name)} {duckdb_type(column.arrow_type)}{'' if column.nullable else ' NOT NULL'}"
        for column in contract.columns
    )
    lines = [
        f"CREATE TABLE {table} ({columns});",
        f"COMMENT ON TABLE {table} IS {_text(f'{contract.doc} Grain: {contract.grain}.')};",
    ]
    for column in contract.columns:
        comment = f"{column.doc} [{column.unit}]" if column.unit else column.doc
        lines.append(f"COMMENT ON COLUMN {table}.{quote(column.name)} IS {_text(comment)};")
    return "\n".join(lines)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


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

    ``data`` is anything with ``__arrow_c_stream__``. ``trusted`` skips ``check`` and duplicate keys, for the
    outputs of nodes. ``encoded``: words that are dictionaries stay so. ``origin``: where the rows come from, and
    ``rows``: the number of each row there, for the message (default: from 1).

    >>> contract = Contract("t", "given", "one x", "Some.", (Column("x", "float64", "an x", check="x > 0"),))
    >>> conform(pa.table({"x": [1, 2]}), contract).column("x").to_pylist()
    [1.0, 2.0]
    >>> conform(pa.table({"x": [1, -2]}), contract)
    Traceback (most recent call last):
    kernelsight.errors.ContractBroken: table 't' violates its contract: column x: 1 row fails 'x > 0' (row 2: -2.0).
    """
    table = as_arrow(data, contract.table)
    times = Counter(table.column_names)
    faults = _name_faults(times, contract)
    sound: dict[str, pa.ChunkedArray] = {}
    for column in contract.columns:
        if times[column.name] == 1:
            values, fault = cast_column(table.column(column.name), column, encoded=encoded)
            fault = fault or value_fault(values, column, rows)
            if fault:
                faults.append(fault)
            else:
                sound[column.name] = values
        elif column.nullable and not times[column.name]:
            sound[column.name] = pa.chunked_array([pa.nulls(table.num_rows, column.arrow_type)])
    if not trusted:
        faults += _row_faults(pa.table(sound), contract, rows)
    if faults:
        raise breaks_contract(contract.table, faults, origin)
    fields = [field.with_type(sound[field.name].type) for field in contract.schema]
    return pa.table([sound[field.name] for field in fields], schema=pa.schema(fields))


def check_values(table: pa.Table, contract: Contract, origin: str) -> None:
    """Raise ContractBroken for values that break a contract, in a table that may lack columns and have others.

    Checked are types, finite numbers, and the checks over columns of the table; a column with nulls that the contract
    does not allow has no check here.

    >>> contract = Contract("t", "given", "one x", "Some.", (Column("x", "int64", "an x", check="x > 0"),))
    >>> check_values(pa.table({"x": [1, 2], "note": ["a", "b"]}), contract, "x.csv")
    """
    there = {name for name in table.column_names if table[name].null_count < table.num_rows}
    columns = []
    for column in contract.columns:
        if column.name in there:
            may_check = column.nullable or not table[column.name].null_count
            check = column.check if may_check and columns_of(parse(column.check or "true")) <= there else ""
            columns.append(replace(column, nullable=True, key=False, check=check))
    names = [column.name for column in columns]
    conform(table.select(names), replace(contract, columns=tuple(columns)), origin=origin)


def as_arrow(data: Any, table: str) -> pa.Table:
    """Return anything with ``__arrow_c_stream__`` as an Arrow table; InvalidInput names the table that it was for."""
    if isinstance(data, pa.Table):
        return data
    if not hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.RecordBatch):
        raise InvalidInput(
            f"table {table!r} cannot be read from a {type(data).__name__}; pass a pyarrow table, a polars or pandas "
            "DataFrame, a DuckDB relation, or a list of dicts."
        )
    return pa.table(data)


def _name_faults(occurrences: Mapping[str, int], contract: Contract) -> list[str]:
    """Return the violations in the column names: duplicate, missing or unknown."""
    known = contract.column_names
    twice = sorted(name for name, times in occurrences.items() if times > 1)
    faults = [f"column {name} occurs {occurrences[name]} times" for name in twice]
    absent = [column.name for column in contract.columns if column.name not in occurrences and not column.nullable]
    if absent:
        faults.append(f"missing column{'s' if len(absent) > 1 else ''} {', '.join(absent)}")
    for name in sorted(set(occurrences) - set(known)):
        close = nearest(name, known, limit=1)
        faults.append(f"unknown column {name}" + (f" (nearest: {close[0]})" if close else ""))
    return faults


def _row_faults(table: pa.Table, contract: Contract, rows: Sequence[int] | None) -> list[str]:
    """Return the violations of checks and keys, over the columns that are valid so far."""
    whole = len(table.column_names) == len(contract.columns)
    # a check that reads an invalid column is skipped: only that column is reported
    columns = [
        column for column in contract.columns if column.check and (whole or _reads_only(column.check, table, contract))
    ]
    faults = check_faults(table, columns, rows)
    if set(contract.key) <= set(table.column_names):
        duplicate = duplicate_fault(table, contract.key)
        faults += [duplicate] if duplicate else []
    return faults


def _reads_only(check: str, table: pa.Table, contract: Contract) -> bool:
    return columns_of(parse(check)) & set(contract.column_names) <= set(table.column_names)
