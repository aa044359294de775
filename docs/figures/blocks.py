"""Blocks of pages that hold figures of benches: replaced by what a view makes of the recorded results.

    <!-- figures MODULE.VIEW -->      a function of a module of this folder, without parameters or with some words:
    <!-- figures MODULE.VIEW WORD --> Markdown between this comment and
    <!-- end -->

Where a result comes from is a view, too: ``measured.of NAME ...`` says when, at which commit and by which command, and
what has changed since. Every page that shows a result names it so (README has it in the pages that it links).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

import record

BLOCK = re.compile(r"(<!-- figures (\w+)\.(\w+)([^\n]*?) -->\n)(.*?)(<!-- end -->)", re.S)
# what follows it changes with every edit of what a result rests on, so pages are compared without it
STALE = re.compile(r", before changes of [\w, ]+(?=[.;:])")
USED: list[str] = []


def result(name: str) -> dict[str, Any]:
    """Return the figures of a recorded result, and note that they are shown."""
    USED.append(name)
    return record.read(name)["figures"]


def with_figures(text: str) -> str:
    """Return a page with its blocks of figures written anew."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{made(match)}\n\n{match[6]}", text)


def made(match: re.Match[str]) -> str:
    """Return what a block's view makes of the results now."""
    _, module, view, words, *_ = match.groups()
    return getattr(importlib.import_module(f"figures.{module}"), view)(*words.split())


def shown(text: str) -> tuple[set[str], set[str]]:
    """Return the results that a page shows, and those whose origin it states."""
    used: set[str] = set()
    stated: set[str] = set()
    for match in BLOCK.finditer(text):
        USED.clear()
        made(match)
        (stated if match[2] == "measured" else used).update(USED)
    return used, stated


def without_staleness(text: str) -> str:
    """Return a page without what its results are older than."""
    return STALE.sub("", text)


def by_hand(text: str) -> Iterator[str]:
    """Yield what a page states in per cent outside of blocks of figures, fenced blocks and code."""
    for pattern in (BLOCK.pattern, r"^```.*?^```", r"`[^`\n]*`"):
        text = re.sub(pattern, "", text, flags=re.S | re.M)
    yield from re.findall(r"\d[\d.,]*(?: (?:and|to|or) \d[\d.,]*)? ?%", text)
