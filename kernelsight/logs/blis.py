"""Reader of BLIS's TraceV2: a CSV file with one row per request, and its YAML header if given."""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb
import polars as pl

from kernelsight.dataflow.databases import cursor_for_values, first_line
from kernelsight.logs.files import DAMAGED, LogFile, unusable
from kernelsight.logs.log_run import LogFormat, LogRun
from kernelsight.logs.plain import count_ragged, csv_source

NAME = "blis"
_TIMES = {"arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us"}
_HEADER = re.compile(r"^trace_version: *\d+", re.MULTILINE)
_WARM_UP = re.compile(r"^warm_up_requests: *(\d+)", re.MULTILINE)
_MODE = re.compile(r"^mode: *\"?(\w+)", re.MULTILINE)
_QUERY = """
select request_id::varchar as external_id, nullif(session_id, '') as session_id, round_index::bigint as turn,
  arrival_time_us::bigint / 1e6 as arrival_s, nullif(send_time_us::bigint, 0) / 1e6 as sent_s,
  coalesce(nullif(server_input_tokens::bigint, 0), input_tokens::bigint) as prompt_tokens,
  output_tokens::bigint as output_tokens,
  case when server_input_tokens::bigint > 0 then 'server' else 'client' end as tokens_from,
  case when streaming::boolean and first_chunk_time_us::bigint > 0
    then (first_chunk_time_us::bigint - send_time_us::bigint) / 1e3 end as ttft_ms,
  'client_send' as ttft_clock, nullif(model, '') as model,
  case when last_chunk_time_us::bigint > 0 then (last_chunk_time_us::bigint - send_time_us::bigint) / 1e3 end as e2e_ms,
  case when num_chunks::bigint > 0 then output_tokens::bigint / num_chunks::bigint end as tokens_per_chunk,
  case status when 'ok' then 'ok' when 'timeout' then 'cancelled' else 'error' end as status,
  case when status <> 'ok' then status end as error
from rows order by arrival_s
"""


def _recognises(file: LogFile) -> bool:
    return file.kind == "text" and (file.fields >= _TIMES or bool(_HEADER.search(file.text[:4096])))


def read_blis(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per CSV file, with times of the client's clock; a header adds the number of warm-up requests.

    InvalidInput: a header without its CSV file, or a trace that was generated instead of observed.
    """
    tables = [file for file in files if file.fields >= _TIMES]
    headers = [file.text for file in files if file not in tables]
    if not tables:
        raise unusable(files[0].path, "is the header of a BLIS trace", "Give its CSV file too.")
    modes = [mode.group(1) for header in headers if (mode := _MODE.search(header))]
    if any(mode != "real" for mode in modes):
        raise unusable(tables[0].path, f"is a trace of mode {modes[0]}, not a measurement", "Give an observed trace.")
    warm_up = max((int(match.group(1)) for header in headers if (match := _WARM_UP.search(header))), default=0)
    return [_run(file, warm_up) for file in tables]


def _run(file: LogFile, warm_up: int) -> LogRun:
    run = LogRun(file, NAME, clock="monotonic")
    connection = cursor_for_values()
    try:
        connection.execute(f"create temp view rows as select * from {csv_source(file)}")
        frame = connection.sql(_QUERY).pl()
        count_ragged(connection, file, run)
    except duckdb.Error as problem:
        raise unusable(file.path, f"is not a whole BLIS trace ({first_line(problem)})", DAMAGED) from None
    finally:
        connection.close()
    early = pl.int_range(pl.len()) < warm_up
    labelled = pl.when(early & (pl.col("status") == "ok")).then(pl.lit("warmup")).otherwise(pl.col("status"))
    run.requests = frame.with_columns(labelled.alias("status"))
    return run


FORMAT = LogFormat(NAME, "requests", "blis observe (TraceV2 as CSV)", _recognises, read_blis)
