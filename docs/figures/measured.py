"""Sentences on the origin of results: commit, date, command, machine, and what has changed since."""

from __future__ import annotations

from typing import Any

import record

from figures.blocks import USED
from figures.text import day


def of(*names: str) -> str:
    """Return a list item for each result."""
    USED.extend(names)
    return "\n".join(f"- {sentence(name, record.read(name))}" for name in names)


def sentence(name: str, result: dict[str, Any]) -> str:
    """Return a result's origin in one or two sentences."""
    commit = result.get("run_at_commit") or result["commit"]
    parts = record.changed(result)
    since = f", before changes to {', '.join(parts)}" if parts else ""
    title = f"`{name}`: measured at {commit}, {day(result['date'])}{since}"
    if result.get("transcribed"):
        title += f"; copied from results published then ({result['source']}), not measured again"
    machine = result.get("machine")
    where = f", {machine['cores']} cores ({machine['cpu']})" if machine else ""
    spent = f", {result['cpu_s']:,} CPU-seconds{where}" if result.get("cpu_s") else where
    return f"{title}: `{result['command']}`{spent}.{moved(result['sample'])}"


def moved(sample: dict[str, Any]) -> str:
    """Return a sentence on how a result's pinned sample has changed since it was measured; empty if it has not."""
    then, now = sample.get("of_run"), sample.get("now")
    if not then or not now or then == now:
        return ""
    changes = [f"{name} {then[name]:.4g} → {now[name]:.4g}" for name in then if name in now and then[name] != now[name]]
    return f" Its sample has changed since: {', '.join(changes)}."
