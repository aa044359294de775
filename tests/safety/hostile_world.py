"""What bears the hostile name: a GPU, a model, requests, files, kernels of a saved run, a search; each made once."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.searching.scenarios import scenario_rows
from kernelsight.searching.search import save_search, search
from kernelsight.searching.space_files import read_spaces
from kernelsight.session import Session, connect
from kernelsight.sweeps.runs import Run, WhatIf
from tests.cli.conftest import TINY_CONFIG
from tests.safety.hostile_names import FILE_NAME, HOSTILE
from tests.searching.made_spaces import made_rows

LOAD = {"request_rate": 40.0, "num_prompts": 24, "input_len": 100, "output_len": 8}
LOG_QUERY = """
select sent_ns / 1e9 as arrival_s, e.prompt_tokens, e.output_tokens, ttft_ms, 1.2 * e2e_ms as e2e_ms,
  'client_send' as ttft_clock, e.external_id as request_id
from request_events e join request_metrics using (scenario_id, request_id)
"""
SAVED_CHANGES = (
    "update kernel_latencies set name = $name where name = 'qkv_proj'",
    "update kernel_calls set name = $name where name = 'qkv_proj'",
    "update kernel_breakdown set name = $name where name = 'qkv_proj'",
    "update run_info set value = $name where fact = 'command'",
)


class World:
    """Files in a folder of the name, and a session in which the name is a GPU and a model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FILE_NAME
        self.folder.mkdir()
        self.gpus = self.folder / "gpus.json"
        self.gpus.write_text(json.dumps([{"gpu": HOSTILE, "like": "l4", "source": HOSTILE}]))
        self.model = self.folder / FILE_NAME
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(TINY_CONFIG))
        self.trace = self.folder / "trace.parquet"
        rows = [{"request_id": f"{HOSTILE}{i}", "arrival_s": i / 40} for i in range(24)]
        pq.write_table(
            pa.Table.from_pylist([row | {"prompt_tokens": 99, "output_tokens": 8} for row in rows]), self.trace
        )

    @cached_property
    def session(self) -> Session:
        session = connect()
        session.extend("gpus", [{"gpu": HOSTILE, "like": "l4"}])
        for table in ("models", "model_layers"):
            rows = session.table(table).to_pylist()
            session.extend(table, [row | {"model": HOSTILE} for row in rows if row["model"] == "qwen3-0.6b"])
        return session

    @cached_property
    def run(self) -> Run:
        return self.session.simulate(model=HOSTILE, gpu=HOSTILE, trace=str(self.trace))

    @cached_property
    def sweep(self) -> WhatIf:
        return self.session.what_if({"model": HOSTILE, "gpu": [HOSTILE, "l4"], **LOAD})

    @cached_property
    def grid(self) -> Path:
        path = self.folder / "grid.json"
        path.write_text(json.dumps({"model": str(self.model), "gpu": [HOSTILE, "l4"], **LOAD}))
        return path

    @cached_property
    def sizing(self) -> Any:
        asked = {"gpus": [HOSTILE], "rate": 5, "slo": {"ttft_p95_ms": 1000.0}, "max_gpus": 1, "tune": False}
        return self.session.size(model=HOSTILE, **asked, input_len=100, output_len=8)

    @cached_property
    def log(self) -> Path:
        path = self.folder / f"{FILE_NAME}.jsonl"
        rows = self.run.sql(LOG_QUERY).to_arrow_table().to_pylist()
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    @cached_property
    def comparison(self) -> Any:
        flags = {"model": HOSTILE, "gpu": HOSTILE}
        return self.session.compare(log=[self.log], deployment=flags, suspects="none", fit="none")

    def saved(self, what: str) -> Path:
        """Return the saved run, sweep, comparison or search."""
        path = self.folder / f"{what}.duckdb"
        if path.exists():
            return path
        if what == "search":
            self._save_search(path)
        else:
            getattr(self, what).save(path)
        if what == "run":
            with duckdb.connect(path) as connection:
                for query in SAVED_CHANGES:
                    connection.execute(query, {"name": HOSTILE})
        return path

    @cached_property
    def space(self) -> Path:
        path = self.folder / "space.parquet"
        rows = [
            row | {"gpu": HOSTILE if row["gpu"] == "two" else row["gpu"], "space": HOSTILE, "source": HOSTILE}
            for row in made_rows().to_pylist()
        ]
        for row in rows:
            row["parameters"] = json.dumps({**json.loads(row["parameters"]), HOSTILE: HOSTILE})
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path

    def _save_search(self, path: Path) -> None:
        tables = read_spaces([self.space])
        scenario = scenario_rows([{"space": HOSTILE, "gpu": HOSTILE, "budget_measurements": 20}])[0]
        with connect() as session:
            save_search(session, tables, scenario, search(tables, scenario, None), path)
