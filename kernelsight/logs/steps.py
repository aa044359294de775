"""Rows of ``production_steps`` from the frame of any reader: without idle, empty and repeated steps."""

from __future__ import annotations

import polars as pl

from kernelsight.logs.files import unusable
from kernelsight.logs.log_run import LogRun

_COUNTS = (
    *("prefill_requests", "prefill_tokens", "prefill_cached_tokens", "decode_requests", "decode_tokens"),
    *("decode_context_tokens", "queued_requests"),
)


def finish_steps(run: LogRun, frame: pl.DataFrame) -> None:
    """Set the steps of a run from those of a log; steps that are left out are counted.

    ``frame``: columns of ``production_steps``, line; idle (of an idle rank), exact (``at_s`` has
    fractions), sampled. InvalidInput: no
    step took time.
    """
    counts = [pl.col(name) for name in _COUNTS if name in frame.columns]
    took_time = pl.col("wall_us").is_finite() & (pl.col("wall_us") > 0)
    none_runs = pl.col("prefill_requests") + pl.col("decode_requests") == 0
    rules = {
        "dummy_step": pl.col("idle") if "idle" in frame.columns else pl.lit(False),
        "idle_heartbeat": (pl.col("wall_us") == 0) & none_runs,
        "empty_step": ~took_time.fill_null(False) | pl.col("step").is_null(),
        "negative_count": pl.any_horizontal(count < 0 for count in counts).fill_null(False),
        "duplicate_step": ~pl.struct("replica", "step").is_first_distinct(),
    }
    for rule, is_dropped in rules.items():
        dropped = frame.filter(is_dropped)
        run.faults.add(rule, dropped.height, f"line {dropped['line'][0]}" if dropped.height else None)
        frame = frame.filter(~is_dropped)
    if not frame.height:
        raise unusable(run.file.path, "has no step that took time", "Give the log of a server under load.")
    for rule in [name for name in ("sampled", "clock_of_steps") if name in frame.columns]:
        run.faults.add(rule, frame.filter(rule).height)
        frame = frame.drop(rule)
    if "exact" in frame.columns:
        follows = pl.col("step").shift().over("replica") == pl.col("step") - 1
        passed_us = 1e6 * (pl.col("at_s") - pl.col("at_s").shift().over("replica"))
        period_us = pl.when(follows & pl.col("exact") & (passed_us > 0)).then(passed_us)
        frame = frame.with_columns(period_us.alias("period_us"))
    run.steps = frame.drop(name for name in ("line", "idle", "exact") if name in frame.columns)
    run.clock = "unix" if frame["at_s"].null_count() < frame.height else "none"
