"""Parses numbers with a size suffix, as vLLM's flags take them: ``16k``, ``128K``, ``25.6k``."""

from __future__ import annotations

import numbers
import re
import sys
from typing import Any

# as in vLLM: lower-case suffixes are powers of 1000, upper-case ones of 1024
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG])")


def read_number(text: str) -> float | int | str:
    """Parse a number with an optional size suffix, as in vLLM's flags; any other text is returned unchanged.

    >>> read_number("16k"), read_number("16K"), read_number("25.6k"), read_number("0.5"), read_number("many")
    (16000, 16384, 25600, 0.5, 'many')
    """
    match = _SIZE.fullmatch(text.strip())
    if match:
        number = float(match[1]) * SUFFIXES[match[2]]
        return int(number) if number == int(number) else number
    return number_or_text(text)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that a float can hold; true and false are none.

    >>> is_number(2), is_number(0.5), is_number(True), is_number("2"), is_number(float("nan")), is_number(10**400)
    (True, True, False, False, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def number_or_text(text: str) -> float | int | str:
    """Parse a number without a suffix; any other text is returned unchanged.

    >>> number_or_text("4"), number_or_text("0.5"), number_or_text("16k")
    (4, 0.5, '16k')
    """
    for number_type in (int, float):
        try:
            return number_type(text)
        except ValueError:
            continue
    return text
