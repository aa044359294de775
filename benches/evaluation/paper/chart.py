"""The few words of Vega-Lite that charts are made of: channels by the kind of value, tooltips, and marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOG = {"type": "log"}


def amount(field: str, title: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a channel of a number."""
    return {"field": field, "type": "quantitative", **({"title": title} if title else {}), **more}


def kind(field: str, title: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a channel of a name."""
    return {"field": field, "type": "nominal", "title": title, **more}


def tips(*names: str, **formats: str) -> list[dict[str, Any]]:
    """Return a tooltip: names of fields, and fields with the format of their numbers.

    >>> tips("name", s=".4g")
    [{'field': 'name'}, {'field': 's', 'format': '.4g'}]
    """
    return [{"field": name} for name in names] + [{"field": name, "format": form} for name, form in formats.items()]


def chart(mark: str | Mapping[str, Any], *transform: Mapping[str, Any], **channels: Any) -> dict[str, Any]:
    """Return a chart of one mark; ``transform``: steps before it is drawn."""
    return {**({"transform": list(transform)} if transform else {}), "mark": mark, "encoding": channels}


def fold(measure: str, value: str, *names: str) -> dict[str, Any]:
    """Return the step that makes a row of each of some columns."""
    return {"fold": list(names), "as": [measure, value]}


def line(**more: Any) -> dict[str, Any]:
    """Return the mark of a line in steps."""
    return {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5, "clip": True, **more}


def dots(size: int, **more: Any) -> dict[str, Any]:
    """Return the mark of filled points."""
    return {"type": "point", "filled": True, "size": size, **more}


def dashes(**more: Any) -> dict[str, Any]:
    """Return the mark of a dashed line to compare with."""
    return {"type": "line", "strokeDash": [4, 4], "color": "#888", "strokeWidth": 1, **more}
