"""Number formats for people: one choice of digits and units for terminals, sentences, notebooks and pages.

The rule: a measured or computed number is written by a function of this module, nowhere by another format. Whole
numbers in sentences may be written ``{count:,}``, as ``number`` does; a value that a user gave is repeated as given,
``{value:g}``. Files, SQL and keys hold numbers in full: they are not for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

DIGITS = 4
MIB = 1024.0**2
GIB = 1024.0**3


def number(value: Any, digits: int = DIGITS, missing: str = "") -> str:
    """Return a value as text: floats with four significant digits, whole numbers with grouped thousands.

    ``digits``: significant digits of a float; all digits before its point are shown. ``missing``: text for None.
    Structs become name=value.
    """
    if value is None:
        return missing
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        text = f"{value:.{digits}g}"
        return f"{value:,.0f}" if abs(float(text)) >= 10 ** (digits - 1) else text
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return "[" + ", ".join(number(item, digits) for item in value) + "]"
    return str(value)


def rounded(value: float) -> str:
    """Return a value rounded to a whole number, with grouped thousands, for seconds, bytes and rates of progress.

    >>> rounded(1301.6), rounded(58.0)
    ('1,302', '58')
    """
    return f"{value:,.0f}"


def interval(low: float, high: float, digits: int = DIGITS) -> str:
    """Return the ends of an interval as text.

    >>> interval(8.5371, 1301.2)
    '8.537 to 1,301'
    """
    return f"{number(low, digits)} to {number(high, digits)}"


def percent(share: float | None, decimals: int = 0, missing: str = "-") -> str:
    """Return a share (0 to 1) in percent.

    >>> percent(0.309), percent(0.309, 1), percent(None)
    ('31%', '30.9%', '-')
    """
    return missing if share is None else f"{share:.{decimals}%}"


def deviation(share: float, decimals: int = 1) -> str:
    """Return a relative error (0.1: 10 % too high) in percent, with its sign.

    >>> deviation(0.0244), deviation(-0.3)
    ('+2.4%', '-30.0%')
    """
    return f"{share:+.{decimals}%}"


def gib(size_bytes: float) -> str:
    """Return bytes in GiB, without the unit.

    >>> gib(85_899_345_920)
    '80.0'
    """
    return f"{size_bytes / GIB:.1f}"
