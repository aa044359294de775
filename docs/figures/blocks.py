"""Blocks of figures in pages: Markdown that a view generates from the recorded results.

    <!-- figures MODULE.VIEW WORD ... -->  a function of a module of this folder, and its arguments if it has any
    (the Markdown that it returns)
    <!-- end -->

The view ``measured.of NAME ...`` states a result's date, commit and command, and what has changed since. Every page
that shows a result has this view (README links to such pages).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

import record

BLOCK = re.compile(r"(<!-- figures (\w+)\.(\w+)([^\n]*?) -->\n)(.*?)(<!-- end -->)", re.S)
# changes with every edit of code that a result depends on, so pages are compared without it
STALE = re.compile(r", before changes to [\w, ]+(?=[.;:])")
USED: list[str] = []


def result(name: str) -> dict[str, Any]:
    """Return the figures of a recorded result, and note that the page uses it."""
    USED.append(name)
    return record.read(name)["figures"]


def with_figures(text: str) -> str:
    """Return a page with its blocks of figures generated again."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{made(match)}\n\n{match[6]}", text)


def made(match: re.Match[str]) -> str:
    """Return the Markdown of a block's view."""
    _, module, view, words, *_ = match.groups()
    return getattr(importlib.import_module(f"figures.{module}"), view)(*words.split())


def shown(text: str) -> tuple[set[str], set[str]]:
    """Return the names of the results that a page shows, and of those whose origin it states."""
    used: set[str] = set()
    with_origin: set[str] = set()
    for match in BLOCK.finditer(text):
        USED.clear()
        made(match)
        (with_origin if match[2] == "measured" else used).update(USED)
    return used, with_origin


def without_staleness(text: str) -> str:
    """Return a page without the parts that have changed since its results were measured."""
    return STALE.sub("", text)


def by_hand(text: str) -> Iterator[str]:
    """Yield the percentages of a page outside of blocks of figures, fenced blocks and code."""
    for pattern in (BLOCK.pattern, r"^```.*?^```", r"`[^`\n]*`"):
        text = re.sub(pattern, "", text, flags=re.S | re.M)
    yield from re.findall(r"\d[\d.,]*(?: (?:and|to|or) \d[\d.,]*)? ?%", text)
