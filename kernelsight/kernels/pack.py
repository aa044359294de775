"""Packs: fitted numbers as rows of ``eta_coefficients``, in plain Parquet; and what a call reads of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernelsight.dataflow.contract import conform
from kernelsight.dataflow.durable import durable_file
from kernelsight.errors import InvalidInput
from kernelsight.kernels.forms import PATH, Coefficient, Node, names_at

if TYPE_CHECKING:
    from kernelsight.dataflow.contract import Contract

_PACKS = Path(__file__).resolve().parents[1] / "packs"


def node_rows(
    family: str, nodes: Sequence[Node], units: Mapping[str, str], without: str | None, source: str
) -> list[dict]:
    """Return fitted nodes as rows: at the family level the constant, deeper the factor upon it."""
    rows = []
    for node in nodes:
        rows.append(
            {
                "family": family,
                "part": "constant",
                "without": without,
                "level": node.level,
                **dict(zip(names_at(node.level), node.path, strict=True)),
                "coefficient": node.coefficient,
                # seven digits: more than any fit determines
                "value": float(np.float32(exp(node.log_value))),
                "log_sd": round(node.log_sd, 4),
                "unit": units[node.coefficient] if node.level == "family" else "1",
                "source": source,
            }
        )
    return rows


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


def nodes_of(rows: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Return the nodes that constant rows hold."""
    nodes = []
    for row in rows:
        path = tuple(row[name] for name in names_at(row["level"]))
        nodes.append(Node(row["level"], path, row["coefficient"], log(row["value"]), row["log_sd"] or 0.0))
    return nodes


def write_pack(rows: pa.Table, path: Path) -> None:
    """Write a pack: sorted by its key, so that equal fits give equal bytes."""
    key = [column.name for column in _contract().columns if column.key]
    rows = rows.sort_by([(name, "ascending") for name in key])
    with durable_file(path) as draft:
        pq.write_table(rows, draft, compression="zstd", compression_level=12)


def correction_arrays(rows: Sequence[Mapping[str, Any]]) -> list[dict]:
    """Gather rows of corrections and intervals, one a number, into one row an array."""
    arrays: dict[tuple, list[tuple[int, float]]] = {}
    first: dict[tuple, Mapping[str, Any]] = {}
    for row in rows:
        key = tuple(row.get(name) for name in ("family", "without", *PATH[1:], "coefficient"))
        arrays.setdefault(key, []).append((row["position"], row["value"]))
        first.setdefault(key, row)
    return [
        {**first[key], "position": 0, "value": None, "array": [value for _, value in sorted(found)]}
        for key, found in arrays.items()
    ]


def correction_numbers(rows: Iterable[Mapping[str, Any]]) -> list[dict]:
    """Undo :func:`correction_arrays`."""
    return [
        {**row, "position": position, "value": value} for row in rows for position, value in enumerate(row["array"])
    ]


def default_pack() -> pa.Table:
    """Return the embedded ``eta_coefficients``: the shipped pack, and assumed constants of the families it lacks."""
    packs = sorted(_PACKS.glob("*.parquet"))
    return with_assumed(read_pack(packs[0]) if packs else pack_table([]))


def read_pack(path: Path) -> pa.Table:
    """Read a pack; InvalidInput where there is none, ContractBroken where its columns are others."""
    if not path.is_file():
        raise InvalidInput(f"pack {path} does not exist; `kernelsight calibrate fit -o {path}` writes one.")
    try:
        table = pq.read_table(path)
        table.validate(full=True)
        _ = table.column_names  # text that is not UTF-8, in names too
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as a pack ({str(error).splitlines()[0]}).") from None
    return conform(table, _contract(), origin=str(path))


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
        for column in _contract().columns
    }
    return conform(pa.table(columns), _contract(), origin="eta_coefficients")


def _contract() -> Contract:
    from kernelsight.catalog.tables import contracts

    return contracts()["eta_coefficients"]
