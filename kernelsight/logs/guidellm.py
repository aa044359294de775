"""Reader of GuideLLM reports: a JSON or YAML document of benchmarks with their requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from kernelsight.files.bounded_values import parse_yaml
from kernelsight.files.budget import REPORT
from kernelsight.logs.bench_results import positive
from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun, kind_of_error, object_in

NAME = "guidellm"
_STATUS = {"successful": "ok", "errored": "error", "incomplete": "cancelled"}
# strategies with a time at which each request is due; others send as soon as a slot is free
_SCHEDULED = ("constant", "poisson", "trace", "async", "replay")
# fields of a benchmark that identify a report: from 0.4 on, and of 0.2 and 0.3
PARTS = ("scheduler_metrics", "run_stats")


def _recognises(file: LogFile) -> bool:
    if file.kind == "json":
        return bool({"metadata.guidellm_version", *(f"benchmarks[].{name}" for name in PARTS)} & file.fields)
    return file.kind == "text" and file.text.startswith("benchmarks:\n") and "scheduler" in file.text


def read_guidellm(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per benchmark: unix times, TTFT from sending, the server's own times if it sent them.

    TPOT is (last - first) / (tokens - 1), as of other tools; the report's own TPOT includes the first token.
    InvalidInput: no list of benchmarks, or a benchmark without requests.
    """
    runs = []
    for file in files:
        for report in _reports(file):
            benchmarks = report.get("benchmarks") if isinstance(report, Mapping) else None
            if not isinstance(benchmarks, list) or not all(isinstance(entry, Mapping) for entry in benchmarks):
                raise unusable(file.path, "has no list of benchmarks", "Give a report of guidellm run.")
            metadata = report.get("metadata")
            version = metadata.get("guidellm_version") if isinstance(metadata, Mapping) else None
            runs += [_run(file, entry, version) for entry in benchmarks]
    return runs


def _reports(file: LogFile) -> Iterator[Any]:
    """Yield the documents of a JSON or YAML file."""
    if file.kind == "json":
        yield from (value for _, value in documents(file))
        return
    yield from parse_yaml(file.text_of_all(), file.refuse, REPORT)


def _run(file: LogFile, benchmark: Mapping[str, Any], version: object) -> LogRun:
    # in 0.2 and 0.3 the configuration is ``args``, and the model is in ``worker``
    config = object_in(benchmark, "config") or object_in(benchmark, "args")
    strategy = object_in(config, "strategy")
    run = LogRun(file, NAME, clock="unix")
    run.stated = {
        "duration_s": positive(benchmark.get("duration")),
        "requested_rate": positive(strategy.get("rate")),
        "max_concurrency": strategy.get("streams") or object_in(config, "profile").get("max_concurrency"),
        "tool_version": str(version) if version else None,
    }
    strategy_name = str(strategy.get("type_"))
    run.settings["client.strategy"] = (strategy_name, "strategy")
    model = object_in(config, "backend").get("model") or object_in(benchmark, "worker").get("backend_model")
    if isinstance(model, str):
        run.settings["model"] = (model, "backend")
    times = object_in(benchmark, "scheduler_metrics") or object_in(benchmark, "run_stats")
    measure_start = positive(times.get("measure_start_time")) if benchmark.get("warmup_duration") else None
    due = strategy_name in _SCHEDULED
    tokens_from = "server" if config.get("prefer_response_metrics") is not False else "client"
    rows = []
    for group, status in _STATUS.items():
        requests = object_in(benchmark, "requests").get(group)
        for entry in requests if isinstance(requests, list) else []:
            if isinstance(entry, Mapping):
                rows.append(_request(entry, status, due, measure_start) | {"tokens_from": tokens_from})
    if not rows:
        raise unusable(file.path, "has a benchmark without requests", "Run guidellm with samples=-1 (all requests).")
    run.requests = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    requests_made = object_in(times, "requests_made").get("total")
    if isinstance(requests_made, int) and requests_made > len(rows):
        run.faults.add("sampled", len(rows), more=f" ({len(rows)} of {requests_made})")
    return run


def _first_of(*values: Any) -> float | None:
    """Return the first value that is a positive number; None without one."""
    return next((number for value in values if (number := positive(value)) is not None), None)


def _request(entry: Mapping[str, Any], status: str, due: bool, measure_start: float | None) -> dict[str, Any]:
    """Return a row of requests; ``due``: requests have a target time, ``measure_start``: end of the warm-up, unix s."""
    info, server = object_in(entry, "info"), object_in(entry, "response_metrics")
    times = object_in(info, "timings")
    scheduler_info = object_in(entry, "scheduler_info")  # of 0.2 and 0.3, whose entries hold their own times
    targeted = _first_of(times.get("targeted_start"), scheduler_info.get("targeted_start_time"))
    sent = _first_of(times.get("request_start"), *(entry.get(name) for name in ("request_start_time", "start_time")))
    first_s = _first_of(times.get("first_token_iteration"), entry.get("first_token_time"))
    last_s = _first_of(times.get("last_token_iteration"), entry.get("last_token_time"))
    end = last_s or _first_of(times.get("request_end"), *(entry.get(name) for name in ("request_end_time", "end_time")))
    tokens, chunks = positive(entry.get("output_tokens")), positive(times.get("token_iterations"))
    ttft = 1e3 * (first_s - sent) if first_s and sent else entry.get("time_to_first_token_ms")
    speculation = object_in(server, "speculative_decoding")
    if status == "ok" and measure_start is not None and sent is not None and sent < measure_start:
        status = "warmup"
    return {
        "external_id": entry.get("request_id"),
        "session_id": info.get("conversation_id"),
        "turn": info.get("turn_index"),
        "arrival_s": (targeted if due else None) or sent,
        "sent_s": sent,
        "prompt_tokens": entry.get("prompt_tokens"),
        "output_tokens": tokens,
        "cached_tokens": entry.get("cached_tokens"),
        "ttft_ms": ttft,
        "ttft_clock": "client_send",
        "tpot_ms": entry.get("inter_token_latency_ms"),
        "e2e_ms": 1e3 * (end - sent) if end and sent else None,
        "tokens_per_chunk": tokens / chunks if tokens and chunks else None,
        "queue_ms": server.get("queue_time_ms"),
        "prefill_ms": server.get("time_to_first_token_ms"),
        "decode_ms": server.get("generation_time_ms"),
        "server_ttft_ms": server.get("time_to_first_token_ms"),
        "server_ttft_clock": "server_scheduled",
        "accepted_tokens": speculation.get("num_accepted_draft_tokens"),
        "decode_steps": speculation.get("num_spec_steps"),
        "status": status,
        "error": kind_of_error(entry.get("error") or info.get("error")) if status == "error" else None,
    }


FORMAT = LogFormat(NAME, "requests", "guidellm (benchmarks.json or .yaml, from 0.2 on)", _recognises, read_guidellm)
