"""The pages hold together: sizes, links, pictures, the navigation, and a build without warnings."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.conftest import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "benches" / "README.md"]
PAGES += [*sorted(DOCS.rglob("*.md")), *sorted((ROOT / "benches" / "evaluation").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def test_readme_is_short() -> None:
    assert (ROOT / "README.md").stat().st_size <= 9200  # with the drawing and one `explain`


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_stands_in_the_navigation_once_or_is_left_to_links(reference: ModuleType) -> None:
    text = (DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"([\w/]+\.md)$", text, re.M)
    assert text.partition("\nnav:")[2].count(".md\n") <= 35
    made = [f"reference/{name}" for name in reference.reference()]
    assert sorted(named) == sorted([*made, *(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))])


def test_every_picture_is_shown() -> None:
    shown = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [path.name for path in (DOCS / "pictures").iterdir() if path.name not in shown] == []


@pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="needs the extra docs")
@pytest.mark.whole
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(DOCS / "site" / "mkdocs.yml")]
    built = subprocess.run([*words, "-d", str(tmp_path / "site")], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
