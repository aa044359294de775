"""Numbers with units from text: rates ``12/s`` and ``5M/day``, counts ``200k``, times ``2s``, bandwidths ``2GB/s``."""

from __future__ import annotations

import math
import re

from kernelsight.errors import InvalidInput

COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
SECONDS = {
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86_400.0,
    "day": 86_400.0,
}
BYTES = {"MB": 1e6, "GB": 1e9, "TB": 1e12, "MIB": 2.0**20, "GIB": 2.0**30, "TIB": 2.0**40}
MILLISECONDS = {"": 1.0, "ms": 1.0, "s": 1e3, "us": 1e-3, "min": 6e4}
_PARTS = re.compile(
    r"(?P<number>\d[\d_,]*+\.?\d*+(?:[eE][+-]?\d++)?)\s*+(?P<unit>[a-zA-Z]*+)\s*+(?:/\s*(?P<per>[a-zA-Z]+))?"
)


def rate_of(value: float | str, flag: str = "--rate") -> float:
    """Return requests/s of a number, or of text such as 12/s, 700/min or 5M/day; InvalidInput: neither.

    >>> rate_of("12/s"), rate_of("720/min"), rate_of("8.64M/day"), rate_of(3)
    (12.0, 12.0, 100.0, 3.0)
    """
    figure = _figure_of(value)
    if figure is None or figure[1].lower() not in COUNTS or (figure[2] or "s").lower() not in SECONDS:
        raise InvalidInput(f"{flag} is {value!r}; give requests per second, such as 12, 12/s, 700/min or 5M/day.")
    return figure[0] * COUNTS[figure[1].lower()] / SECONDS[(figure[2] or "s").lower()]


def count_of(value: float | str, flag: str) -> float:
    """Return a count of a number, or of text such as 5M or 200k, in powers of ten; InvalidInput: neither.

    >>> count_of("5M", "--requests-per-day"), count_of("200k", "--users"), count_of(7, "--users")
    (5000000.0, 200000.0, 7.0)
    """
    figure = _figure_of(value)
    if figure is None or figure[1].lower() not in COUNTS or figure[2]:
        raise InvalidInput(f"{flag} is {value!r}; give a number, such as 200, 200k or 5M.")
    return figure[0] * COUNTS[figure[1].lower()]


def milliseconds_of(text: str) -> float:
    """Return milliseconds of a number, or of text such as 2s or 40ms; NaN: neither.

    >>> milliseconds_of("2s"), milliseconds_of("40ms"), milliseconds_of("250"), milliseconds_of("soon")
    (2000.0, 40.0, 250.0, nan)
    """
    figure = _figure_of(text)
    if figure is None or figure[1].lower() not in MILLISECONDS or figure[2]:
        return math.nan
    return figure[0] * MILLISECONDS[figure[1].lower()]


def seconds_of(value: float | str, flag: str) -> float:
    """Return seconds of a number, or of text such as 90s or 5min; InvalidInput: neither, or below 0.

    >>> seconds_of("5min", "--startup-seconds"), seconds_of(90, "--startup-seconds")
    (300.0, 90.0)
    """
    figure = _figure_of(value)
    if figure is None or (figure[1] or "s").lower() not in SECONDS or figure[2] or not 0.0 <= figure[0] < math.inf:
        raise InvalidInput(f"{flag} is {value!r}; give seconds, such as 90, 90s or 5min.")
    return figure[0] * SECONDS[(figure[1] or "s").lower()]


def bytes_per_s_of(value: float | str, flag: str) -> float:
    """Return bytes/s of text such as 2GB/s or 800MB/s; a number is GB/s. InvalidInput: neither.

    >>> [bytes_per_s_of(value, "--disk-rate") for value in ("800MB/s", 2, "1GiB/s")]
    [800000000.0, 2000000000.0, 1073741824.0]
    """
    figure = _figure_of(value)
    unit = (figure[1] or "GB").upper() if figure else ""
    if figure is None or unit not in BYTES or (figure[2] or "s") not in ("s", "sec") or not 0.0 < figure[0] < math.inf:
        raise InvalidInput(f"{flag} is {value!r}; give bytes per second, such as 2GB/s or 800MB/s.")
    return figure[0] * BYTES[unit]


def _figure_of(value: float | str) -> tuple[float, str, str | None] | None:
    """Return (number, unit, unit after the slash); None: ``value`` is no such text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return float(value), "", None
    try:
        return float(value), "", None
    except ValueError:
        match = _PARTS.fullmatch(value.strip())
    return (float(match["number"].replace(",", "").replace("_", "")), match["unit"], match["per"]) if match else None
