"""Readers of GPU profiles, as time by kernel: Chrome traces of torch.profiler, SQLite exports of Nsight Systems."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from kernelsight.files.row_faults import Faults
from kernelsight.files.sqlite_files import query_sqlite
from kernelsight.kernels.kernel_names import family_column
from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun

MOST = 1e15  # largest plausible time in us (30 years) and number of calls
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_KERNELS = """
select s.value as name, k.deviceId as rank, count(*) as calls, sum(k.end - k.start) as total_ns,
  min(k.start) as first_ns, max(k.end) as last_ns
from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.demangledName
where k.end >= k.start group by s.value, k.deviceId
"""


def _chrome(file: LogFile) -> bool:
    return file.kind == "json" and any(name.startswith("traceEvents[].") for name in file.fields)


def _nsys(file: LogFile) -> bool:
    return file.kind == "sqlite"


def read_chrome_traces(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per trace: GPU time by activity name, us; InvalidInput: no GPU activity."""
    runs = []
    for file in files:
        value = next(documents(file))[1]
        events = value.get("traceEvents") if isinstance(value, Mapping) else None
        rank = value.get("distributedInfo", {}).get("rank", 0) if isinstance(value, Mapping) else 0
        rows = list(_activities(events if isinstance(events, list) else [], rank))
        if not rows:
            raise unusable(file.path, "has no GPU activity", "Profile with CUDA activities.")
        frame = pl.DataFrame(rows, schema=["name", "rank", "start_us", "us"], orient="row")
        runs.append(kernel_run(file, "chrome-trace", frame.group_by("rank", "name").agg(
            pl.len().cast(pl.Float64).alias("calls"), pl.col("us").sum().alias("total_us"),
            pl.col("start_us").min().alias("first_us"), (pl.col("start_us") + pl.col("us")).max().alias("last_us"),
        )))  # fmt: skip
    return runs


def _activities(events: Iterable[Any], rank: int) -> Iterable[tuple[str, int, float, float]]:
    """Yield (name, rank, start us, duration us) of GPU activities."""
    for event in events:
        if isinstance(event, Mapping) and event.get("cat") in _GPU and isinstance(event.get("dur"), (int, float)):
            yield str(event.get("name")), int(rank), float(event.get("ts", 0.0)), float(event["dur"])


def read_nsys(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per database of ``nsys export --type sqlite``: time by demangled kernel name and GPU.

    InvalidInput: not such a database, or without kernels.
    """
    return [_nsys_run(file) for file in files]


def _nsys_run(file: LogFile) -> LogRun:
    """Return the kernels of one database; InvalidInput: not an export of Nsight Systems, or without kernels."""
    with tempfile.TemporaryDirectory() as folder:
        path = file.path
        if file.compressed:
            path = Path(folder) / "profile.sqlite"
            with file.open() as packed, path.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        advice = "Give an export of Nsight Systems with kernels: nsys export --type sqlite."
        rows = query_sqlite(path, _KERNELS, lambda problem: unusable(file.path, problem, advice))
    if not rows:
        raise unusable(file.path, "has no kernels", "Profile with --trace=cuda, and --cuda-graph-trace=node.")
    names = ["name", "rank", "calls", "total_ns", "first_ns", "last_ns"]
    frame = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        pl.col("calls").cast(pl.Float64),
        *((pl.col(f"{name}_ns") / 1e3).alias(f"{name}_us") for name in ("total", "first", "last")),
    )
    return kernel_run(file, "nsys", frame)


def kernel_run(file: LogFile, name: str, frame: pl.DataFrame) -> LogRun:
    """Return a run of kernels with families; ``span_us``: from the first start to the last end on a rank."""
    run = LogRun(file, name)
    span = (pl.col("last_us").max() - pl.col("first_us").min()).over("rank")
    kernels = frame.select(
        "rank", "name", "calls", "total_us", span.alias("span_us"), pl.lit("all").alias("step_shape")
    )
    run.kernels = with_families(kernels, run.faults).sort("rank", "total_us", "name", descending=[False, True, False])
    return run


def with_families(kernels: pl.DataFrame, faults: Faults, names: str = "name") -> pl.DataFrame:
    """Return kernels with the column ``family``, by their names in the column ``names``.

    Kernels whose rank, calls or time is negative or above MOST are dropped, and counted in ``faults`` as
    impossible_kernel; those without a family as no_family.
    """
    figures = [name for name in ("total_us", "span_us", "rank", "calls") if name in kernels.columns]
    is_possible = pl.all_horizontal(
        pl.lit(True), *(pl.col(name).cast(pl.Float64).fill_null(0.0).is_between(0.0, MOST) for name in figures)
    )
    impossible = kernels.filter(~is_possible)
    faults.add("impossible_kernel", impossible.height, impossible["name"].first() if impossible.height else None)
    possible = kernels.filter(is_possible).with_columns(family_column(names))
    unknown = possible.filter(pl.col("family").is_null())
    faults.add("no_family", unknown.height, unknown["name"].first() if unknown.height else None)
    return possible


CHROME = LogFormat("chrome-trace", "kernels", "a Chrome trace of torch.profiler", _chrome, read_chrome_traces)
NSYS = LogFormat("nsys", "kernels", "nsys export --type sqlite", _nsys, read_nsys)
