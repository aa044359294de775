"""Charts for notebooks, in Vega-Lite (the extra ``report``): a figure of a page, or columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.errors import extra_missing, unknown
from kernelsight.present.html.page import plain

if TYPE_CHECKING:
    import altair

    from kernelsight.present.page import Figure

WIDTH, HEIGHT = 480, 300


def chart_of(figure: Figure) -> altair.Chart:
    """Return a figure with its rows as a chart. InvalidInput: altair is not installed."""
    return _chart({"title": figure.title, **(figure.spec or {})}, figure.rows)


def points_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], x: str, y: str, color: str) -> altair.Chart:
    """Return a point for each row, joined to lines by colour; UnknownName: x, y or color is not among ``columns``."""
    for name in filter(None, (x, y, color)):
        if name not in columns:
            raise unknown("column", name, columns, "`summary` has them.")
    encoding: dict[str, Any] = {"x": {"field": x, "type": _type(rows, x)}, "y": {"field": y, "type": _type(rows, y)}}
    if color:
        encoding["color"] = {"field": color, "type": "nominal"}
    shown = [name for name in columns if len({str(row[name]) for row in rows}) > 1][:12]
    encoding["tooltip"] = [{"field": name} for name in dict.fromkeys([x, y, *filter(None, [color]), *shown])]
    return _chart({"mark": {"type": "line", "point": True}, "encoding": encoding}, rows)


def _type(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    return "nominal" if any(isinstance(row[name], str | bool) for row in rows) else "quantitative"


def _chart(spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> altair.Chart:
    try:
        import altair
    except ImportError:
        raise extra_missing("a chart", "altair", "report") from None
    data = {"values": [plain(row) for row in rows]}
    return altair.Chart.from_dict({"data": data, "width": WIDTH, "height": HEIGHT, **spec})
