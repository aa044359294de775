"""Checks and reads sweep files (Parquet of ``sweep_points``), and lists the GPUs and families in them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.databases import first_line, literal
from kernelsight.errors import InvalidInput, breaks_contract, extra_missing
from kernelsight.files.bounded_files import check_file
from kernelsight.files.parquet_files import check_parquet, read_schema
from kernelsight.fitting.kernel_sweeps import aiconfigurator, plain
from kernelsight.fitting.kernel_sweeps.importing import imported_points
from kernelsight.fitting.kernel_sweeps.points import MEASURED_HERE
from kernelsight.kernels.floors import IN_A_GRAPH, LAUNCH


def check_sweeps(sweeps: Sequence[Path]) -> None:
    """Check sweep files: InvalidInput for one that is missing or not Parquet, ContractBroken for columns or figures."""
    needed = [name for name in contracts()["sweep_points"].schema.names if name not in MEASURED_HERE]
    for path in sweeps:
        check_parquet(path, check_file(path, partial(no_sweep, path)), partial(no_sweep, path))
        columns = read_schema(path, partial(no_sweep, path)).names
        if missing := [name for name in needed if name not in columns]:
            raise breaks_contract("sweep_points", [f"missing column {name}" for name in missing], str(path))
        plain.check_figures(path, columns)


def no_sweep(path: Path, fault: str) -> InvalidInput:
    """Return the error for a file that is not a sweep; ``fault``: why, as a predicate."""
    return InvalidInput(f"file {path} {fault}; `kernelsight calibrate import aiconfigurator -o FILE` writes a sweep.")


def sweep_points(sweeps: Sequence[Path]) -> pa.Table:
    """Return the table ``sweep_points`` of sweep files, or with no files, of the installed package of sweeps.

    InvalidInput: the package (extra ``silicon``) is not installed.
    """
    if not sweeps:
        if importlib.util.find_spec(aiconfigurator.PACKAGE) is None:
            what = "sweep_points without --sweep"
            raise extra_missing(what, "aiconfigurator-core", "silicon", "give --sweep FILE")
        return imported_points(aiconfigurator.read(None, None, None))
    check_sweeps(sweeps)
    return imported_points(batch for path in sweeps for batch in plain.read(path, None, None))


def read_points(sweeps: Sequence[Path]) -> duckdb.DuckDBPyRelation:
    """Return the rows of sweep files that :func:`check_sweeps` has read, which are not held in memory."""
    return duckdb.connect().read_parquet([str(path) for path in sweeps], union_by_name=True)


def measured_families(sweeps: Sequence[Path], gpus: Sequence[str]) -> dict[str, int]:
    """Return the number of rows by family that the sweeps have of these GPUs."""
    counts = (
        read_points(sweeps)
        .filter(f"gpu in ({', '.join(literal(gpu) for gpu in gpus)})")
        .aggregate("family, count(*)", "family")
    )
    return dict(sorted(counts.fetchall()))


def launches_us(sweeps: Sequence[Path]) -> dict[str, float]:
    """Return the median latency in us of empty launches in a CUDA graph, by GPU of the sweeps."""
    of_launches = f"family = '{LAUNCH}' and implementation = '{IN_A_GRAPH}' and not_fitted is null"
    return dict(read_points(sweeps).filter(of_launches).aggregate("gpu, median(latency_us)", "gpu").fetchall())


def measured_gpus(sweeps: Sequence[Path]) -> set[str]:
    """Return the GPUs of the sweeps; InvalidInput: a file cannot be read."""
    try:
        return {gpu for (gpu,) in read_points(sweeps).aggregate("gpu", "gpu").fetchall()}
    except duckdb.Error as error:
        names = ", ".join(map(str, sweeps))
        raise InvalidInput(f"{names} cannot be read as Parquet: {first_line(error)}; write the sweep again.") from None
