"""The sentence on a scenario near its capacity: how steps that are 5 % slower would change its tail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelsight.number_format import number

# a tail that grows by this factor is worth a sentence
DOUBLED = 2.0
METRICS = {"ttft": "TTFT", "e2e": "E2E", "tpot": "TPOT"}


def near_capacity(middle: Mapping[str, Any] | None, slower: Mapping[str, Any] | None) -> str | None:
    """Return the sentence, or None where 5 % slower steps do not double a p99.

    ``middle``, ``slower``: rows of ``request_statistics_at_ends``.

    >>> row = {"ttft_p99_ms": 250.0, "e2e_p99_ms": 2000.0, "tpot_p99_ms": 20.0}
    >>> near_capacity(row, row | {"ttft_p99_ms": 1250.0})
    'near its capacity: steps 5 % slower would make p99 TTFT 5 times as long (250 -> 1,250 ms)'
    >>> near_capacity(row, row | {"ttft_p99_ms": 300.0}) is None
    True
    """
    if middle is None or slower is None:
        return None
    grown = {
        name: slower[f"{name}_p99_ms"] / middle[f"{name}_p99_ms"]
        for name in METRICS
        if middle[f"{name}_p99_ms"] and slower[f"{name}_p99_ms"]
    }
    worst = max(grown, key=lambda name: grown[name], default=None)
    if worst is None or grown[worst] < DOUBLED:
        return None
    before, after = (row[f"{worst}_p99_ms"] for row in (middle, slower))
    return (
        f"near its capacity: steps 5 % slower would make p99 {METRICS[worst]} {number(grown[worst], 3)} times as long "
        f"({number(before)} -> {number(after)} ms)"
    )
