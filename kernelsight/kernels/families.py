"""Registry of kernel families, from which nodes, contracts and all lists of families follow: rows of three files.

``families.csv``: a row per family; ``coefficients.csv``: the coefficients of its expression, in their order;
``call_columns.csv``: its call columns as SQL over ``shape``, earlier columns, and the bits of its number formats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from kernelsight.files.own import own_rows
from kernelsight.kernels.coefficients import Coefficient
from kernelsight.kernels.latency_model import Features, LatencyModel, unchanged

_FOLDER = Path(__file__).resolve().parent


class Family(NamedTuple):
    """One kernel family; its calls are made by ``sql/lower/<name>_calls.sql``, in the contract of that name."""

    name: str
    doc: str  # its kernels, in the plural
    latency_model: LatencyModel
    features: Features  # inputs of its correction; a family without sizes has none
    # its call columns as SQL over the shape of a measured kernel (``kernels.work``); empty: no sweep measures it
    columns: Mapping[str, str]
    # traits of deployments, any of which launches it: attention and feed-forward of ``sharded_layers``; "tp", "pp" and
    # "dp" above 1; "quantizes_activations". Empty: any deployment may launch it
    launched_by: tuple[str, ...]
    # of a collective, ``wire_share(group_size)``: bytes over the busiest link, as a multiple of the tensor's
    wire_share: Callable[[Any], Any] | None
    vector_work: bool  # its arithmetic runs on the vector units, whatever the format of what it moves
    by_head_dim: bool  # engines choose its kernel by the width of the heads
    kernel_column: str  # column of ``deployment_settings`` or of its calls that requests a kernel by name
    # column of step costs that repeats its time, because pipeline stages do not share it (embedding, transfer) or a
    # log's misses are attributed to it (moe, communication)
    step_cost: str
    lowered: bool  # False: no model of the catalogue launches it, only sweeps and call files do


def _rows_by_family(file: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows of a file by each family that they name, in their order."""
    rows: dict[str, list[dict[str, str]]] = {}
    for row in own_rows(_FOLDER / file):
        for family in row["families"].split():
            rows.setdefault(family, []).append(row)
    return rows


def _function(name: str) -> Callable[..., Any]:
    """Return ``module.function`` of this folder."""
    return resolve_name(f"kernelsight.kernels.{name.replace('.', ':')}")


def _coefficient(row: Mapping[str, str]) -> Coefficient:
    start, low, high, spread = (float(row[name]) for name in ("start", "low", "high", "spread"))
    return Coefficient(row["name"], row["unit"], start, low, high, row["owner"], row["doc"], spread)


def _tiled(text: str) -> tuple[tuple[str, float], ...]:
    """Return (column, tile) pairs of ``column/tile`` words."""
    return tuple((column, float(tile)) for column, tile in (word.split("/") for word in text.split()))


def _registry() -> dict[str, Family]:
    """Return the families by name, in the order of their rows."""
    coefficients, columns = _rows_by_family("coefficients.csv"), _rows_by_family("call_columns.csv")
    families = {}
    for row in own_rows(_FOLDER / "families.csv"):
        name = row["name"]
        families[name] = Family(
            name,
            row["doc"],
            LatencyModel(
                _function(row["expression"]),
                tuple(row["reads"].split()),
                _function(row["view"]) if row["view"] else unchanged,
                tuple(map(_coefficient, coefficients[name])),
                float(row["spread"]),
            ),
            Features(
                tuple(row["sizes"].split()),
                tuple(row["flags"].split()),
                _tiled(row["paddings"]),
                tuple(_tiled(grid.replace("*", " ")) for grid in row["grids"].split()),
            ),
            {column["column"]: column["sql"] for column in columns.get(name, ())},
            tuple(row["launched_by"].split()),
            _function(row["wire_share"]) if row["wire_share"] else None,
            row["vector_work"] == "true",
            row["by_head_dim"] == "true",
            row["kernel_column"],
            row["step_cost"],
            row["lowered"] != "false",
        )
    return families


FAMILIES = _registry()
LOWERED: dict[str, str] = {family.name: family.doc for family in FAMILIES.values() if family.lowered}
# families that sweeps measure
MEASURED = tuple(family.name for family in FAMILIES.values() if family.columns)
COMMUNICATION = tuple(family.name for family in FAMILIES.values() if family.wire_share)


def launched(traits: Collection[str]) -> list[str]:
    """Return the families that deployments with any of these traits (``Family.launched_by``) may launch."""
    return [name for name in LOWERED if not (by := FAMILIES[name].launched_by) or not set(by).isdisjoint(traits)]
