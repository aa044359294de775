"""Samples of kernel results: small families on GPUs that every fit may use; no sample scores held-out GPUs."""

from __future__ import annotations

import atexit
import contextlib
import io
import shutil
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

from record import ROOT

import kernelsight as ks
from kernelsight.cli.main import main as kernelsight
from kernelsight.evaluation.kernels.evaluate import evaluate
from kernelsight.evaluation.kernels.predict import PointBudget, fit_and_predict
from kernelsight.fitting.splits import Split
from kernelsight.kernels.families import FAMILIES
from kernelsight.laboratory.kernels.baselines import baseline_columns, shipped_baselines
from kernelsight.laboratory.kernels.scored_points import rows_after_points
from kernelsight.searching.arrays import space_arrays
from kernelsight.searching.space_files import SpaceTables, read_spaces

DATA = ROOT.parent / "shared" / "data"
SEEN, UNSEEN = ("a100_sxm", "l40s"), ("h100_sxm",)
# decode attention on a kernel whose stream limit is a fact chosen on GB200
STREAMS = {"model": "llama-3.1-8b", "gpu": "gb200", "engine": "trtllm"}


@cache
def swept(source: str, families: str, gpus: str) -> Path:
    """Return the sweep file of some families and GPUs, imported once per process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sweep = Path(folder) / "sweep.parquet"
    files = [str(path) for path in sorted((DATA / "aiter").glob("*.csv.gz"))] if source == "aiter" else []
    words = ["calibrate", "import", source, *files, "--families", families, "--gpus", gpus, "-o", str(sweep)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if kernelsight(words):
            raise SystemExit(f"no sweep of {source}")
    return sweep


def scored(split: Split, source: str = "aiconfigurator", families: str = "batched_gemm", **how: Any) -> dict[str, Any]:
    """Return the report of a split of some families."""
    sweep = swept(source, families, ",".join(sorted({*split.train_gpus, *split.test_gpus})))
    baselines = shipped_baselines() if source == "aiconfigurator" else baseline_columns
    return evaluate([sweep], split, fit_and_predict, modelled=FAMILIES, baselines=baselines, **how)[0]


def medians(report: dict[str, Any], shapes: str = "serving") -> dict[str, float]:
    """Return the median error of each cell, covered or not."""
    cells = (*report["families"], *report["uncovered"])
    return {f"{cell['family']} {cell['dtype']}": cell[shapes]["median_ape"] for cell in cells if cell[shapes]["n"]}


def kernels_gb200() -> dict[str, float]:
    """Return errors of one small family on H100, fitted on two GPUs, with kernel choice known and unknown."""
    report = scored(Split("sample", SEEN, UNSEEN))
    parts = {"known": lambda cell: cell, "nothing": lambda cell: cell["nothing_of_target"]}
    return {
        f"{cell['family']} {cell['dtype']} {name}": part(cell)["serving"]["median_ape"]
        for cell in (*report["families"], *report["uncovered"])
        for name, part in parts.items()
        if part(cell)["serving"]["n"]
    }


def kernels_splits() -> dict[str, float]:
    """Return the errors of one small family on L40S, fitted on Ampere and Hopper."""
    return medians(scored(Split("sample", ("a100_sxm", "h100_sxm"), ("l40s",))))


def kernels_generations() -> dict[str, float]:
    """Return the errors of one small family on A100, fitted on Ada and Hopper."""
    return medians(scored(Split("sample", ("l40s", "h100_sxm"), ("a100_sxm",))))


def kernels_sites() -> dict[str, float]:
    """Return the errors of all-reduce on H100, with a tenth of its sites measured."""
    return medians(scored(Split("sample", SEEN, UNSEEN, "target-measured", 0.1), families="all_reduce"))


def kernels_layers() -> dict[str, float]:
    """Return the errors of MoE on one AMD GPU, with half of its layers measured."""
    split = Split("sample", ("mi300x",), ("mi308x",), "target-measured", 0.5, True)
    return medians(scored(split, "aiter", "moe"), "grid")


def points() -> dict[str, float]:
    """Return the errors of one small family on H100, with three planned points per kernel measured."""
    how = partial(rows_after_points, PointBudget(3))
    return medians(scored(Split("sample", SEEN, UNSEEN, "points-measured"), score_rows=how))


def kernels_new() -> dict[str, float]:
    """Return the errors of MoE on one AMD GPU, fitted on the other."""
    return medians(scored(Split("sample", ("mi308x",), ("mi300x",)), "aiter", "moe"), "grid")


def kernels_facts() -> dict[str, float]:
    """Return predicted latencies of decode attention by a kernel whose stream limit was chosen on GB200."""
    latencies = {}
    with ks.connect() as session:
        for context in (1_000, 8_000, 64_000):
            for row in session.predict(**STREAMS, context_len=context, batch_size=8).as_dict()["kernels"]:
                if row["family"] == "decode_attention":
                    latencies[f"{context}: {row['name']}"] = row["latency_us"]
    return latencies


@cache
def recorded_spaces() -> SpaceTables:
    """Return the spaces of the bench ``search``, read once per process."""
    import search as bench

    return read_spaces([str(bench.SPACES)])


def search() -> dict[str, float]:
    """Return the regret of one search per policy on two spaces, one seed, 30 measurements."""
    from kernelsight.laboratory.searches.cases import Case, replayed

    tables = recorded_spaces()
    names = sorted(set(tables.kernel_spaces["space"].to_pylist()))[:2]
    spaces = {name: space_arrays(tables.kernel_candidates, tables.kernel_measurements, name) for name in names}
    cases = [
        Case(name, sorted(arrays.gpus)[0], "all", None, policy, 0, 30, 5)
        for name, arrays in spaces.items()
        for policy in ("order", "selective")
    ]
    return {
        f"{each.case.space} {each.case.gpu} {each.case.policy}": float(each.regret[-1])
        for each in replayed(spaces, cases)
    }


def search_tuner() -> dict[str, float]:
    """Return the regret of searches with shuffled and inverted sources, one space and seed."""
    import search as bench

    tables = recorded_spaces()
    name = sorted(set(tables.kernel_spaces["space"].to_pylist()))[0]
    arrays = space_arrays(tables.kernel_candidates, tables.kernel_measurements, name)
    gpus = {sorted(arrays.gpus)[0]}
    return {
        f"{how} {space} {gpu}": regret
        for how in ("shuffled", "inverted")
        for (space, gpu), regret in bench.altered_regrets({name: arrays}, gpus, 1, how, {}).items()
    }
