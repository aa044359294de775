"""Variants of kernel sources (CUDA, Triton): edits of a text, a mixture of two, and the numbers that describe one.

The edits are rows of ``source_edits``: a pattern, and what replaces a match: ``scale`` (its number is doubled or
halved), ``drop``, or a text; rows without an edit are counted alone. A variant may be wrong: it is compiled, and its
result checked, before it is timed.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import cache
from typing import NamedTuple

import numpy as np

from kernelsight.catalog.tables import facts

_PYTHON = re.compile(r"^[^\S\n]*+(?:(?:import|from|def|class)\b|@)", re.MULTILINE)
# a number of a source is halved and doubled within these
LEAST, MOST = 1, 1 << 16


class Edit(NamedTuple):
    """One row of ``source_edits``."""

    name: str
    pattern: re.Pattern[str]
    replacement: str | None


def language_of(source: str) -> str:
    """Return the language of a kernel's source."""
    return "triton" if _PYTHON.search(source) and "__global__" not in source else "cuda"


@cache
def edits_of(language: str) -> tuple[Edit, ...]:
    """Return the edits of a language."""
    rows = [row for row in facts("source_edits").to_pylist() if row["language"] == language]
    return tuple(Edit(row["name"], re.compile(row["pattern"]), row["edit"]) for row in rows)


def mutated(source: str, draw: np.random.Generator) -> str | None:
    """Return a source with one edit at one place, both drawn evenly; None where no edit applies."""
    places = [
        (edit, matches)
        for edit in edits_of(language_of(source))
        if edit.replacement is not None and (matches := list(edit.pattern.finditer(source)))
    ]
    if not places:
        return None
    edit, matches = places[int(draw.integers(len(places)))]
    match = matches[int(draw.integers(len(matches)))]
    start, end = match.span()
    if edit.replacement == "scale":
        value = int(match["value"])
        text = str(max(min(2 * value if draw.random() < 0.5 else value // 2, MOST), LEAST))
        start, end = match.span("value")
    else:
        text = "" if edit.replacement == "drop" else match.expand(edit.replacement)
    return source[:start] + text + source[end:]


def crossed(one: str, other: str, draw: np.random.Generator) -> str | None:
    """Return the beginning of one source and the end of another, joined at a line that both hold in the same order.

    None where they share no line between their first differences and their last.
    """
    ours, theirs = one.splitlines(keepends=True), other.splitlines(keepends=True)
    matcher = SequenceMatcher(None, [line.strip() for line in ours], [line.strip() for line in theirs], autojunk=False)
    joints = [(left + k, right + k) for left, right, size in matcher.get_matching_blocks() for k in range(size)]
    children = {"".join(ours[:left] + theirs[right:]) for left, right in joints if ours[left].strip()}
    children -= {one, other}
    return sorted(children)[int(draw.integers(len(children)))] if children else None


def numbers_of(source: str) -> dict[str, float]:
    """Return what describes a source for a forecaster: its named constants, and how often each kind of edit applies."""
    numbers: dict[str, float] = {"text lines": float(source.count("\n"))}
    for edit in edits_of(language_of(source)):
        matches = list(edit.pattern.finditer(source))
        count = f"text {edit.name}"
        numbers[count] = numbers.get(count, 0.0) + len(matches)
        if edit.replacement == "scale" and "name" in edit.pattern.groupindex:
            numbers |= {f"text {match['name']}": float(match["value"]) for match in matches}
    return numbers
