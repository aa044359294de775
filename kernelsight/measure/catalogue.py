"""Which GPU of the catalogue runs, and its row of ``gpus`` as the device itself tells it."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelsight.dataflow.durable import durable_file
from kernelsight.errors import InvalidInput, nearest

CATALOGUE = Path(__file__).resolve().parents[1] / "catalog" / "gpus.csv"
# software sees a little less memory than the vendor states
SAME_MEMORY = 0.12
# drivers name these cards as such, and an SXM module by its chip alone
CARDS = {"nvl", "pcie"}


def catalogue_rows() -> list[dict[str, str]]:
    """Return the rows of the catalogue, as text, with the standard library alone."""
    with CATALOGUE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def catalogue_name(told: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> str:
    """Return the catalogue's name of a device; InvalidInput where none or several fit.

    ``told``: name, compute_capability, sm_count, memory_bytes of the device. The multiprocessors and the capability
    have to be equal, the memory nearly; of several, the one whose name shares most words with the device's.
    """
    fitting = [
        row
        for row in rows
        if row["compute_capability"] == told["compute_capability"]
        and int(row["sm_count"]) == told["sm_count"]
        and abs(float(row["memory_bytes"]) / told["memory_bytes"] - 1.0) < SAME_MEMORY
    ]
    words = set(_words(told["name"]))
    shared = [len(words & set(_words(row["name"]))) - len(CARDS & set(_words(row["name"])) - words) for row in fitting]
    best = [row["gpu"] for row, count in zip(fitting, shared, strict=True) if count == max(shared)]
    if len(best) == 1:
        return best[0]
    found = f"{told['name']} ({told['sm_count']} multiprocessors, {told['memory_bytes'] / 2**30:.0f} GiB)"
    if best:
        raise InvalidInput(f"{found} may be {' or '.join(best)}; name it by --gpu.")
    raise InvalidInput(f"{found} is no GPU of the catalogue; name it by --gpu, and give a fit its row by --gpus.")


def row_beside_vendor(told: Mapping[str, Any], gpu: str, rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return a row for ``--gpus``: what the device tells, the catalogue's figures for the rest.

    A GPU that the catalogue lacks keeps its name, by which its sweep calls it.
    """
    vendor = next((row for row in rows if row["gpu"] == gpu), None)
    stated = {name: value for name, value in told.items() if value is not None}
    stated["source"] = "read from the running device by kernelsight calibrate measure"
    return {"gpu": f"{gpu}_device", "like": gpu, **stated} if vendor else {"gpu": gpu, **stated}


def remarks(gpu: str, row: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return what is to be known of a GPU before it is measured, a sentence each."""
    return unlisted(gpu, rows) + differences(row, rows)


def unlisted(gpu: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the sentence that a GPU is not of the catalogue, if it is not.

    >>> unlisted("my_gpu", [{"gpu": "h100_sxm"}])
    ['my_gpu is no GPU of the catalogue: calibrate fit needs its row by --gpus FILE (measure --device-row writes one)']
    """
    known = [row["gpu"] for row in rows]
    if gpu in known:
        return []
    near = f"; nearest: {', '.join(nearest(gpu, known))}" if nearest(gpu, known) else ""
    told = "calibrate fit needs its row by --gpus FILE (measure --device-row writes one)"
    return [f"{gpu} is no GPU of the catalogue{near}: {told}"]


def differences(row: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return where the device differs from the vendor's row by more than a percent, a sentence each."""
    vendor = next((one for one in rows if one["gpu"] == row.get("like")), {})
    found = []
    for name, value in row.items():
        stated = vendor.get(name)
        if isinstance(value, int | float) and stated and abs(value / float(stated) - 1.0) > 0.01:
            found.append(f"{name}: this GPU {value:.6g}, the catalogue {float(stated):.6g}")
    return found


def write_row(row: Mapping[str, Any], path: Path) -> None:
    """Write a device's row as JSON that ``--gpus`` takes."""
    text = json.dumps([dict(row)], indent=1) + "\n"
    with durable_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+|[0-9]+", name.lower())
