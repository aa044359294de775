"""Reader of genai-perf: requests in ``profile_export.json``, statistics in ``profile_export_genai_perf.json``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun, object_in
from kernelsight.logs.reports import statistics_of_result

NAME, SUMMARY = "genai-perf", "genai-perf-summary"
_USAGE = re.compile(r'"(prompt|completion)_tokens"\s*:\s*(\d{1,9})\b')
# text of a chunk, by back end; a chunk of the role alone, or the end of the stream, has none
_TEXT = re.compile(r'"(?:content|text|text_output|reasoning_content)"\s*:\s*("(?:[^"\\]|\\.)|null|"")')


def _recognises(file: LogFile) -> bool:
    if file.kind != "json" or "aiperf_version" in file.fields:
        return False
    requests = {"experiments[].requests[].timestamp", "experiments[].requests[].response_timestamps"}
    return requests <= file.fields or {"time_to_first_token.avg", "request_latency.avg", "input_config"} <= file.fields


def read_genai_perf(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per experiment: unix times, TTFT from sending to the first response, tokens by responses.

    Prompt lengths are those of the server's usage, otherwise the mean of the statistics beside the file. Without either
    they are unknown: payloads are texts, which are not read. Statistics alone are a run without requests.
    InvalidInput: no experiment.
    """
    exports = {file.path.parent: (file, next(documents(file))[1]) for file in files if "experiments" not in file.fields}
    runs = []
    for file in files:
        if "experiments" in file.fields:
            summary = exports.pop(file.path.parent, (None, {}))[1]
            runs += [_run(file, entry, summary) for _, value in documents(file) for entry in _experiments(file, value)]
    for file, summary in exports.values():
        run = LogRun(file, NAME)
        run.summaries = statistics_of_result(summary, SUMMARY)
        if not run.summaries:
            raise unusable(file.path, "has no statistics of genai-perf", "Give …_genai_perf.json as it was written.")
        run.faults.add("statistics_only", 1, None, "; give profile_export.json too")
        runs.append(run)
    return runs


def _experiments(file: LogFile, value: Any) -> list[Mapping[str, Any]]:
    entries = value.get("experiments") if isinstance(value, Mapping) else None
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise unusable(file.path, "has no list of experiments", "Give the profile_export.json of genai-perf.")
    return entries


def _run(file: LogFile, entry: Mapping[str, Any], summary: Any) -> LogRun:
    run = LogRun(file, NAME, clock="unix")
    mode, value = (object_in(entry, "experiment").get(name) for name in ("mode", "value"))
    if isinstance(value, (int, float)) and value > 0:
        run.stated["requested_rate" if mode == "request_rate" else "max_concurrency"] = value
    run.summaries = statistics_of_result(summary, SUMMARY) if isinstance(summary, Mapping) else []
    usual = {(row["metric"], row["statistic"]): row["value"] for row in run.summaries}.get(("prompt_tokens", "mean"))
    entries = entry.get("requests")
    rows = [_request(request, usual) for request in entries if isinstance(request, Mapping)]
    run.faults.add("unreadable_line", len(entries) - len(rows))
    if not rows:
        raise unusable(file.path, "has an experiment without requests", "Give a run of at least one request.")
    run.faults.add("mean_length", sum(row.pop("by_mean") for row in rows))
    run.requests = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    return run


def _request(request: Mapping[str, Any], usual_prompt: float | None) -> dict[str, Any]:
    """Return a row of requests; ``usual_prompt``: the mean prompt length, tokens, where the statistics state one."""
    sent_ns, times = request.get("timestamp"), request.get("response_timestamps")
    times = [time for time in times if isinstance(time, int)] if isinstance(times, list) else []
    outputs = request.get("response_outputs")
    texts = [str(object_in({"of": one}, "of").get("response")) for one in outputs] if isinstance(outputs, list) else []
    usage = dict(_USAGE.findall(texts[-2] + texts[-1])) if len(texts) > 1 else {}
    said = [
        index for index, text in enumerate(texts) if (found := _TEXT.search(text)) and found[1] not in ("null", '""')
    ]
    if said and len(texts) == len(times):
        times = [times[index] for index in said]
    is_sent = isinstance(sent_ns, int)
    return {
        "arrival_s": sent_ns / 1e9 if is_sent else None,
        "sent_s": sent_ns / 1e9 if is_sent else None,
        "prompt_tokens": int(usage["prompt"]) if "prompt" in usage else usual_prompt and round(usual_prompt),
        "output_tokens": int(usage.get("completion", len(times))),
        "tokens_from": "server" if "completion" in usage else "client",
        "ttft_ms": (times[0] - sent_ns) / 1e6 if times and is_sent else None,
        "ttft_clock": "client_send",
        "e2e_ms": (times[-1] - sent_ns) / 1e6 if times and is_sent else None,
        "chunk_gaps_ms": [(later - time) / 1e6 for time, later in zip(times, times[1:], strict=False)] or None,
        "status": "ok" if times else "error",
        "error": None if times else "no response",
        "by_mean": "prompt" not in usage and usual_prompt is not None,
    }


FORMAT = LogFormat(
    NAME, "requests", "genai-perf profile (profile_export.json, …_genai_perf.json)", _recognises, read_genai_perf
)
