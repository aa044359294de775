"""A page as lines of a terminal: paragraphs with an empty line between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelsight.number_format import number
from kernelsight.present.output import fitting_lines, terminal_width
from kernelsight.present.page import Page, Table


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
    hidden = len(table.rows) - len(rows)
    more = [f"... and {hidden:,} {table.more}"] if hidden else []
    return [text for text in (table.title, *shown, *table.lines, *more, table.below) if text]


def _tiles(tiles: Mapping[str, Any]) -> list[str]:
    shown = {name: number(value) for name, value in tiles.items() if value is not None}
    width = max(map(len, shown), default=0)
    return [f"{name:<{width}}  {value}" for name, value in shown.items()]
