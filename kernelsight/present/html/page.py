"""A page as self-contained HTML: charts with their library inlined, sortable tables, and the SQL behind each.

``page.html`` lays it out, and Jinja escapes all text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.errors import extra_missing
from kernelsight.escape import json_in_script, script, visible_lines
from kernelsight.files.own import own_text
from kernelsight.number_format import number
from kernelsight.present.page import MOST_ROWS, Figure, Page, Rows, Table

if TYPE_CHECKING:
    from jinja2 import Template

# ast: Vega interprets expressions (vega-interpreter, in the bundle), since the page's policy forbids to compile them
DRAW = "window.drawChart = (place, spec) => vegaEmbed(place, spec, {actions: false, renderer: 'svg', ast: true});"
FONT = "system-ui, 'DejaVu Sans', sans-serif"
CONFIG = {
    "font": FONT,
    "background": "transparent",  # of a dark page too; colours of text and grid are those of page.html
    "view": {"stroke": None},
    "axis": {"titleFontWeight": "normal"},
    "legend": {"orient": "top", "labelLimit": 260, "symbolBaseFillColor": "#888", "symbolBaseStrokeColor": "#888"},
}
HEIGHT, TALL = 240, 300
# longer texts are wrapped
LONG_TEXT = 60
# text of an unknown value
UNKNOWN = "–"


class Cell(NamedTuple):
    """A cell of a table: the text shown, the text sorted by, and CSS classes."""

    shown: str
    sorted_by: str
    style: str


class Sorted(NamedTuple):
    """A table that sorts on a click on a column head; ``more``: number of rows that are not shown."""

    heads: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    more: int


class Card(NamedTuple):
    """A titled card: a note, then a chart, a table, sentences or a text, then a second note and the SQL."""

    title: str
    note: str = ""
    spec: Mapping[str, Any] | None = None
    table: Sorted | None = None
    lines: Sequence[str] = ()
    text: str = ""
    below: str = ""
    sql: str = ""
    wide: bool = False


def check_pages() -> None:
    """Raise InvalidInput where a package of the extra ``report``, which pages are made with, is not installed."""
    for module, package in (("jinja2", "jinja2"), ("vl_convert", "vl-convert")):
        if find_spec(module) is None:
            raise extra_missing("an HTML page", package, "report")


@cache
def chart_library() -> str:
    """Return Vega-Lite with its dependencies as one script; InvalidInput: the extra ``report`` is not installed."""
    check_pages()
    import vl_convert

    return script(vl_convert.javascript_bundle(DRAW))


@cache
def _template() -> Template:
    """Return the Jinja template of a page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        return value if isinstance(value, Markup) else visible_lines(str(value))

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json_in_script"] = lambda value: Markup(json_in_script(value))
    environment.filters["trusted"] = Markup  # only for text of this program
    return environment.get_template("page.html")


def html_of(page: Page, command: str | None = None) -> str:
    """Return a page as HTML; its content security policy allows only its two own scripts, by hash.

    ``command``: what made the page.

    InvalidInput: the extra ``report`` is not installed.
    """
    tiles = {name: text_of(value) for name, value in page.tiles.items() if value is not None}
    figures = page.figures()
    tables = [table for table in page.tables if not (table.drawn and figures)]
    cards = [_card(table) for table in tables if table.first]
    cards += [_figure(figure) for figure in figures if figure.rows]
    cards += [_card(table) for table in (*tables, *page.evidence) if not table.first]
    cards += [Card("Assumed", lines=page.assumed, wide=True)] if page.assumed else []
    if page.repeat:
        title, *commands = page.repeat
        cards.append(Card(_title(title), text="\n".join(commands), wide=True))
    cards += [Card("How to repeat it", text=command, wide=True)] if command else []
    # after the figures: what a table cannot be is said before what is not installed
    scripts = [chart_library(), script(own_text(Path(__file__).with_name("page.js")))]
    allowed_hashes = " ".join(f"'sha256-{_digest(script_text)}'" for script_text in scripts)
    parts = {"page": page, "tiles": tiles, "cards": [card for card in cards if card]}
    return _template().render(**parts, scripts_allowed=allowed_hashes, scripts=scripts)


def _digest(text: str) -> str:
    """Return the base64 SHA-256 of a text."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _figure(figure: Figure) -> Card:
    """Return the card of a figure with rows: a chart, or a table."""
    card = Card(figure.title, figure.note, sql=figure.sql.strip(), wide=figure.wide)
    if figure.spec is None:
        return card._replace(table=table(figure.rows, figure.most_rows))
    spec = {"data": {"values": [plain(row) for row in figure.rows]}, **figure.spec, "config": CONFIG}
    if "facet" not in figure.spec:
        spec |= {"width": "container", "height": TALL if figure.wide else HEIGHT}
    return card._replace(spec=spec)


def _card(shown: Table) -> Card | None:
    """Return the card of a table or of sentences; None for an empty one."""
    if not shown.rows and not shown.lines:
        return None
    rows = table(shown.rows) if shown.rows else None
    if rows and shown.count:
        rows = rows._replace(more=shown.count - len(rows.rows))
    return Card(
        _title(shown.title),
        table=rows,
        lines=shown.lines,
        below=shown.below * (shown.most != 0),
        wide=True,
    )


def _title(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(":")


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with JSON values: floats rounded to six significant digits, other types as text.

    >>> plain({"s": 1.23456789, "name": "x", "none": None, "yes": True})
    {'s': 1.23457, 'name': 'x', 'none': None, 'yes': True}
    """
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | str) or value is None:
        return value
    try:
        number_value = float(value)
    except (TypeError, ValueError):
        return number(value)
    return float(f"{number_value:.6g}") if abs(number_value) < float("inf") else None


def table(rows: Rows, max_rows: int = MOST_ROWS) -> Sorted:
    """Return the first ``max_rows`` rows as a table, numbers right-aligned."""
    values = [plain(row) for row in rows[:max_rows]]
    numeric = {name for name in values[0] if all(_is_number(row[name]) for row in values if row.get(name) is not None)}
    heads = [Cell(name or "name", "", "n" if name in numeric else "") for name in values[0]]
    lines = [[_cell(row.get(name), name in numeric) for name in values[0]] for row in values]
    return Sorted(heads, lines, len(rows) - len(values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def text_of(value: Any) -> str:
    """Return a value as text for a page.

    >>> text_of(98765.4), text_of(True), text_of(None)
    ('98,765', 'yes', '–')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value, missing=UNKNOWN)


def _cell(value: Any, numeric: bool) -> Cell:
    is_long = isinstance(value, str) and len(value) > LONG_TEXT
    return Cell(text_of(value), "" if value is None else str(value), "n" if numeric else "long" if is_long else "")
