"""``calibrate import``: converts measured sweeps to one Parquet file of ``sweep_points``, and counts rejected rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from kernelsight.cli.options import add_families, add_output
from kernelsight.errors import InvalidInput, unknown
from kernelsight.read.sweeps.importing import SUMMARY, import_sweep
from kernelsight.read.sweeps.sources import READERS
from kernelsight.report.output import check_ending, note, print_rows


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.add_argument("source", metavar="SOURCE", help="aiconfigurator, neusight, vidur, llmservingsim or parquet")
    verb.add_argument(
        "path", nargs="?", metavar="PATH", help="file or folder of the data (default: the installed package)"
    )
    verb.add_argument("--gpus", metavar="A,B", help="only these GPUs (default: all)")
    add_families(verb)
    add_output(verb, "file to write the sweep to: .parquet")


def run(arguments: argparse.Namespace) -> int:
    """Import one source: write the sweep, print the rows read, kept and rejected."""
    if arguments.source not in READERS:
        raise unknown("source of sweeps", arguments.source, READERS, f"Known: {', '.join(READERS)}.")
    target = check_ending(arguments.output, (".parquet",))
    path = Path(arguments.path) if arguments.path else None
    if path is not None and not path.exists():
        raise InvalidInput(f"PATH {str(path)!r} does not exist.")
    batches = READERS[arguments.source](path, _names(arguments.gpus), _names(arguments.families))
    rows, unlisted = import_sweep(batches, target)
    print_rows(rows, list(SUMMARY), arguments.format)
    read, kept, points = (sum(row[name] or 0 for row in rows) for name in ("read", "kept", "points"))
    place = f"; written to {target}" if target else ""
    note(f"{read:,} rows read, {kept:,} kept as {points:,} points, {read - kept:,} rejected{place}")
    if unlisted:
        note(f"kernels not in the table kernel_sources, imported by their own name: {', '.join(sorted(unlisted))}")
    return 0


def _names(stated: str | None) -> frozenset[str] | None:
    return None if stated is None else frozenset(name.strip() for name in stated.split(",") if name.strip())
