"""Forms of the target-measured correction side by side: the expression alone, the network that ships, and boosting.

    python benches/eta_forms.py sweep.parquet --target l40s --budget 0.1 --family decode_attention

Median and mean absolute error in % on serving shapes at sites that were not measured, as means over kernels. Boosting
(LightGBM, one model a kernel; `pip install lightgbm`) is a yardstick: its steps and its pace rule it out for serving.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import lightgbm
import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import facts
from kernelsight.fitting.cells import is_serving
from kernelsight.fitting.expressions import fit_family, predict_family
from kernelsight.fitting.measured import correct, features_of, fit_measured, kernels_of, rows_of
from kernelsight.fitting.splits import HEADLINE_TRAIN, in_budget
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.pack import pack_table

# choices are made among the training GPUs alone: the others are scored with the choice frozen
CHOSEN_ON = HEADLINE_TRAIN
BOOSTING = {"num_leaves": 31, "learning_rate": 0.05, "min_data_in_leaf": 10, "feature_fraction": 0.7}
TREES, LEAST_ROWS = 400, 40


def boosted(train: tuple[np.ndarray, np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return log(measured / expression) of the test rows by one boosted model a kernel; 0 for a kernel of few rows."""
    inputs, goal, kernels = train
    asked, asked_kernels = test
    found = np.zeros(len(asked))
    for kernel in np.unique(asked_kernels):
        of = kernels == kernel
        if of.sum() < LEAST_ROWS:
            continue
        settings = {**BOOSTING, "num_threads": 1, "verbose": -1, "seed": 0, "deterministic": True}
        model = lightgbm.train(settings, lightgbm.Dataset(inputs[of], goal[of]), TREES)
        found[asked_kernels == kernel] = model.predict(asked[asked_kernels == kernel])
    return found


def thinned(table: pa.Table, most: int) -> pa.Table:
    """At most ``most`` rows, evenly spaced in their order."""
    if table.num_rows <= most:
        return table
    return table.take(pa.array(np.linspace(0, table.num_rows - 1, most).round().astype(int)))


def error_row(name: str, latency: np.ndarray, measured: np.ndarray, kernels: np.ndarray, seconds: float) -> str:
    """Return one line of the table: means over kernels of the median and the mean error, and the seconds it took."""
    error = np.abs(latency / measured - 1.0)
    medians = [np.median(error[kernels == kernel]) for kernel in np.unique(kernels)]
    means = [error[kernels == kernel].mean() for kernel in np.unique(kernels)]
    return f"{name:22} {100 * np.mean(medians):8.2f} {100 * np.mean(means):8.2f} {seconds:8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--target", default="l40s", choices=CHOSEN_ON)
    parser.add_argument("--budget", type=float, default=0.1)
    parser.add_argument("--family", default="gemm")
    parser.add_argument("--rows", type=int, default=30_000, help="rows kept of the target, and of the other GPUs")
    asked = parser.parse_args()

    form, tables = FAMILIES[asked.family].form, (facts("kernel_implementations"), facts("gpus"), facts("fabrics"))
    others = thinned(
        training_rows([asked.sweep], asked.family, [gpu for gpu in CHOSEN_ON if gpu != asked.target]), asked.rows
    )
    target = training_rows([asked.sweep], asked.family, [asked.target])
    chosen = in_budget(asked.family, target, asked.budget)
    own = thinned(target.filter(pa.array(chosen)), asked.rows)
    test = target.filter(pa.array(~chosen & is_serving(asked.family, target)))
    taught = pa.concat_tables([others, own])

    began = time.perf_counter()
    constants = pack_table(fit_family(asked.family, form, taught, *tables, "bench"))
    latency = predict_family(asked.family, form, test, constants, *tables)
    measured, kernels = test["latency_us"].to_numpy(), np.array(kernels_of(test))
    print(f"{asked.family}, {asked.target}, {asked.budget:.0%} of the sites, {test.num_rows:,} test rows")
    print(f"{'form':22} {'median %':>8} {'mean %':>8} {'seconds':>8}")
    print(error_row("expression", latency, measured, kernels, time.perf_counter() - began))

    began = time.perf_counter()
    fitted = fit_measured(asked.family, form, taught, asked.target, constants, *tables)
    rows = rows_of(asked.family, asked.target, fitted)
    corrected = correct(asked.family, form, test, latency, rows, *tables)
    print(error_row("network", corrected, measured, kernels, time.perf_counter() - began))

    began = time.perf_counter()
    base = predict_family(asked.family, form, own, constants, *tables)
    inputs, asked_inputs = (features_of(asked.family, form, table, *tables) for table in (own, test))
    train = inputs, np.log(own["latency_us"].to_numpy() / base), np.array(kernels_of(own))
    factor = np.exp(boosted(train, (asked_inputs, kernels)))
    print(error_row("boosting on the expression", latency * factor, measured, kernels, time.perf_counter() - began))


if __name__ == "__main__":
    main()
