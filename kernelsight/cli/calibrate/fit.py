"""`kernelsight calibrate fit`: fits the kernel model to measured sweeps, and writes its constants as a pack."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kernelsight.catalog.gpu_names import plain_gpus
from kernelsight.cli.options import open_session
from kernelsight.errors import InvalidInput, RunFailed, unknown

if TYPE_CHECKING:
    import pyarrow as pa


def run(arguments: argparse.Namespace) -> None:
    """Fit, write the pack, and print its number of rows per kernel family and part."""
    from kernelsight.catalog.tables import facts
    from kernelsight.cli.calibrate.import_sweeps import sweep_paths
    from kernelsight.fitting.few_shot import fit_few
    from kernelsight.fitting.pack_fit import fit_pack
    from kernelsight.fitting.sweep_files import check_sweeps, measured_gpus
    from kernelsight.fitting.vendors import onto
    from kernelsight.kernels.families import MEASURED
    from kernelsight.present.output import check_ending, print_rows
    from kernelsight.present.progress import Waiting

    target = check_ending(arguments.output, (".parquet",))
    if target is None:
        raise InvalidInput("calibrate fit needs -o FILE, the Parquet file to write the kernel model to.")
    sweeps = sweep_paths(arguments.few or arguments.sweep, getattr(arguments, "columns", None))
    if arguments.few and not arguments.onto:
        raise InvalidInput("--few corrects a kernel model; give it by --onto, a file, or default.")
    check_sweeps(sweeps)
    measured, gpu_rows = sorted(measured_gpus(sweeps)), _known_gpus(arguments)
    _refuse_unusable(sweeps, measured, gpu_rows["gpu"].to_pylist())
    gpus = _listed(",".join(plain_gpus(arguments.train_gpus)), measured, "GPU", "The sweeps have rows of") or measured
    families = _listed(arguments.families, list(MEASURED), "kernel family", "Measured families are")
    base = _base(arguments.onto)
    tables = (gpu_rows, facts("fabrics"), facts("kernel_implementations"))
    with Waiting("fitting") as waiting:
        if arguments.few:
            pack = fit_few(sweeps, gpus, base, *tables, families=families or None, log=waiting)
        else:
            pack = fit_pack(sweeps, gpus, *tables, families=families or None, base=base, log=waiting)
            pack = pack if base is None else onto(base, pack, gpu_rows)
    keep_pack(pack, target)
    counts = pack.group_by(["family", "part"]).aggregate([([], "count_all")]).sort_by([("family", "ascending")])
    rows = [{"family": row["family"], "part": row["part"], "rows": row["count_all"]} for row in counts.to_pylist()]
    print_rows(rows, ["family", "part", "rows"], arguments.format)


def _base(base: str | None) -> pa.Table | None:
    """Return the kernel model that --onto names: a pack file, or the shipped one (default)."""
    from kernelsight.kernels.pack import read_pack, shipped_pack

    return None if base is None else shipped_pack() if base == "default" else read_pack(Path(base))


def keep_pack(pack: pa.Table, target: Path) -> None:
    """Write a fitted kernel model; if that fails, to the temporary folder, and raise RunFailed with its path."""
    from kernelsight.fitting.pack_rows import write_pack

    try:
        write_pack(pack, target)
    except RunFailed as error:  # a full disk must not lose half an hour of fitting
        fallback = Path(tempfile.gettempdir()) / f"kernelsight-{os.getpid()}-{target.name}"
        write_pack(pack, fallback)
        raise RunFailed(f"{error} The kernel model is in {fallback}; move it where there is space.") from None


def _known_gpus(arguments: argparse.Namespace) -> pa.Table:
    """Return the GPUs of the catalogue and of --gpus FILE."""
    from kernelsight.catalog.tables import facts

    if not arguments.gpus:
        return facts("gpus")

    with open_session(arguments) as session:
        return session.table("gpus")


def _refuse_unusable(sweeps: list[Path], measured: list[str], gpu_names: list[str]) -> None:
    """Raise an error for sweeps without rows, of unknown GPUs, or with latencies that are not positive numbers."""
    from kernelsight.fitting.sweep_files import read_points

    if not measured:
        raise InvalidInput(f"{sweeps[0]} has no rows; give a sweep with measured kernels.")
    for gpu in measured:
        if gpu not in gpu_names:
            raise unknown("GPU", gpu, gpu_names, "The GPUs of a sweep must be in the catalogue or in --gpus.")
    wrong = "not isfinite(latency_us) or latency_us <= 0"
    count = read_points(sweeps).filter(wrong).aggregate("count(*)").fetchall()[0][0]
    if count:
        raise InvalidInput(
            f"{count:,} rows have a latency that is not a positive number; `kernelsight calibrate import parquet` "
            "removes such rows and counts them."
        )


def _listed(text: str | None, allowed: list[str], kind: str, found: str) -> list[str]:
    """Return the names of a comma-separated list; UnknownName: one that is not allowed, with ``found`` and these."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in allowed:
            raise unknown(kind, name, allowed, f"{found} {', '.join(allowed)}.")
    return names
