"""Kernel errors by form of the correction of measured GPUs: the expression alone, the shipped network, and boosting.

    python benches/eta_forms.py sweep.parquet --target l40s --budget 0.1 --family decode_attention

Median and mean absolute error in % on serving shapes at unmeasured sites, as means over kernels. Boosting (LightGBM,
one model per kernel; `pip install lightgbm`) is a reference only: it is a step function and too slow to ship.
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

# the form is chosen on the training GPUs alone; the others are scored once it is fixed
CHOSEN_ON = HEADLINE_TRAIN
BOOSTING = {"num_leaves": 31, "learning_rate": 0.05, "min_data_in_leaf": 10, "feature_fraction": 0.7}
TREES, LEAST_ROWS = 400, 40


def boosted(train: tuple[np.ndarray, np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return log(measured / expression) of the test rows from one boosted model per kernel; 0 for few rows."""
    inputs, log_ratio, kernels = train
    test_inputs, test_kernels = test
    corrections = np.zeros(len(test_inputs))
    for kernel in np.unique(test_kernels):
        is_kernel = kernels == kernel
        if is_kernel.sum() < LEAST_ROWS:
            continue
        settings = {**BOOSTING, "num_threads": 1, "verbose": -1, "seed": 0, "deterministic": True}
        model = lightgbm.train(settings, lightgbm.Dataset(inputs[is_kernel], log_ratio[is_kernel]), TREES)
        corrections[test_kernels == kernel] = model.predict(test_inputs[test_kernels == kernel])
    return corrections


def thinned(table: pa.Table, most: int) -> pa.Table:
    """Return at most ``most`` rows of a table, evenly spaced in their order."""
    if table.num_rows <= most:
        return table
    return table.take(pa.array(np.linspace(0, table.num_rows - 1, most).round().astype(int)))


def error_row(name: str, latency: np.ndarray, measured: np.ndarray, kernels: np.ndarray, seconds: float) -> str:
    """Return a table line: median and mean error in % (means over kernels), and the wall seconds taken."""
    error = np.abs(latency / measured - 1.0)
    medians = [np.median(error[kernels == kernel]) for kernel in np.unique(kernels)]
    means = [error[kernels == kernel].mean() for kernel in np.unique(kernels)]
    return f"{name:22} {100 * np.mean(medians):8.2f} {100 * np.mean(means):8.2f} {seconds:8.1f}"


def main() -> None:
    """Fit the three forms on a share of the target's sites and print their errors at the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--target", default="l40s", choices=CHOSEN_ON)
    parser.add_argument("--budget", type=float, default=0.1)
    parser.add_argument("--family", default="gemm")
    parser.add_argument("--rows", type=int, default=30_000, help="rows kept of the target, and of the other GPUs")
    arguments = parser.parse_args()

    latency_model, tables = (
        FAMILIES[arguments.family].latency_model,
        (facts("kernel_implementations"), facts("gpus"), facts("fabrics")),
    )
    others = thinned(
        training_rows([arguments.sweep], arguments.family, [gpu for gpu in CHOSEN_ON if gpu != arguments.target]),
        arguments.rows,
    )
    target = training_rows([arguments.sweep], arguments.family, [arguments.target])
    chosen = in_budget(arguments.family, target, arguments.budget)
    measured_rows = thinned(target.filter(pa.array(chosen)), arguments.rows)
    test = target.filter(pa.array(~chosen & is_serving(arguments.family, target)))
    training = pa.concat_tables([others, measured_rows])

    started = time.perf_counter()
    constants = pack_table(fit_family(arguments.family, latency_model, training, *tables, "bench"))
    latency = predict_family(arguments.family, latency_model, test, constants, *tables)
    measured, kernels = test["latency_us"].to_numpy(), np.array(kernels_of(test))
    print(f"{arguments.family}, {arguments.target}, {arguments.budget:.0%} of the sites, {test.num_rows:,} test rows")
    print(f"{'form':22} {'median %':>8} {'mean %':>8} {'seconds':>8}")
    print(error_row("expression", latency, measured, kernels, time.perf_counter() - started))

    started = time.perf_counter()
    fitted = fit_measured(arguments.family, latency_model, training, arguments.target, constants, *tables)
    rows = rows_of(arguments.family, arguments.target, fitted)
    corrected = correct(arguments.family, latency_model, test, latency, rows, *tables)
    print(error_row("network", corrected, measured, kernels, time.perf_counter() - started))

    started = time.perf_counter()
    base = predict_family(arguments.family, latency_model, measured_rows, constants, *tables)
    inputs, test_inputs = (
        features_of(arguments.family, latency_model, table, *tables) for table in (measured_rows, test)
    )
    train = inputs, np.log(measured_rows["latency_us"].to_numpy() / base), np.array(kernels_of(measured_rows))
    factor = np.exp(boosted(train, (test_inputs, kernels)))
    print(error_row("boosting on the expression", latency * factor, measured, kernels, time.perf_counter() - started))


if __name__ == "__main__":
    main()
