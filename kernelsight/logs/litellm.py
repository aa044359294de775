"""Reader of the LiteLLM gateway's standard logging payload: one object per request, as lines, a list or a document."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from kernelsight.logs.files import LogFile
from kernelsight.logs.json_rows import json_rows
from kernelsight.logs.log_run import LogFormat, LogRun

NAME = "litellm"
_FIELDS = {
    **dict.fromkeys(("id", "trace_id", "session_id", "call_type", "status", "model", "api_base"), "VARCHAR"),
    **dict.fromkeys(("stream", "cache_hit"), "BOOLEAN"),
    **dict.fromkeys(("prompt_tokens", "completion_tokens"), "BIGINT"),
    **dict.fromkeys(("startTime", "endTime", "completionStartTime"), "DOUBLE"),
    "error_information": "STRUCT(error_class VARCHAR, error_code VARCHAR)",
    "metadata": "STRUCT(usage_object STRUCT(prompt_tokens_details STRUCT(cached_tokens BIGINT)))",
}
# of an address only the host is kept; of requests that were not streamed the gateway sets the first token's time to
# their end
_COLUMNS = """
id as external_id, nullif(session_id, '') as session_id, trace_id, call_type,
  coalesce(cache_hit, false) as from_cache, "startTime" as arrival_s, "startTime" as sent_s, prompt_tokens,
  completion_tokens as output_tokens, metadata.usage_object.prompt_tokens_details.cached_tokens as cached_tokens,
  'server' as tokens_from, 'gateway' as ttft_clock, 1e3 * ("endTime" - "startTime") as e2e_ms,
  stream is true and "completionStartTime" < "endTime" as streamed,
  case when streamed then 1e3 * ("completionStartTime" - "startTime") end as ttft_ms,
  model, regexp_extract(api_base, '^(?:[a-z]+://)?(?:[^/@]*@)?([^/?#]+)', 1) as replica,
  case when coalesce(status, 'success') = 'success' then 'ok' else 'error' end as status,
  coalesce(error_information.error_class, 'HTTP ' || error_information.error_code) as error
"""
_OTHER_CALLS = "embedding|rerank|image|speech|transcription|moderation|ocr|video|search|file|batch|health"


def _recognises(file: LogFile) -> bool:
    names = {"call_type", "startTime", "endTime", "completionStartTime", "prompt_tokens"}
    return file.kind == "json" and (names <= file.fields or {f"[].{name}" for name in names} <= file.fields)


def read_litellm(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per file: unix times, TTFT from arrival at the gateway, including its retries and the network.

    Requests that the gateway answered from its own cache, and calls other than generation, are dropped; TTFT of
    requests that were not streamed is null.
    """
    runs = []
    for file in files:
        run = LogRun(file, NAME, clock="unix")
        condition = '"startTime" is not null and "endTime" is not null'
        frame = json_rows(file, _FIELDS, _COLUMNS, condition, run.faults).drop("line")
        run.requests = _requests_of_clients(frame, run)
        runs.append(run)
    return runs


def _requests_of_clients(frame: pl.DataFrame, run: LogRun) -> pl.DataFrame:
    """Return the requests that an engine served; others, retries and requests without streaming count as faults."""
    is_other_call = pl.col("call_type").fill_null("").str.contains(_OTHER_CALLS)
    for rule, is_dropped in (("other_call", is_other_call), ("gateway_cache_hit", pl.col("from_cache"))):
        dropped = frame.filter(is_dropped)
        run.faults.add(rule, dropped.height, dropped["external_id"].first() if dropped.height else None)
        frame = frame.filter(~is_dropped)
    unstreamed = frame.filter((pl.col("status") == "ok") & ~pl.col("streamed").fill_null(False))
    run.faults.add("not_streamed", unstreamed.height, unstreamed["external_id"].first() if unstreamed.height else None)
    retried = frame.filter(pl.col("trace_id").is_not_null() & ~pl.col("trace_id").is_first_distinct())
    run.faults.add("retried", retried.height, retried["external_id"].first() if retried.height else None)
    return frame.drop("trace_id", "call_type", "from_cache", "streamed")


FORMAT = LogFormat(NAME, "requests", "LiteLLM's standard logging payload", _recognises, read_litellm)
