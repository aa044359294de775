"""Reader of AIPerf: requests in ``profile_export.jsonl``, statistics and settings in ``profile_export_aiperf.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.logs.files import LogFile, documents
from kernelsight.logs.json_rows import json_rows, metric
from kernelsight.logs.log_run import FILE_ROW, LogFormat, LogRun
from kernelsight.logs.reports import statistics_of_result

NAME = "aiperf"
_TIMES = ("time_to_first_token", "request_latency")
_TOKENS = ("input_sequence_length", "output_sequence_length", "error_isl")
_USAGE = ("usage_prompt_tokens", "usage_completion_tokens", "usage_prompt_cache_read_tokens")
_METRICS = ", ".join(f"{name} STRUCT(value DOUBLE, unit VARCHAR)" for name in _TIMES + _TOKENS + _USAGE)
_FIELDS = {
    "metadata": "STRUCT(x_request_id VARCHAR, x_correlation_id VARCHAR, turn_index BIGINT, credit_issued_ns BIGINT, "
    "request_start_ns BIGINT, benchmark_phase VARCHAR, was_cancelled BOOLEAN)",
    "metrics": f"STRUCT({_METRICS}, inter_chunk_latency STRUCT(value FLOAT[], unit VARCHAR))",
    "error": "STRUCT(code BIGINT, type VARCHAR)",
}
# a credit is issued when the request is due; a phase before profiling is a warm-up
_COLUMNS = f"""
metadata.x_request_id as external_id, metadata.x_correlation_id as session_id, metadata.turn_index as turn,
  coalesce(metadata.credit_issued_ns, metadata.request_start_ns) / 1e9 as arrival_s,
  metadata.request_start_ns / 1e9 as sent_s,
  coalesce(metrics.usage_prompt_tokens.value, metrics.input_sequence_length.value, metrics.error_isl.value)
    ::bigint as prompt_tokens,
  coalesce(metrics.usage_completion_tokens.value, metrics.output_sequence_length.value)::bigint as output_tokens,
  metrics.usage_prompt_cache_read_tokens.value::bigint as cached_tokens,
  case when metrics.usage_completion_tokens.value is not null then 'server' else 'retokenised' end as tokens_from,
  {metric("metrics.time_to_first_token")} as ttft_ms, 'client_send' as ttft_clock,
  {metric("metrics.request_latency")} as e2e_ms,
  case when metrics.inter_chunk_latency.unit = 'ms' then metrics.inter_chunk_latency.value end as chunk_gaps_ms,
  case when metadata.was_cancelled then 'cancelled' when error.type is not null or error.code is not null then 'error'
    when metadata.benchmark_phase = 'warmup' then 'warmup' else 'ok' end as status,
  coalesce('HTTP ' || error.code, error.type) as error
"""


def _recognises(file: LogFile) -> bool:
    if file.kind != "json":
        return False
    requests = {"metadata.benchmark_phase", "metadata.request_start_ns"} <= file.fields
    return requests or {"aiperf_version", "benchmark_id"} <= file.fields


def read_aiperf(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per file of requests; statistics exported to the same folder add rate, version and settings.

    Unix times, TTFT from sending by the client; output tokens include reasoning tokens; warm-up requests have status
    warmup. A folder with statistics alone is a run without requests.
    """
    runs, exports = [], {}
    for file in files:
        if "aiperf_version" in file.fields:
            exports[file.path.parent] = (file, next(documents(file))[1])
            continue
        run = LogRun(file, NAME, clock="unix")
        is_record = "metadata.request_start_ns is not null"
        run.requests = json_rows(file, _FIELDS, _COLUMNS, is_record, run.faults).rename({"line": FILE_ROW})
        runs.append(run)
    for folder, (file, export) in exports.items():
        folder_runs = [run for run in runs if run.file.path.parent == folder]
        for run in folder_runs or [LogRun(file, NAME)]:
            _add_export(run, export)
            if not folder_runs:
                run.faults.add("statistics_only", 1, None, "; give profile_export.jsonl too")
                runs.append(run)
    return runs


def _add_export(run: LogRun, export: Mapping[str, Any]) -> None:
    """Add the settings and statistics of an export to a run."""
    run.stated["tool_version"] = str(export["aiperf_version"])
    config = export.get("input_config")
    phases = config.get("phases") if isinstance(config, Mapping) else None
    for phase in phases if isinstance(phases, list) else []:
        if isinstance(phase, Mapping) and phase.get("kind") == "profiling":
            run.stated |= {"requested_rate": phase.get("rate"), "max_concurrency": phase.get("concurrency")}
            run.settings["client.arrival_pattern"] = (str(phase.get("type")), "input_config")
    run.summaries += statistics_of_result(export, "genai-perf-summary")


FORMAT = LogFormat(NAME, "requests", "aiperf profile (profile_export.jsonl)", _recognises, read_aiperf)
