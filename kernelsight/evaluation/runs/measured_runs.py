"""Reader of measured end-to-end runs: files of ``measured_runs``.

A checkout reads the files and folders of published campaigns too (``kernelsight.laboratory.runs.sources``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from kernelsight import laboratory
from kernelsight.catalog.tables import contracts, from_rows, read_columns, renamed
from kernelsight.dataflow.contract import conform
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import check_file, open_file
from kernelsight.files.budget import ROWS, SETTINGS
from kernelsight.files.parquet_files import read_parquet
from kernelsight.files.row_files import cells_of
from kernelsight.fitting.kernel_sweeps.devices import SEALED
from kernelsight.scenario.flags import ALIASES
from kernelsight.serving.load.trace_formats import MOST_FIELDS

AICONFIGURATOR = "aiconfigurator"
ENDINGS = (".csv", ".parquet")
# other names of columns: in older files, of flags and of clients' results
FORMER = {flag: name for name in ("tp", "pp", "dp", "ep", "isl", "osl") if (flag := ALIASES[name])}
FORMER |= {"harness": "campaign", "ttft_mean_ms": "ttft_ms", "tpot_mean_ms": "tpot_ms"}
HELD_OUT = "GPU held out for the final evaluation"


class Runs(NamedTuple):
    """Rows of ``measured_runs`` to simulate, number of rows read, and exclusions: (reason, number of rows)."""

    table: pa.Table
    read: int
    excluded: list[tuple[str, int]]


def read_runs(*sources: str) -> Runs:
    """Return the measured runs of files and folders; ``aiconfigurator``: those shipped in the installed package.

    A file is a Parquet or CSV of ``measured_runs``, in a checkout also a CSV with the columns of a published campaign;
    a folder holds such files. Runs on held-out GPUs are excluded and counted. InvalidInput: none of these, or a run
    that is read twice.
    """
    sources_read = [source_runs for source in sources for source_runs in _runs_of_source(source)]
    table = pa.concat_tables(source_runs.table for source_runs in sources_read)
    run_ids, duplicates = set(), []
    for name in table["run_id"].to_pylist():
        duplicates += [name] if name in run_ids else []
        run_ids.add(name)
    if duplicates:
        raise InvalidInput(f"run {duplicates[0]!r} is in --runs twice; name each file once, and each run differently.")
    counted: dict[str, int] = {}
    for reason, count in (exclusion for source_runs in sources_read for exclusion in source_runs.excluded):
        counted[reason] = counted.get(reason, 0) + count
    return Runs(table, sum(source_runs.read for source_runs in sources_read), list(counted.items()))


def _runs_of_source(source: str) -> list[Runs]:
    """Return the runs of each file of a path, or of the installed package."""
    if source == AICONFIGURATOR:
        published = laboratory.part("runs.sources.aiconfigurator", "--runs aiconfigurator")
        return [_read_file(published.shipped_file())]
    path = Path(source)
    if not path.is_dir():
        return [_read_file(path)]
    if laboratory.is_here() and (runs := laboratory.part("runs.sources", "").read_folder(path)):
        return [_unsealed(runs)]
    files = [file for file in sorted(path.iterdir()) if file.suffix in ENDINGS and not _describes_workloads(file)]
    if not files:
        raise _refusal(path, "holds no such file")
    return [_read_file(file) for file in files]


def _describes_workloads(path: Path) -> bool:
    """Whether a file only describes the workloads of another file."""
    header = set(_header(path)) if path.suffix == ".csv" else set()
    return any(source.workloads and header >= source.workloads for source in _published())


def _published() -> tuple[Any, ...]:
    """Return the sources of published campaigns: columns by which a file is recognised, and its reader."""
    return laboratory.part("runs.sources", "").SOURCES if laboratory.is_here() else ()


def _header(path: Path) -> list[str]:
    """Return the column names of a CSV file."""
    with open_file(path, lambda problem: _refusal(path, problem), ROWS) as file:
        cells = cells_of(file.readline(SETTINGS.bytes).decode("utf-8-sig", "replace"))
    if len(cells) > MOST_FIELDS:
        raise _refusal(path, f"has {len(cells):,} columns, more than {MOST_FIELDS:,}")
    return cells


def _refusal(path: Path, problem: str) -> InvalidInput:
    takes = "--runs takes aiconfigurator, or a .csv or .parquet file of measured_runs or of a known source, or a folder"
    return InvalidInput(f"file {path} {problem}; {takes}.")


def _read_file(path: Path) -> Runs:
    """Return the runs of one file; InvalidInput: it cannot be read as ``measured_runs`` or a known source."""
    check_file(path, lambda problem: _refusal(path, problem), ROWS)
    if path.suffix not in ENDINGS:
        raise InvalidInput(f"{path} ends in {path.suffix!r}; --runs takes a .csv or .parquet file of measured_runs.")
    # pyarrow refuses damaged Parquet files at which polars panics
    rows = read_parquet(path, lambda problem: _refusal(path, problem)) if path.suffix == ".parquet" else None
    try:
        if rows is None:
            header = set(_header(path))
            for source in _published():
                if header >= source.columns:
                    return _unsealed(source.read(path))
        contract = contracts()["measured_runs"]
        rows = read_columns(path, contract, FORMER) if rows is None else renamed(rows, FORMER)
        table = conform(_with_defaults(rows, path), contract, origin=path.name)
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError, ValueError) as error:
        raise _refusal(path, f"cannot be read ({str(error).splitlines()[0].rstrip('.')})") from None
    return _unsealed(Runs(table, table.num_rows, []))


def _with_defaults(rows: pa.Table, path: Path) -> pa.Table:
    """Return rows with the columns that a file may lack: sizes of 1, and the name of the file."""
    defaults = {"campaign": path.stem, **dict.fromkeys(("pp", "dp", "ep", "workers"), 1), "source": path.name}
    for name, value in defaults.items():
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def runs_of(rows: list[dict[str, Any]], excluded: list[tuple[str, int]], path: Path) -> Runs:
    """Return the rows of a source as runs; ``excluded``: (reason, number of rows) of others; ``path``: of its file."""
    contract = contracts()["measured_runs"]
    table = conform(from_rows(rows, contract), contract, origin=path.name)
    return Runs(table, table.num_rows + sum(count for _, count in excluded), excluded)


def _unsealed(runs: Runs) -> Runs:
    """Return the runs without those on held-out GPUs, which are counted as excluded."""
    sealed = pa.compute.is_in(runs.table["gpu"], pa.array(SEALED))
    counted = pa.compute.sum(sealed).as_py() or 0
    final_only = [(HELD_OUT, counted)] if counted else []
    return Runs(runs.table.filter(pa.compute.invert(sealed)), runs.read, [*runs.excluded, *final_only])
