"""Reader of llmperf: requests in ``…_individual_responses.json``, statistics in ``…_summary.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun
from kernelsight.logs.reports import statistics_of_result
from kernelsight.logs.send_times import times_of_sending, with_times
from kernelsight.logs.summaries import statistics_of_requests

NAME, SUMMARY = "llmperf", "llmperf-summary"


def _recognises(file: LogFile) -> bool:
    if file.kind != "json":
        return False
    return "results_ttft_s_mean" in file.fields or {"[].ttft_s", "[].number_output_tokens"} <= file.fields


def read_llmperf(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per file of requests, with times of sending by the client's rule if the summary beside it is read.

    Without its number of users requests are a run of statistics, as are summaries alone. The client's inter-token
    latency is E2E over the tokens, with TTFT, and is not used. InvalidInput: no request.
    """
    summaries = {}
    for file in files:
        if "results_ttft_s_mean" in file.fields:
            value = next(documents(file))[1]
            summaries[file.path.parent] = (file, value if isinstance(value, Mapping) else {})
    runs = []
    for file in files:
        if "results_ttft_s_mean" not in file.fields:
            summary = summaries.pop(file.path.parent, (None, {}))[1]
            runs += [_run(file, value, summary) for _, value in documents(file)]
    for file, summary in summaries.values():
        run = LogRun(file, NAME)
        run.summaries = statistics_of_result(summary, SUMMARY)
        run.faults.add("statistics_only", 1, None, "; give …_individual_responses.json too")
        runs.append(run)
    return runs


def _run(file: LogFile, entries: Any, summary: Mapping[str, Any]) -> LogRun:
    run = LogRun(file, NAME)
    entries = entries if isinstance(entries, list) else []
    rows = [_request(entry) for entry in entries if isinstance(entry, Mapping)]
    run.faults.add("unreadable_line", len(entries) - len(rows))
    if not rows:
        raise unusable(file.path, "has no request", "Give …_individual_responses.json of a run with some.")
    frame = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    users = summary.get("num_concurrent_requests")
    run.summaries = statistics_of_result(summary, SUMMARY)
    if isinstance(users, int) and users > 0:
        latencies_s = [None if value is None else value / 1e3 for value in frame["e2e_ms"].to_list()]
        sent = times_of_sending({"request_rate": "inf", "max_concurrency": users}, latencies_s)
        run.requests, run.clock = with_times(frame, sent, run.faults), "monotonic"
        run.stated["max_concurrency"] = users
    else:
        run.summaries = statistics_of_requests(frame.filter(pl.col("status") == "ok"))
        run.faults.add("statistics_only", 1, None, "; give …_summary.json too, which has the number of users")
    return run


def _request(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of requests."""
    seconds = {name: entry.get(f"{name}_s") for name in ("ttft", "end_to_end_latency")}
    ttft_ms, e2e_ms = (1e3 * value if isinstance(value, (int, float)) else None for value in seconds.values())
    error = entry.get("error_code")
    return {
        "prompt_tokens": entry.get("number_input_tokens"),
        "output_tokens": entry.get("number_output_tokens"),
        "tokens_from": "retokenised",
        "ttft_ms": ttft_ms,
        "ttft_clock": "client_send",
        "e2e_ms": e2e_ms,
        "status": "error" if error else "ok",
        "error": f"HTTP {error}" if isinstance(error, int) else "other" if error else None,
    }


FORMAT = LogFormat(
    NAME, "requests", "llmperf (…_individual_responses.json and …_summary.json)", _recognises, read_llmperf
)
