"""The examples of README and docs: marked ones print what the page shows, all others are commands that parse.

README's command runs those of the pages of ``ALWAYS``, ``.ci/run`` (``KERNELSIGHT_WORLDS=100``) all.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from kernelsight.cli.main import parser
from tests.conftest import WORLDS_PERCENT
from tests.docs.conftest import ROOT, load_generator

RENEW = "run `python docs/generate.py`"
GENERATOR = load_generator()
PAGES = GENERATOR.pages()
WITH_EXAMPLES = [page for page in PAGES if GENERATOR.BLOCK.search(page.read_text(encoding="utf-8"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
# what a new user reads first
ALWAYS = {"README.md", "docs/quickstart.md", "docs/guides/paste_a_launch_line.md"}

NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
# relative difference between two machines that is no change of the program (without AVX, and compiled for any x86-64,
# three pages gave the same digits)
SAME = 0.0005


def words_of(text: str) -> list[str]:
    """Return a page's lines without its numbers and the width of its columns."""
    lines = (NUMBER.sub("#", line) for line in text.splitlines())
    return [re.sub(r"-{2,}", "-", re.sub(r"\s+", " ", line)).strip() for line in lines]


def changed_numbers(made: str, shown: str) -> list[str]:
    """Return the numbers of a page that are others now, by more than one in their last digit and more than SAME."""
    changed = []
    for now, before in zip(NUMBER.findall(made), NUMBER.findall(shown), strict=True):
        digits = len(before.partition(".")[2].partition("e")[0])
        both = [float(text.replace(",", "")) for text in (now, before)]
        if abs(both[0] - both[1]) > max(1.01 * 10.0**-digits, SAME * abs(both[1])):
            changed.append(f"{before} before, {now} now")
    return changed


def skip_unless_drawn(path: Path) -> None:
    """Skip a page that README's command leaves to ``.ci/run``."""
    if WORLDS_PERCENT < 100 and str(path.relative_to(ROOT)) not in ALWAYS:
        pytest.skip(".ci/run runs it (KERNELSIGHT_WORLDS=100)")


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_print_what_the_page_shows(generator: ModuleType, page: Path) -> None:
    skip_unless_drawn(page)
    shown = page.read_text(encoding="utf-8")
    made = generator.with_examples(shown)
    assert words_of(made) == words_of(shown), f"{page.name} shows old outputs; {RENEW}"
    assert changed_numbers(made, shown) == [], f"{page.name} shows old numbers; {RENEW}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_are_commands(generator: ModuleType, page: Path) -> None:
    parser_of_all = parser()
    for body in generator.FENCE.findall(page.read_text(encoding="utf-8")):
        for words in generator.commands(body):
            if words[0] == "kernelsight":
                parser_of_all.parse_args(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_that_runs_unseen_is_shown(generator: ModuleType, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"<!-- run (kernelsight [^\n]*) -->", text):
        assert text.count(command) == 2


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebooks_run(generator: ModuleType, notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_unless_drawn(notebook)
    monkeypatch.chdir(tmp_path)
    assert generator.run_python(notebook.read_text(encoding="utf-8"), {"__name__": notebook.stem}).strip()


def test_there_are_three_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


def test_an_output_that_changed_is_seen(generator: ModuleType) -> None:
    page = "<!-- run -->\n\n```bash\nkernelsight tables gpus\n```\n\n<!-- output 1-1 -->\n\n```text\nold words\n```\n"
    assert words_of(generator.with_examples(page)) != words_of(page)


def test_a_number_that_changed_is_seen() -> None:
    shown = "TTFT  65.56 ms, 16,300 requests, 12 runs, 1e-3"
    assert changed_numbers(shown, shown) == []
    # the last digit may differ, and larger numbers by one in two thousand
    assert changed_numbers("TTFT  65.57 ms, 16,305 requests, 12 runs, 1e-3", shown) == []
    assert changed_numbers("TTFT  65.76 ms, 16,350 requests, 14 runs, 1e-3", shown) == [
        "65.56 before, 65.76 now", "16,300 before, 16,350 now", "12 before, 14 now"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "block", ["```bash\nkernelsight predict --no-such-flag\n```\n", "```bash\nrm -r x\n```\n", "no block\n"]
)
def test_an_example_that_fails_is_seen(generator: ModuleType, block: str) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        generator.with_examples(f"<!-- run -->\n\n{block}")
