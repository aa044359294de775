"""The tables that the package ships (catalogue, models, fitted kernel model), each read on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import pyarrow as pa

from kernelsight.caches.disk_cache import cached_for_program
from kernelsight.catalog import tables as catalog
from kernelsight.dataflow.contract import conform


def embedded_facts() -> dict[str, Callable[[], pa.Table]]:
    """Return, by table, the functions that read the shipped tables: catalogue, models and fitted kernel model.

    >>> {"gpus", "models", "eta_coefficients"} <= set(embedded_facts())
    True
    """
    readers: dict[str, Callable[[], pa.Table]] = {name: partial(catalog.facts, name) for name in catalog.fact_names()}
    readers |= {name: partial(_model_facts, name) for name in ("models", "model_layers")}
    return {**readers, "eta_coefficients": _shipped_pack}


@cache
def _models() -> dict[str, pa.Table]:
    from kernelsight.models.config import load_catalogue

    tables = {}
    for name, rows in zip(("models", "model_layers"), load_catalogue(), strict=True):
        contract = catalog.contracts()[name]
        tables[name] = conform(catalog.from_rows(rows, contract), contract, origin="models.jsonl")
    return tables


@cache
def _model_facts(name: str) -> pa.Table:
    return cached_for_program(catalog.program(), f"facts {name}", lambda: _models()[name])


@cache
def _shipped_pack() -> pa.Table:
    from kernelsight.kernels.pack import default_pack

    return cached_for_program(catalog.program(), "pack", default_pack)
