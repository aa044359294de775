"""Where results come from: commit, date, command, machine, and what has changed since."""

from __future__ import annotations

from typing import Any

import record

from figures.blocks import USED
from figures.text import day


def of(*names: str) -> str:
    """Return a sentence for each result."""
    USED.extend(names)
    return "\n".join(f"- {sentence(name, record.read(name))}" for name in names)


def sentence(name: str, result: dict[str, Any]) -> str:
    """Return where a result comes from, in one sentence or two."""
    commit = result.get("run_at_commit") or result["commit"]
    parts = record.changed(result)
    since = f", before changes of {', '.join(parts)}" if parts else ""
    title = f"`{name}`: measured at {commit}, {day(result['date'])}{since}"
    if result.get("transcribed"):
        title += f"; copied from what was published then ({result['source']}), not measured again"
    machine = result.get("machine")
    where = f", {machine['cores']} cores ({machine['cpu']})" if machine else ""
    spent = f", {result['cpu_s']:,} CPU-seconds{where}" if result.get("cpu_s") else where
    return f"{title}: `{result['command']}`{spent}.{moved(result['sample'])}"


def moved(sample: dict[str, Any]) -> str:
    """Return how the pinned sample of a result differs from what it was when the result was measured."""
    then, now = sample.get("of_run"), sample.get("now")
    if not then or not now or then == now:
        return ""
    changes = [f"{name} {then[name]:.4g} → {now[name]:.4g}" for name in then if name in now and then[name] != now[name]]
    return f" Its sample gives other figures now: {', '.join(changes)}."
