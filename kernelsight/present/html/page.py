"""One HTML page that loads nothing: charts with the library inside, tables that sort, the SQL behind each."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from kernelsight.errors import extra_missing
from kernelsight.escape import as_html, json_in_script, script
from kernelsight.present.html.run_figures import Figure

# ast: Vega interprets its expressions (vega-interpreter, in the bundle) and compiles none, which the policy forbids
DRAW = "window.drawChart = (place, spec) => vegaEmbed(place, spec, {actions: false, renderer: 'svg', ast: true});"
FONT = "system-ui, 'DejaVu Sans', sans-serif"
CONFIG = {
    "font": FONT,
    "view": {"stroke": None},
    "axis": {"gridColor": "#e8ecf0", "labelColor": "#5b6875", "titleColor": "#1d2733", "titleFontWeight": "normal"},
    "legend": {"orient": "top", "labelLimit": 260},
}
HEIGHT, TALL = 240, 300
# of a table; a sweep states its own limit
MOST_ROWS = 2_000


@cache
def chart_library() -> str:
    """Return Vega-Lite with all it needs as one script; InvalidInput: the extra ``report`` is not installed."""
    try:
        import vl_convert
    except ImportError:
        raise extra_missing("report", "vl-convert", "report") from None
    return script(vl_convert.javascript_bundle(DRAW))


def page(title: str, parts: Sequence[str]) -> str:
    """Return the page of a title and parts, which are HTML; its policy lets the two scripts of its own run alone."""
    text, behaviour = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.html", "page.js"))
    scripts = {"library": chart_library(), "behaviour": script(behaviour)}
    policy = " ".join(f"'sha256-{_digest(own)}'" for own in scripts.values())
    fields = {"title": as_html(title), "body": "\n".join(parts), "scripts_allowed": policy, **scripts}
    return Template(text).substitute(fields)


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def head(title: str, about: str, sentences: Sequence[str]) -> str:
    """Return the head of a page: what it shows, and what follows from it in sentences."""
    said = "".join(f"<p>{as_html(sentence)}</p>" for sentence in sentences)
    return f'<h1>{as_html(title)}</h1><p class="note">{as_html(about)}</p><div class="card verdict">{said}</div>'


def tiles(figures: Mapping[str, str]) -> str:
    """Return figures in large letters, each under what it is."""
    shown = "".join(
        f'<div class="tile"><span>{as_html(name)}</span><b>{as_html(value)}</b></div>'
        for name, value in figures.items()
    )
    return f'<div class="tiles">{shown}</div>'


def figures(drawn: Sequence[tuple[Figure, Sequence[Mapping[str, Any]]]]) -> str:
    """Return cards with charts and tables of rows."""
    cards = [_card(f"figure-{number}", figure, rows) for number, (figure, rows) in enumerate(drawn)]
    return f'<div class="grid">{"".join(cards)}</div>'


def _card(name: str, figure: Figure, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        shown = '<p class="note">No rows.</p>'
    elif figure.spec is None:
        shown = table(rows, figure.most_rows)
    else:
        spec = {"data": {"values": [plain(row) for row in rows]}, **figure.spec, "config": CONFIG}
        if "facet" not in figure.spec:
            spec |= {"width": "container", "height": TALL if figure.wide else HEIGHT}
        shown = chart(name, spec)
    query = f"<details><summary>SQL</summary><pre>{as_html(figure.sql.strip())}</pre></details>"
    note = f'<p class="note">{as_html(figure.note)}</p>'
    wide = " wide" if figure.wide else ""
    return f'<section class="card{wide}"><h2>{as_html(figure.title)}</h2>{note}{shown}{query}</section>'


def chart(name: str, spec: Mapping[str, Any]) -> str:
    """Return the place of a chart in the page, and beside it the Vega-Lite specification that is drawn there."""
    data = json_in_script(spec)
    return f'<div class="chart" id="{name}"></div><script type="application/json" id="{name}-spec">{data}</script>'


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the values that JSON has: floats to six digits, the rest as numbers or text.

    >>> plain({"s": 1.23456789, "name": "x", "none": None, "yes": True})
    {'s': 1.23457, 'name': 'x', 'none': None, 'yes': True}
    """
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | str) or value is None:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return float(f"{number:.6g}") if abs(number) < float("inf") else None


def table(rows: Sequence[Mapping[str, Any]], most: int = MOST_ROWS) -> str:
    """Return rows as a table that a click on a head sorts; of more than ``most`` the first, and how many follow."""
    values = [plain(row) for row in rows[:most]]
    left = len(rows) - len(values)
    names = list(values[0])
    numeric = {
        name: all(
            isinstance(row[name], int | float) and not isinstance(row[name], bool)
            for row in values
            if row[name] is not None
        )
        for name in names
    }
    heads = "".join(f'<th{_class(numeric[name])}><button type="button">{as_html(name)}</button></th>' for name in names)
    lines = "".join(f"<tr>{''.join(_cell(row[name], numeric[name]) for name in names)}</tr>" for row in values)
    more = f'<p class="note">{left:,} more rows follow; the SQL has all of them.</p>' if left else ""
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>{more}'


def _cell(value: Any, numeric: bool) -> str:
    sorted_by = "" if value is None else str(value)
    long = ' class="long"' if isinstance(value, str) and len(value) > 60 else ""
    return f'<td{_class(numeric) or long} data-v="{as_html(sorted_by)}">{as_html(number(value))}</td>'


def _class(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def number(value: Any) -> str:
    """Return a value as people read it: four digits, thousands apart.

    >>> number(1234567), number(0.123456), number(98765.4), number(None)
    ('1,234,567', '0.1235', '98,765', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
