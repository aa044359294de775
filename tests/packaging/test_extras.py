"""Extras: what messages and pages say to install exists, and can be installed: the package is on no index."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from kernelsight import errors

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


def test_a_wheel_is_told_the_packages_of_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needed = ["numpy>=2.0", "altair>=5.5; extra == 'report'", 'jinja2>=3.1 ; extra == "report"', "ray; extra == 'ray'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: needed)
    assert errors.install_command("report") == "pip install -e '.[report]' in the checkout"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "kernelsight" / "errors.py"))
    assert errors.install_command("report") == "pip install 'altair>=5.5' 'jinja2>=3.1'"
