"""Reads rows from a small CSV or JSON file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput


def read_rows(path: Path, texts: set[str], flag: str, what: str) -> list[dict[str, Any]]:
    """Return the rows of a JSON object or array, or of a CSV with a header; an empty CSV field is unset.

    ``texts``: columns whose CSV cells stay text, others become numbers or booleans; ``flag`` and ``what``: the flag of
    the file, and what a row is, for errors. InvalidInput: the file cannot be read, or has no rows.
    """
    if not path.is_file():
        raise InvalidInput(f"file {path} does not exist; {flag} takes a CSV or JSON file of {_plural(what)}.")
    if path.suffix.lower() == ".json":
        return _json_rows(path, what)
    if path.suffix.lower() != ".csv":
        raise InvalidInput(f"{path} ends in {path.suffix or 'nothing'!r}; {flag} takes .csv or .json.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} is not valid CSV: {error}.") from None
    if len(lines) < 2:
        raise InvalidInput(f"{path} has no {what}; give a header, and a line for each.")
    header = lines[0]
    if len(set(header)) < len(header):
        raise InvalidInput(f"{path} has duplicate columns: {', '.join(header)}; keep one of each.")
    for number, line in enumerate(lines[1:], start=1):
        if len(line) != len(header):
            raise InvalidInput(
                f"{path}, {what} {number}: {len(line)} fields for {len(header)} columns; leave fields without a value "
                "empty."
            )
    return [
        {name: cell if name in texts else _value(cell) for name, cell in zip(header, line, strict=True) if cell}
        for line in lines[1:]
    ]


def _json_rows(path: Path, what: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not valid JSON: {error}.") from None
    rows = found if isinstance(found, list) else [found]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise InvalidInput(f"{path} has no {what}; give an object, or an array of objects, with the table's columns.")
    return [dict(row) for row in rows]


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object whose names differ, for ``object_pairs_hook``; ValueError names the one that occurs twice.

    >>> json.loads('{"a": 1, "b": 2}', object_pairs_hook=without_repeats)
    {'a': 1, 'b': 2}
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice; keep one")
    return found


def _plural(what: str) -> str:
    return what.replace("row ", "rows ", 1) if what.startswith("row ") else f"{what}s"


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
