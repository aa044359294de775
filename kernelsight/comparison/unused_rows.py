"""Rows of a log that a comparison does not use: counts by rule, and the clause of the verdict on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# rules that drop requests that could have been compared; failed and cancelled requests could not
LOST = (
    *("duplicate_id", "unreadable_line", "unreadable_value", "no_prompt_tokens", "no_latency", "no_output"),
    *("negative_duration", "not_finite", "no_first_chunk", "other_clock", "impossible_value"),
)
DOUBTFUL = ("order_of_times",)  # compared, but their times contradict each other
REJECTED = "rejected by the simulated engine"


def fault_counts(faults: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return counts of unused rows by rule, summed over logs, with the first row; ``faults``: rows of ``log_faults``.

    >>> fault = {"rule": "duplicate_id", "rows": "dropped", "explanation": "repeated requests", "n": 2}
    >>> (count,) = fault_counts([fault | {"example": "row 7"}, fault | {"example": "row 3"}])
    >>> count["n"], count["example"]
    (4, 'row 7')
    """
    by_rule: dict[tuple[str, str], dict[str, Any]] = {}
    for row in faults:
        empty_count = {"reason": row["rule"], "n": 0, "rows": row["rows"], "explanation": row["explanation"]}
        empty_count["example"] = row["example"]
        by_rule.setdefault((row["rule"], row["rows"]), empty_count)["n"] += row["n"]
    return list(by_rule.values())


def rejected(n: int, longest: int, limit: int) -> dict[str, Any]:
    """Return the count of requests that the simulated engine rejects, as a row of ``fault_counts``.

    ``longest``: prompt and output tokens of the longest; ``limit``: max_model_len.
    """
    why = f"requests that the simulated engine rejects: up to {longest:,} tokens, where max_model_len is {limit:,}"
    return {"reason": REJECTED, "n": n, "rows": "excluded", "explanation": why, "example": None}


def unused_clause(dropped: Sequence[Mapping[str, Any]]) -> str:
    """Return the clause of a verdict on rows that were not used or are doubtful, with counts and reasons; "" for none.

    >>> fault = {"rule": "no_output", "rows": "excluded", "explanation": "requests: why", "n": 1200, "example": "row 1"}
    >>> unused_clause(fault_counts([fault]))
    '; not used: 1,200 × requests (why)'
    """
    groups = (("not used", (*LOST, REJECTED)), ("doubtful", DOUBTFUL))
    return "".join(
        f"; {heading}: {', '.join(_rows_lost(row) for row in rows)}"
        for heading, reasons in groups
        if (rows := sorted((row for row in dropped if row["reason"] in reasons), key=lambda row: -row["n"]))
    )


def _rows_lost(row: Mapping[str, Any]) -> str:
    rows_lost, colon, why = row["explanation"].partition(": ")
    return f"{row['n']:,} × {rows_lost}{f' ({why})' if colon else ''}"
