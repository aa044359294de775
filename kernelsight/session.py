"""The session of this field: a dataflow session over the project's tables, with the embedded facts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from kernelsight.catalog import tables as catalog
from kernelsight.dataflow import session as dataflow
from kernelsight.dataflow.contract import conform
from kernelsight.dataflow.graph import Graph
from kernelsight.dataflow.locations import folder
from kernelsight.errors import InvalidInput
from kernelsight.kernels.families import LOWERED


def connect(path: str | Path | None = None, *, read_only: bool = False) -> Session:
    """Open a session: in memory, or on a DuckDB file whose tables are there at once and which keeps what is given.

    ``read_only`` opens a saved run and leaves the file as it is.

    >>> with connect() as session:
    ...     session.table("number_formats").num_columns
    6
    """
    if path is None and read_only:
        raise InvalidInput("a read-only session needs the path of a saved run: connect(path, read_only=True).")
    graph = Graph(catalog.contracts(), folder("sql"), "kernelsight.nodes", {"family": LOWERED})
    return Session(graph, embedded_facts(), path=path, read_only=read_only)


def embedded_facts() -> dict[str, Callable[[], pa.Table]]:
    """Return what reads each table that the package brings: the catalogue, its models, and the pack that ships.

    >>> {"gpus", "models", "eta_coefficients"} <= set(embedded_facts())
    True
    """
    found: dict[str, Callable[[], pa.Table]] = {name: partial(catalog.facts, name) for name in catalog.fact_names()}
    found |= {name: partial(_model_facts, name) for name in ("models", "model_layers")}
    return {**found, "eta_coefficients": _shipped_pack}


@cache
def _models() -> dict[str, pa.Table]:
    from kernelsight.read.config import load_catalogue

    contracts = catalog.contracts()
    return {
        name: conform(catalog.from_rows(rows, contracts[name]), contracts[name], origin="models.jsonl")
        for name, rows in zip(("models", "model_layers"), load_catalogue(), strict=True)
    }


def _model_facts(name: str) -> pa.Table:
    return _models()[name]


@cache
def _shipped_pack() -> pa.Table:
    from kernelsight.kernels.pack import default_pack

    return default_pack()


class Session(dataflow.Session):
    """Given tables, embedded facts and computed tables; not to be shared between threads."""

    def what_if(self, grid: Any, table: str = "scenario_summary") -> pa.Table:
        """Serve every row of flags of ``grid`` in one go; return its flags beside its row of ``table``.

        Rows are as ``kernelsight simulate`` takes them, with underscores: model, gpu, tensor_parallel_size,
        num_prompts, input_len, output_len, and so on. The session stays as it was.

        >>> with connect() as session:
        ...     row = {"model": "qwen3-0.6b", "gpu": "l4", "max_concurrency": 4, "num_prompts": 8}
        ...     row |= {"input_len": 64, "output_len": 8}
        ...     session.what_if([row, row | {"gpu": "h100_sxm"}]).column("completed").to_pylist()
        [8, 8]
        """
        from kernelsight.scenario.plan import what_if

        return what_if(self, grid, table)
