"""The model of a page, and its faces: JSON, or lines of a terminal, on stdout; HTML in a file or a notebook.

A page, made once for each verb (``present/pages``), says what was asked, the answer with figures, tables and evidence,
and how to repeat it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.caches.durable import durable_file
from kernelsight.escape import html_table
from kernelsight.files.redaction import redacted_words
from kernelsight.files.shell_words import join_commands
from kernelsight.number_format import number
from kernelsight.present.output import as_json, fitting_lines, print_page, terminal_width

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.scenario.launch.lines import LaunchLine


Rows = Sequence[Mapping[str, Any]]
# rows that a page shows; a sweep has its own limit
MOST_ROWS = 2_000


class Table(NamedTuple):
    """Rows under short heads with units, or sentences: ``lines``; ``below``: a sentence after them.

    ``expendable``: columns that a narrow terminal leaves out, in this order; ``most``: rows that a terminal shows (0:
    only ``below``, which HTML then leaves out), and ``more``: what it says of the others; ``count``: number of
    rows, where ``rows`` are only the first; ``drawn``: a figure shows the
    same, so that HTML leaves the table out; ``first``: HTML shows it before the figures.
    """

    title: str = ""
    rows: Rows = ()
    lines: Sequence[str] = ()
    below: str = ""
    expendable: Sequence[str] = ()
    most: int | None = None
    more: str = "more"
    count: int = 0
    drawn: bool = False
    first: bool = False


class Figure(NamedTuple):
    """A chart of rows, or a table if ``spec`` is None; ``note``: one sentence on how to read it.

    ``sql``: the query of the rows; ``wide``: over the page's width; ``most_rows``: maximum number of rows of a table.
    """

    title: str
    note: str
    sql: str = ""
    spec: Mapping[str, Any] | None = None
    wide: bool = False
    most_rows: int = MOST_ROWS
    rows: Rows = ()


class Page(NamedTuple):
    """What a verb answers, for terminal, HTML and JSON.

    ``answer``: the keys of JSON; ``asked``: lines on the question; ``tiles``: figures by label, None left out;
    ``figures``: made only for HTML.
    """

    title: str
    answer: Mapping[str, Any]
    asked: Sequence[str] = ()
    tiles: Mapping[str, Any] = {}
    sentences: Sequence[str] = ()
    figures: Callable[[], Sequence[Figure]] = tuple
    tables: Sequence[Table] = ()
    evidence: Sequence[Table] = ()
    assumed: Sequence[str] = ()
    repeat: Sequence[str] = ()


def queried(session: Session, figures: Sequence[Figure]) -> list[Figure]:
    """Return figures with the rows of their queries."""
    return [figure._replace(rows=session.query(figure.sql).to_pylist()) for figure in figures]


def pairs(values: Mapping[str, Any], heads: tuple[str, str] = ("setting", "value")) -> list[dict[str, Any]]:
    """Return a mapping as rows of a table, without unknown values."""
    return [dict(zip(heads, item, strict=True)) for item in values.items() if item[1] is not None]


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
    if target and is_html:
        write_page(page, target, join_commands([["kernelsight", *redacted_words(sys.argv[1:])]]))
    if form == "json":
        print(as_json({**page.answer, **({"launch": launch.as_dict()} if launch else {})}))
    elif form == "table":
        print_page(lines_of(page))


def notebook(page: Page) -> str:
    """Return a page for notebooks: its title, its first sentence, and its first table."""
    tables = sorted((table for table in page.tables if table.rows), key=lambda table: not table.first)
    rows = tables[0].rows if tables else ()
    first = page.sentences[0] if page.sentences else page.title
    sentence = first if first.startswith(page.title) else f"{page.title}: {first}"
    return html_table(sentence, list(rows[0]) if rows else [], [list(row.values()) for row in rows])


def write_page(page: Page, target: str | Path, command: str | None = None) -> None:
    """Write a page as one HTML file; ``command``: what made it, to repeat it.

    InvalidInput: the extra ``report`` is not installed.
    """
    from kernelsight.present.html.page import html_of

    with durable_file(Path(target)) as draft:
        draft.write_text(html_of(page, command), encoding="utf-8")
