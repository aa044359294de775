"""`kernelsight calibrate import`: converts kernel sweeps and profiles to a Parquet file of ``sweep_points``."""

from __future__ import annotations

import argparse
import atexit
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernelsight.catalog.gpu_names import plain_gpus
from kernelsight.cli.options import columns
from kernelsight.errors import InvalidInput
from kernelsight.files.parquet_files import read_schema
from kernelsight.fitting.kernel_sweeps.devices import SEALED
from kernelsight.fitting.kernel_sweeps.importing import SUMMARY, import_sweep
from kernelsight.fitting.kernel_sweeps.sources import SEVERAL_PATHS, reader
from kernelsight.fitting.sweep_files import no_sweep
from kernelsight.present.output import check_ending, note, print_rows

if TYPE_CHECKING:
    from kernelsight.fitting.kernel_sweeps.points import Batch

PROFILE = "profile"


def run(arguments: argparse.Namespace) -> int:
    """Import one source: write the sweep, print the rows read, kept and rejected."""
    target = check_ending(arguments.output, (".parquet",))
    if arguments.source == PROFILE:
        batches = _profiles(arguments)
    else:
        read_source, paths = reader(arguments.source), _paths(arguments.source, arguments.path)
        batches = read_source(paths, frozenset(plain_gpus(arguments.gpus)) or None, _names(arguments.families))
    rows, unlisted, unread = import_sweep(batches, target, refuse_empty=arguments.source == PROFILE)
    print_rows(rows, list(SUMMARY), arguments.format)
    read, kept, points = (sum(row[name] or 0 for row in rows) for name in ("read", "kept", "points"))
    where_written = f"; written to {target}" if target else ""
    note(f"{read:,} rows read, {kept:,} kept as {points:,} points, {read - kept:,} rejected{where_written}")
    if unlisted:
        note(f"kernels not in the table kernel_sources, imported by their own name: {', '.join(sorted(unlisted))}")
    if unread:
        note(f"columns of the files that are not known, and were not read: {', '.join(sorted(unread))}")
    if arguments.source == "aisimulate" and not arguments.gpus:
        note(f"{' and '.join(SEALED)} are held out for the final evaluation and not read; --gpus names them")
    return 0


def sweep_paths(names: Sequence[str], mapped: list[str] | None = None) -> list[Path]:
    """Return sweeps as Parquet files; a CSV, JSON or mapped table of kernels is imported into a temporary folder.

    ``mapped``: the words of --columns.
    """
    from kernelsight.logs.profile_points import profile_points

    paths = []
    for path in map(Path, names):
        is_table = path.suffix.lower() in (".csv", ".json")
        if path.suffix.lower() == ".parquet" and path.is_file():
            is_table = "shape" not in read_schema(path, partial(no_sweep, path)).names
        if (mapped or is_table) and path.exists():
            folder = Path(tempfile.mkdtemp(prefix="kernelsight-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            batches = profile_points([path], None, columns(mapped))
            rows, *_ = import_sweep(batches, folder / f"{path.stem}.parquet", refuse_empty=True)
            kept = sum(row["kept"] or 0 for row in rows)
            note(f"{path}: {kept:,} rows kept of {sum(row['read'] or 0 for row in rows):,}")
            path = folder / f"{path.stem}.parquet"
        paths.append(path)
    return paths


def _profiles(arguments: argparse.Namespace) -> Iterator[Batch]:
    """Return the measured kernels of profiles; --gpus is the GPU that they were made on."""
    from kernelsight.logs.profile_points import profile_points

    if not arguments.path:
        raise InvalidInput("profile needs PATH: a torch.profiler trace, or a table of kernels with --columns.")
    paths = _paths(PROFILE, arguments.path)
    families = _names(arguments.families)
    batches = profile_points(paths if isinstance(paths, list) else [paths], arguments.gpus, columns(arguments.columns))
    return (batch for batch in batches if families is None or batch.family in families)


def _paths(source: str, words: Sequence[str]) -> Path | list[Path] | None:
    """Return the paths of the command as the source's reader takes them; InvalidInput: missing files, or too many."""
    paths = [Path(name) for name in words]
    for path in paths:
        if not path.exists():
            raise InvalidInput(f"PATH {str(path)!r} does not exist.")
    if len(paths) > 1 and source not in (*SEVERAL_PATHS, PROFILE):
        raise InvalidInput(f"{source} reads one PATH, and {len(paths)} are given; import them one after the other.")
    return paths if len(paths) > 1 else (paths[0] if paths else None)


def _names(words: str | None) -> frozenset[str] | None:
    return None if words is None else frozenset(name.strip() for name in words.split(",") if name.strip())
