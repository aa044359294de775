"""The value of the flag ``kv_tier``: ``host:200GiB:read=50+disk:2TiB``, or ``none``; parsed, and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kernelsight.errors import InvalidInput

TIERS = ("host", "disk", "store")  # the nearest first
FORM = "host:200GiB[:read=GB/s][:write=GB/s][:latency=us][:shared], with disk or store for host, joined by +, or none"
BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
BYTES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
MICROSECONDS = {"": 1.0, "us": 1.0, "ms": 1e3, "s": 1e6}
LARGEST_BYTES = 1 << 60
LEAST_BYTES = 1 << 10  # no model's block fits less: a number without its unit
LARGEST_FACTOR = 1e4
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?(?:e\+?\d+)?)(?P<unit>[a-z]*)", re.I)


def parse_tiers(text: str, flag: str = "kv_tier") -> list[dict[str, Any]]:
    """Return rows of ``kv_tiers`` without their deployment, the nearest tier first; InvalidInput: invalid text.

    ``capacity_bytes`` None: an unlimited tier, or ``capacity_factor`` times the GPU's KV cache.
    """
    spelling = str(text).strip()
    if spelling.lower() in ("none", ""):
        return []
    rows: dict[str, dict[str, Any]] = {}
    for tier_text in spelling.split("+"):
        name, *words = (word.strip() for word in tier_text.split(":"))
        if name not in TIERS or not words:
            raise InvalidInput(f"{flag} is {spelling!r:.60}; give {FORM}.")
        if name in rows:
            raise InvalidInput(f"{flag} states the tier {name} twice; keep one of them.")
        rows[name] = {"tier": name, **_capacity(words[0], flag), **_options(words[1:], flag)}
    return [rows[name] for name in TIERS if name in rows]


def tiers_text(rows: list[Mapping[str, Any]]) -> str | None:
    """Return tiers in canonical spelling, whatever the order and units in which they were written; None: no tier."""
    return "+".join(map(_one_text, rows)) or None


def _one_text(row: Mapping[str, Any]) -> str:
    words = [row["tier"], _size_text(row)]
    for name, column, scale in (("read", "read_bytes_per_s", 1e9), ("write", "write_bytes_per_s", 1e9)):
        words += [] if row[column] is None else [f"{name}={row[column] / scale:g}"]
    words += [] if row["latency_us"] is None else [f"latency={row['latency_us']:g}"]
    return ":".join([*words, *(["shared"] if row["shared"] else [])])


def _size_text(row: Mapping[str, Any]) -> str:
    size = row["capacity_bytes"]
    if size is None:
        return "unlimited" if row["capacity_factor"] is None else f"{row['capacity_factor']:g}x"
    unit = next((unit for unit in ("TiB", "GiB", "MiB") if size and size % BYTES[unit.lower()] == 0), "")
    return f"{size // BYTES[unit.lower()]}{unit}"


def _capacity(text: str, flag: str) -> dict[str, Any]:
    """Return the columns of a capacity such as 200GiB, 2x or unlimited."""
    if text.lower() in ("unlimited", "inf"):
        return {"capacity_bytes": None, "capacity_factor": None}
    match = _SIZE.fullmatch(text)
    unit = match["unit"].lower() if match else ""
    if match and unit == "x" and 0 <= float(match["number"]) <= LARGEST_FACTOR:
        return {"capacity_bytes": None, "capacity_factor": float(match["number"])}
    if not match or unit not in BYTES or float(match["number"]) * BYTES[unit] > LARGEST_BYTES:
        example = "give bytes such as 200GiB, 2TiB or 0, 2x for twice the GPU's KV cache, or unlimited"
        raise InvalidInput(f"the capacity {text!r:.30} of {flag} cannot be read; {example}.")
    size = int(float(match["number"]) * BYTES[unit])
    if 0 < size < LEAST_BYTES:
        raise InvalidInput(f"the capacity {text!r:.30} of {flag} is {size} bytes; give a unit, as in 200GiB.")
    return {"capacity_bytes": size, "capacity_factor": None}


def _options(words: list[str], flag: str) -> dict[str, Any]:
    """Return the columns of options such as read=50; None where unset."""
    options: dict[str, Any] = {"read_bytes_per_s": None, "write_bytes_per_s": None, "latency_us": None, "shared": None}
    for word in words:
        name, _, text = word.partition("=")
        if word == "shared":
            options["shared"] = True
        elif name in ("read", "write"):
            options[f"{name}_bytes_per_s"] = _number(word, text.lower().removesuffix("/s"), {"": 1e9, **_rates()}, flag)
        elif name == "latency":
            options["latency_us"] = _number(word, text, MICROSECONDS, flag)
        else:
            raise InvalidInput(f"{flag} has {word!r:.30}; known are read=GB/s, write=GB/s, latency=us and shared.")
    return options


def _rates() -> dict[str, float]:
    return {unit: float(size) for unit, size in BYTES.items() if unit}


def _number(word: str, text: str, units: Mapping[str, float], flag: str) -> float:
    """Return the number of an option in base units; InvalidInput names the option."""
    match = _SIZE.fullmatch(text)
    value = float(match["number"]) * units.get(match["unit"].lower(), 0.0) if match else 0.0
    zero = word.startswith("latency") and bool(match) and float(match["number"]) == 0
    if not zero and not 0 < value < 1e18:
        unit = "microseconds, such as latency=10" if word.startswith("latency") else "GB/s, such as read=50"
        raise InvalidInput(f"{word!r:.30} of {flag} cannot be read; give {unit}.")
    return value
