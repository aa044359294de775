"""What the paper's figures are computed from, kept between calls: a sweep, GB200 as if unmeasured, replayed runs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import durable_file
from kernelsight.evaluation.kernels.evaluate import scored_rows
from kernelsight.evaluation.kernels.predict import fit_and_predict
from kernelsight.fitting.splits import HEADLINE_TRAIN, Split
from kernelsight.fitting.sweep_files import measured_families
from kernelsight.fitting.training import call_rows, training_rows
from kernelsight.kernels.families import MEASURED
from kernelsight.laboratory.kernels.baselines import roofline_us, shipped_baselines, systems_folder

TARGET = "gb200"
# GPUs with a sweep; b300_sxm and gb300 are kept for final checks
GPUS = (*HEADLINE_TRAIN, "rtx_pro_6000_server", "b200_sxm", TARGET)
# constants of host time come from the other groups' fitting runs; the runs are spread over campaigns, engines, models
BACKTEST = "backtest --runs aiconfigurator --constants transfer --sample 300"


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
        """Return published runs replayed with kernels measured on their GPU, host times fitted on other groups."""

        def replay() -> pa.Table:
            path = self.folder / "replayed.parquet"
            run(*BACKTEST.split(), "-o", str(path))
            return pq.read_table(path)

        return self.kept("runs", replay).to_pylist()

    def points(self) -> dict[str, Any]:
        """Return scores after three planned calls of each kernel, the fit to four GPUs of older generations."""
        import json

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


def run(*words: str) -> None:
    """Run a `kernelsight` command silently; RuntimeError: it failed."""
    from kernelsight.cli.main import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main(list(words))
    if status:
        raise RuntimeError(f"kernelsight {' '.join(words)} failed: {out.getvalue()[-2000:]}")
