"""The catalogue: fact tables that ship in this folder as CSV files, read and checked against their contracts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from kernelsight.caches.disk_cache import cached_for_program, program_digest
from kernelsight.dataflow.contract import Contract, conform, load_contracts
from kernelsight.dataflow.locations import folder
from kernelsight.errors import ContractBroken
from kernelsight.files.own import own_text

_FOLDER = Path(__file__).resolve().parent


@cache
def program() -> str:
    """Return a digest of the program's files (code, facts, queries, contracts): the key of what is cached on disk."""
    return program_digest(_FOLDER.parent, folder("sql"), folder("schemas"))


@cache
def contracts() -> Mapping[str, Contract]:
    """Return the contracts of all tables, by table name."""
    return cached_for_program(program(), "contracts", lambda: load_contracts(folder("schemas")))


def fact_names() -> set[str]:
    """Return the names of the catalogue's tables: one per CSV file, and kernel_implementations."""
    return ({path.stem for path in _FOLDER.glob("*.csv")} | {"kernel_implementations"}) & set(contracts())


@cache
def facts(name: str) -> pa.Table | None:
    """Return a table of the catalogue, None if it has no such table; ContractBroken: its file breaks the contract."""
    if name not in fact_names():
        return None
    return cached_for_program(program(), f"facts {name}", lambda: _read(name))


@cache
def catalogue_yaml(name: str) -> Any:
    """Return the document of a YAML file of the catalogue."""
    from kernelsight.files.bounded_values import parse_yaml

    text = own_text(_FOLDER / f"{name}.yaml")
    return cached_for_program(program(), f"{name}.yaml", lambda: parse_yaml(text, ContractBroken)[0])


def _read(name: str) -> pa.Table:
    if name == "kernel_implementations":
        return _implementations()
    return read_facts(_FOLDER / f"{name}.csv", contracts()[name])


def read_facts(path: Path, contract: Contract) -> pa.Table:
    """Return a CSV file as a table of a contract, empty fields as null; ContractBroken lists all violations."""
    return conform(read_columns(path, contract), contract, origin=path.name)


def read_columns(path: Path, contract: Contract, former: Mapping[str, str] | None = None) -> pa.Table:
    """Return a CSV file with the types of a contract's columns, empty fields as null; ContractBroken: unreadable.

    ``former``: current names of columns, by the names that they have in older files.
    """
    import pyarrow.csv as pa_csv

    types = {column.name: column.arrow_type for column in contract.columns}
    types |= {older: types[current] for older, current in (former or {}).items()}
    options = pa_csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    try:
        table = pa_csv.read_csv(path, convert_options=options)
    except pa.ArrowInvalid as error:
        raise ContractBroken(
            f"{path.name} cannot be read as table {contract.table!r}: {str(error).splitlines()[0]}."
        ) from None
    return renamed(table, former or {})


def renamed(table: pa.Table, former: Mapping[str, str]) -> pa.Table:
    """Return a table with older columns renamed by ``former``, unless it already has the current name.

    >>> renamed(pa.table({"old": [1]}), {"old": "new"}).column_names
    ['new']
    """
    names, present = table.column_names, set(table.column_names)
    return table.rename_columns([former[name] if former.get(name, name) not in present else name for name in names])


def _implementations() -> pa.Table:
    """Return ``kernel_implementations``: the files of ``implementations/``, one per kernel family, in one table."""
    import pyarrow.csv as pa_csv

    contract = contracts()["kernel_implementations"]
    implementations = []
    for path in sorted((_FOLDER / "implementations").glob("*.csv")):
        rows = pa_csv.read_csv(path).to_pylist()
        implementations += [
            {"family": path.stem, **{name: None if value == "" else value for name, value in row.items()}}
            for row in rows
        ]
    return conform(from_rows(implementations, contract), contract, origin="implementations")


def from_rows(rows: list[dict[str, Any]], contract: Contract) -> pa.Table:
    """Return rows as a table with a contract's types, missing columns null; ``conform`` rejects undeclared ones."""
    names = list(dict.fromkeys([*contract.column_names, *(name for row in rows for name in row)]))
    types = {column.name: column.arrow_type for column in contract.columns}
    return pa.table({name: pa.array([row.get(name) for row in rows], types.get(name)) for name in names})
