"""Fills in variables of shells, Compose and Kubernetes: ``$NAME``, ``${NAME:-default}``, ``$(NAME)``, sums too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kernelsight.errors import InvalidInput
from kernelsight.files.redaction import REDACTED, names_secret
from kernelsight.files.shell_words import MOST_CHARACTERS
from kernelsight.scenario.launch.python_calls import folded

_VARIABLE = re.compile(r"\$\{(\w+)(?:(:?[-=?+])([^{}]{0,300}))?\}|\$\((\w+)\)|\$(\w+)")
_ARITHMETIC = re.compile(r"\$\(\(([\w\s$+*/()-]{1,100}?)\)\)")
_MOST_PASSES = 4  # variables within the defaults of variables


def expanded(word: str, environment: Mapping[str, str], most: int = MOST_CHARACTERS) -> str:
    """Return a word with the variables of an environment expanded; unknown ones stay. InvalidInput: too long.

    >>> expanded("${MODEL:-none}/$SIZE/$OTHER", {"SIZE": "8b"})
    'none/8b/$OTHER'
    >>> expanded("${A:-${B:-2}} $((NODES * 8))", {"NODES": "2"})
    '2 16'
    """

    def value(match: re.Match) -> str:
        name, sign, default = match[1] or match[4] or match[5], match[2] or "", match[3]
        if sign.endswith("+"):
            return default or "" if environment.get(name) else ""
        if name in environment and (environment[name] or ":" not in sign):
            return environment[name]
        if default is None or sign.endswith("?"):
            return match[0]
        return REDACTED if default and names_secret(name, variable=True) else default

    def bounded(match: re.Match) -> str:
        nonlocal most
        filled = value(match)
        most -= len(filled)
        if most < 0:
            raise InvalidInput(f"the variables of the launch line make it longer than {MOST_CHARACTERS:,} characters.")
        return filled

    if "$" not in word:
        return word
    word = _ARITHMETIC.sub(lambda match: _computed(match, environment), word)
    filled = _VARIABLE.sub(bounded, word)
    for _ in range(_MOST_PASSES):
        if "${" not in filled or filled == word:
            break
        word, filled = filled, _VARIABLE.sub(bounded, filled)
    return filled


def _computed(match: re.Match, environment: Mapping[str, str]) -> str:
    """Return the value of an arithmetic expression of whole numbers; the expression itself where it has none."""
    numbers = {name: int(value) for name, value in environment.items() if value.isdecimal() and len(value) < 12}
    value = folded(match[1].replace("$", "").replace("/", "//").strip(), numbers)
    return str(value) if isinstance(value, int) and abs(value) < 10**12 else match[0]


def expanded_words(words: Iterable[str], environment: Mapping[str, str], most: int = MOST_CHARACTERS) -> list[str]:
    """Return words with variables expanded; InvalidInput for more than ``most`` characters: expansion may explode.

    >>> expanded_words(["$A$A", "c"], {"A": "ab"})
    ['abab', 'c']
    """
    filled = []
    for word in words:
        filled.append(expanded(word, environment, most))
        most -= len(filled[-1])
    return filled
