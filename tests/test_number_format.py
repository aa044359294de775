"""One rule for numbers that people read: nothing but ``number_format`` chooses digits of a figure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "kernelsight"
DIGITS = re.compile(r"[-+,0-9]*\.\d+[eEfFgG%]|.*%$|[-+]?[eEfFgG]?,\.")
# what the text of every such format has: a file without it is not parsed
DIGITS_IN_SOURCE = re.compile(r"\.\d+[eEfFgG%]|%\}|,\.")
# what is written for programs: names of columns, JSON, SQL, Prometheus, words of a launch line, the prompt of a model
DATA = {
    "number_format.py",
    "fitting/pack_fit.py",  # the log of a fit
    "scenario/objectives.py",
    "scenario/launch/kv_tiers.py",
    "kernels/sparse.py",
    "present/watch_windows.py",
    "present/html/page.py",
    "present/trace/trace_events.py",
    "present/trace/timeline.py",
    "searching/llm/prompt.py",
}


def formats(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each format in an f-string that chooses digits of a number."""
    if not DIGITS_IN_SOURCE.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
            text = "".join(part.value for part in node.format_spec.values if isinstance(part, ast.Constant))
            if DIGITS.match(text) and "%Y" not in text:
                yield node.lineno, text


def test_figures_for_people_are_written_by_one_module() -> None:
    own = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name not in DATA and (lines := list(formats(path.read_text(encoding="utf-8")))):
            own[name] = lines
    assert not own


def test_a_format_with_digits_of_its_own_is_seen() -> None:
    source = 'f"{a:.1f} {b:,.0f} {c:.0%} {d:+.3g} {e:,} {f:g} {g!r:.30} {h:>3}"'
    assert [text for _, text in formats(source)] == [".1f", ",.0f", ".0%", "+.3g"]
