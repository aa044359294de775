"""Warning sentence for a scenario near its capacity: steps 5 % slower would at least double a p99 latency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelsight.number_format import number

# growth of a p99 from which there is a warning
DOUBLED = 2.0
METRICS = {"ttft": "TTFT", "e2e": "E2E", "tpot": "TPOT"}


def near_capacity(middle: Mapping[str, Any] | None, slower: Mapping[str, Any] | None) -> str | None:
    """Return the warning, or None if 5 % slower steps do not double a p99.

    ``middle``, ``slower``: rows of ``request_statistics_at_ends``, as predicted and with slower steps, ms.

    >>> row = {"ttft_p99_ms": 250.0, "e2e_p99_ms": 2000.0, "tpot_p99_ms": 20.0}
    >>> near_capacity(row, row | {"ttft_p99_ms": 1250.0})
    'near its capacity: steps 5 % slower would make p99 TTFT 5 times as long (250 -> 1,250 ms)'
    >>> near_capacity(row, row | {"ttft_p99_ms": 300.0}) is None
    True
    """
    if middle is None or slower is None:
        return None
    growth = {
        name: slower[f"{name}_p99_ms"] / middle[f"{name}_p99_ms"]
        for name in METRICS
        if middle[f"{name}_p99_ms"] and slower[f"{name}_p99_ms"]
    }
    worst = max(growth, key=lambda name: growth[name], default=None)
    if worst is None or growth[worst] < DOUBLED:
        return None
    before, after = (row[f"{worst}_p99_ms"] for row in (middle, slower))
    return (
        f"near its capacity: steps 5 % slower would make p99 {METRICS[worst]} {number(growth[worst], 3)} times as long "
        f"({number(before)} -> {number(after)} ms)"
    )
