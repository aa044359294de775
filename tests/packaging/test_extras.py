"""Extras: what messages and pages say to install exists, and can be installed: the package is on no index."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
SOURCES = [path for folder in ("kernelsight", "benches", "docs") for path in sorted((ROOT / folder).rglob("*.py"))]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benches").rglob("*.md")]


def test_nothing_is_to_be_installed_from_an_index_that_does_not_have_it() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in [*SOURCES, *PAGES]}
    assert [str(path) for path, text in texts.items() if re.search(r"install[^\n]*\bkernelsight\[", text)] == []


@pytest.mark.whole
def test_every_extra_that_a_message_or_a_page_names_is_there() -> None:
    calls = [
        node
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "extra_missing"
    ]
    named = {node.args[2].value for node in calls}
    assert len(calls) >= 7 and named <= EXTRAS.keys()
    listed = re.findall(r"install[^\n]*'\.\[([\w,]+)\]'", "\n".join(page.read_text(encoding="utf-8") for page in PAGES))
    assert {extra for names in listed for extra in names.split(",")} <= EXTRAS.keys()
