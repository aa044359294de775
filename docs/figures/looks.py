"""The list of all looks at held-out data, from `benches/results/looks.csv`, and their number."""

from __future__ import annotations

import csv
from collections import Counter

import record

from figures.text import day, table

# number of looks of a row that holds several
SEVERAL = {"after each of five steps of the rules": 5}


def rows() -> list[dict[str, str]]:
    """Return all looks, oldest first within each held-out set."""
    with (record.RESULTS / "looks.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def total() -> str:
    """Sentence on the number of looks at each held-out set."""
    counts: Counter[str] = Counter()
    for row in rows():
        counts[row["set"]] += SEVERAL.get(row["looked_at"], 1)
    parts = ", ".join(f"{name} {n}" for name, n in counts.items())
    return f"Looks at held-out data: {sum(counts.values())} in all ({parts})."


def table_of_all() -> str:
    """Table of all looks."""
    return table(
        ["looked at", "date", "commit", "what", "changed after it"],
        [[row["set"], day(row["date"]), row["commit"], row["looked_at"], row["changed_after"]] for row in rows()],
    )
