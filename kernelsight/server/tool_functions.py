"""The tools of ``kernelsight mcp``: the verbs as functions with bounded answers, each with a session of its own.

Nothing is written, and a query reads no local files. Traces, logs and configs are read if a call names them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from kernelsight.dataflow.rows import python_rows
from kernelsight.errors import InvalidInput, flags_in_errors
from kernelsight.files.budget import TOOL
from kernelsight.present.output import clean
from kernelsight.scenario.flags import (
    DEPLOYMENT,
    FLAGS,
    LENGTHS,
    LIMITS,
    LOAD,
    POLICIES,
    POOLS,
    PREFILL,
    ROUTER,
    SITE,
    SPECULATION,
)
from kernelsight.session import Session, connect

# of an answer, for its note on what follows; its other bytes are some 30,000 tokens of a language model
NOTE_BYTES = 300
DEPLOYED = (*DEPLOYMENT, *LIMITS, *POLICIES, *SPECULATION)
LOADED = (*POOLS, *PREFILL, *LOAD, *LENGTHS, *ROUTER, *SITE)


def tables(session: Session, _: dict[str, Any], table: str | None = None, offset: int = 0) -> dict[str, Any]:
    """List all tables with their grain and description, or the columns of one; offset: first row of a longer answer."""
    return bounded(session.columns(table) if table else session.tables(), offset)


def options(_: Session, __: dict[str, Any], offset: int = 0) -> dict[str, Any]:
    """List the options of simulate, size, sweep, predict and compare that their schemas leave out: name and meaning."""
    return bounded_rows(
        [{"option": flag.name, "text": flag.help} for flag in FLAGS.values() if not flag.everyday], offset
    )


def explain(session: Session, _: dict[str, Any], table: str, offset: int = 0) -> dict[str, Any]:
    """Show which queries and functions compute a table, in order, a row for each line."""
    return bounded_rows([{"text": line} for line in session.explain(table).splitlines()], offset)


def sql(session: Session, _: dict[str, Any], query: str, offset: int = 0) -> dict[str, Any]:
    """Run one DuckDB SELECT over given and derived tables, such as gpus and models; it reads no files. offset: first
    row of a longer answer."""
    kept: list[dict[str, Any]] = []
    count = 0
    for batch in session.batches(query, TOOL.rows):
        first = max(_checked(offset) - count, 0)
        if first < batch.num_rows and len(kept) < TOOL.rows:
            kept += python_rows(pa.Table.from_batches([batch]).slice(first, TOOL.rows - len(kept)))
        count += batch.num_rows
    return _answer(kept, offset, count, "rows", {})


def predict(
    session: Session,
    flags: dict[str, Any],
    phase: Literal["decode", "prefill", "mixed"] = "decode",
    batch_size: int | None = None,
    input_len: int | None = None,
    context_len: int | None = None,
    offset: int = 0,
) -> dict[str, Any]:
    """Predict one forward step, kernel by kernel: phase prefill (batch_size prompts of input_len new tokens), decode
    (batch_size sequences with context_len cached tokens) or mixed (both)."""
    step = session.predict(
        phase=phase, batch_size=batch_size, input_len=input_len, context_len=context_len, **flags
    ).as_dict()
    return bounded_rows(step.pop("kernels"), offset, "kernels", step)


def simulate(session: Session, flags: dict[str, Any]) -> dict[str, Any]:
    """Simulate serving a load on a deployment: TTFT, TPOT, ITL, E2E, throughput, KV cache, where the GPU time goes."""
    return session.simulate(**flags).summary


def sweep(
    session: Session, _: dict[str, Any], grid: dict[str, Any], slo: list[str] | None = None, offset: int = 0
) -> dict[str, Any]:
    """Simulate every scenario of a grid: keys are flags of simulate, values a scalar or a list (their product);
    slo such as ["ttft_p95:1000"] adds meets_slo."""
    return bounded(session.sweep(grid, slo=slo).table("scenario_summary"), offset)


def size(
    session: Session,
    flags: dict[str, Any],
    gpus: list[str] | str,
    slo: list[str] | str,
    request_rate: float | None = None,
    requests_per_day: float | None = None,
    users: int | None = None,
    total_gpus: int | None = None,
    daily_peak: float | None = None,
    prices: dict[str, float] | None = None,
    max_gpus: int = 8,
    offset: int = 0,
) -> dict[str, Any]:
    """Find the cheapest deployment for request_rate requests/s within objectives such as ["ttft_p95:1000",
    "tpot_p99:40"] (ms); in place of a rate users (each with one request in flight), or total_gpus (what these can
    serve); daily_peak: the peak of a day over its mean; prices: dollars per GPU-hour by name. It takes a minute."""
    question = {"gpus": gpus, "slo": slo, "rate": request_rate, "requests_per_day": requests_per_day, "prices": prices}
    question |= {"users": users, "total_gpus": total_gpus, "daily_peak": daily_peak}
    answer = session.size(**question, max_gpus=max_gpus, **flags).as_dict()
    return bounded_rows(answer.pop("rows"), offset, "rows", answer)


def compare(session: Session, flags: dict[str, Any], log: list[str], log_format: str = "auto") -> dict[str, Any]:
    """Replay a production or benchmark log on a deployment: how far measurement and prediction differ, and why."""
    return session.compare(log=log, log_format=log_format, **flags).summary


def step_time(session: Session, flags: dict[str, Any], batch: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the time of one engine step from (new tokens, past tokens) of each sequence, with its 90 % interval, and
    the energy of all GPUs (null: unknown)."""
    step = session.step_times(**flags)(batch)._asdict()
    return {name: None if math.isnan(value) else value for name, value in step.items()}


# every tool, with the flags that it takes in addition to its own parameters
TOOLS = (
    *((tables, ()), (options, ()), (explain, ()), (sql, ()), (sweep, ())),
    *((predict, DEPLOYED), (step_time, DEPLOYED), (compare, DEPLOYED)),
    (simulate, (*DEPLOYED, *LOADED)),
    (size, tuple(flag for flag in (*DEPLOYED, *LOADED) if flag.name != "gpu")),
)
FUNCTIONS = {function.__name__: function for function, _ in TOOLS}


def answer_of(tool: str, flags: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a tool to ``flags`` and its own ``arguments``, of at most TOOL.answer_bytes as JSON.

    KernelSightError: what is asked for does not exist, or cannot be predicted.
    """
    with connect(files=False) as session, flags_in_errors(False):
        answer = clean(FUNCTIONS[tool](session, dict(flags), **arguments))
    size_bytes = len(json.dumps(answer))
    if size_bytes > TOOL.answer_bytes:
        raise InvalidInput(
            f"the answer has {size_bytes:,} bytes, more than {TOOL.answer_bytes:,}; ask for less at once."
        )
    return answer


def bounded(table: pa.Table, offset: int) -> dict[str, Any]:
    """Return rows of an Arrow table, see :func:`bounded_rows`."""
    return _answer(python_rows(table.slice(_checked(offset), TOOL.rows)), offset, table.num_rows, "rows", {})


def bounded_rows(
    rows: Sequence[dict[str, Any]], offset: int, name: str = "rows", beside: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return ``beside`` and those rows from ``offset`` on that fit into an answer, as ``name``; see :func:`_answer`."""
    return _answer(rows[_checked(offset) : offset + TOOL.rows], offset, len(rows), name, beside or {})


def _checked(offset: int) -> int:
    if offset < 0:
        raise InvalidInput(f"offset is {offset}; give the number of the first row, from 0 on.")
    return offset


def _answer(
    rows: Sequence[dict[str, Any]], offset: int, count: int, name: str, beside: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an answer of the leading ``rows`` that fit into it, which begin at ``offset`` of ``count``, and of
    ``beside``; where rows follow, with a sentence on how to get them."""
    beside = clean(beside)
    left_bytes = TOOL.answer_bytes - len(json.dumps(beside)) - NOTE_BYTES
    kept: list[dict[str, Any]] = []
    for row in rows:
        short = {column: _short(value) for column, value in clean(row).items()}
        left_bytes -= len(json.dumps(short)) + len(", ")
        if left_bytes < 0:
            break
        kept.append(short)
    following = offset + len(kept)
    answer = {**beside, name: kept, "row_count": count, "truncated": following < count}
    if rows and not kept:
        answer["note"] = f"row {offset} alone has more bytes than an answer may have; ask for fewer columns."
    elif following < count:
        answer["note"] = f"{count - following:,} more rows follow; ask again with offset {following} for the next ones."
    return answer


def _short(value: Any) -> Any:
    """Return a value of a row, or the beginning of one that is longer than an answer has room for."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= TOOL.characters:
        return value
    return f"{text[: TOOL.characters]}… ({len(text):,} characters)"
