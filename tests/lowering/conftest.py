"""Ask for lowered tables in one line: deployments and whole steps in, rows out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from kernelsight.session import connect

Rows = list[dict[str, Any]]


@pytest.fixture(scope="session")
def catalogue() -> dict[str, dict[str, Any]]:
    """Every model's row, with its layers under "layers"."""
    with connect() as session:
        models = {row["model"]: {**row, "layers": []} for row in session.table("models").to_pylist()}
        for layer in session.table("model_layers").to_pylist():
            models[layer["model"]]["layers"].append(layer)
    return models


@pytest.fixture(scope="session")
def ask() -> Callable[..., Rows]:
    """Return rows of a table for deployments (a model's name, or a row) and one whole step, or several."""

    def rows(table: str, *deployments: str | dict[str, Any], steps: Sequence[dict[str, int]] = (), **step: int) -> Rows:
        with connect() as session:
            stated = [_deployment(row) for row in deployments]
            session.give("deployments", _table(stated))
            if steps := [step] if step else steps:
                names = [row["deployment_id"] for row in stated]
                shapes = [_step(name, number, **each) for name in names for number, each in enumerate(steps)]
                session.give("step_shapes", _table(shapes))
            return session.table(table).to_pylist()

    return rows


@pytest.fixture(scope="session")
def ask_all(ask: Callable[..., Rows]) -> Callable[..., Callable[..., Rows]]:
    """Ask for many deployments in one question; return a function that returns the rows of one of them.

    ``ask_all(table, stated, **step)(model, **columns)``: the deployment with these columns alone, named by its model.
    """

    def asked(table: str, stated: Sequence[dict[str, Any]], **step: Any) -> Callable[..., Rows]:
        found: dict[tuple, Rows] = {_key(row): [] for row in stated}
        keys = list(found)
        named = ({**dict(key), "deployment_id": str(number)} for number, key in enumerate(keys))
        for row in ask(table, *named, **step):
            key = keys[int(row["deployment_id"])]
            found[key].append({**row, "deployment_id": dict(key)["model"]})
        return lambda model, **columns: found[_key({"model": model, **columns})]

    return asked


def _key(row: dict[str, Any]) -> tuple:
    return tuple(sorted(row.items()))


def _table(rows: Rows) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _deployment(stated: str | dict[str, Any]) -> dict[str, Any]:
    row = {"model": stated} if isinstance(stated, str) else stated
    defaults = {"gpu": "gb200", "tp": 1, "pp": 1, "dp": 1, "ep": 1, "engine": "vllm"}
    return {"deployment_id": row["model"], **defaults, **row}


def _step(
    deployment: str, number: int, decodes: int = 0, context: int = 0, prompts: int = 0, new: int = 0, cached: int = 0
) -> dict[str, Any]:
    return {
        "deployment_id": deployment,
        "step_shape_id": number,
        "part": "whole",
        "x": 0.0,
        "y": 0.0,
        "tokens": decodes + prompts * new,
        "sampled": decodes + prompts,
        "decode_requests": decodes,
        "decode_context": context if decodes else None,
        "decode_window_context": context if decodes else None,
        "prefill_requests": prompts,
        "prefill_tokens": new,
        "prefill_cached": cached,
    }
