"""Reads what the package, its libraries or a run of the program itself wrote, without a budget: no stranger had a say.

What others wrote is read by the functions beside this module.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any


def own_text(path: str | Path) -> str:
    """Return the text of a file of the package."""
    return Path(path).read_text(encoding="utf-8")


def own_bytes(path: str | Path) -> bytes:
    """Return the bytes of a file of the package, of a library, or that the program wrote a moment ago."""
    return Path(path).read_bytes()


def own_rows(path: str | Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file of the package as text."""
    return list(csv.DictReader(own_text(path).splitlines()))


def own_json(text: str | bytes) -> Any:
    """Parse JSON of the package, or of a column or process that the program or a check of it wrote."""
    return json.loads(text)
