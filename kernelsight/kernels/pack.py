"""Packs: files of fitted numbers in ``eta_coefficients``, plain Parquet, and what a call reads of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.contract import conform
from kernelsight.dataflow.parquet_files import read_parquet
from kernelsight.errors import InvalidInput
from kernelsight.kernels.forms import PATH, Coefficient, Node, names_at

if TYPE_CHECKING:
    from kernelsight.dataflow.contract import Contract

_PACKS = Path(__file__).resolve().parents[1] / "packs"


def assumed_rows(family: str, coefficients: Iterable[Coefficient]) -> list[dict]:
    """Return the constants with which a family starts, for one that no sweep holds."""
    return [
        {
            "family": family,
            "part": "constant",
            "level": "family",
            "coefficient": one.name,
            "value": one.start,
            "unit": one.unit,
            "assumed": "assumed",
            "source": one.doc,
        }
        for one in coefficients
        if one.owner != "fixed"
    ]


def nodes_of(rows: pa.Table) -> list[Node]:
    """Return the nodes that constant rows hold."""
    words = {name: rows[name].to_pylist() for name in PATH}
    # a level at a time: its nodes have the words of the same columns
    levels = rows["level"].to_pylist()
    paths = {level: list(zip(*(words[name] for name in names_at(level)), strict=True)) for level in set(levels)}
    figures = zip(levels, *(rows[name].to_pylist() for name in ("coefficient", "value", "log_sd")), strict=True)
    return [
        Node(level, paths[level][row] if names_at(level) else (), coefficient, log(value), log_sd or 0.0)
        for row, (level, coefficient, value, log_sd) in enumerate(figures)
    ]


def default_pack() -> pa.Table:
    """Return the embedded ``eta_coefficients``: the shipped pack, and assumed constants of the families it lacks."""
    return with_assumed(shipped_pack())


def shipped_pack() -> pa.Table:
    """Return the pack that ships, without rows if there is none."""
    packs = sorted(_PACKS.glob("*.parquet"))
    return read_pack(packs[0]) if packs else pack_table([])


def read_pack(path: Path) -> pa.Table:
    """Read a pack; InvalidInput where there is none, ContractBroken where its columns are others."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"pack {path} {problem}; `kernelsight calibrate fit -o {path}` writes one.")

    return conform(read_parquet(path, refuse), pack_contract(), origin=str(path))


def with_assumed(rows: pa.Table) -> pa.Table:
    """Add the starting constants of the families of which a pack holds none."""
    from kernelsight.kernels.families import FAMILIES

    held = set(pc.unique(rows["family"]).to_pylist())
    missing = [
        row
        for name, family in FAMILIES.items()
        if name not in held
        for row in assumed_rows(name, family.form.coefficients)
    ]
    return pa.concat_tables([rows, pack_table(missing)])


def pack_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as ``eta_coefficients``; what a row leaves out is null, its position 0."""
    columns = {
        column.name: pa.array(
            [row.get(column.name, 0 if column.name == "position" else None) for row in rows], column.arrow_type
        )
        for column in pack_contract().columns
    }
    return conform(pa.table(columns), pack_contract(), origin="eta_coefficients")


def pack_contract() -> Contract:
    """Return the contract of ``eta_coefficients``."""
    from kernelsight.catalog.tables import contracts

    return contracts()["eta_coefficients"]
