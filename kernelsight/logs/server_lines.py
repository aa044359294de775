"""Reader of servers' logs: throughput, requests, KV cache and hit rate over time, or engine steps, by log_forms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl

from kernelsight.logs.files import LogFile, unusable
from kernelsight.logs.labels import fields_of
from kernelsight.logs.log_run import LogRun
from kernelsight.logs.settings import stated_by
from kernelsight.logs.steps import finish_steps
from kernelsight.logs.windows import load_of_windows

_DATE = re.compile(r"(\d{4})?[-/]?(\d\d)[-/](\d\d)(?:[/-](\d{4}))?[T -](\d\d):(\d\d):(\d\d)([.,]\d+)?")
# time stamp that container runtimes write before a line; the engines' own has neither a zone nor, often, a year
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)([.,]\d+)?(Z|[+-]\d\d:?\d\d)")
_FACTORS = {"%": 0.01, "ms": 1e3}  # to a share, to us
_CLOCK = re.compile(r"(?:^|[\[ ])(\d\d):(\d\d):(\d\d)(?=[\] .,])")
HALF_DAY_S = 43_200.0
LONGEST = 2000  # characters of a line that are looked at
MEANS = ("prompt_tokens_per_s", "output_tokens_per_s", "running", "waiting", "kv_share", "hit_share")
COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens")
_TYPES = {"replica": pl.String, "at_s": pl.Float64, **dict.fromkeys((*MEANS, *COUNTS), pl.Float64)}
_STEPS = {
    **dict.fromkeys(
        ("line", "step", "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens"), pl.Int64
    ),
    **{"replica": pl.String, "at_s": pl.Float64, "wall_us": pl.Float64, "kv_share": pl.Float64},
    **{"idle": pl.Boolean, "exact": pl.Boolean},
}


def seconds_of(line: str) -> float | None:
    """Return the time stamp of a line in seconds of an unknown zone, without the year 2000; None: it has none.

    >>> seconds_of("INFO 09-01 10:10:20 [loggers.py:127]") - seconds_of("INFO 09-01 10:10:10 [loggers.py:127]")
    10.0
    >>> seconds_of("[10:00:01 TP0] Decode batch"), seconds_of("no time")
    (36001.0, None)
    """
    if match := _DATE.search(line):
        year, month, day, late_year, *clock = match.groups()
        fraction = float("0." + clock[3][1:]) if clock[3] else 0.0
        try:
            moment = datetime(int(year or late_year or 2000), int(month), int(day), *map(int, clock[:3]))
        except ValueError:
            return None
        return (moment - datetime(2000, 1, 1)).total_seconds() + fraction
    if match := _CLOCK.search(line):
        hour, minute, second = map(int, match.groups())
        return 3600.0 * hour + 60.0 * minute + second
    return None


def unix_of(line: str) -> tuple[float | None, bool]:
    """Return the unix time before a line, s, None without one or its zone; and whether it has fractions.

    >>> unix_of("1970-01-01T00:00:02.5Z Iteration"), unix_of("INFO 09-01 10:10:20 Iteration")
    ((2.5, True), (None, False))
    """
    if not (stamp := _STAMP.match(line)):
        return None, False
    date, clock, fraction, zone = stamp.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{zone.replace('Z', '+00:00')}").astimezone(UTC)
    except ValueError:
        return None, False
    return moment.timestamp() + (float("0." + fraction[1:]) if fraction else 0.0), fraction is not None


def read(files: Sequence[LogFile], form: Mapping[str, Any]) -> list[LogRun]:
    """Return one run per file: a window per moment that the log states, or its steps, and the engine's settings.

    Lines that occur twice count once. ``period_us``, the time between consecutive steps, needs time stamps with
    fractions of a second.
    """
    return [_run(file, form) for file in files]


def _run(file: LogFile, form: Mapping[str, Any]) -> LogRun:
    run = LogRun(file, form["form"])
    signature, fields = re.compile(form["signature"]), fields_of(form["form"])
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    previous_s = None
    has_steps = form["role"] == "steps"
    for number, line in enumerate(file.lines(), 1):
        if not signature.search(line[:LONGEST]):
            run.settings |= stated_by(line)
            continue
        whole, line = line, line[:LONGEST]
        if line in seen and not has_steps:
            run.faults.add("repeated_line", 1, f"line {len(seen) + 1}")
            continue
        seen.add(line)
        row: dict[str, Any] = {"replica": "0", "at_s": seconds_of(line)}
        for pattern, column, unit in fields:
            if match := pattern.search(line):
                row[column] = str(int(match[1])) if column == "replica" else _number(match[1], _FACTORS.get(unit, 1.0))
        if has_steps:
            at_s, exact = unix_of(line)
            if "step" in row:
                rows.append(row | {"line": number, "at_s": at_s, "exact": exact, "idle": "idle" in row})
            else:
                run.settings |= stated_by(whole)
            continue
        if row["at_s"] is not None and previous_s is not None and row["at_s"] < previous_s - HALF_DAY_S:
            row["at_s"] += 2 * HALF_DAY_S  # a clock without a date, past midnight
        previous_s = row["at_s"] if row["at_s"] is not None else previous_s
        rows.append(row)
    if has_steps:
        steps = pl.DataFrame(rows, schema=_STEPS, strict=False)
        finish_steps(run, steps.with_columns(pl.col("kv_share").clip(0, 1), pl.lit("iteration").alias("clock")))
        return run
    frame = pl.DataFrame(rows, schema=_TYPES)
    run.faults.add("no_time_stamp", frame["at_s"].null_count())
    if not rows or all(frame[name].null_count() == frame.height for name in MEANS[:3]):
        raise unusable(file.path, "has no line with running requests or a throughput", "Give the server's whole log.")
    run.windows = _windows(frame)
    run.summaries = load_of_windows(run.windows) if run.windows.height else _means(frame)
    return run


def _number(text: str, factor: float) -> float | None:
    """Return a number in a text, None for what is none or is beyond all measure."""
    try:
        return min(factor * float(text), 1e12)
    except ValueError:
        return None


def _windows(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of ``production_windows`` of lines with times: each from the moment before to its own."""
    moments = frame.drop_nulls("at_s").group_by("replica", "at_s").agg(
        *(pl.col(name).mean() for name in MEANS), *(pl.col(name).sum() for name in COUNTS),
        *(pl.col(name).count().alias(f"{name}_lines") for name in COUNTS),
    ).sort("replica", "at_s")  # fmt: skip
    lasted = pl.col("at_s").diff().over("replica")
    moments = moments.with_columns(lasted.fill_null(lasted.median().over("replica")).alias("lasts_s"))
    moments = moments.filter(pl.col("lasts_s") > 0)
    first_s = (pl.col("at_s") - pl.col("lasts_s")).min()
    tokens = [
        pl.when(pl.col(f"{name}_lines") > 0).then(pl.col(name)).otherwise(pl.col(f"{name}_per_s") * pl.col("lasts_s"))
        for name in COUNTS[:2]
    ]
    return moments.with_columns(
        (pl.col("at_s") - pl.col("lasts_s") - first_s).clip(0.0).alias("start_s"),
        (pl.col("at_s") - first_s).alias("end_s"),
        pl.col("kv_share").clip(0, 1), pl.col("hit_share").clip(0, 1),
        *(value.round().cast(pl.Int64).alias(name) for name, value in zip(COUNTS[:2], tokens, strict=True)),
        pl.when(pl.col("cached_tokens_lines") > 0).then(pl.col("cached_tokens")).cast(pl.Int64).alias("cached_tokens"),
        pl.when(pl.col("cached_tokens_lines") > 0).then(pl.col("prompt_tokens") + pl.col("cached_tokens"))
        .cast(pl.Int64).alias("looked_up_tokens"),
    ).drop("at_s", "lasts_s", *MEANS[:2], *(f"{name}_lines" for name in COUNTS))  # fmt: skip


def _means(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the means of lines without times, as summaries."""
    means = {name: frame[name].mean() for name in MEANS}
    return [
        {"part": "log of the server", "metric": name, "statistic": "mean", "value": float(value)}  # type: ignore[arg-type]
        for name, value in means.items()
        if value is not None
    ]


def recognises(file: LogFile, form: Mapping[str, Any]) -> bool:
    """Whether a file is of a form, a row of ``log_forms``."""
    return file.kind in ("text", "json") and bool(re.search(form["signature"], file.text))
