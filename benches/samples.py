"""Pinned samples of results: a few runs, sites, searches and worlds, each computed again in seconds.

    python benches/samples.py           # compares them with what the results hold
    python benches/samples.py --write   # keeps what they are now, beside what they were when the result was measured

A sample is the canary of its result: where it moves, the figures that the documentation shows have moved as well, and
the bench is due. The test suite computes all of them (``tests/docs/test_samples.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from record import ROOT, names, read, write

import kernelsight as ks

# relative difference that another machine's arithmetic may make
SAME = 1e-6
RUNS = 10
SPACES = ROOT.parent / "shared" / "data" / "kernel_spaces.parquet"


def end_to_end() -> dict[str, float]:
    """Return mean errors of ten published runs, with the constants that ship and without any."""
    from kernelsight.evaluation.runs.measured_runs import read_runs
    from kernelsight.evaluation.runs.replays import replay
    from kernelsight.evaluation.runs.scores import is_fitting, is_scored_separately

    runs = read_runs("aiconfigurator").table.to_pylist()
    scored = [run for run in runs if not is_fitting(run["run_id"]) and not is_scored_separately(run)]
    chosen = first_by_hash(scored, lambda run: run["run_id"], RUNS)
    with ks.connect() as session:
        replayed, _ = replay(session, chosen, None, ("shipped", "none"))
    return {
        f"{level} {metric}": float(np.mean([abs(row["errors"][metric]) for row in rows]))
        for level, rows in replayed.items()
        for metric in ("ttft", "tpot")
    }


def search() -> dict[str, float]:
    """Return the regret of one search a policy on two spaces, one seed, 30 measurements."""
    from kernelsight.evaluation.searches.cases import Case, replayed
    from kernelsight.searching.arrays import space_arrays
    from kernelsight.searching.space_files import read_spaces

    tables = read_spaces([str(SPACES)])
    known = sorted(set(tables.kernel_spaces["space"].to_pylist()))[:2]
    spaces = {name: space_arrays(tables.kernel_candidates, tables.kernel_measurements, name) for name in known}
    cases = [
        Case(name, sorted(arrays.gpus)[0], "all", None, policy, 0, 30, 5)
        for name, arrays in spaces.items()
        for policy in ("order", "selective")
    ]
    return {
        f"{each.case.space} {each.case.gpu} {each.case.policy}": float(each.regret[-1])
        for each in replayed(spaces, cases)
    }


def kernels_gb200() -> dict[str, float]:
    """Return the errors of one small family on H100, fitted on two GPUs: no sample looks at held-out GPUs."""
    from kernelsight.cli.main import main as kernelsight
    from kernelsight.evaluation.kernels.baselines import systems_folder
    from kernelsight.evaluation.kernels.evaluate import evaluate
    from kernelsight.evaluation.kernels.predict import fit_and_predict
    from kernelsight.fitting.splits import Split
    from kernelsight.kernels.families import FAMILIES

    split = Split("sample", ("a100_sxm", "l40s"), ("h100_sxm",))
    gpus = ",".join((*split.train_gpus, *split.test_gpus))
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(folder) / "sweep.parquet"
        words = f"calibrate import aiconfigurator --families batched_gemm --gpus {gpus} -o {sweep}".split()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            kernelsight(words)
        report, _ = evaluate([sweep], split, fit_and_predict, modelled=FAMILIES, systems=systems_folder())
    parts = {"known": lambda cell: cell, "nothing": lambda cell: cell["nothing_of_target"]}
    return {
        f"{cell['family']} {cell['dtype']} {name}": part(cell)["serving"]["median_ape"]
        for cell in (*report["families"], *report["uncovered"])
        for name, part in parts.items()
        if part(cell)["serving"]["n"]
    }


def compare() -> dict[str, float]:
    """Return what is named of one planted fault and of none, in worlds of 300 requests."""
    import compare as bench

    found = {}
    with ks.connect() as session:
        for number, kind in ((1, "one"), (2, "clean")):
            row = bench.world(session, np.random.default_rng([12, number]), [kind], 300, "none", 0.0)
            found |= {f"{kind}: right": float(bench.is_right(row)), f"{kind}: causes": float(len(row["causes"]))}
            found |= {f"{kind}: miss ms": row["miss_ms"]}
    return found


def speed_serving() -> dict[str, float]:
    """Return the counted work of a simulation: steps, preemptions, tokens; no times."""
    load = {"request_rate": 20.0, "num_prompts": 500, "input_len": 256, "output_len": 256}
    with ks.connect() as session:
        run = session.simulate(model="llama-3.1-8b", gpu="h100_sxm", **load)
        (totals,) = run.table("replica_totals").to_pylist()
    return {name: float(totals[name]) for name in ("steps", "preemptions")}


# by name of result
SAMPLES: dict[str, Callable[[], dict[str, float]]] = {
    "end_to_end": end_to_end,
    "kernels_gb200": kernels_gb200,
    "search": search,
    "compare_plain": compare,
    "speed_serving": speed_serving,
}


def first_by_hash(rows: list[Any], name: Callable[[Any], str], count: int) -> list[Any]:
    """Return the first rows by the SHA-256 of their names: the same ones whatever the order of the rows."""
    return sorted(rows, key=lambda row: hashlib.sha256(f"sample|{name(row)}".encode()).hexdigest())[:count]


def differences(known: Mapping[str, float], found: Mapping[str, float]) -> Iterator[str]:
    """Yield what differs between two samples by more than arithmetic may."""
    for name in sorted({*known, *found}):
        pair = known.get(name), found.get(name)
        if None in pair or not np.isclose(*pair, rtol=SAME, atol=1e-9):
            yield f"{name}: {pair[0]} before, {pair[1]} now"


def main() -> None:
    """Compute the samples and compare them, or keep them."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--write", action="store_true", help="keep the samples of now in the results")
    words.add_argument("names", nargs="*", choices=[[], *SAMPLES], help="default: all")
    asked = words.parse_args()
    for name in asked.names or [name for name in SAMPLES if name in names()]:
        result, found = read(name), SAMPLES[name]()
        for line in differences(result["sample"]["now"] or {}, found):
            print(f"{name}: {line}")
        if asked.write:
            write(name, result | {"sample": result["sample"] | {"now": found}})


if __name__ == "__main__":
    main()
