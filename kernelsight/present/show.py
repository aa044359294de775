"""Shows a page on its faces: JSON, or lines of a terminal, on stdout; HTML in a file or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.caches.durable import durable_file
from kernelsight.errors import KernelSightError
from kernelsight.escape import html_table
from kernelsight.files.redaction import redacted_words
from kernelsight.files.shell_words import join_commands
from kernelsight.number_format import number
from kernelsight.present.output import answer_json, fitting_lines, print_page, terminal_width
from kernelsight.present.page import Page, Table

if TYPE_CHECKING:
    from kernelsight.scenario.launch.lines import LaunchLine


def lines_of(page: Page) -> list[str]:
    """Return the lines of a page: question, figures and findings, tables, evidence, assumptions, how to repeat it."""
    findings = [*_tiles(page.tiles), *page.sentences]
    paragraphs = [list(page.asked), findings] if page.tiles else [[*page.asked, *findings]]
    paragraphs += [table_of(table) for table in (*page.tables, *page.evidence)]
    if page.assumed:
        assumed = ["assumed:", *(f"  - {sentence}" for sentence in page.assumed)]
        # the sentences on memory lead on to what is assumed of it
        paragraphs[-1:] = (
            [paragraphs[-1] + assumed] if page.evidence and page.evidence[-1].lines else [paragraphs[-1], assumed]
        )
    paragraphs.append(list(page.repeat))
    return [line for lines in paragraphs if lines for line in ("", *lines)][1:]


def table_of(table: Table) -> list[str]:
    """Return the lines of a table: its title, its rows as columns or its sentences, and what follows them."""
    if not table.rows and not table.lines:
        return []
    if table.most == 0:
        return [table.below]
    rows = table.rows[: table.most]
    shown = fitting_lines(list(rows), list(rows[0]), terminal_width(), table.expendable) if rows else []
    hidden = max(table.count, len(table.rows)) - len(rows)
    more = [f"... and {hidden:,} {table.more}"] if hidden else []
    return [text for text in (table.title, *shown, *table.lines, *more, table.below) if text]


def _tiles(tiles: Mapping[str, Any]) -> list[str]:
    shown = {name: number(value) for name, value in tiles.items() if value is not None}
    width = max(map(len, shown), default=0)
    return [f"{name:<{width}}  {value}" for name, value in shown.items()]


HTML = ".html"
# Python code that repeats the command; pages show it beside the command
_python = ""


def set_python(text: str) -> None:
    """Set the Python code that computes what the command does; "" for none."""
    global _python
    _python = text


def show(
    make: Callable[[], Page],
    form: str,
    target: Path | None = None,
    csv: Callable[[], str] = str,
    launch: LaunchLine | None = None,
) -> None:
    """Print what a verb answers as a page's lines, JSON or CSV, and write its page to a target that is HTML.

    ``make``: makes the page, where one is wanted; ``csv``: makes the text of CSV; ``launch``: the line that states the
    deployment, for JSON.
    """
    is_html = target is not None and target.suffix == HTML
    if form == "csv":
        print(csv(), end="")
    if form == "csv" and not is_html:
        return
    page = make()
    fault = _written(page, target) if target and is_html else None  # before it is printed: a reader may close the pipe
    if form == "json":
        print(answer_json({**page.answer, **({"launch": launch.as_dict()} if launch else {})}))
    elif form == "table":
        print_page(lines_of(page))
    if fault:
        raise fault


def _written(page: Page, target: Path) -> KernelSightError | None:
    """Write the page of a command, with the words that repeat it; return why it could not be written."""
    words = redacted_words(sys.argv[1:])
    # a secret stands in Python's keywords too
    code = _python if words == sys.argv[1:] else ""
    try:
        write_page(page, target, f"{join_commands([['kernelsight', *words]])}\n\n{code}".rstrip())
    except KernelSightError as error:
        return error
    return None


def notebook(page: Page) -> str:
    """Return a page for notebooks: its title, its first sentence, and its first table."""
    tables = sorted((table for table in page.tables if table.rows), key=lambda table: not table.first)
    rows = tables[0].rows if tables else ()
    first = page.sentences[0] if page.sentences else page.title
    sentence = first if first.startswith(page.title) else f"{page.title}: {first}"
    return html_table(sentence, list(rows[0]) if rows else [], [list(row.values()) for row in rows])


def write_page(page: Page, target: str | Path, command: str | None = None) -> None:
    """Write a page as one HTML file; ``command``: what made it, and the same in Python, to repeat it.

    InvalidInput: the extra ``report`` is not installed.
    """
    from kernelsight.present.html.page import html_of

    with durable_file(Path(target)) as draft:
        draft.write_text(html_of(page, command), encoding="utf-8")
