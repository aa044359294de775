"""Reader of results of vLLM's and SGLang's clients: one object per run, several in a file or one a line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun, kind_of_error
from kernelsight.logs.reports import statistics_of_result
from kernelsight.logs.send_times import times_of_sending, with_times
from kernelsight.logs.settings import flat_settings

VLLM, SGLANG = "vllm-bench", "sglang-bench"
# how each client writes the times of its requests
DETAILS = {VLLM: "--save-detailed", SGLANG: "--output-details"}
# fields that the client writes itself; any other at the top level is from --metadata, or a swept flag
_RESULTS = re.compile(
    r"(mean|median|std|p[0-9.]+)_\w+|total_\w+|\w+_throughput|\w+_goodput|probe_\w+|spec_decode_\w+|diffusion_\w+"
    r"|ramp_up_\w+|max_output_tokens_per_s|max_concurrent_requests|goodput:?.*"
)
_CLIENT_FIELDS = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate"),
    *("burstiness", "max_concurrency", "duration", "completed", "failed", "rtfx", "run_number"),
}
# backends whose token counts are the server's: of vLLM's client those that set include_usage, of SGLang's its own
_SERVER_COUNTS = {VLLM: ("vllm", "openai", "openai-chat", "vllm-chat"), SGLANG: ("sglang",)}
_LISTS = (
    *("input_lens", "output_lens", "itls", "errors", "latencies", "start_times", "queue_times"),
    *("server_queue_times", "server_ttfts", "cached_tokens"),
)


def _is_vllm(file: LogFile) -> bool:
    return file.kind == "json" and {"tokenizer_id", "num_prompts", "model_id"} <= file.fields


def _is_sglang(file: LogFile) -> bool:
    return file.kind == "json" and {"dataset_name", "random_input_len", "sharegpt_output_len"} <= file.fields


def read_results(files: Sequence[LogFile], client: str) -> list[LogRun]:
    """Return one run per object: requests if their times are in it (DETAILS), else statistics alone.

    Times are of ``time.perf_counter``, comparable only within a run. SGLang's client and older versions of vLLM's write
    no times of sending: see ``send_times``. With the OpenAI API SGLang's output length is the requested one.
    """
    return [_run(file, document, value, client) for file in files for document, value in documents(file)]


def _run(file: LogFile, document: str, result: Any, client: str) -> LogRun:
    if not isinstance(result, dict) or not {"num_prompts", "dataset_name"} & set(result):
        raise unusable(file.path, f"has a {document} that is no result of a benchmark", "Give one result per line.")
    run = LogRun(file, client)
    run.summaries = statistics_of_result(result)
    run.stated = {
        "duration_s": positive(result.get("duration")),
        "requested_rate": rate(result.get("request_rate")),
        "burstiness": positive(result.get("burstiness")),
        "max_concurrency": result.get("max_concurrency"),
    }
    run.settings = _settings(result) if client == VLLM else {}
    if isinstance(server_info := result.get("server_info"), Mapping):
        run.settings |= flat_settings(server_info, "server_info")
        run.stated["tool_version"] = server_info.get("version") if isinstance(server_info.get("version"), str) else None
    for name in ("spec_decode_acceptance_length", "spec_decode_acceptance_rate", "accept_length"):
        if result.get(name) is not None:
            run.settings[name] = (str(result[name]), "result")
    if "ttfts" not in result:
        run.faults.add("statistics_only", 1, document, f"; run it with {DETAILS[client]}")
        return run
    run.requests = _requests(file, result, run)
    return run


def _requests(file: LogFile, result: Mapping[str, Any], run: LogRun) -> pl.DataFrame:
    """Return the requests of a result; InvalidInput: lists are missing, or of different lengths."""
    count = len(result["ttfts"])
    lists = {name: result[name] for name in _LISTS if isinstance(result.get(name), list)}
    if "input_lens" not in lists or "output_lens" not in lists or (run.format == SGLANG and "itls" not in lists):
        advice = f"Write it with {DETAILS[run.format]}."
        raise unusable(file.path, "has TTFTs, and no input_lens, output_lens or itls", advice)
    other_length = [name for name, values in lists.items() if len(values) != count]
    if other_length:
        problem = f"has {count} TTFTs and {len(lists[other_length[0]])} {other_length[0]}"
        raise unusable(file.path, problem, "The lists of one run have one value per request: write it again.")
    seconds = {name: column(lists.get(name), count) for name in _LISTS if name not in ("itls", "errors")}
    tokens_from = "server" if result.get("backend") in _SERVER_COUNTS[run.format] else None
    tokens_from = tokens_from or ("client" if run.format == SGLANG else None)
    errors = lists.get("errors", [""] * count)
    gaps = lists.get("itls", [None] * count)
    # TTFT of a request without a text chunk stays 0.0
    silent = [not error and not ttft_s for error, ttft_s in zip(errors, result["ttfts"], strict=True)]
    run.faults.add("no_first_chunk", sum(silent), f"row {silent.index(True) + 1}" if any(silent) else None)
    ttft_s = [None if is_silent else value for is_silent, value in zip(silent, result["ttfts"], strict=True)]
    latency_s = lists.get("latencies") or [
        None if first_s is None else first_s + sum(gaps_s or ()) for first_s, gaps_s in zip(ttft_s, gaps, strict=True)
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
        column([None if value is None else 1e3 * value for value in ttft_s], count).alias("ttft_ms"),
        (1e3 * column(latency_s, count)).alias("e2e_ms"),
        pl.Series([None if not error else kind_of_error(error) for error in errors], dtype=pl.String).alias("error"),
        pl.Series(["error" if error else "ok" for error in errors], dtype=pl.String).alias("status"),
        gap_lists(gaps),
    )
    frame = frame.drop(name for name in seconds if name != "cached_tokens")
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
    return settings | flat_settings(metadata, "--metadata")


FORMATS = (
    LogFormat(
        VLLM, "requests", "vllm bench serve --save-result --save-detailed", _is_vllm, partial(read_results, client=VLLM)
    ),
    LogFormat(
        SGLANG,
        "requests",
        "python -m sglang.benchmark.serving --output-details",
        _is_sglang,
        partial(read_results, client=SGLANG),
    ),
)
