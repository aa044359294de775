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

from kernelsight.dataflow.column import BOUNDS, COMPARISONS, RELATIONS, Column
from kernelsight.dataflow.databases import literal, quote
from kernelsight.dataflow.types import arrow_type, duckdb_type
from kernelsight.dataflow.violations import cast_column, check_faults, duplicate_fault, value_fault
from kernelsight.errors import InvalidInput, breaks_contract, mixed_column, name_shown, nearest
from kernelsight.files.own import own_json, own_text

KINDS = ("given", "derived", "internal")
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
    "options": list,
}
_INHERITED = ("name", "type", "unit", "doc")
_COLUMN_FIELDS = {
    "name": str,
    "type": str,
    "doc": str,
    "nullable": bool,
    "unit": str,
    "key": bool,
    "reference": str,
    **dict.fromkeys(BOUNDS, int | float),
    "in": list,
    "pattern": str,
    "compare": dict,
}
# of an option of the questions about a table; scenario/flag.py reads them
_OPTION_FIELDS = {
    "name": str,
    "group": str,
    "kind": str,
    "help": str,
    "metavar": str,
    "column": str,
    "option": list,
    "in": list,
    **dict.fromkeys(("above", "min", "max", "below"), int | float),
    **dict.fromkeys(("everyday", "required", "positional", "many", "repeated"), bool),
    "either": str,
    "default": int | float | str | bool,
}


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
    """Read every ``<table>.json`` of a folder, by table name; InvalidInput for a file that is not a contract.

    >>> from kernelsight.dataflow.locations import folder
    >>> load_contracts(folder("schemas"))["gpus"].key
    ['gpu']
    """
    files = sorted(path for path in folder.glob("*.json") if path.name != "table.schema.json")
    declarations = {path.stem: _read_json(path) for path in files}
    for path in files:
        declaration = declarations[path.stem]
        declaration["columns"] = [_complete(path, column, declarations) for column in declaration.get("columns", ())]
    contracts = {path.stem: _read_contract(path, declarations) for path in files}
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
        declaration = own_json(own_text(path))
    except json.JSONDecodeError as error:
        raise _malformed(path, f"line {error.lineno} is not JSON ({error.msg})") from None
    if isinstance(declaration, dict):
        declaration.pop("$schema", None)
    _check_fields(path, "the contract", declaration, _TABLE_FIELDS, required=["table", "kind"])
    if declaration["kind"] not in KINDS:
        raise _malformed(path, f"its kind is {declaration['kind']!r}, but must be one of {', '.join(KINDS)}")
    _check_fields(path, "the contract", declaration, _TABLE_FIELDS, required=_texts(declaration, "grain", "doc"))
    if "columns" not in declaration and "like" not in declaration:
        raise _malformed(path, "it declares its columns in 'columns', or as those of another table in 'like'")
    for word in ("without", "optional"):
        if word in declaration and "like" not in declaration:
            raise _malformed(path, f"{word!r} is about the columns of another table, and there is no 'like'")
    return declaration


def _complete(path: Path, column: Any, declarations: Mapping[str, dict[str, Any]]) -> Any:
    """Return a declared column with the name, type, unit and doc of the one in its ``like``, if it has one."""
    if not isinstance(column, dict) or "like" not in column:
        return column
    table, _, name = str(column["like"]).partition(".")
    for other in declarations.get(table, {}).get("columns", ()):
        if isinstance(other, dict) and other.get("name") == name:
            own = {field: value for field, value in column.items() if field != "like"}
            return {field: other[field] for field in _INHERITED if field in other} | own
    raise _malformed(path, f"a column is like {column['like']!r}, but {table}.json does not state such a column")


def _all_columns(path: Path, declarations: Mapping[str, dict[str, Any]], visited: tuple[str, ...] = ()) -> list[Any]:
    """Return a table's declared columns: its own, then those of the tables in ``like``, except those in ``without``.

    ``optional``: the columns of ``like`` may be null here.
    ``visited``: the tables whose ``like`` led here, in which a circular one is found.
    """
    declaration, visited = declarations[path.stem], (*visited, path.stem)
    own_columns = declaration.get("columns", [])
    if "like" not in declaration:
        return own_columns
    others = [declaration["like"]] if isinstance(declaration["like"], str) else declaration["like"]
    inherited = []
    for other in others:
        if not isinstance(other, str) or other not in declarations or other in visited:
            why = f"is {other!r}, which has no contract" if other not in visited else "refers back to itself"
            raise _malformed(path, f"its 'like' {why}")
        inherited += _all_columns(path.with_name(f"{other}.json"), declarations, visited)
    excluded = declaration.get("without", [])
    unknown_names = set(excluded) - {column.get("name") for column in inherited}
    if unknown_names:
        table = " or ".join(others)
        raise _malformed(path, f"its 'without' names {sorted(unknown_names)[0]!r}, which {table} does not have")
    inherited = [column for column in inherited if column.get("name") not in excluded]
    return own_columns + (
        [{**column, "nullable": True} for column in inherited] if declaration.get("optional") else inherited
    )


def _read_contract(path: Path, declarations: Mapping[str, dict[str, Any]]) -> Contract:
    declaration = declarations[path.stem]
    if declaration["table"] != path.stem or not NAME.fullmatch(path.stem):
        raise _malformed(path, f"its table is {declaration['table']!r}, but must equal the file name, in lower case")
    required = ["name", "type", *_texts(declaration, "doc")]
    columns = tuple(_read_column(path, column, required) for column in _all_columns(path, declarations))
    if not columns:
        raise _malformed(path, "it has no columns")
    names = [column.name for column in columns]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise _malformed(path, f"duplicate columns {', '.join(duplicates)}")
    for column in (column for column in columns if column.compare):
        if unknown_names := column.checked_with - set(names):
            raise _malformed(
                path, f"column {column.name} is compared with {min(unknown_names)}, which the table does not have"
            )
    for option in declaration.get("options", ()):
        label = f"option {option['name']}" if isinstance(option, dict) and "name" in option else "an option"
        _check_fields(path, label, option, _OPTION_FIELDS, required=["name", "group"])
        if option.get("column", names[0]) not in names:
            raise _malformed(path, f"{label} sets the column {option['column']!r}, which the table does not have")
    grain, doc = declaration.get("grain", ""), declaration.get("doc", "")
    return Contract(declaration["table"], declaration["kind"], grain, doc, columns)


def _texts(declaration: Mapping[str, Any], *names: str) -> list[str]:
    """Return the texts that a contract has to state: all of ``names``, but of an internal table none."""
    return [] if declaration["kind"] == "internal" else list(names)


def _read_column(path: Path, declaration: Any, required: list[str]) -> Column:
    label = f"column {declaration['name']}" if isinstance(declaration, dict) and "name" in declaration else "a column"
    _check_fields(path, label, declaration, _COLUMN_FIELDS, required=required)
    if not NAME.fullmatch(declaration["name"]):
        raise _malformed(path, f"{label}: a name may only have lower-case letters, digits and underscores")
    if declaration.get("reference") and not _REFERENCE.fullmatch(declaration["reference"]):
        raise _malformed(path, f"{label} has the reference {declaration['reference']!r}; write 'table.column'")
    try:
        arrow_type(declaration["type"])
    except ValueError as error:
        raise _malformed(path, f"{label}: {error}") from None
    stated = dict(declaration)
    allowed, compare = tuple(stated.pop("in", ())), stated.pop("compare", {})
    for relation in compare:
        if relation not in COMPARISONS and relation not in RELATIONS:
            known = ", ".join([*COMPARISONS, *RELATIONS])
            raise _malformed(path, f"{label} has the unknown relation {relation!r} in 'compare'; known: {known}")
    if "pattern" in stated:
        try:
            re.compile(stated["pattern"])
        except re.error as error:
            raise _malformed(path, f"{label} has the pattern {stated['pattern']!r}: {error}") from None
    return Column(**stated, allowed=allowed, compare=tuple((name, _frozen(other)) for name, other in compare.items()))


def _frozen(other: Any) -> Any:
    """Return what a column is compared to: a column, columns, or a column with the values that it may have."""
    if isinstance(other, dict):
        return next((name, *values) for name, values in other.items())
    return tuple(other) if isinstance(other, list) else other


def _check_fields(path: Path, label: str, declaration: Any, known: Mapping[str, type], required: list[str]) -> None:
    if not isinstance(declaration, dict):
        raise _malformed(path, f"{label} is not a JSON object")
    missing = [name for name in required if name not in declaration]
    if missing:
        raise _malformed(path, f"{label} is missing {', '.join(missing)}")
    for name, value in declaration.items():
        if name not in known:
            raise _malformed(path, f"{label} has the unknown field {name!r}; known fields: {', '.join(known)}")
        if not isinstance(value, known[name]):
            raise _malformed(
                path, f"{label} has {name} = {value!r}, which is not a {getattr(known[name], '__name__', known[name])}"
            )


def _malformed(path: Path, fault: str) -> InvalidInput:
    return InvalidInput(f"{path.name} is not a table contract: {fault}. See schemas/table.schema.json for the format.")


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

    >>> contract = Contract("t", "given", "one x", "Some.", (Column("x", "float64", "an x", above=0),))
    >>> conform(pa.table({"x": [1, 2]}), contract).column("x").to_pylist()
    [1.0, 2.0]
    >>> conform(pa.table({"x": [1, -2]}), contract)
    Traceback (most recent call last):
    kernelsight.errors.ContractBroken: table 't' violates its contract: column x: 1 row fails 'x > 0' (row 2: -2.0).
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

    >>> contract = Contract("t", "given", "one x", "Some.", (Column("x", "int64", "an x", above=0),))
    >>> check_values(pa.table({"x": [1, 2], "note": ["a", "b"]}), contract, "x.csv")
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
    # the names of a file that is something else are its content
    shown = {name: name_shown(name, known, "of another name") if len(missing) > 2 else name
             for name in occurrences}  # fmt: skip
    faults = [f"column {shown[name]} occurs {occurrences[name]} times" for name in duplicates]
    if missing:
        faults.append(f"missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    for name in sorted(set(occurrences) - set(known)):
        close = nearest(name, known, limit=1) if shown[name] == name else None
        faults.append(f"unknown column {shown[name]}" + (f" (nearest: {close[0]})" if close else ""))
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
