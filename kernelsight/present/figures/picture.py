"""Figures as one picture in a file: SVG, PNG, or its Vega-Lite specification."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kernelsight.caches.durable import durable_file
from kernelsight.present.html.page import plain
from kernelsight.present.page import Figure

SIZE = 300


def write_picture(figures: Sequence[Figure], target: Path, columns: int = 2) -> None:
    """Write charts in columns by the path's ending, .svg, .png or .json; needs the extra ``report``."""
    import vl_convert

    charts = [
        {"title": figure.title, "data": {"values": [plain(row) for row in figure.rows]}, **(figure.spec or {})}
        | {"width": SIZE, "height": SIZE}
        for figure in figures
    ]
    text = json.dumps({"concat": charts, "columns": columns, "resolve": {"scale": {"color": "independent"}}})
    with durable_file(target) as draft:
        if target.suffix == ".png":
            draft.write_bytes(vl_convert.vegalite_to_png(text))
        else:
            svg = target.suffix == ".svg"
            draft.write_text(vl_convert.vegalite_to_svg(text) if svg else text, encoding="utf-8")
