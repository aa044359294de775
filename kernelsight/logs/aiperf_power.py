"""Reader of GPU power in AIPerf's ``gpu_telemetry_export.jsonl``: one record per GPU and sample.

Field names: ``TelemetryRecord`` of aiperf 0.13.0 (``aiperf/common/models/telemetry_models.py``), and those of earlier
versions that it still reads (``gpu_telemetry/constants.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from kernelsight.logs.files import LogFile, unusable
from kernelsight.logs.json_rows import json_rows
from kernelsight.logs.log_run import LogFormat, LogRun
from kernelsight.logs.windows import POWER, windows_of

NAME = "aiperf-power"
# fields with power in W: of NVIDIA's GPUs, of these before 0.12, of AMD's
_POWER = ("nvidia_power_usage", "gpu_power_usage", "amd_power")
_FIELDS = {
    **{"timestamp_ns": "BIGINT", "gpu_uuid": "VARCHAR", "gpu_index": "BIGINT", "hostname": "VARCHAR"},
    **{"telemetry_source_url": "VARCHAR", "dcgm_url": "VARCHAR"},
    "telemetry_data": f"STRUCT({', '.join(f'{name} DOUBLE' for name in _POWER)})",
}
_COLUMNS = f"""
coalesce(hostname, telemetry_source_url, dcgm_url, 'GPUs') as replica, coalesce(gpu_uuid, gpu_index::varchar) as labels,
  timestamp_ns / 1e9 as time, coalesce({", ".join(f"telemetry_data.{name}" for name in _POWER)}) as value
"""


def _recognises(file: LogFile) -> bool:
    power = {f"telemetry_data.{name}" for name in _POWER}
    return file.kind == "json" and "timestamp_ns" in file.fields and bool(power & file.fields)


def read_aiperf_power(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per file, with windows between consecutive samples of a machine: mean power of all its GPUs.

    Unix times. InvalidInput: no GPU has two samples.
    """
    return [_run(file) for file in files]


def _run(file: LogFile) -> LogRun:
    run = LogRun(file, NAME, clock="unix")
    rows = json_rows(file, _FIELDS, _COLUMNS, "timestamp_ns is not null", run.faults)
    good = rows.filter(pl.col("value").is_finite() & (pl.col("value") >= 0.0))
    run.faults.add("unreadable_value", rows.height - good.height, _POWER[0])
    samples = good.select(pl.lit(POWER[0]).alias("metric"), "replica", "labels", "time", "value")
    run.windows = windows_of(samples, run.faults, True)
    if not run.windows.height:
        advice = "Collect for longer than one interval of --gpu-telemetry."
        raise unusable(file.path, "has no two samples of the power of a GPU", advice)
    return run


FORMAT = LogFormat(
    NAME, "metrics", "aiperf profile --gpu-telemetry (gpu_telemetry_export.jsonl)", _recognises, read_aiperf_power
)
