"""Identifies a GPU in the catalogue by its device properties, and builds its row of ``gpus`` from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelsight.caches.durable import durable_file
from kernelsight.errors import InvalidInput, nearest
from kernelsight.files.own import own_rows
from kernelsight.number_format import GIB, number, rounded

CATALOGUE = Path(__file__).resolve().parents[1] / "catalog" / "gpus.csv"
# software sees slightly less memory than the vendor specifies
SAME_MEMORY = 0.12
# drivers include these in the name of a card; an SXM module is named only by its chip
CARDS = {"nvl", "pcie"}


def catalogue_rows() -> list[dict[str, str]]:
    """Return the rows of the catalogue as text, using only the standard library."""
    return own_rows(CATALOGUE)


def catalogue_name(reported: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> str:
    """Return the catalogue's name of a device; InvalidInput if none or several match.

    ``reported``: name, compute_capability, sm_count, memory_bytes of the device. Multiprocessors and capability must be
    equal, memory nearly; of several matches, the one whose name shares most words with the device's.
    """
    matching = [
        row
        for row in rows
        if row["compute_capability"] == reported["compute_capability"]
        and int(row["sm_count"]) == reported["sm_count"]
        and abs(float(row["memory_bytes"]) / reported["memory_bytes"] - 1.0) < SAME_MEMORY
    ]
    words = set(_words(reported["name"]))
    shared = [len(words & set(_words(row["name"]))) - len(CARDS & set(_words(row["name"])) - words) for row in matching]
    best = [row["gpu"] for row, count in zip(matching, shared, strict=True) if count == max(shared)]
    if len(best) == 1:
        return best[0]
    device = (
        f"{reported['name']} ({reported['sm_count']} multiprocessors, {rounded(reported['memory_bytes'] / GIB)} GiB)"
    )
    if best:
        raise InvalidInput(f"{device} may be {' or '.join(best)}; choose one with --gpu.")
    raise InvalidInput(
        f"{device} is not in the catalogue; name it with --gpu, and add its row with --gpus when fitting."
    )


def device_row(reported: Mapping[str, Any], gpu: str, rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return a row for ``--gpus``: the values that the device reports, ``like`` the catalogue GPU for the rest.

    A GPU that the catalogue lacks keeps its name.
    """
    vendor = next((row for row in rows if row["gpu"] == gpu), None)
    reported_values = {name: value for name, value in reported.items() if value is not None}
    reported_values["source"] = "read from the device by kernelsight calibrate measure"
    return {"gpu": f"{gpu}_device", "like": gpu, **reported_values} if vendor else {"gpu": gpu, **reported_values}


def remarks(gpu: str, row: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the notes that are printed before a GPU is measured."""
    return unlisted(gpu, rows) + differences(row, rows)


def unlisted(gpu: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a note if a GPU is not in the catalogue."""
    names = [row["gpu"] for row in rows]
    if gpu in names:
        return []
    near = f"; nearest: {', '.join(nearest(gpu, names))}" if nearest(gpu, names) else ""
    advice = "calibrate fit needs its row in --gpus FILE (measure --device-row writes one)"
    return [f"{gpu} is not in the catalogue{near}: {advice}"]


def differences(row: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return one note per value of the device that differs from the catalogue by more than a percent."""
    vendor = next((catalogue_row for catalogue_row in rows if catalogue_row["gpu"] == row.get("like")), {})
    notes = []
    for name, value in row.items():
        catalogue_value = vendor.get(name)
        if isinstance(value, int | float) and catalogue_value and abs(value / float(catalogue_value) - 1.0) > 0.01:
            notes.append(f"{name}: this GPU {number(value, 6)}, the catalogue {number(float(catalogue_value), 6)}")
    return notes


def write_row(row: Mapping[str, Any], path: Path) -> None:
    """Write a device's row as JSON for ``--gpus``."""
    text = json.dumps([dict(row)], indent=1) + "\n"
    with durable_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+|[0-9]+", name.lower())
