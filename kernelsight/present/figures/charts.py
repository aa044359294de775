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
# most columns of a point that are shown where the pointer is, beside its axes; ratio from which an axis is logarithmic
MOST_SHOWN, WIDE = 12, 100.0


def chart_of(figure: Figure) -> altair.Chart:
    """Return a figure with its rows as a chart. InvalidInput: altair is not installed."""
    return _chart({"title": figure.title, **(figure.spec or {})}, figure.rows)


def points_of(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], axes: Sequence[str], x: str, y: str, color: str
) -> altair.Chart:
    """Return a point for each row, joined to lines; UnknownName: x, y or color is not among ``columns``.

    ``axes``: the flags of the grid. A line joins rows that differ in ``x`` alone: it has its colour, its dashes by the
    first other flag that varies, and an axis whose values differ a hundredfold is logarithmic.
    """
    for name in filter(None, (x, y, color)):
        if name not in columns:
            raise unknown("column", name, columns, "`summary` has them.")
    encoding: dict[str, Any] = {"x": _axis(rows, x), "y": _axis(rows, y)}
    if color:
        encoding["color"] = {"field": color, "type": "nominal"}
    varying = [name for name in columns if len({str(row[name]) for row in rows}) > 1]
    others = [name for name in varying if name in axes and name not in (x, color)] if x in axes else []
    if others:
        encoding["strokeDash"] = {"field": others[0], "type": "nominal"}
        encoding["detail"] = [{"field": name, "type": "nominal"} for name in others[1:]]
    shown = [*dict.fromkeys([x, y, *filter(None, [color]), *others, *varying])]
    encoding["tooltip"] = [{"field": name} for name in shown[: MOST_SHOWN + 3]]
    return _chart({"mark": {"type": "line", "point": True}, "encoding": encoding}, rows)


def _axis(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return an axis of a column: of names, or of numbers, logarithmic from WIDE on."""
    values = [row[name] for row in rows if row[name] is not None]
    if any(isinstance(value, str | bool) for value in values):
        return {"field": name, "type": "nominal"}
    is_wide = bool(values) and min(values) > 0 and max(values) > WIDE * min(values)
    return {"field": name, "type": "quantitative", **({"scale": {"type": "log"}} if is_wide else {})}


def _chart(spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> altair.Chart:
    try:
        import altair
    except ImportError:
        raise extra_missing("a chart", "altair", "report") from None
    data = {"values": [plain(row) for row in rows]}
    return altair.Chart.from_dict({"data": data, "width": WIDTH, "height": HEIGHT, **spec})
