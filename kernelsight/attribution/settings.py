"""Settings of the stated deployment, and contradictions between them and the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from kernelsight.dataflow.session import Session
from kernelsight.scenario.flags import DEPLOYMENT_FLAGS
from kernelsight.scenario.scenarios import give_plan, plan_rows


def stated_settings(session: Session, flags: Mapping[str, Any], no_load: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of ``deployment_settings`` of flags."""
    with session.fork() as fork:
        plan = plan_rows(fork, [{**no_load, **flags}], origin="")
        give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
        name = plan.planned[0]["deployment_id"]
        rows = fork.table("deployment_settings").to_pylist()
        return next(row for row in rows if row["deployment_id"] == name)


def contradictions(settings: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> list[dict[str, Any]]:
    """Return rows of ``setting_suspects`` for what the log shows and the stated settings cannot do."""
    found = []

    def add(setting: str, stated: Any, value: str) -> None:
        row = {"setting": setting, "stated": str(stated), "value": value, "gain": None}
        found.append({**row, "evidence": "impossible"})

    cached = tables["production_requests"]["cached_tokens"].drop_null()
    if not settings["enable_prefix_caching"] and sum(cached.to_pylist()) > 0:
        add("enable_prefix_caching", False, "true: requests found cached tokens")
    steps = tables.get("production_steps")
    if steps is not None and steps.num_rows:
        tokens = max(
            row["prefill_tokens"] + (row["decode_tokens"] or row["decode_requests"])
            for row in steps.select(["prefill_tokens", "decode_tokens", "decode_requests"]).to_pylist()
        )
        if tokens > settings["max_num_batched_tokens"]:
            add(
                "max_num_batched_tokens",
                settings["max_num_batched_tokens"],
                f"at least {tokens}: one step had that many",
            )
    windows = tables.get("production_windows")
    if windows is not None and windows.num_rows:
        running = max((value for value in windows["running"].to_pylist() if value is not None), default=0)
        if running > settings["max_num_seqs"] * settings["dp"]:
            add("max_num_seqs", settings["max_num_seqs"], f"at least {running:.0f}: that many requests ran at once")
    names = {**DEPLOYMENT_FLAGS, "model": "model"}
    for row in tables["production_settings"].to_pylist():
        column = names.get(row["setting"])
        value = settings.get(column) if column else None
        if value is not None and row["found"] is not None and _differs(str(value), row["found"]):
            add(row["setting"], value, f"{row['found']} in {row['found_in']}")
    return found


def _differs(stated: str, found: str) -> bool:
    one, other = stated.lower(), found.lower()
    return one != other and not ("/" in other or one in other)
