"""Reader of forward-pass metrics (FPM): JSON lines with one record per engine step, plain or in Dynamo's trace."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from kernelsight.logs.files import LogFile, unusable
from kernelsight.logs.json_rows import json_rows
from kernelsight.logs.log_run import LogFormat, LogRun

NAME = "fpm"
VERSION = 1
_COUNTS = "num_prefill_requests BIGINT, sum_prefill_tokens BIGINT, sum_prefill_kv_tokens BIGINT, "
_COUNTS += "num_decode_requests BIGINT, sum_decode_kv_tokens BIGINT"
_RECORD = {
    "version": "BIGINT",
    "worker_id": "VARCHAR",
    "dp_rank": "BIGINT",
    "counter_id": "BIGINT",
    "wall_time": "DOUBLE",
    "scheduled_requests": f"STRUCT({_COUNTS})",
    "queued_requests": "STRUCT(num_prefill_requests BIGINT, num_decode_requests BIGINT)",
}
# columns of a record that are counts
_COUNTED = (
    *("prefill_requests", "prefill_tokens", "prefill_cached_tokens", "decode_requests", "decode_context_tokens"),
    "queued_requests",
)
_FPM = ", ".join(f"{name} {kind}" for name, kind in _RECORD.items())
_FIELDS = {**_RECORD, "event": f"STRUCT(capture_mode VARCHAR, observed_at_unix_ms BIGINT, fpm STRUCT({_FPM}))"}
_COLUMNS = """
event.capture_mode as mode, event.observed_at_unix_ms / 1e3 as at_s, coalesce(event.fpm, {
  'version': version, 'worker_id': worker_id, 'dp_rank': dp_rank, 'counter_id': counter_id, 'wall_time': wall_time,
  'scheduled_requests': scheduled_requests, 'queued_requests': queued_requests}) as fpm,
(fpm).version as fpm_version, coalesce(nullif((fpm).worker_id, '') || '/', '') || coalesce((fpm).dp_rank, 0) as replica,
(fpm).counter_id as step, 1e6 * (fpm).wall_time as wall_us, 'schedule_to_update' as clock,
coalesce((fpm).scheduled_requests.num_prefill_requests, 0) as prefill_requests,
coalesce((fpm).scheduled_requests.sum_prefill_tokens, 0) as prefill_tokens,
(fpm).scheduled_requests.sum_prefill_kv_tokens as prefill_cached_tokens,
coalesce((fpm).scheduled_requests.num_decode_requests, 0) as decode_requests,
(fpm).scheduled_requests.sum_decode_kv_tokens as decode_context_tokens,
(fpm).queued_requests.num_prefill_requests + coalesce((fpm).queued_requests.num_decode_requests, 0) as queued_requests
"""


def _recognises(file: LogFile) -> bool:
    record = {"wall_time", "scheduled_requests", "scheduled_requests.num_prefill_requests"}
    return file.kind == "json" and (record <= file.fields or {f"event.fpm.{name}" for name in record} <= file.fields)


def read_fpm(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run of engine steps per file; records of an idle engine are dropped.

    The engine, which the file does not state, sets the span of wall_us: from schedule to update in vLLM, of the GPU in
    SGLang, of an iteration in TensorRT-LLM. InvalidInput: records of another version than 1.
    """
    return [_run(file) for file in files]


def _run(file: LogFile) -> LogRun:
    run = LogRun(file, NAME)
    condition = "coalesce(event.fpm.wall_time, wall_time) is not null"
    frame = json_rows(file, _FIELDS, _COLUMNS, condition, run.faults)
    versions = frame["fpm_version"].drop_nulls().unique().sort().to_list()
    if any(version != VERSION for version in versions):
        versions_text = ", ".join(str(version) for version in versions)
        raise unusable(file.path, f"has forward-pass metrics of version {versions_text}", "Version 1 is read.")
    if frame["at_s"].null_count() < frame.height:
        run.clock = "unix"
    has_no_step = (pl.col("step").is_null() | (pl.col("step") == 0)).all().over("replica")
    order = pl.int_range(pl.len()).over("replica")
    frame = frame.with_columns(pl.when(has_no_step).then(order).otherwise(pl.col("step")).alias("step"))
    rules = (
        ("idle_heartbeat", (pl.col("wall_us") == 0) & (pl.col("prefill_requests") + pl.col("decode_requests") == 0)),
        ("empty_step", ~(pl.col("wall_us") > 0) | ~pl.col("wall_us").is_finite() | pl.col("step").is_null()),
        ("negative_count", pl.any_horizontal(pl.col(name) < 0 for name in _COUNTED).fill_null(False)),
        ("duplicate_step", ~pl.struct("replica", "step").is_first_distinct()),
    )
    for rule, is_dropped in rules:
        dropped = frame.filter(is_dropped)
        run.faults.add(rule, dropped.height, f"line {dropped['line'][0]}" if dropped.height else None)
        frame = frame.filter(~is_dropped)
    run.faults.add("sampled", frame.filter(pl.col("mode") == "sampled").height)
    run.faults.add("clock_of_steps", frame.height)
    run.steps = frame.drop("line", "mode", "fpm", "fpm_version")
    return run


FORMAT = LogFormat(NAME, "steps", "forward-pass metrics (DYN_FPM_TRACE=1, DYN_FPM_MODE=full)", _recognises, read_fpm)
