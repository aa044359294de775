"""Observations of engine steps and profiled kernels of a log: step shapes with measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import KERNELS, part_of
from kernelsight.forward.forward_step import whole_step

# steps with prompts, and steps without, that are used: evenly over their sizes
MOST_STEPS = 100
LEAST_STEPS = 20
# family that kernels without a known family count as
SMALL_KERNELS = "norm"


class ObservedSteps(NamedTuple):
    """Measured times of steps and kernels; arrays have shape [observations].

    ``shapes``: rows of ``step_shapes`` without a deployment; ``shape``: index into them; ``parts``: which kernel parts
    the time includes, shape [observations, KERNELS]; ``with_host``: whether it includes host time; ``context_known``:
    whether the log states the context of its sequences; ``log_us``: natural logarithm of the time in us; ``steps``,
    ``kernels``: number of observations of each; ``unused``: sentences on what was not used.
    """

    shapes: list[dict[str, Any]]
    shape: np.ndarray
    parts: np.ndarray
    with_host: np.ndarray
    context_known: np.ndarray
    log_us: np.ndarray
    steps: int
    kernels: int
    unused: list[str]


def observed_steps_of(
    logs: Mapping[str, pa.Table], settings: Mapping[str, Any], until_s: float, fitted_share: float, context: int
) -> ObservedSteps:
    """Return the observations of a log's engine steps and kernels in the fitted part of its time.

    ``logs``: tables of the log; ``settings``: the row of ``log_settings``; ``until_s``: end of the fitted part, seconds
    from the first request; where clocks cannot be compared the first ``fitted_share`` of the steps is used instead.
    ``context``: mean context of a sequence, tokens, where the log does not state it.
    """
    shapes: list[dict[str, Any]] = []
    rows: list[tuple[int, str | None, bool, bool, float]] = []
    unused: list[str] = []
    step_rows = _steps(logs, settings, until_s, fitted_share, unused)
    for row in step_rows:
        context_known = row["decode_context_tokens"] is not None or not row["decode_requests"]
        shapes.append(_shape_of_step(row, len(shapes), context))
        rows.append((len(shapes) - 1, None, row["clock"] != "gpu_span", context_known, row["us"]))
    step_count = len(rows)
    for shape, times in _kernels(logs["production_kernels"], unused):
        shapes.append(shape | {"step_shape_id": len(shapes)})
        rows += [(len(shapes) - 1, kernel, False, True, us) for kernel, us in times.items()]
    if not rows:
        return ObservedSteps([], *(np.zeros(0) for _ in range(5)), 0, 0, unused)
    kernels_included = np.array([[family is None or name == family for name in KERNELS] for _, family, *_ in rows])
    shape_number, with_host, context_known, us = (np.array([row[column] for row in rows]) for column in (0, 2, 3, 4))
    return ObservedSteps(
        shapes,
        shape_number,
        kernels_included,
        with_host,
        context_known,
        np.log(us),
        step_count,
        len(rows) - step_count,
        unused,
    )


def _steps(
    logs: Mapping[str, pa.Table], settings: Mapping[str, Any], until_s: float, fitted_share: float, unused: list[str]
) -> list[dict[str, Any]]:
    """Return the rows of ``production_steps`` that are used, with ``us``: time to the next step, or GPU time."""
    table = logs["production_steps"]
    if not table.num_rows:
        return []
    if settings["pp"] > 1:
        unused.append("engine steps of several pipeline stages overlap: they are not used")
        return []
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    frame = _in_time(frame, logs["production_logs"], until_s, fitted_share)
    duration = pl.coalesce("period_us", "wall_us")
    if settings["async_scheduling"]:
        # the next step is scheduled while one runs: the execution time that the engine counts overlaps with others
        duration = pl.when(pl.col("clock") == "iteration").then(pl.col("period_us")).otherwise(duration)
    frame = frame.with_columns(pl.when(pl.col("clock") == "gpu_span").then("wall_us").otherwise(duration).alias("us"))
    if not frame["us"].count():
        unused.append(
            "engine steps have no time of their own with asynchronous scheduling: add timestamps with fractions of a "
            "second to the log, or turn asynchronous scheduling off for a while"
        )
    drafted = pl.col("decode_tokens").fill_null(pl.col("decode_requests")) > pl.col("decode_requests")
    empty = pl.col("prefill_tokens") + pl.col("decode_requests") == 0
    frame = frame.filter(pl.col("us").is_not_null() & ~drafted & ~empty)
    if frame.height < LEAST_STEPS:
        return []
    with_prompts = pl.col("prefill_tokens") > 0
    groups = (frame.filter(with_prompts), frame.filter(~with_prompts))
    return [row for group in groups for row in _spread(group).to_dicts()]


def _in_time(frame: pl.DataFrame, production_logs: pa.Table, until_s: float, fitted_share: float) -> pl.DataFrame:
    """Return the steps in the fitted part of the time; see ``observed_steps_of``."""
    logs = production_logs.to_pylist()
    starts = {row["log_id"]: row["start_unix_s"] for row in logs}
    requests = [row["start_unix_s"] for row in logs if row["requests"]]
    has_start = len(requests) == 1 and requests[0] is not None
    if has_start and all(starts.get(name) is not None for name in frame["log_id"].unique()) and frame["at_s"].count():
        offset = pl.col("log_id").replace_strict(
            {name: starts[name] or 0.0 for name in starts}, return_dtype=pl.Float64
        )
        return frame.filter(offset + pl.col("at_s") <= requests[0] + until_s)
    return frame.filter(
        pl.int_range(pl.len()).over("log_id", "replica") < fitted_share * pl.len().over("log_id", "replica")
    )


def _spread(steps: pl.DataFrame) -> pl.DataFrame:
    """Return at most MOST_STEPS steps, evenly over their sizes."""
    ordered = steps.sort("prefill_tokens", "decode_requests", "decode_context_tokens", "log_id", "replica", "step")
    indices = np.unique(np.linspace(0, max(ordered.height - 1, 0), min(MOST_STEPS, ordered.height)).astype(int))
    return ordered[indices] if ordered.height else ordered


def _shape_of_step(row: Mapping[str, Any], number: int, context: int) -> dict[str, Any]:
    """Return the step shape of a row of ``production_steps``: equal chunks and contexts of its requests."""
    prompts, decodes = row["prefill_requests"], row["decode_requests"]
    if row["prefill_tokens"]:
        prompts = max(prompts, 1)
    context_tokens = row["decode_context_tokens"]
    chunk = round(row["prefill_tokens"] / prompts) if prompts else 0
    cached = round((row["prefill_cached_tokens"] or 0) / prompts) if prompts else 0
    mean_context = context if context_tokens is None else round(context_tokens / decodes) if decodes else 0
    return whole_step(number, decodes, max(mean_context, 1), prompts if chunk else 0, chunk, cached)


def _kernels(table: pa.Table, unused: list[str]) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Return the step shape of each profiled case, and its time by kernel part, us, mean over ranks."""
    rows = table.to_pylist()
    cases: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["query_lens"] and row["kv_lens"] and row["forwards"]:
            cases.setdefault((row["log_id"].rpartition(".rank")[0] or row["log_id"], row["step_shape"]), []).append(row)
    if rows and not cases:
        unused.append(
            "kernels of a profile over many steps say nothing of one step: vllm bench forward, with its --output-json, "
            "states their shape"
        )
    return [(_shape_of_case(case_rows[0]), _times(case_rows)) for case_rows in cases.values()]


def _shape_of_case(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the step shape of a profiled case from its query and KV lengths."""
    lengths = list(zip(row["query_lens"], row["kv_lens"], strict=True))
    decodes = [context_tokens for new_tokens, context_tokens in lengths if new_tokens == 1]
    # KV lengths include the new tokens
    prompts = [
        (new_tokens, max(context_tokens - new_tokens, 0)) for new_tokens, context_tokens in lengths if new_tokens != 1
    ]
    chunk, cached = (round(float(np.mean([row[column] for row in prompts] or [0]))) for column in (0, 1))
    return whole_step(0, len(decodes), max(round(float(np.mean(decodes or [0]))), 1), len(prompts), chunk, cached)


def _times(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return us by kernel part, mean over ranks and forwards; kernels without a family count as SMALL_KERNELS."""
    ranks = len({(row["log_id"], row["rank"]) for row in rows})
    phase = "decode" if sum(rows[0]["query_lens"]) <= 256 else "prefill"
    microseconds: dict[str, float] = {}
    for row in rows:
        kernel = part_of(row["family"] or SMALL_KERNELS, phase)
        if kernel:
            microseconds[kernel] = microseconds.get(kernel, 0.0) + row["total_us"] / row["forwards"] / ranks
    return {kernel: us for kernel, us in microseconds.items() if us > 0.0}


def typical_context(measured: Measured) -> int:
    """Return the mean context of a decoding sequence, tokens; requests are weighted by output length."""
    ok, output_tokens = measured.ok, np.maximum(measured.output_tokens, 1.0)
    context_tokens = measured.prompt_tokens + output_tokens / 2.0
    return max(int(np.average(context_tokens[ok], weights=output_tokens[ok])), 1) if ok.any() else 1
