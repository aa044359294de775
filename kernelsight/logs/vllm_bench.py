"""Reader of ``vllm bench serve`` results: one object per run, several in a file with --append-result."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun, kind_of_error
from kernelsight.logs.reports import statistics_of_result
from kernelsight.logs.send_times import times_of_sending, with_times
from kernelsight.logs.settings import flat_settings

NAME = "vllm-bench"
# fields that the client writes itself; any other at the top level is from --metadata, or a swept flag
_RESULTS = re.compile(
    r"(mean|median|std|p[0-9.]+)_\w+|total_\w+|\w+_throughput|\w+_goodput|probe_\w+|spec_decode_\w+|diffusion_\w+"
    r"|ramp_up_\w+|max_output_tokens_per_s|max_concurrent_requests|goodput:?.*"
)
_CLIENT_FIELDS = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate"),
    *("burstiness", "max_concurrency", "duration", "completed", "failed", "rtfx", "run_number"),
}
# backends whose client sets include_usage, so that token counts are the server's
_SERVER_COUNTS = ("vllm", "openai", "openai-chat", "vllm-chat")


def _recognises(file: LogFile) -> bool:
    return file.kind == "json" and {"tokenizer_id", "num_prompts", "model_id"} <= file.fields


def read_vllm_bench(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per object: requests if it was written with --save-detailed, else statistics alone.

    Times are of ``time.perf_counter``, comparable only within a run. Older versions write no times of sending: see
    ``sending``.
    """
    return [_run(file, document, value) for file in files for document, value in documents(file)]


def _run(file: LogFile, document: str, result: Any) -> LogRun:
    if not isinstance(result, dict) or "num_prompts" not in result:
        raise unusable(
            file.path, f"has a {document} that is no result of vllm bench serve", "Give one result per line."
        )
    run = LogRun(file, NAME)
    run.summaries = statistics_of_result(result)
    run.stated = {
        "duration_s": positive(result.get("duration")),
        "requested_rate": rate(result.get("request_rate")),
        "burstiness": positive(result.get("burstiness")),
        "max_concurrency": result.get("max_concurrency"),
    }
    run.settings = _settings(result)
    if "ttfts" not in result:
        run.faults.add("statistics_only", 1, document, "; run it with --save-detailed")
        return run
    run.requests = _requests(file, result, run)
    return run


def _requests(file: LogFile, result: Mapping[str, Any], run: LogRun) -> pl.DataFrame:
    """Return the requests of a result; InvalidInput: lists are missing, or of different lengths."""
    count = len(result["ttfts"])
    names = ("input_lens", "output_lens", "itls", "errors", "latencies", "start_times", "queue_times")
    names += ("server_queue_times", "server_ttfts")
    lists = {name: result[name] for name in names if isinstance(result.get(name), list)}
    if "input_lens" not in lists or "output_lens" not in lists:
        raise unusable(file.path, "has TTFTs, and no input_lens or output_lens", "Write it with --save-detailed.")
    other_length = [name for name, values in lists.items() if len(values) != count]
    if other_length:
        problem = f"has {count} TTFTs and {len(lists[other_length[0]])} {other_length[0]}"
        raise unusable(file.path, problem, "The lists of one run have one value per request: write it again.")
    seconds = {name: column(lists.get(name), count) for name in names if name not in ("itls", "errors")}
    tokens_from = "server" if result.get("backend") in _SERVER_COUNTS else None
    errors = lists.get("errors", [""] * count)
    gaps = lists.get("itls", [None] * count)
    latency_s = lists.get("latencies") or [
        ttft_s + sum(gaps_s or ()) for ttft_s, gaps_s in zip(result["ttfts"], gaps, strict=True)
    ]
    # queue_times is the wait for the client's own --max-concurrency: requests are due before they are sent
    frame = pl.DataFrame(seconds).with_columns(
        (pl.col("start_times") - pl.col("queue_times").fill_null(0.0)).alias("arrival_s"),
        pl.col("start_times").alias("sent_s"),
        pl.col("input_lens").alias("prompt_tokens"),
        pl.col("output_lens").alias("output_tokens"),
        (1e3 * pl.col("server_queue_times")).alias("queue_ms"),
        (1e3 * pl.col("server_ttfts")).alias("server_ttft_ms"),
        (1e3 * pl.col("server_ttfts")).alias("prefill_ms"),
        pl.lit("server_scheduled").alias("server_ttft_clock"),
        pl.lit("client_send").alias("ttft_clock"),
        pl.lit(tokens_from, pl.String).alias("tokens_from"),
        column([1e3 * value for value in result["ttfts"]], count).alias("ttft_ms"),
        (1e3 * column(latency_s, count)).alias("e2e_ms"),
        pl.Series([None if not error else kind_of_error(error) for error in errors], dtype=pl.String).alias("error"),
        pl.Series(["error" if error else "ok" for error in errors], dtype=pl.String).alias("status"),
        gap_lists(gaps),
    )
    frame = frame.drop(seconds)
    if "start_times" not in lists:
        frame = with_times(frame, times_of_sending(result, latency_s), run.faults)
    run.clock = "monotonic" if frame["sent_s"].null_count() < count else "none"
    return frame


def positive(value: Any) -> float | None:
    """Return a positive finite number, else None."""
    return float(value) if isinstance(value, (int, float)) and 0 < value < float("inf") else None


def rate(value: Any) -> float | None:
    """Return a finite request rate, 1/s; None for an infinite one, such as "inf"."""
    try:
        return positive(float(value))
    except (TypeError, ValueError):
        return None


def column(values: Sequence[Any] | None, count: int) -> pl.Series:
    """Return numbers as a column of floats; nulls, ``count`` of them, for None.

    >>> column([1, None, 2.5], 3).to_list()
    [1.0, None, 2.5]
    """
    return pl.Series(values if values is not None else [None] * count, dtype=pl.Float64, strict=False)


def gap_lists(gaps: Sequence[Sequence[float] | None]) -> pl.Series:
    """Return the column ``chunk_gaps_ms`` from lists of gaps in seconds; null for what is not a list."""
    rows = [row if isinstance(row, list) else None for row in gaps]
    seconds = pl.Series("chunk_gaps_ms", rows, dtype=pl.List(pl.Float64), strict=False)
    return seconds.list.eval(1e3 * pl.element()).cast(pl.List(pl.Float32))


def _settings(result: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the settings in a result: model, --metadata, speculative decoding."""
    settings = {"model": (str(result["model_id"]), "model_id")} if result.get("model_id") else {}
    metadata = {
        name: value for name, value in result.items() if name not in _CLIENT_FIELDS and not _RESULTS.fullmatch(name)
    }
    settings |= flat_settings(metadata, "--metadata")
    for name in ("spec_decode_acceptance_length", "spec_decode_acceptance_rate"):
        if result.get(name) is not None:
            settings[name] = (str(result[name]), "result")
    return settings


FORMAT = LogFormat(NAME, "requests", "vllm bench serve --save-result --save-detailed", _recognises, read_vllm_bench)
