"""Figures of pages: files of data beside this module, of a title, a note, a SQL query and a Vega-Lite chart each."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import read_text
from kernelsight.files.bounded_values import parse_yaml
from kernelsight.present.page import Figure


@cache
def figures_of(name: str) -> dict[str, Figure]:
    """Return the figures of a page (``run``, ``search``, ``predict``, ...) by title, in order."""
    (content,) = parse_yaml(read_text(Path(__file__).with_name(f"{name}.yaml"), InvalidInput), InvalidInput)
    shared, figures = content.get("shared", {}), {}
    for entry in content["figures"]:
        begin = shared.get(entry.pop("after", ""), "")
        figures[entry["title"]] = Figure(**entry | {"sql": f"{begin}\n{entry.get('sql', '')}".strip()})
    return figures
