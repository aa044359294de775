"""Scenarios of searches (rows of ``search_scenarios``): defaults, and checks before a search begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from kernelsight.catalog.gpu_names import find_gpu
from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import conform
from kernelsight.errors import InvalidInput, nearest, unknown
from kernelsight.scenario.flag import options_of
from kernelsight.searching.arrays import SpaceArrays

_FLAGS = options_of("search_scenarios")["search"]
DEFAULTS: dict[str, Any] = {flag.column: flag.default for flag in _FLAGS} | {"random_share": 0.1}
COLUMNS = ("search_id", *DEFAULTS)
POLICIES = next(flag.choices for flag in _FLAGS if flag.name == "policy")


def scenario_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of ``search_scenarios`` with their defaults; InvalidInput: a value or column that cannot be used."""
    rows_out = []
    for row in rows:
        extra = [name for name in row if name not in COLUMNS]
        if extra:
            raise unknown("column of a search", extra[0], COLUMNS)
        filled_row = DEFAULTS | {name: value for name, value in row.items() if value is not None}
        for name in ("space", "gpu"):
            if not filled_row.get(name):
                raise InvalidInput(f"a search has no {name}; give the search space and the GPU to search for.")
        identity = ("space", "gpu", "forecaster", "policy", "seed")
        filled_row.setdefault("search_id", "/".join(str(filled_row[name]) for name in identity))
        check(filled_row)
        rows_out.append({name: filled_row[name] for name in COLUMNS})
    return rows_out


def check(scenario: Mapping[str, Any]) -> None:
    """Raise ContractBroken for budgets, batches, shares or names of a scenario that its table does not allow."""
    names = {name: scenario.get(name) or "" for name in ("search_id", "space", "gpu")}
    conform(pa.Table.from_pylist([dict(scenario) | names]), contracts()["search_scenarios"])


def as_spelled(arrays: SpaceArrays, scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario whose GPUs are spelled as in the space: found by catalogue names and aliases, as --gpu is."""

    def spelled(name: str) -> str:
        found = None if name in arrays.gpus else find_gpu(name)
        others = {other: find_gpu(other) for other in arrays.gpus} if found else {}
        same = [(bool(gpu.assumed), other) for other, gpu in others.items() if gpu and found and gpu.gpu == found.gpu]
        return min(same)[1] if same else name

    sources = scenario["source_gpus"]
    named = {"gpu": spelled(scenario["gpu"]), "source_gpus": None if sources is None else [*map(spelled, sources)]}
    return dict(scenario) | named


def check_in(arrays: SpaceArrays, gpu: str, budget: int, replayed: bool = True) -> None:
    """Raise InvalidInput for a GPU without measurements to replay, or a budget larger than the space."""
    if replayed and gpu not in arrays.gpus:
        close = " or ".join(nearest(gpu, arrays.gpus)) or ", ".join(arrays.gpus)
        raise InvalidInput(
            f"GPU {gpu!r} has no measurements in space {arrays.space!r} that could be replayed; "
            f"{f'use {close}, or ' if close else ''}measure on the GPU itself (--measure)."
        )
    count = int((arrays.gpus[gpu].status > 0).sum()) if replayed else len(arrays.ids)
    if budget > count:
        raise InvalidInput(
            f"the budget is {budget:,} measurements, but space {arrays.space!r} has {count:,} candidates"
            f"{f' measured on {gpu}' if replayed else ''}; give at most as many."
        )
