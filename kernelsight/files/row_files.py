"""Reads rows from a small CSV or JSON file that a flag of the command line names."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import check_file, read_text
from kernelsight.files.bounded_values import read_json
from kernelsight.files.budget import SETTINGS
from kernelsight.files.numbers import number_or_text


def read_rows(path: Path, texts: set[str], flag: str, row_word: str) -> list[dict[str, Any]]:
    """Return the rows of a JSON object or array, or of a CSV with a header; an empty CSV field is unset.

    ``texts``: columns whose CSV cells stay text, while others become numbers or booleans. ``flag`` and ``row_word`` are
    for errors: the flag that takes the file, and what a row is. InvalidInput: the file cannot be read, or has no rows.
    """

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"file {path} {problem}; {flag} takes a CSV or JSON file of {_plural(row_word)}.")

    check_file(path, refuse, SETTINGS)
    if path.suffix.lower() == ".json":
        return _json_rows(read_json(path, refuse), path, row_word)
    if path.suffix.lower() != ".csv":
        raise InvalidInput(f"{path} ends in {path.suffix or 'nothing'!r}; {flag} takes .csv or .json.")
    reader = csv.reader(io.StringIO(read_text(path, refuse), newline=""))
    try:
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise refuse(f"is not CSV (line {reader.line_num}: {error})") from None
    if len(lines) < 2:
        raise InvalidInput(f"{path} has no {row_word}; give a header, and a line for each.")
    header = lines[0]
    if len(set(header)) < len(header):
        raise InvalidInput(f"{path} has duplicate columns in its {len(header)}; keep one of each.")
    for number, line in enumerate(lines[1:], start=1):
        if len(line) != len(header):
            raise InvalidInput(
                f"{path}, {row_word} {number}: {len(line)} fields for {len(header)} columns; leave fields without a "
                "value empty."
            )
    return [
        {name: cell if name in texts else _value(cell) for name, cell in zip(header, line, strict=True) if cell}
        for line in lines[1:]
    ]


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of a CSV file; none if it is not one.

    >>> cells_of('a,"b, c"'), cells_of('a\\rb')
    (['a', 'b, c'], [])
    """
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _json_rows(content: Any, path: Path, row_word: str) -> list[dict[str, Any]]:
    rows = content if isinstance(content, list) else [content]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise InvalidInput(
            f"{path} has no {row_word}; give an object, or an array of objects, with the table's columns."
        )
    return [dict(row) for row in rows]


def _plural(row_word: str) -> str:
    return row_word.replace("row ", "rows ", 1) if row_word.startswith("row ") else f"{row_word}s"


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return number_or_text(text)
