"""Reader of inference-perf reports: requests, statistics of stages and of the run, and the client's configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from kernelsight.files.bounded_values import parse_yaml
from kernelsight.files.budget import REPORT
from kernelsight.logs.bench_results import positive
from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun, kind_of_error, object_in
from kernelsight.logs.summaries import statistic
from kernelsight.number_format import number

NAME = "inference-perf"
_STAGE = re.compile(r"stage_(\d+)_")
# metric and factor to its unit, by name in the report
_LATENCY = {
    "request_latency": ("e2e_ms", 1e3),
    "time_to_first_token": ("ttft_ms", 1e3),
    "time_per_output_token": ("tpot_ms", 1e3),
    "inter_token_latency": ("itl_ms", 1e3),
}
_STATISTICS = ("mean", "min", "max", "median", "p90", "p95", "p99")


def _recognises(file: LogFile) -> bool:
    if file.kind != "json":
        return file.kind == "text" and _is_configuration(file)
    requests = {"[].start_time", "[].end_time", "[].info"} <= file.fields
    return requests or {"load_summary", "successes"} <= file.fields


def read_inference_perf(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per file: of requests, of statistics, or of the client's configuration.

    Times are of ``time.perf_counter``. Output tokens are the server's where its usage is in the file, else the client's
    count. Some versions write two times per token; TPOT is (last - first) / (tokens - 1) nevertheless.
    """
    runs = []
    for file in files:
        if file.kind == "text":
            runs.append(_configuration(file))
            continue
        for _, value in documents(file):
            if isinstance(value, list):
                runs.append(_requests(file, value))
            elif isinstance(value, Mapping):
                runs.append(_statistics(file, value))
    return runs


def _is_configuration(file: LogFile) -> bool:
    return all(re.search(rf"^{name}:", file.text, re.MULTILINE) for name in ("load", "data", "server"))


def _configuration(file: LogFile) -> LogRun:
    """Return the client's configuration as summaries: max_concurrency, unique_prompts, prefix and output lengths."""
    run = LogRun(file, NAME)
    report = next(iter(parse_yaml(file.text_of_all(), file.refuse, REPORT)), None)
    load, data = object_in(report, "load"), object_in(report, "data")
    workers = positive(load.get("num_workers")), positive(load.get("worker_max_concurrency"))
    if all(workers):
        run.summaries += statistic("client", "max_concurrency", "max", workers[0] * workers[1])
    shared = object_in(data, "shared_prefix")
    groups = positive(shared.get("num_unique_system_prompts") or shared.get("num_groups"))
    per_group = positive(shared.get("num_users_per_system_prompt") or shared.get("num_prompts_per_group"))
    if groups and per_group:
        run.summaries += statistic("client", "unique_prompts", "total", groups * per_group)
        run.summaries += statistic("client", "shared_prefix_tokens", "mean", shared.get("system_prompt_len"))
    output = positive(shared.get("output_len"))
    if output and object_in(report, "server").get("ignore_eos"):
        run.summaries += statistic("client", "output_tokens", "mean", output)
    return run


def _requests(file: LogFile, entries: list[Any]) -> LogRun:
    """Return a run of requests; InvalidInput: there is none."""
    run = LogRun(file, NAME, clock="monotonic")
    rows = [_request(entry) for entry in entries if isinstance(entry, Mapping)]
    run.faults.add("unreadable_line", len(entries) - len(rows))
    if not rows:
        raise unusable(file.path, "has no request", "Give a report of at least one request.")
    frame = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    counted_twice = frame.filter(pl.col("times") > 1.8 * pl.col("output_tokens"))
    run.faults.add("counted_twice", counted_twice.height)
    retried = frame.filter(pl.col("retries") > 0)
    run.faults.add("retried", retried.height)
    run.requests = frame.drop("times", "retries")
    return run


def _request(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of requests; ``times``: number of token times, for the check of double counting."""
    info = object_in(entry, "info")
    response = object_in(info, "response_metrics") or info  # the older layout has the response's fields in info itself
    usage = object_in(response, "server_usage")
    times = response.get("output_token_times")
    times = [time for time in times if isinstance(time, (int, float))] if isinstance(times, list) else []
    sent_s = positive(entry.get("start_time"))
    server_tokens = positive(usage.get("completion_tokens"))
    tokens = server_tokens or positive(response.get("output_tokens"))
    prompt_tokens = positive(object_in(object_in(info, "request_metrics"), "text").get("input_tokens"))
    prompt_tokens = positive(usage.get("prompt_tokens")) or prompt_tokens or positive(info.get("input_tokens"))
    first_s, last_s = (times[0], times[-1]) if times and sent_s is not None else (None, None)
    end_s = last_s if last_s is not None else positive(entry.get("end_time"))
    error = entry.get("error")
    return {
        "arrival_s": sent_s,
        "sent_s": sent_s,
        "prompt_tokens": prompt_tokens,
        "output_tokens": tokens,
        "cached_tokens": object_in(usage, "prompt_tokens_details").get("cached_tokens"),
        "tokens_from": "server" if server_tokens else "retokenised",
        "ttft_ms": 1e3 * (first_s - sent_s) if first_s is not None and sent_s is not None else None,
        "ttft_clock": "client_send",
        "e2e_ms": 1e3 * (end_s - sent_s) if end_s is not None and sent_s is not None else None,
        "tokens_per_chunk": tokens / len(times) if times and tokens else None,
        "status": "error" if error else "ok",
        "error": kind_of_error(object_in(entry, "error").get("error_type") or error) if error else None,
        "times": len(times) if tokens else None,
        "retries": info.get("retries_attempted"),
    }


def _statistics(file: LogFile, report: Mapping[str, Any]) -> LogRun:
    """Return the statistics of a stage or of the whole run; InvalidInput: without successes."""
    run = LogRun(file, NAME)
    stage = _STAGE.match(file.path.name)
    stage_name = f"stage {stage.group(1)}" if stage else "run"
    load, successes = object_in(report, "load_summary"), object_in(report, "successes")
    if not successes:
        raise unusable(file.path, "has no statistics of successes", "Give a report of inference-perf.")
    run.stated = {
        "requested_rate": positive(load.get("requested_rate")),
        "achieved_rate": positive(load.get("achieved_rate")),
        "duration_s": positive(load.get("send_duration")),
    }
    latency = object_in(successes, "latency")
    if not latency:  # of the server's own metrics, by Prometheus
        latency, stage_name = successes, f"server {stage_name}"
    tpot_factor = _counted_twice(latency, object_in(successes, "output_len"))
    for name, (metric, factor) in _LATENCY.items():
        if tpot_factor and metric == "itl_ms":
            continue  # half of the gaps are between two entries of one token
        scale = factor * (tpot_factor or 1.0 if metric == "tpot_ms" else 1.0)
        run.summaries += _scaled(stage_name, metric, object_in(latency, name), scale)
    run.summaries += _scaled(stage_name, "client_delay_ms", object_in(load, "schedule_delay"), 1e3)
    run.summaries += _scaled(stage_name, "prompt_tokens", object_in(successes, "prompt_len"), 1.0)
    run.summaries += _scaled(stage_name, "output_tokens", object_in(successes, "output_len"), 1.0)
    run.summaries += statistic(stage_name, "requests", "total", successes.get("count"))
    run.summaries += statistic(stage_name, "failed", "total", object_in(report, "failures").get("count"))
    for name in ("requested_rate", "achieved_rate"):
        run.summaries += statistic(stage_name, name, "mean", load.get(name))
    per_second = object_in(successes, "throughput").get("output_tokens_per_sec")
    run.summaries += statistic(stage_name, "output_tokens_per_s", "mean", per_second)
    count = successes.get("count")
    run.faults.add("statistics_only", 1, stage_name, "; run it with per_request: true")
    if tpot_factor:
        more = f", multiplied by {number(tpot_factor)}; ITL is left out"
        run.faults.add("counted_twice", count if isinstance(count, int) else 1, stage_name, more)
    return run


def _scaled(part: str, metric: str, values: Mapping[str, Any], factor: float) -> list[dict[str, Any]]:
    """Return the statistics of a metric, multiplied by ``factor``."""
    rows = [row for name in _STATISTICS for row in statistic(part, metric, name, values.get(name))]
    return [row | {"value": row["value"] * factor} for row in rows]


def _counted_twice(latency: Mapping[str, Any], output: Mapping[str, Any]) -> float | None:
    """Return the factor from the report's TPOT to the true one if tokens were counted twice, else None.

    Then 2 n - 1 gaps of n tokens are averaged instead of n - 1, which contradicts E2E, TTFT and lengths.
    """
    mean = {name: positive(object_in(latency, name).get("mean")) for name in _LATENCY}
    tokens = positive(output.get("mean"))
    e2e, ttft, tpot = mean["request_latency"], mean["time_to_first_token"], mean["time_per_output_token"]
    if not (e2e and ttft and tpot and tokens) or tokens < 4:
        return None
    ratio = (e2e - ttft) / (tokens - 1) / tpot
    return (2 * tokens - 1) / (tokens - 1) if 1.7 < ratio < 2.4 else None


FORMAT = LogFormat(
    NAME, "requests", "inference-perf (per_request, stage and summary lifecycle metrics)", _recognises,
    read_inference_perf,
)  # fmt: skip
