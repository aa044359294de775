"""``--plot`` of `kernelsight backtest`, and pictures of benches: charts as files; needs the extra ``report``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelsight.caches.durable import durable_file
from kernelsight.errors import InvalidInput, extra_missing
from kernelsight.evaluation.runs.plots import backtest_figures
from kernelsight.present.html.page import plain
from kernelsight.present.page import Figure, Page
from kernelsight.present.show import HTML, write_page

ENDINGS = (".svg", ".png", ".html", ".json")
TITLE = "Predicted against measured, error against load, median error of each group"
SIZE = 300


def check_picture(path: str | None) -> Path | None:
    """Return the path of --plot; InvalidInput: an unknown extension, or the extra ``report`` is not installed."""
    if path is None:
        return None
    target = Path(path)
    if target.suffix not in ENDINGS:
        raise InvalidInput(f"--plot {path!r} ends in {target.suffix!r}; use one of {', '.join(ENDINGS)}.")
    if not target.resolve().parent.is_dir():
        raise InvalidInput(f"--plot {path!r} cannot be written: folder {target.resolve().parent} does not exist.")
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        raise extra_missing("--plot", "vl-convert", "report") from None
    return target


def draw(rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any], target: Path) -> None:
    """Write the figures to a file, by its ending: a page, a picture, or the Vega-Lite specification of one."""
    figures = backtest_figures(rows, report)
    if target.suffix == HTML:
        write_page(Page(TITLE, report, figures=lambda: figures), target)
    else:
        write_picture(figures, target)


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
