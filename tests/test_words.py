"""Text is in the field's plain words: help, messages, docstrings, comments, table descriptions, pages."""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from record import TEXT_OR_COMMENT

from kernelsight.cli.main import parser

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kernelsight"
# everywhere: better words are "reports", "unset", "separately", "replaces", "per", "number of"
PHRASES = (
    *(r"\btold\b", r"\btells?\b", r"\bwho asks\b", r"\bnobody (gave|measured|stated|published|was|has)\b"),
    *(r"\bleft open\b", r"\bso many\b", r"\bcomes? to\b", r"\bin the place of\b", r"\bone by one\b"),
    *(r"\b(scored|reported|kept|set|is|are|lies?) apart\b", r"\b(turned|thrown|taken) away\b", r"\bwas asked for\b"),
    *(r"\bgib are missing\b", r"\ba look for\b", r"\bgoes on with\b"),
)
# of the project's own vocabulary, which a message must not require; no Python calls for users of the command line
INSIDE = (*(r"\balike\b", r"\broom\b", r"\blowered\b", r"\bknots?\b"), r"\bsession\.\w+\(")
assert not [phrase for phrase in PHRASES + INSIDE if phrase != phrase.lower()]


def found(texts: Iterable[tuple[str, str]], phrases: tuple[str, ...]) -> list[str]:
    """Return "place: phrase in its context" for every forbidden phrase in (place, text) pairs."""
    any_of = re.compile("|".join(phrases))
    lines = [(place, " ".join(text.split())) for place, text in texts]
    return [
        f"{place}: ...{line[max(match.start() - 40, 0) : match.end() + 40]}..."
        for place, line in lines
        for match in any_of.finditer(line.lower())
    ]


def helps(of: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield the help of a parser and of all its verbs."""
    yield of.prog, of.format_help()
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from helps(verb)


@cache
def texts_of(path: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return (place, text) of a module's string literals, and of its docstrings and comments."""
    source = path.read_text(encoding="utf-8")
    place = path.relative_to(ROOT)
    strings, docstrings = {}, []
    for node in ast.walk(ast.parse(source)):  # a statement comes before its parts
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.append(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings[node] = (f"{place}:{node.lineno}", node.value)
    explained = [(f"{place}:{node.lineno}", node.value) for node in docstrings]
    for found in TEXT_OR_COMMENT.finditer(source):
        if found[0].startswith("#"):
            explained.append((f"{place}:{source.count(chr(10), 0, found.start()) + 1}", found[0]))
    return [text for node, text in strings.items() if node not in docstrings], explained


def literals(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the sentences among a module's string literals: three words or more, docstrings left out."""
    yield from ((place, text) for place, text in texts_of(path)[0] if len(text.split()) > 2)


def explanations(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the docstrings and comments of a module."""
    yield from texts_of(path)[1]


def descriptions() -> Iterator[tuple[str, str]]:
    """Yield the descriptions of all tables and columns."""
    for path in sorted((ROOT / "schemas").glob("*.json")):
        contract = json.loads(path.read_text(encoding="utf-8"))
        for text in (
            contract.get("grain"),
            contract.get("doc"),
            *(row.get("doc") for row in contract.get("columns", ())),
        ):
            yield path.name, text or ""


def sql_texts(comments: bool) -> Iterator[tuple[str, str]]:
    """Yield the comments of all SQL files, or the sentences of their string literals."""
    for path in sorted((ROOT / "sql").rglob("*.sql")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            query, _, comment = line.partition("--")
            for text in [comment] if comments else re.findall(r"'([^']*)'", query):
                yield f"{path.relative_to(ROOT)}:{number}", text


def pages() -> list[Path]:
    """Return README, CONTRIBUTING and every page of docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_help():
    texts = list(helps(parser()))
    assert {"kernelsight simulate", "kernelsight calibrate plan"} <= {place for place, _ in texts}
    assert found(texts, PHRASES + INSIDE) == []


@pytest.mark.parametrize("room", sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}))
def test_modules(room):
    files = [PACKAGE / room] if room.endswith(".py") else sorted((PACKAGE / room).rglob("*.py"))
    assert found((text for path in files for text in literals(path)), PHRASES + INSIDE) == []
    assert found((text for path in files for text in explanations(path)), PHRASES) == []


def test_descriptions_of_tables():
    assert found(descriptions(), PHRASES + INSIDE) == []


def test_sql():
    assert found(sql_texts(comments=True), PHRASES) == []
    assert found(sql_texts(comments=False), PHRASES + INSIDE) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages(page):
    # code blocks may show what other tools print
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert found([(page.name, text)], PHRASES) == []


@pytest.mark.parametrize(
    "text",
    [
        "requests needs the table scenarios, which nobody gave: session.give('scenarios', rows) gives it",
        "62.3 GiB are missing",
        "so many other engines compute the prompts",
        "what the requests come to",
        "as the model\nis left open",
        "scored apart",
        "turned away",
    ],
)
def test_the_list_finds_what_it_forbids(text):
    assert found([("text", text)], PHRASES + INSIDE)


@pytest.mark.parametrize(
    "text", ["apart from the first", "a storeroom far away", "two hotels", "nobody else", "take it or leave it"]
)
def test_the_list_lets_plain_words_pass(text):
    assert found([("text", text)], PHRASES + INSIDE) == []
