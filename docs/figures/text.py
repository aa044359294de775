"""Formats of numbers, dates and tables in pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NONE = "–"
ENGINES = {"trtllm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang"}


def percent(value: float | None, digits: int = 1, sign: str = " %") -> str:
    """Return a fraction as a percentage.

    >>> percent(0.1234), percent(0.5, 0, ""), percent(None)
    ('12.3 %', '50', '–')
    """
    return NONE if value is None else f"{100 * value:.{digits}f}{sign}"


def median_mean(score: Mapping[str, Any]) -> str:
    """Return "median / mean" of absolute errors in percent; a dash without rows.

    >>> median_mean({"n": 1, "median_ape": 0.081, "mape": 0.1234}), median_mean({"n": 0})
    ('8.1 / 12.3', '–')
    """
    return pair(score, "median_ape", "mape")


def mean_median(score: Mapping[str, Any]) -> str:
    """Return "mean / median" of absolute errors in percent, as in tables of kernels."""
    return pair(score, "mape", "median_ape")


def pair(score: Mapping[str, Any], *names: str) -> str:
    """Return two errors in percent; a dash without rows."""
    return " / ".join(percent(score[name], sign="") for name in names) if score["n"] else NONE


def full(score: Mapping[str, Any]) -> str:
    """Return median, mean, 90th percentile and bias (mean signed error) in percent, without unknown ones.

    >>> full({"n": 1, "median_ape": 0.081, "mape": 0.1234, "p90_ape": 0.3, "bias": -0.021})
    '8.1 / 12.3, 30, -2'
    """
    more = [
        f"{100 * score[name]:{form}}"
        for name, form in (("p90_ape", ".0f"), ("bias", "+.0f"))
        if score.get(name) is not None
    ]
    return ", ".join([median_mean(score), *more])


def count(value: float) -> str:
    """Return a number with thousands separators."""
    return f"{value:,.0f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def group_name(group: Mapping[str, Any]) -> str:
    """Return a group's title: model, precision, engine, GPU."""
    engine = ENGINES[group["engine"]]
    gpu = group["gpu"].removesuffix("_sxm").upper()
    return " ".join(filter(None, (group["model"].split("/")[-1], group["quantization"]))) + f", {engine} {gpu}"


def day(iso: str) -> str:
    """Return a date in the form of the pages.

    >>> day("2026-11-03")
    '3 Nov 2026'
    """
    year, month, number = iso.split("-")
    return f"{int(number)} {'Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split()[int(month) - 1]} {year}"
