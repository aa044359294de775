"""Reader of GPU power tables, as ``nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv`` writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb
import polars as pl

from kernelsight.dataflow.databases import cursor_for_values, first_line, quote
from kernelsight.logs.files import DAMAGED, LogFile, unusable
from kernelsight.logs.log_run import LogFormat, LogRun
from kernelsight.logs.plain import EARLIEST_UNIX, count_ragged, csv_source
from kernelsight.logs.windows import POWER, windows_of

NAME = "power-table"
TIMES = ("at_s", "time_s", "time", "timestamp")
GPUS = ("gpu", "index", "uuid", "gpu_uuid", "pci.bus_id")
_POWER = re.compile(r"(power_w|power\.draw(\.instant|\.average)?( \[W\])?)")
# time format of nvidia-smi, in the machine's own zone, which it does not state
LOCAL_TIME = "%Y/%m/%d %H:%M:%S.%f"


def _column(file: LogFile, names: Sequence[str]) -> str | None:
    """Return the first of ``names`` that is a column of the file."""
    return next((name for name in names if name in file.columns), None)


def _power_column(file: LogFile) -> str | None:
    return next((name for name in file.columns if _POWER.fullmatch(name)), None)


def _recognises(file: LogFile) -> bool:
    return file.kind == "text" and bool(_power_column(file) and _column(file, TIMES))


def read_power(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per file, with windows between consecutive samples: mean power of all GPUs of the file.

    Times are unix seconds, dates with a zone, or local times of nvidia-smi, which count from the first one.
    InvalidInput: no GPU has two samples.
    """
    return [_run(file) for file in files]


def _run(file: LogFile) -> LogRun:
    run = LogRun(file, NAME)
    time, power, gpu = _column(file, TIMES), _power_column(file), _column(file, GPUS)
    assert time and power
    connection = cursor_for_values()
    try:
        connection.execute(f"create temp view given as select * from {csv_source(file)}")
        time_text, power_text = f"trim({quote(time)})", f"trim({quote(power)})"
        query = f"""
          select
            coalesce(try_cast({time_text} as double), epoch(try_cast({time_text} as timestamptz))) as time,
            epoch(try_strptime({time_text}, '{LOCAL_TIME}')) as local_time,
            try_cast(regexp_replace({power_text}, '\\s*W$', '') as double) as value,
            {f"trim({quote(gpu)})" if gpu else "'0'"} as labels
          from given
        """
        rows = connection.sql(query).pl()
        count_ragged(connection, file, run)
    except duckdb.Error as problem:
        raise unusable(file.path, f"cannot be read as a table ({first_line(problem)})", DAMAGED) from None
    finally:
        connection.close()
    zoned = rows["local_time"].null_count() == rows.height
    rows = rows.with_columns(pl.col("time") if zoned else pl.col("local_time").alias("time"))
    good = rows.filter(pl.col("time").is_finite() & pl.col("value").is_finite() & (pl.col("value") >= 0))
    run.faults.add("unreadable_value", rows.height - good.height, power)
    samples = good.select(
        pl.lit(POWER[0]).alias("metric"), pl.lit(f"GPUs of {file.name}").alias("replica"), "labels", "time", "value"
    )
    samples = samples.with_columns(pl.col("time").round(0) if gpu and not zoned else pl.col("time"))
    if good.height:
        run.clock = "unix" if zoned and good["time"].min() >= EARLIEST_UNIX else "none"
        run.windows = windows_of(samples, run.faults, True)
    if run.windows is None or not run.windows.height:
        advice = "Give samples of several moments: a time, a GPU and its power in W a row."
        raise unusable(file.path, "has no two samples of a GPU", advice)
    return run


FORMAT = LogFormat(NAME, "metrics", "a CSV of GPU power over time, such as nvidia-smi's", _recognises, read_power)
