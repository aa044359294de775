"""Settings of the stated deployment, and contradictions between these and the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from kernelsight.catalog.model_names import find_variant
from kernelsight.dataflow.session import Session
from kernelsight.errors import KernelSightError
from kernelsight.number_format import rounded
from kernelsight.scenario.flags import DEPLOYMENT_FLAGS
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.scenario.refusals import refuse_faults
from kernelsight.scenario.scenario_rows import normalise, resolve_gpu

# columns by which two models of the catalogue differ, whatever their formats
SHAPE = ("layer_count", "hidden", "heads", "kv_heads", "vocab", "intermediate")


def stated_settings(session: Session, flags: Mapping[str, Any], no_load: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of ``deployment_settings`` that flags resolve to, with ``replicas``.

    ``no_load``: flags of a load, which planning needs. InvalidInput: the deployment cannot run: nothing would be
    replayed.
    """
    with session.fork() as fork:
        plan = plan_rows(fork, [{**no_load, **flags}], origin="")
        give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
        refuse_faults(fork)
        deployment_id = plan.planned[0]["deployment_id"]
        rows = fork.table("deployment_settings").to_pylist()
        settings = next(row for row in rows if row["deployment_id"] == deployment_id)
        return {**settings, "replicas": plan.planned[0].get("replicas") or 1}


def with_stated(production_settings: pa.Table, settings: Mapping[str, Any], flags: Mapping[str, Any]) -> pa.Table:
    """Return ``production_settings`` with ``stated``: the user's value of each setting that the log has."""
    stated_columns = {_column(name) for name in normalise(flags)}
    rows = production_settings.to_pylist()
    for row in rows:
        column = _column(row["setting"])
        value = settings.get(column) if column in stated_columns else None
        row["stated"] = None if value is None else str(value)
    return pa.Table.from_pylist(rows, production_settings.schema)


def contradictions(
    session: Session, settings: Mapping[str, Any], tables: Mapping[str, pa.Table]
) -> list[dict[str, Any]]:
    """Return rows of ``setting_suspects`` for stated settings that the log contradicts.

    ``settings``: the row of ``log_settings``; ``tables``: of the log.
    """
    suspects = []

    def add(setting: str, stated: Any, value: str) -> None:
        row = {"setting": setting, "stated": str(stated), "value": value, "gain": None}
        suspects.append({**row, "evidence": "impossible"})

    cached_tokens = tables["production_requests"]["cached_tokens"].drop_null()
    if not settings["enable_prefix_caching"] and sum(cached_tokens.to_pylist()) > 0:
        add("enable_prefix_caching", False, "true: requests found cached tokens")
    steps = tables.get("production_steps")
    if steps is not None and steps.num_rows:
        step_tokens = max(
            row["prefill_tokens"] + (row["decode_tokens"] or row["decode_requests"])
            for row in steps.select(["prefill_tokens", "decode_tokens", "decode_requests"]).to_pylist()
        )
        if step_tokens > settings["max_num_batched_tokens"]:
            add(
                "max_num_batched_tokens",
                settings["max_num_batched_tokens"],
                f"at least {step_tokens}: one step had that many",
            )
    windows = tables.get("production_windows")
    if windows is not None and windows.num_rows:
        running = max((value for value in windows["running"].to_pylist() if value is not None), default=0)
        if running > settings["max_num_seqs"] * settings["dp"] * settings["replicas"]:
            add(
                "max_num_seqs", settings["max_num_seqs"], f"at least {rounded(running)}: that many requests ran at once"
            )
    for row in tables["production_settings"].to_pylist():
        value = settings.get(_column(row["setting"]) or "")
        if value is not None and row["found"] is not None and _differs(session, row["setting"], value, row["found"]):
            add(row["setting"], value, f"{row['found']} in {row['found_in']}")
    return suspects


def _column(setting: str) -> str | None:
    """Return the column of ``deployment_settings`` that holds a setting; None for an unknown one."""
    return {**DEPLOYMENT_FLAGS, "model": "model"}.get(setting)


def _differs(session: Session, setting: str, stated: Any, logged: str) -> bool:
    """Whether a log has another value of a setting than was stated; unknown names of models and GPUs do not differ."""
    if setting == "model":
        return _other_shape(session, str(stated), logged)
    if setting == "gpu":
        try:
            return resolve_gpu(session, logged) != str(stated)
        except KernelSightError:
            return False
    stated_value, logged_value = str(stated).lower(), logged.lower()
    return stated_value != logged_value and not ("/" in logged_value or stated_value in logged_value)


def _other_shape(session: Session, stated_model: str, logged: str) -> bool:
    """Whether a log names a known model of another shape; variants of one model and unknown names do not differ."""
    shapes = {row["model"]: [row[name] for name in SHAPE] for row in session.table("models").to_pylist()}
    stated_shape, logged_shape = (shapes.get(name, shapes.get(_base(name) or "")) for name in (stated_model, logged))
    return stated_shape is not None and logged_shape is not None and stated_shape != logged_shape


def _base(name: str) -> str | None:
    """Return the catalogue's base model of a name in a log, None if unknown; the name is not read as a path."""
    try:
        variant = find_variant(name)
    except KernelSightError:
        return None
    return variant.base if variant else None
