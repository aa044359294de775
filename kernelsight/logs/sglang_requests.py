"""Reader of the request metrics of SGLang's server (--export-metrics-to-file): JSON lines, one object per request."""

from __future__ import annotations

from collections.abc import Sequence

from kernelsight.logs.files import LogFile
from kernelsight.logs.json_rows import json_rows
from kernelsight.logs.log_run import FILE_ROW, LogFormat, LogRun

NAME = "sglang-requests"
# request_parameters may hold prompts and is not among the fields
_FIELDS = {
    **dict.fromkeys(("id", "weight_version"), "VARCHAR"),
    "finish_reason": "STRUCT(type VARCHAR)",
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens", "dp_rank", "num_retractions"), "BIGINT"),
    **dict.fromkeys(("spec_num_correct_drafts", "spec_verify_ct"), "BIGINT"),
    **dict.fromkeys(("e2e_latency", "queue_time", "first_token_latency", "request_received_ts"), "DOUBLE"),
    **dict.fromkeys(("api_server_dispatch_finish_ts", "forward_entry_time", "prefill_finished_time"), "DOUBLE"),
}
# front end: from received to dispatched; queue: until the first forward pass; prefill: until the end of the prompt
_COLUMNS = """
id as external_id, request_received_ts as arrival_s, request_received_ts as sent_s,
  prompt_tokens, completion_tokens as output_tokens, cached_tokens, 'server' as tokens_from,
  1e3 * first_token_latency as ttft_ms, 'server_arrival' as ttft_clock, 1e3 * e2e_latency as e2e_ms,
  1e3 * (api_server_dispatch_finish_ts - request_received_ts) as front_end_ms,
  1e3 * queue_time as queue_ms,
  1e3 * (prefill_finished_time - forward_entry_time) as prefill_ms,
  1e3 * (e2e_latency - first_token_latency) as decode_ms,
  num_retractions as preemptions, spec_num_correct_drafts as accepted_tokens, spec_verify_ct as decode_steps,
  dp_rank::varchar as replica,
  case when finish_reason.type = 'abort' then 'cancelled' else 'ok' end as status,
  case when finish_reason.type = 'abort' then 'abort' end as error
"""


def _recognises(file: LogFile) -> bool:
    return file.kind == "json" and {"request_parameters", "prompt_tokens"} <= file.fields


def read_sglang_requests(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per file: unix times, TTFT from arrival at the server, stages measured by the scheduler.

    Stages and times are in the file only if the server ran with --enable-metrics.
    """
    runs = []
    for file in files:
        run = LogRun(file, NAME, clock="unix")
        run.requests = json_rows(file, _FIELDS, _COLUMNS, "prompt_tokens is not null", run.faults).rename(
            {"line": FILE_ROW}
        )
        runs.append(run)
    return runs


FORMAT = LogFormat(
    NAME,
    "requests",
    "SGLang's server with --export-metrics-to-file --enable-metrics",
    _recognises,
    read_sglang_requests,
)
