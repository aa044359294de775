"""``search import``: converts search spaces that a kernel tuner measured to one Parquet file, and counts its rows."""

from __future__ import annotations

import argparse
from pathlib import Path

from kernelsight.cli.options import add_output
from kernelsight.errors import InvalidInput, unknown
from kernelsight.report.output import check_ending, note, print_rows

TUNERS = ("kernel-tuner",)
SUMMARY = ("file", "space", "gpu", "reason", "rows")


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.add_argument("tuner", metavar="TUNER", help="kernel-tuner: its cache files and T4 results, .gz too")
    verb.add_argument("files", nargs="+", metavar="FILE", help="files that the tuner wrote")
    verb.add_argument("--space-name", metavar="NAME", help="name of the search space (default: the file's own)")
    verb.add_argument("--gpu", metavar="G", help="name of the GPU (default: the file's own)")
    add_output(verb, "file to write the search spaces to: .parquet")


def run(arguments: argparse.Namespace) -> None:
    """Import the files: write their rows, print how many were kept and rejected."""
    from kernelsight.read.tuner_files import COLUMNS, read_tuner_file
    from kernelsight.searching.space_files import write_space

    if arguments.tuner not in TUNERS:
        raise unknown("kernel tuner", arguments.tuner, TUNERS, f"Known: {', '.join(TUNERS)}.")
    target = check_ending(arguments.output, (".parquet",))
    rows, counts = [], []
    for name in arguments.files:
        found = read_tuner_file(Path(name), arguments.space_name, arguments.gpu)
        for text in found.notes:
            note(text)
        names = {(row["space"], row["gpu"]) for row in found.rows} or {(None, None)}
        space, gpu = names.pop()
        first = {"file": Path(name).name, "space": space, "gpu": gpu}
        counts.append(first | {"reason": "kept", "rows": len(found.rows)})
        counts += [first | {"reason": f"rejected: {reason}", "rows": n} for reason, n in found.rejected.items()]
        rows += found.rows
    if not rows:
        raise InvalidInput("no row of these files could be used; give files with measured configurations.")
    if target:
        write_space(rows, COLUMNS, target)
    print_rows(counts, list(SUMMARY), arguments.format)
    read, place = sum(row["rows"] for row in counts), f"; written to {target}" if target else ""
    note(f"{read:,} rows read, {len(rows):,} kept, {read - len(rows):,} rejected{place}")
