"""Figures of benches in README and docs: equal to the recorded results, none by hand, where they come from, how old."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.conftest import ROOT, load_generator

RENEW = "run `python docs/generate.py --figures`"
GENERATOR = load_generator()
PAGES = GENERATOR.pages()
# pages that state what was measured, with the shares of their words that are no figures: widths of intervals, goals,
# shares of sites and of time, settings of a bench
BY_HAND = {
    "README.md": {"90 %"},
    "docs/accuracy.md": {"10 %"},
    "docs/accuracy/end_to_end.md": {"5 %", "90 %"},
    "docs/accuracy/kernels.md": {"10 and 50 %", "85 %"},
    "docs/accuracy/scoreboard.md": {"90 %"},
    "docs/accuracy/paper.md": set(),
    "docs/performance.md": {"5 %"},
    "docs/guides/serve_predicted_times.md": set(),
    "docs/guides/search_kernels.md": {"2 %", "90 %"},
    "docs/guides/compare_with_a_log.md": {"3 %", "5 %"},
    "docs/accuracy/decisions.md": {"12 %", "2 %", "3 %", "30 %"},
}


@pytest.fixture(scope="module")
def blocks() -> ModuleType:
    import figures.blocks

    return figures.blocks


@pytest.fixture(scope="module")
def record(blocks: ModuleType) -> ModuleType:
    return blocks.record


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_figures_are_those_of_the_results(blocks: ModuleType) -> None:
    texts = {name_of(page): page.read_text(encoding="utf-8") for page in PAGES}
    said = blocks.without_staleness
    old = [page for page, text in texts.items() if said(blocks.with_figures(text)) != said(text)]
    assert old == [], RENEW


def test_no_share_is_stated_by_hand(blocks: ModuleType) -> None:
    found = {page: set(blocks.by_hand((ROOT / page).read_text(encoding="utf-8"))) for page in BY_HAND}
    assert {page: shares - BY_HAND[page] for page, shares in found.items() if shares - BY_HAND[page]} == {}


def test_a_page_says_where_its_results_come_from(blocks: ModuleType) -> None:
    for page in PAGES:
        used, stated = blocks.shown(page.read_text(encoding="utf-8"))
        assert page.name == "README.md" or used - stated == set(), name_of(page)


def test_a_digit_that_was_changed_is_seen(blocks: ModuleType) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    block = blocks.BLOCK.search(page)
    assert block
    place = block.start(5) + re.search(r"\d\.\d", block[5]).start()
    changed = page[:place] + str((int(page[place]) + 1) % 10) + page[place + 1 :]
    assert blocks.without_staleness(blocks.with_figures(changed)) != blocks.without_staleness(changed)


def test_a_share_by_hand_is_seen(blocks: ModuleType) -> None:
    page = "<!-- figures a.b -->\n12.3 %\n<!-- end -->\n\n`7 %`\n\n```text\n8 %\n```\n\nmedian 21.3 and 4 %"
    assert list(blocks.by_hand(page)) == ["21.3 and 4 %"]


def test_every_result_has_its_origin_and_is_shown(record: ModuleType, blocks: ModuleType) -> None:
    shown: set[str] = set()
    for page in PAGES:
        shown |= blocks.shown(page.read_text(encoding="utf-8"))[0]
    assert set(record.names()) == shown
    for name in record.names():
        result = record.read(name)
        assert set(result["rests_on"]) == set(record.RESTS_ON[name])
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", result["date"])
        assert result["command"]
        assert result.get("transcribed") or {"cores", "cpu"} <= set(result["machine"])
        assert not result.get("transcribed") or {"source", "run_at_commit"} <= set(result)


def test_a_comment_changes_no_digest_and_code_does(record: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    contents = []
    for text in ("x = 1\n", "# why\nx = 1  # one\n\n", "x = 2\n", "x = '# 1'\n"):
        path.write_text(text)
        contents.append(record.content(path))
    assert contents[0] == contents[1] != contents[2]
    assert contents[3] != contents[0]
    query = tmp_path / "query.sql"
    query.write_text("-- why\nselect 1\n  as one")
    assert record.content(query) == b"select 1 as one"


def test_a_result_older_than_what_it_rests_on_is_named(
    record: ModuleType, blocks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from figures.measured import sentence

    result = {"commit": "abc1234", "date": "2026-11-23", "command": "c", "sample": {}, "rests_on": {}}
    result["rests_on"] = {part: record.digest(part) for part in ("search", "fitting")}
    assert "before changes to" not in sentence("search", result)
    result["rests_on"]["search"] = "0" * 16
    assert record.changed(result) == ["search"]
    old = sentence("search", result)
    assert "measured at abc1234, 23 Nov 2026, before changes to search: `c`" in old
    # a page is not called old for it
    assert "before changes" not in blocks.without_staleness(old)


def test_a_sample_that_moved_is_shown_beside_its_result() -> None:
    from figures.measured import moved

    assert moved({"of_run": {"a": 0.1}, "now": {"a": 0.1}}) == ""
    assert moved({"of_run": {"a": 0.1}, "now": {"a": 0.2}}) == " Its sample has changed since: a 0.1 → 0.2."


def test_a_result_is_written_with_what_it_rests_on(
    record: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import samples

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setitem(samples.SAMPLES, "search", lambda: {"a": 1.0})

    def in_this_process(words: list, check: bool = False, **_: Any) -> subprocess.CompletedProcess:
        if check:
            with monkeypatch.context() as patch:
                patch.setattr(sys, "argv", [str(word) for word in words[1:]])
                samples.main()
        return subprocess.CompletedProcess(words, 0, "")

    monkeypatch.setattr(subprocess, "run", in_this_process)
    path = record.record("search", {"n": 1}, "python benches/search.py")
    result = json.loads(path.read_text())
    assert result["figures"] == {"n": 1}
    assert result["rests_on"] == {"search": record.digest("search")}
    assert result["sample"] == {"of_run": {"a": 1.0}, "now": {"a": 1.0}}
    with pytest.raises(ValueError, match="RESTS_ON"):
        record.record("unknown", {}, "")
