"""How kernels of two versions differ in a step, and how far their predicted difference may be wrong.

Errors that both versions share cancel: of a kernel that both run, only what its version changes is uncertain; kernels
that replace each other have errors of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.kernels.engine_versions import FORETOLD_SHARE, HALF_OF_90, version_key

# standard deviation of the logarithm of (measured / predicted) change of a call between two versions of one kernel,
# both measured, and one of them not, beside FORETOLD_SHARE of the change (benches/versions.py, hidden versions)
BOTH_MEASURED, ONE_MEASURED = 0.059, 0.071
# estimated: share of the errors of two kernels that replace each other on one GPU that is common to both
COMMON = 0.5
MEASURED = "target-measured"
# of a side: name, column of upgrade_kernels
COLUMNS = {"kernel": "kernel", "ms": "ms_per_step", "measured": "measured", "sweep": "sweep"}


def kernel_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of ``upgrade_kernels`` of a step; ``before``, ``after``: steps as ``predict`` returns them.

    One row per kernel family; ``log_sd``: standard deviation of the logarithm of the ratio of both times.
    """
    sides = [_by_family(step) for step in (before, after)]
    rows = []
    for family in dict.fromkeys([*sides[0], *sides[1]]):
        old, new = (side.get(family, _NOTHING) for side in sides)
        ends = {
            f"{column}_{end}": side[name]
            for name, column in COLUMNS.items()
            for end, side in (("from", old), ("to", new))
        }
        rows.append(
            {
                "family": family,
                "phase": after["phase"],
                **ends,
                "log_sd": new["log_sd"] if family == "host" else _log_sd(old, new),
            }
        )
    return sorted(rows, key=lambda row: -abs(row["ms_per_step_to"] - row["ms_per_step_from"]))


_NOTHING: dict[str, Any] = {"kernel": "", "ms": 0.0, "measured": True, "sweep": None, "log_sd": 0.0, "calls": ()}


def _by_family(step: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the kernels of a step by family: names joined, milliseconds, whether measured, their own log_sd."""
    families: dict[str, list[Mapping[str, Any]]] = {}
    for kernel in step["kernels"]:
        families.setdefault(kernel["family"], []).append(kernel)
    version = step["settings"]["engine_version"]
    found = {}
    for family, kernels in families.items():
        times = [kernel["count"] * kernel["latency_us"] for kernel in kernels]
        total = sum(times) or 1.0
        sds = [math.log(max(row["p95_us"], 1e-9) / max(row["latency_us"], 1e-9)) / HALF_OF_90 for row in kernels]
        found[family] = {
            "kernel": " ".join(dict.fromkeys(row["implementation"] or "host" for row in kernels)),
            "ms": sum(times) / 1e3,
            "measured": all(_is_measured(row, version) for row in kernels),
            "sweep": _sweep(kernels),
            "calls": sorted((row["count"], str(row["shape"]), str(row["format"])) for row in kernels),
            "version": version_key(version),
            "log_sd": sum(time * sd for time, sd in zip(times, sds, strict=True)) / total,
        }
    return found


def _is_measured(kernel: Mapping[str, Any], version: str | None) -> bool:
    """Return whether a kernel was measured on its GPU, in this version; what engines launch alike, in any version."""
    if kernel["tier"] != MEASURED:
        return False
    measured = kernel["measured_version"]
    return measured is None or version is None or version_key(measured) == version_key(version)


def _sweep(kernels: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the versions whose sweeps of this GPU hold the kernels, in their order; None: it has none of one."""
    if any(row["tier"] != MEASURED for row in kernels):
        return None
    return " ".join(dict.fromkeys(row["measured_version"] or "any version" for row in kernels))


def _log_sd(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    if not old["ms"] or not new["ms"]:
        return float(max(old["log_sd"], new["log_sd"]))
    # other calls of one kernel have errors of their own as well: a flag changed them
    if (old["kernel"], old["calls"]) != (new["kernel"], new["calls"]):
        return float(math.hypot(old["log_sd"], new["log_sd"]) * math.sqrt(1.0 - COMMON))
    if old["version"] == new["version"]:
        return 0.0
    if old["measured"] and new["measured"]:
        return BOTH_MEASURED
    return math.hypot(ONE_MEASURED, FORETOLD_SHARE * math.log(new["ms"] / old["ms"]))


def part_factors(
    rows: Sequence[Mapping[str, Any]], weights: Mapping[str, float], sign: float, host: bool = False
) -> dict[str, float]:
    """Return factors on the parts of a step that move it by the difference's 90 % interval, in its likeliest direction.

    ``rows``: of ``kernel_rows``, all phases; ``weights``: the number of steps of each phase; ``sign``: 1 slower, -1
    faster. ``host``: also a factor on the change of host time, part "host", which flags change and versions hardly do.
    """
    from kernelsight.kernels.labels import component_of

    moves: dict[str, float] = {}
    times: dict[str, float] = {}
    for row in rows:
        if row["family"] == "host" and not host:
            continue
        parts = {
            "host": "host",
            "experts": "moe",
            "attention": f"{row['phase']}_attention",
            "exchange": "communication",
        }
        of_kernels = parts.get(component_of(row["family"]), f"{row['phase']}_gemm")
        part = "host" if row["family"] == "host" else of_kernels
        time = weights[row["phase"]] * (host_change(row) if part == "host" else row["ms_per_step_to"])
        moves[part] = moves.get(part, 0.0) + time * row["log_sd"]
        times[part] = times.get(part, 0.0) + time
    norm = math.hypot(*moves.values()) or 1.0
    sds = {part: moves[part] / times[part] for part in moves if times[part]}
    return {part: math.exp(sign * HALF_OF_90 * sd * moves[part] / norm) for part, sd in sds.items()}


def host_change(row: Mapping[str, Any]) -> float:
    """Return how far the host time of a step changes, ms."""
    return abs(row["ms_per_step_to"] - row["ms_per_step_from"])
