"""Packs: Parquet files with the fitted numbers of the kernel model, read and checked as ``eta_coefficients``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.contract import conform
from kernelsight.errors import InvalidInput
from kernelsight.files.parquet_files import read_parquet
from kernelsight.kernels.coefficients import PATH, Coefficient, Node, names_at

if TYPE_CHECKING:
    from kernelsight.dataflow.contract import Contract

# arrays of each kernel with measured points: their features, and their kriging weights
POINT_ARRAYS = ("features", "weights")
_PACKS = Path(__file__).resolve().parents[1] / "packs"


def assumed_rows(family: str, coefficients: Iterable[Coefficient]) -> list[dict]:
    """Return the starting constants of a family without a sweep, as rows of ``eta_coefficients``."""
    return [
        {
            "family": family,
            "part": "constant",
            "level": "family",
            "coefficient": declared.name,
            "value": declared.start,
            "unit": declared.unit,
            "assumed": "assumed",
            "source": declared.doc,
        }
        for declared in coefficients
        if declared.owner != "fixed"
    ]


def nodes_of(rows: pa.Table) -> list[Node]:
    """Return the nodes of ``eta_coefficients`` rows of part constant."""
    words = {name: rows[name].to_pylist() for name in PATH}
    # paths by level: nodes of a level are identified by the same columns
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
    """Return the pack that ships with the package; a table without rows if there is none."""
    packs = sorted(_PACKS.glob("*.parquet"))
    return read_pack(packs[0]) if packs else pack_table([])


def read_pack(path: Path) -> pa.Table:
    """Return the ``eta_coefficients`` of a pack file.

    InvalidInput: no such file, no Parquet, or points as an earlier version fitted them; ContractBroken: other columns.
    """

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"pack {path} {problem}; `kernelsight calibrate fit -o {path}` writes one.")

    rows = conform(read_parquet(path, refuse), pack_contract(), origin=str(path))
    _refuse_former_points(rows, path)
    return rows


def _refuse_former_points(rows: pa.Table, path: Path) -> None:
    """Raise InvalidInput for points of an earlier version, without moves of constants and in other arrays."""
    points = rows.filter(pc.equal(rows["part"], "points"))
    arrays = points.filter(pc.is_valid(points["array"]))
    former = arrays.filter(pc.invert(pc.is_in(arrays["coefficient"], pa.array(POINT_ARRAYS))))
    if former.num_rows:
        gpus, names = (", ".join(sorted(set(former[name].to_pylist()))) for name in ("gpu", "coefficient"))
        raise InvalidInput(
            f"pack {path} holds points of {gpus} as an earlier version fitted them (arrays {names}), and this one "
            f"reads {' and '.join(POINT_ARRAYS)}; fit the measured calls again: `kernelsight calibrate fit --few FILE "
            f"--onto default -o {path}`."
        )


def with_assumed(rows: pa.Table) -> pa.Table:
    """Return a pack with the starting constants of the families that it lacks."""
    from kernelsight.kernels.families import FAMILIES

    fitted = set(pc.unique(rows["family"]).to_pylist())
    missing = [
        row
        for name, family in FAMILIES.items()
        if name not in fitted
        for row in assumed_rows(name, family.latency_model.coefficients)
    ]
    return pa.concat_tables([rows, pack_table(missing)])


def pack_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as ``eta_coefficients``; missing columns are null, a missing position is 0."""
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
