"""Shows a page on its faces: JSON, or lines of a terminal, on stdout; HTML in a file."""

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


def show(page: Page, form: str, target: Path | None = None, rows: Rows = (), columns: list[str] | None = None) -> None:
    """Print a page on stdout as lines, its answer as JSON, or ``rows`` as CSV; write it to a target that is HTML.

    ``columns``: of the CSV; None: those of its first row.
    """
    if target and target.suffix == HTML:
        write_page(page, target, join_commands([["kernelsight", *redacted_words(sys.argv[1:])]]))
    if form == "json":
        print(as_json(page.answer))
    elif form == "csv":
        print(as_csv(rows, columns or list(rows[0])), end="")
    else:
        print_page(lines_of(page))


def write_page(page: Page, target: str | Path, command: str | None = None) -> None:
    """Write a page as one HTML file; ``command``: what made it, to repeat it.

    InvalidInput: the extra ``report`` is not installed.
    """
    from kernelsight.present.html.page import html_of

    with durable_file(Path(target)) as draft:
        draft.write_text(html_of(page, command), encoding="utf-8")
