"""Faults of rows: what cannot be used is counted by reason, with the place of the first row; the rest is used."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kernelsight.files.bounded_values import without_repeats

# reasons that a sentence names
MOST_REASONS = 5


@dataclass
class Faults:
    """Counts of rows by rule, with the id or place of the first one."""

    counted: dict[str, tuple[int, str | None, str]] = field(default_factory=dict)

    def add(self, rule: str, n: int, example: object = None, more: str = "") -> None:
        """Add ``n`` rows to the count of a rule; ``more``: what the log or its first row says of it."""
        if n > 0:
            before, first, text = self.counted.get(rule, (0, None, ""))
            shown = None if example is None else str(example)[:120]
            self.counted[rule] = (before + int(n), first if before else shown, text or more)

    def add_all(self, others: Faults) -> None:
        """Add the counts of other faults, such as those of another run of the same file."""
        for rule, (n, example, more) in others.counted.items():
            self.add(rule, n, example, more)

    @property
    def rows(self) -> int:
        """Rows that were counted, each by one rule."""
        return sum(n for n, _, _ in self.counted.values())

    def first(self) -> tuple[str, str]:
        """Return the place of the first row that was counted, and its fault."""
        return next((str(example), problem) for _, example, problem in self.counted.values())

    def sentence(self, kept: int, unit: str) -> str:
        """Return how many rows are left out beside ``kept`` ones, and why the first ones by rule."""
        reasons = [
            f"{example}: {more}{f' ({n:,} {unit})' * (n > 1)}"
            for n, example, more in sorted(self.counted.values(), key=lambda each: -each[0])[:MOST_REASONS]
        ]
        total = f"{self.rows:,} of {self.rows + kept:,} {unit} cannot be used and are left out"
        return "; ".join([total, *reasons, *["…"] * (len(self.counted) > len(reasons))])


def json_objects(data: bytes, faults: Faults) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) of each line of JSON that is not blank; lines that are no object are faults."""
    for number, line in enumerate(io.BytesIO(data), 1):
        try:
            value = json.loads(line, object_pairs_hook=without_repeats) if line.strip() else {}
        except (ValueError, RecursionError) as problem:
            reason = str(problem).split("\n")[0].rstrip(".") or type(problem).__name__
            faults.add("JSON", 1, f"line {number}", f"not a JSON object ({reason})")
            continue
        if not isinstance(value, dict):
            faults.add("object", 1, f"line {number}", f"a JSON {type(value).__name__} instead of an object")
        elif line.strip():
            yield f"line {number}", value
