"""The causes that were found as `compare` names them, among them the load as it was described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelsight.comparison.cause_sizes import GROUPS, State
from kernelsight.comparison.factors import PARAMETERS

# a smaller share of E2E is agreement: repeats of one run differ by 2 to 5 % in TTFT
AGREES = 0.02


def named_causes(
    found: State, from_server: bool, parts: Sequence[Mapping[str, Any]], e2e_ms: float | None
) -> list[dict[str, Any]]:
    """Return the causes of an explanation, the largest first, and among them the load if it is not as described.

    ``from_server``: time before the engine is the front end's, else the client's; ``parts``: rows of ``miss_by_part``;
    ``e2e_ms``: measured mean, of which the load has to change some per cent.
    """
    rows = [_row(found, name, from_server) for name in found.causes]
    miss_ms = {row["part"]: row["miss_ms"] for row in parts}
    load_ms = miss_ms.get("workload", 0.0)
    if e2e_ms and abs(load_ms) >= AGREES * e2e_ms:
        rows.append({"cause": "workload", "added_ms": load_ms})
    return sorted(rows, key=lambda row: -abs(sum(miss_ms[part] for part in _parts(row["cause"]))))


def _parts(cause: str) -> tuple[str, ...]:
    """Return the parts of the miss that a cause is credited with; settings decide when requests are scheduled."""
    return GROUPS.get(cause, (cause,) if cause in ("client", "workload") else ("queue",))


def _row(found: State, name: str, from_server: bool) -> dict[str, Any]:
    if name not in GROUPS:
        setting, _, value = name.partition("=")
        return {"cause": setting, "value": value}
    size = float(found.values[PARAMETERS.index(GROUPS[name][0])])
    if name == "front_end":
        return {"cause": "front_end" if from_server else "client", "added_ms": size}
    return {"cause": name, "added_ms": size} if name == "host" else {"cause": name, "factor": float(np.exp(size))}
