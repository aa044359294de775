"""Reader of vLLM's text log (--enable-logging-iteration-details): engine steps and settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl

from kernelsight.logs.files import LogFile, unusable
from kernelsight.logs.log_run import LogFormat, LogRun
from kernelsight.logs.settings import non_default_args

NAME = "vllm-iterations"
_STEP = re.compile(
    r"(?:Engine (\d+): )?Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, "
    r"iteration elapsed time: (\d+(?:\.\d+)?) ms( \(dummy\))?(?:,.*?KV cache usage: (\d+(?:\.\d+)?)%)?"
)
# time stamp that container runtimes write before a line; vLLM's own has neither a year nor fractions of a second
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)([.,]\d+)?(Z|[+-]\d\d:?\d\d)?")


def _recognises(file: LogFile) -> bool:
    return file.kind == "text" and ("non-default args: {" in file.text or bool(_STEP.search(file.text)))


def read_vllm_iterations(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per file: engine steps with ``wall_us``, their execution time, and settings of "non-default args".

    ``period_us``, the time between consecutive steps, needs a container runtime's time stamps with fractions of a
    second. The context of decoding requests is not in the log. InvalidInput: no step with a duration.
    """
    return [_run(file) for file in files]


def _run(file: LogFile) -> LogRun:
    run = LogRun(file, NAME)
    rows: list[dict[str, Any]] = []
    for line in file.lines():
        step = _STEP.search(line)
        if step:
            rows.append(_row(step, line))
        elif "non-default args" in line:
            run.settings |= non_default_args(line)
    frame = pl.DataFrame(rows, schema=_TYPES)
    dummy_steps = frame.filter(pl.col("dummy"))
    run.faults.add(
        "dummy_step", dummy_steps.height, None if not dummy_steps.height else f"step {dummy_steps['step'][0]}"
    )
    frame = frame.filter(~pl.col("dummy"))
    for rule, is_dropped in (
        ("empty_step", ~(pl.col("wall_us") > 0)),
        ("duplicate_step", ~pl.struct("replica", "step").is_first_distinct()),
    ):
        dropped = frame.filter(is_dropped)
        run.faults.add(rule, dropped.height, None if not dropped.height else f"step {dropped['step'][0]}")
        frame = frame.filter(~is_dropped)
    if not frame.height:
        raise unusable(file.path, "has no step that took time", "Give the log of a server under load.")
    previous_s = pl.col("at_s").shift().over("replica")
    follows = pl.col("step").shift().over("replica") == pl.col("step") - 1
    passed_us = 1e6 * (pl.col("at_s") - previous_s)
    exact = follows & pl.col("fractions") & (passed_us > 0)
    run.steps = frame.with_columns(pl.when(exact).then(passed_us).alias("period_us")).drop("dummy", "fractions")
    run.clock = "unix" if frame["at_s"].null_count() < frame.height else "none"
    return run


_TYPES = {
    "replica": pl.String,
    **dict.fromkeys(("step", "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens"), pl.Int64),
    **dict.fromkeys(("wall_us", "kv_share", "at_s"), pl.Float64),
    **dict.fromkeys(("dummy", "fractions"), pl.Boolean),
    "clock": pl.String,
}


def _row(step: re.Match[str], line: str) -> dict[str, Any]:
    """Return a row of ``production_steps`` from a match of _STEP."""
    engine, number, prompts, prompt_tokens, decodes, decode_tokens, elapsed, dummy, kv_percent = step.groups()
    at_s, fractions = _unix(line)
    return {
        "replica": str(int(engine or 0)),
        "step": int(number),
        "prefill_requests": int(prompts),
        "prefill_tokens": int(prompt_tokens),
        "decode_requests": int(decodes),
        "decode_tokens": int(decode_tokens),
        "wall_us": 1e3 * float(elapsed),
        "kv_share": None if kv_percent is None else min(float(kv_percent) / 100, 1.0),
        "at_s": at_s,
        "dummy": dummy is not None,
        "fractions": fractions,
        "clock": "iteration",
    }


def _unix(line: str) -> tuple[float | None, bool]:
    """Return the unix time stamp before a line, s, None without one or its zone; and whether it has fractions."""
    stamp = _STAMP.match(line)
    if not stamp or not stamp.group(3):
        return None, False
    try:
        zone = stamp.group(3).replace("Z", "+00:00")
        moment = datetime.fromisoformat(stamp.group(1).replace(" ", "T") + zone).astimezone(UTC)
    except ValueError:
        return None, False
    fraction = stamp.group(2)
    return moment.timestamp() + (float("0." + fraction[1:]) if fraction else 0.0), fraction is not None


FORMAT = LogFormat(
    NAME, "steps", "the log of vllm serve --enable-logging-iteration-details", _recognises, read_vllm_iterations
)
