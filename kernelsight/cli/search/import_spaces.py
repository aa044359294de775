"""`kernelsight search import`: converts search spaces of kernel tuners to one Parquet file, and counts its rows.

A space is what a kernel tuner measured, or the tuning parameters of a kernel without measurements.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kernelsight.errors import InvalidInput, unknown
from kernelsight.present.output import check_ending, note, print_rows

TUNERS = ("kernel-tuner", "triton", "inductor", "parameters")
SUMMARY = ("file", "space", "family", "gpu", "reason", "rows")


def run(arguments: argparse.Namespace) -> None:
    """Import the files: write their rows, print how many were kept and rejected."""
    from kernelsight.kernels.kernel_names import family_of
    from kernelsight.searching.space_files import write_space
    from kernelsight.searching.tuner_files import COLUMNS, read_tuner_file
    from kernelsight.searching.tuning_parameters import read_parameters

    if arguments.tuner not in TUNERS:
        raise unknown("kernel tuner", arguments.tuner, TUNERS, f"Known: {', '.join(TUNERS)}.")
    declared = arguments.tuner == "parameters"
    if declared and arguments.gpu:
        raise InvalidInput("tuning parameters belong to no GPU: leave out --gpu, and name it in `search run`.")
    target = check_ending(arguments.output, (".parquet",))
    rows, counts = [], []
    for name in arguments.files:
        path = Path(name)
        space = arguments.space_name
        tuner_file = read_parameters(path, space) if declared else read_tuner_file(path, space, arguments.gpu)
        for text in tuner_file.notes:
            note(text)
        spaces = list(dict.fromkeys((row["space"], row["gpu"]) for row in tuner_file.rows)) or [(None, None)]
        for space, gpu in spaces:
            named = {"file": path.name, "space": space, "family": family_of(space or ""), "gpu": gpu}
            kept = sum((row["space"], row["gpu"]) == (space, gpu) for row in tuner_file.rows)
            counts.append(named | {"reason": "kept", "rows": kept})
        file_columns = named if len(spaces) == 1 else {"file": path.name}
        counts += [
            file_columns | {"reason": f"rejected: {reason}", "rows": n} for reason, n in tuner_file.rejected.items()
        ]
        rows += tuner_file.rows
    if not rows:
        raise InvalidInput("no row of these files could be used; give files with measured configurations.")
    if target:
        write_space(rows, COLUMNS, target)
    print_rows(counts, list(SUMMARY), arguments.format)
    read, where_written = sum(row["rows"] for row in counts), f"; written to {target}" if target else ""
    note(f"{read:,} rows read, {len(rows):,} kept, {read - len(rows):,} rejected{where_written}")
