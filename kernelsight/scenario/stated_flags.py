"""Flags as a JSON object in a column of a table: written, and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.files.own import own_json


def object_text(values: Mapping[str, Any]) -> str:
    """Return a mapping as JSON text, in its order; numpy values as numbers, paths as text."""
    return json.dumps(dict(values), default=lambda value: value.item() if hasattr(value, "item") else str(value))


def read_flags(row: Mapping[str, Any], table: str, column: str) -> dict[str, Any]:
    """Return the flags in a JSON column of a row, {} where it is null; InvalidInput: no JSON object.

    >>> read_flags({"rate_id": "a", "flags": '{"gpu": "l4"}'}, "rates", "flags")
    {'gpu': 'l4'}
    """
    if row.get(column) is None:
        return {}
    try:
        flags = own_json(row[column])
    except json.JSONDecodeError:
        flags = None
    if not isinstance(flags, dict):
        name = next(iter(row.values()))
        raise InvalidInput(
            f"{table} has no JSON object in column {column} of {name!r}; give flags such as "
            '{"model": "qwen3-32b", "gpu": "h100_sxm"}.'
        )
    return flags
