"""Shows a page on one of its faces: JSON, or lines of a terminal; writes it as HTML."""

from __future__ import annotations

import sys
from pathlib import Path

from kernelsight.caches.durable import durable_file
from kernelsight.files.redaction import redacted_words
from kernelsight.files.shell_words import join_commands
from kernelsight.present.output import as_csv, as_json, print_page
from kernelsight.present.page import Page, Rows
from kernelsight.present.terminal import lines_of

HTML = ".html"


def show(page: Page, form: str, rows: Rows = (), columns: list[str] | None = None) -> None:
    """Print a page on stdout as lines, its answer as JSON, or rows as CSV with ``columns`` (None: those of a row)."""
    if form == "json":
        print(as_json(page.answer))
    elif form == "csv":
        print(as_csv(rows, columns or list(rows[0])), end="")
    else:
        print_page(lines_of(page))


def write_page(page: Page, target: str | Path) -> None:
    """Write a page as one HTML file, with the command that made it if a command did.

    InvalidInput: the extra ``report`` is not installed.
    """
    from kernelsight.present.html.page import html_of

    with durable_file(Path(target)) as draft:
        draft.write_text(html_of(page), encoding="utf-8")


def as_typed() -> str:
    """Return the command of this process, with secrets redacted."""
    return join_commands([["kernelsight", *redacted_words(sys.argv[1:])]])
