"""What the paper's figures are computed from, kept between calls: a sweep, GB200 as if unmeasured, replayed runs."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import durable_file
from kernelsight.evaluation.kernels.evaluate import scored_rows
from kernelsight.evaluation.kernels.predict import fit_and_predict
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.fitting.splits import HEADLINE_TRAIN, Split
from kernelsight.fitting.sweep_files import measured_families
from kernelsight.fitting.training import call_rows, training_rows
from kernelsight.kernels.families import MEASURED
from kernelsight.laboratory.kernels.baselines import roofline_us, shipped_baselines, systems_folder
from kernelsight.laboratory.runs.run_classes import spread_runs
from kernelsight.session import connect

TARGET = "gb200"
# GPUs with a sweep; b300_sxm and gb300 are kept for final checks
GPUS = (*HEADLINE_TRAIN, "rtx_pro_6000_server", "b200_sxm", TARGET)
# runs that are replayed: so many of each campaign, spread over its engines, models and GPUs, and those of figures 9, 12
SAMPLE = 300
DEPLOYMENT = ("model", "gpu", "engine", "engine_version", "quantization", "tp", "pp", "dp", "ep", "isl", "osl")
SHOWN = ("run_id", "campaign", *DEPLOYMENT, "max_concurrency", "prefill_workers", "scored_separately")
SHOWN += (
    "is_moe",
    "status",
    "tier",
    "ttft_ms",
    "tpot_ms",
    "ttft_mean_ms",
    "tpot_mean_ms",
    "interval_factors",
    "fitting",
)


class Sources(NamedTuple):
    """Where the data are: a sweep (None: imported when needed), and a folder that keeps what is computed from it.

    ``state``: digest of the code and data that predictions depend on, in the names of what is kept.
    """

    folder: Path
    state: str
    given_sweep: Path | None = None

    def sweep(self) -> Path:
        """Return the sweep of aiconfigurator-core; imported once, in a minute or two."""
        path = self.given_sweep or self.folder / "sweep.parquet"
        if not path.is_file():
            run("calibrate", "import", "aiconfigurator", "-o", str(path))
        return path

    def scored(self, families: Sequence[str] | None = None) -> dict[str, pa.Table]:
        """Return GB200's rows with predictions and baselines by family, fitted to A100, L40S, H100 and H200 alone."""
        split = Split("to gb200", HEADLINE_TRAIN, (TARGET,))
        measured = measured_families([self.sweep()], split.test_gpus)

        def score(family: str) -> pa.Table:
            ((_, table),) = scored_rows([self.sweep()], split, fit_and_predict, [family], shipped_baselines())
            return table

        chosen = [family for family in families or MEASURED if family in measured]
        return {family: self.kept(f"scored-{family}", lambda family=family: score(family)) for family in chosen}

    def runs(self) -> list[dict[str, Any]]:
        """Return published runs, replayed with kernels of the pack and host times that other groups of runs gave."""
        path = self.folder / f"runs-{self.state}.json"
        if not path.is_file():
            text = json.dumps(replayed(), default=float)
            with durable_file(path) as draft:
                draft.write_text(text, encoding="utf-8")
        return json.loads(path.read_text(encoding="utf-8"))

    def points(self) -> dict[str, Any]:
        """Return scores after three planned calls of each kernel, the fit to four GPUs of older generations."""
        path = self.folder / f"points-{self.state}.json"
        if not path.is_file():
            words = "calibrate evaluate --test-gpus gb200 --points 3 --sweep"
            run(*words.split(), str(self.sweep()), "-o", str(path))
        return json.loads(path.read_text(encoding="utf-8"))

    def kept(self, name: str, make: Callable[[], pa.Table]) -> pa.Table:
        """Return a table that was kept for this state of the program, or make and keep it."""
        path = self.folder / f"{name}-{self.state}.parquet"
        if not path.is_file():
            table = make()
            with durable_file(path) as draft:
                pq.write_table(table, draft)
        return pq.read_table(path)

    def measured(self, family: str, gpus: Sequence[str], condition: str = "true") -> pa.Table:
        """Return measured rows of a family that a SQL condition selects, with ``roofline_us``; unfitted ones too."""
        names = ", ".join(f"'{gpu}'" for gpu in gpus)
        points = duckdb.sql(
            f"select * from '{self.sweep()}' where family = '{family}' and gpu in ({names}) and ({condition})"
        ).to_arrow_table()
        rows = call_rows(points, family)
        return rows.append_column("roofline_us", pa.array(roofline_us(family, rows, systems_folder())))

    def fitted_rows(self, family: str, gpus: Sequence[str]) -> pa.Table:
        """Return the measured rows of a family that fits read."""
        return training_rows([self.sweep()], family, gpus)


def replayed() -> list[dict[str, Any]]:
    """Return the replayed runs of a sample, of GB200 and of the deployments of figure 12: the columns SHOWN."""
    table = read_runs("aiconfigurator").table
    rows = table.to_pylist()
    chosen = set(spread_runs(rows, SAMPLE))
    chosen |= {number for number, row in enumerate(rows) if row["gpu"] == TARGET}
    for deployment in most_loads(rows):
        chosen |= {number for number, row in enumerate(rows) if of_deployment(row) == deployment}
    question = {"backtest_id": "paper", "tier": None, "constants": ["transfer"], "leave_out": None, "against": None}
    question |= {"rows_read": table.num_rows, "excluded": []}
    with connect() as session:
        session.give("measured_runs", table.take(pa.array(sorted(chosen))), trusted=True)
        session.give("backtests", [question])
        texts = session.table("replayed_runs")["run"].to_pylist()
    return [{name: row.get(name) for name in SHOWN} for row in map(json.loads, texts)]


def of_deployment(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what runs of one deployment with different loads have in common."""
    return tuple(row[name] for name in DEPLOYMENT)


def most_loads(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the deployments with most measured concurrencies: of Qwen3 on one GPU, as in the paper, and of all.

    Of equals the longest prompt and output. The rule sees no prediction.
    """
    loads: dict[tuple[Any, ...], set[int]] = {}
    for row in rows:
        if not row["prefill_workers"] and row["max_concurrency"] and not row["scored_separately"]:
            loads.setdefault(of_deployment(row), set()).add(row["max_concurrency"])
    ranked = sorted(loads, key=lambda key: (-len(loads[key]), -key[-2], -key[-1], str(key)))
    one_gpu = [key for key in ranked if "Qwen3" in key[0] and key[5:9] == (1, 1, 1, 1)]
    return [*one_gpu[:1], *ranked[:1]]


def run(*words: str) -> None:
    """Run a `kernelsight` command silently; RuntimeError: it failed."""
    from kernelsight.cli.main import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main(list(words))
    if status:
        raise RuntimeError(f"kernelsight {' '.join(words)} failed: {out.getvalue()[-2000:]}")
