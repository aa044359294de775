"""No pattern of the package takes time that grows with the square of a text: a name of a few thousand characters."""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kernelsight"
USES = ("match", "fullmatch", "search", "finditer", "findall", "sub", "split")
STARTS = ("", '"', "://", "a: ", "(")
REPEATED = ("a", "1", "1.", "_", "-", " ", "\n", "[", "(", '"', "'", "\\", "=", ":", "/", ",", ".", "a=", "a ", "a\n",
            "- ", " #", "aA", "://", "''", "{", "@", "://:")  # fmt: skip
LENGTH, MOST_S = 16_000, 0.08
# how the text ends where a caller says so
ENDS = {"_USER": "@"}
# what never meets a text that others wrote
OWN = {"kernelsight.project_graph", "kernelsight.dataflow.sql_nodes"}


def uses() -> Iterator[tuple[str, str, str]]:
    """Yield (module, name of a pattern, method) of each use of a pattern that a module holds."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "re.compile" not in source:
            continue
        tree = ast.parse(source)
        compiled = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign) and "re.compile" in ast.unparse(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.walk(tree):
            is_use = isinstance(node, ast.Attribute) and node.attr in USES and isinstance(node.value, ast.Name)
            if is_use and node.value.id in compiled and module not in OWN:
                yield module, node.value.id, node.attr


USED = sorted(set(uses()))


def seconds(pattern: re.Pattern, method: str, text: str) -> float:
    content = text.encode() if isinstance(pattern.pattern, bytes) else text
    given = ((b"" if isinstance(content, bytes) else ""), content) if method == "sub" else (content,)
    begin = time.process_time()
    found = getattr(pattern, method)(*given)
    if method == "finditer":
        list(found)
    return time.process_time() - begin


@pytest.mark.parametrize("module, name, method", USED)
def test_a_pattern_reads_a_long_text_in_time(module: str, name: str, method: str) -> None:
    """At the square, 16,000 characters would take seconds; as they are, they take a millisecond."""
    pattern = getattr(importlib.import_module(module), name)
    for start in STARTS:
        for part in REPEATED:
            text = start + part * (LENGTH // len(part)) + ENDS.get(name, "!")
            assert min(seconds(pattern, method, text) for _ in range(2)) < MOST_S, (start, part)


def test_patterns_are_found() -> None:
    assert len(USED) > 60


def test_a_slow_pattern_is_slow() -> None:
    assert seconds(re.compile(r"(a+)[_-]+$"), "search", "a" * (LENGTH // 2)) > MOST_S
