"""Settings that may differ from the stated ones: alternatives one step away, and contradictions with the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from kernelsight.dataflow.session import Session
from kernelsight.scenario.flags import DEPLOYMENT_FLAGS
from kernelsight.scenario.scenarios import give_plan, plan_rows

SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")
STEPS = {"max_num_batched_tokens": (0.25, 0.5, 2.0, 4.0), "max_num_seqs": (0.25, 0.5, 2.0, 4.0)}


def stated_settings(session: Session, flags: Mapping[str, Any], no_load: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of ``deployment_settings`` of flags."""
    with session.fork() as fork:
        plan = plan_rows(fork, [{**no_load, **flags}], origin="")
        give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
        name = plan.planned[0]["deployment_id"]
        rows = fork.table("deployment_settings").to_pylist()
        return next(row for row in rows if row["deployment_id"] == name)


def alternatives(settings: Mapping[str, Any], flags: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, flags) of settings one step from the stated ones.

    >>> stated = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "async_scheduling": True, "tp": 2}
    >>> [name for name, _ in alternatives(stated, {})][:3]
    ['max_num_batched_tokens=2048', 'max_num_batched_tokens=4096', 'max_num_batched_tokens=16384']
    """
    found: list[tuple[str, dict[str, Any]]] = []

    def add(name: str, value: Any) -> None:
        found.append((f"{name}={str(value).lower() if isinstance(value, bool) else value}", {name: value}))

    for name, factors in STEPS.items():
        for value in (int(settings[name] * factor) for factor in factors if settings.get(name)):
            add(name, value)
    for name in SWITCHES:
        if settings.get(name) is not None:
            add(name, not settings[name])
    add("enforce_eager", settings.get("graph_max_tokens") != 0)
    add("kv_cache_dtype", "bf16" if settings.get("kv_cache_dtype") == "fp8" else "fp8")
    if "ffn_format" in settings:
        add("quantization", "fp8" if settings["ffn_format"] in ("bf16", "fp16") else "none")
    tp = settings.get("tp", 1)
    for other in (tp // 2, tp * 2):
        if 1 <= other <= 8:
            found.append((f"tensor_parallel_size={other}", {"tensor_parallel_size": other}))
    return [(name, other) for name, other in found if any(flags.get(key) != value for key, value in other.items())]


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
