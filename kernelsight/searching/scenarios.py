"""Scenarios of searches (rows of ``search_scenarios``): defaults, and checks before a search begins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from kernelsight.catalog.gpu_names import find_gpu
from kernelsight.errors import InvalidInput, nearest, unknown
from kernelsight.files.numbers import is_number
from kernelsight.searching.arrays import SpaceArrays

POLICIES = ("random", "order", "greedy", "selective")
PROPOSERS = ("pool", "neighbours", "given")
DEFAULTS: dict[str, Any] = {
    **{"seed": 0, "budget_measurements": 100, "budget_s": None, "batch": 5, "proposer": "pool"},
    **{"samples_per_parent": 16, "measure_per_parent": 4, "forecaster": "transfer", "policy": "selective"},
    **{"anchor": None, "source_gpus": None, "random_share": 0.1, "stop_expected_gain": None},
}
COLUMNS = ("search_id", "space", "gpu", *DEFAULTS)


def scenario_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of ``search_scenarios`` with their defaults; InvalidInput: a value or column that cannot be used.

    >>> scenario_rows([{"space": "conv", "gpu": "a100", "seed": 3}])[0]["search_id"]
    'conv/a100/transfer/selective/3'
    """
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
    """Raise InvalidInput or UnknownName for invalid budgets, batches, shares or names of a scenario."""
    budget = scenario["budget_measurements"]
    if not is_number(budget) or budget <= 0 or budget != int(budget):
        raise InvalidInput(f"the budget is {budget} measurements; give a whole number above 0.")
    seconds = scenario["budget_s"]
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise InvalidInput(f"the budget is {seconds:g} s of measuring; give a finite time above 0.")
    for name in ("batch", "samples_per_parent", "measure_per_parent"):
        if scenario[name] <= 0:
            raise InvalidInput(f"{name} is {scenario[name]}; give a whole number above 0.")
    if scenario["measure_per_parent"] > scenario["samples_per_parent"]:
        raise InvalidInput(
            f"measure_per_parent is {scenario['measure_per_parent']}, but only {scenario['samples_per_parent']} "
            "candidates are proposed per parent; measure at most as many."
        )
    if not 0.0 <= scenario["random_share"] < 1.0:
        raise InvalidInput(f"random_share is {scenario['random_share']}; give a share from 0 to below 1.")
    stop = scenario["stop_expected_gain"]
    if stop is not None and not (math.isfinite(stop) and stop >= 0):
        raise InvalidInput(f"stop_expected_gain is {stop}; give a number of candidates, 0 or more.")
    for name, words in (("policy", POLICIES), ("proposer", PROPOSERS)):
        if scenario[name] not in words:
            raise unknown(name, str(scenario[name]), words, f"Known: {', '.join(words)}.")


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
