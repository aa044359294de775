"""Sizes as people write them: ``16k``, ``128K``, ``25.6k``."""

from __future__ import annotations

import re

# as in vLLM: small letters are powers of 1000, capital ones of 1024
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG])")


def read_number(text: str) -> float | int | str:
    """Return the number that a text stands for, with an optional suffix as in vLLM's size flags, or the text.

    >>> read_number("16k"), read_number("16K"), read_number("25.6k"), read_number("0.5"), read_number("many")
    (16000, 16384, 25600, 0.5, 'many')
    """
    match = _SIZE.fullmatch(text.strip())
    if match:
        number = float(match[1]) * SUFFIXES[match[2]]
        return int(number) if number == int(number) else number
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
