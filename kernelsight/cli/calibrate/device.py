"""`kernelsight calibrate device`: prints the properties of the local GPU next to its catalogue row."""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.cli.calibrate import measure

COLUMNS = ("what", "this_gpu", "catalogue")


def run(arguments: argparse.Namespace) -> None:
    """Print the device's properties next to the catalogue's, its state and libraries; with -o write a --gpus row."""
    from kernelsight.measure.catalogue import catalogue_rows, unlisted, write_row
    from kernelsight.measure.library_kernels import LIBRARY_KERNELS
    from kernelsight.present.output import check_ending, note, print_rows

    target = check_ending(arguments.output, (".json",))
    device = measure.open_device(arguments)
    identity, state = device.identity(), device.readings()
    rows = comparison(identity.row, catalogue_rows())
    readings = {
        "driver": identity.driver,
        **identity.versions,
        "sm_clock_now_hz": state.sm_clock_hz,
        "temperature_c": state.temperature_c,
        "limited_by": " ".join(sorted(state.limits)) or None,
        **{kernel.distribution: installed(kernel.distribution) for kernel in LIBRARY_KERNELS.values()},
    }
    rows += [{"what": name, "this_gpu": _text(value), "catalogue": ""} for name, value in readings.items()]
    print_rows(rows, list(COLUMNS), arguments.format)
    for line in unlisted(identity.gpu, catalogue_rows()):
        note(line)
    if target:
        write_row(identity.row, target)
        note(f"{identity.row['gpu']} written to {target}; use it with --gpus in predict, simulate and calibrate fit")


def comparison(row: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return a row for each property that the device reports, with the value of its catalogue GPU (``like``)."""
    base = next((catalogue_row for catalogue_row in rows if catalogue_row["gpu"] == row.get("like")), {})
    return [
        {"what": name, "this_gpu": _text(value), "catalogue": _text(base.get(name))}
        for name, value in row.items()
        if name not in ("gpu", "like", "source")
    ]


def installed(distribution: str) -> str:
    """Return the version of an installed distribution.

    >>> installed("no-such-library")
    'not installed'
    """
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)
