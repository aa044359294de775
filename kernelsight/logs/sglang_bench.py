"""Reader of ``python -m sglang.benchmark.serving`` results: JSON lines, one object per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun, kind_of_error
from kernelsight.logs.reports import statistics_of_result
from kernelsight.logs.send_times import times_of_sending, with_times
from kernelsight.logs.settings import flat_settings
from kernelsight.logs.vllm_bench import column, gap_lists, positive, rate

NAME = "sglang-bench"


def _recognises(file: LogFile) -> bool:
    return file.kind == "json" and {"dataset_name", "random_input_len", "sharegpt_output_len"} <= file.fields


def read_sglang_bench(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per object: requests if it was written with --output-details, else statistics alone.

    The client writes no times of sending: see ``sending``. With the native API token counts are the server's; with the
    OpenAI API the output length is the requested one.
    """
    return [_run(file, document, value) for file in files for document, value in documents(file)]


def _run(file: LogFile, document: str, result: Any) -> LogRun:
    if not isinstance(result, dict) or "dataset_name" not in result:
        raise unusable(
            file.path, f"has a {document} that is no result of sglang.benchmark", "Give one result per line."
        )
    run = LogRun(file, NAME)
    run.summaries = statistics_of_result(result)
    run.stated = {
        "duration_s": positive(result.get("duration")),
        "requested_rate": rate(result.get("request_rate")),
        "max_concurrency": result.get("max_concurrency"),
    }
    server_info = result.get("server_info")
    if isinstance(server_info, Mapping):
        run.settings = flat_settings(server_info, "server_info")
        run.stated["tool_version"] = server_info.get("version") if isinstance(server_info.get("version"), str) else None
    if result.get("accept_length"):
        run.settings["accept_length"] = (str(result["accept_length"]), "result")
    if "ttfts" not in result:
        run.faults.add("statistics_only", 1, document, "; run it with --output-details")
        return run
    run.requests = _requests(file, result, run)
    return run


def _requests(file: LogFile, result: Mapping[str, Any], run: LogRun) -> pl.DataFrame:
    """Return the requests of a result; InvalidInput: lists are missing, or of different lengths."""
    count = len(result["ttfts"])
    names = ("input_lens", "output_lens", "itls", "errors", "cached_tokens")
    lists = {name: result[name] for name in names if isinstance(result.get(name), list)}
    if not {"input_lens", "output_lens", "itls"} <= set(lists):
        raise unusable(file.path, "lacks input_lens, output_lens or itls", "Write it with --output-details.")
    if any(len(values) != count for values in lists.values()):
        raise unusable(file.path, "has lists of different lengths in one run", "Write it again.")
    errors = lists.get("errors", [""] * count)
    # TTFT of a request without a text chunk stays 0.0
    silent = [not error and not ttft_s for error, ttft_s in zip(errors, result["ttfts"], strict=True)]
    run.faults.add("no_first_chunk", sum(silent), f"row {silent.index(True) + 1}" if any(silent) else None)
    ttft_ms = [None if is_silent else 1e3 * value for is_silent, value in zip(silent, result["ttfts"], strict=True)]
    decode_ms = [1e3 * sum(row) for row in lists["itls"]]
    frame = pl.DataFrame(
        {
            "prompt_tokens": column(lists["input_lens"], count),
            "output_tokens": column(lists["output_lens"], count),
            "cached_tokens": column(lists.get("cached_tokens"), count),
            "ttft_ms": column(ttft_ms, count),
            "e2e_ms": column(ttft_ms, count) + column(decode_ms, count),
            "error": pl.Series([None if not e else kind_of_error(e) for e in errors], dtype=pl.String),
            "status": pl.Series(["error" if e else "ok" for e in errors], dtype=pl.String),
            "tokens_from": ["server" if result.get("backend") == "sglang" else "client"] * count,
            "ttft_clock": ["client_send"] * count,
        }
    ).with_columns(gap_lists(lists["itls"]))
    latency_s = [
        None if first_ms is None else (first_ms + gaps_ms) / 1e3
        for first_ms, gaps_ms in zip(ttft_ms, decode_ms, strict=True)
    ]
    frame = with_times(frame, times_of_sending(result, latency_s), run.faults)
    run.clock = "monotonic" if "sent_s" in frame.columns else "none"
    return frame


FORMAT = LogFormat(
    NAME, "requests", "python -m sglang.benchmark.serving --output-details", _recognises, read_sglang_bench
)
