"""Kernel error by choice of measurement points: those of `calibrate plan`, whole sites, and random ones.

    python benches/placing.py sweep.parquet --gpu h100_sxm            # develop on H100 and L40S
    python benches/placing.py sweep.parquet --gpu gb200 --shipped     # one look: correction and points as fitted

A published sweep stands in for the GPU. A third of its sites, (n, k) of a GEMM or heads of an attention, is scored
only; a strategy chooses points of the others. The residual of an expression fitted without the GPU's generation is
interpolated between them by the Gaussian process of :mod:`kernelsight.kernels.nearby` over the correction's inputs;
with `--shipped` after the correction network, which takes a minute per fit. Prints median / mean absolute error in % at
the scored sites; random errors are means of SEEDS draws.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import facts
from kernelsight.fitting.cells import is_serving
from kernelsight.fitting.correction import WIDE, as_stored, fit_correction
from kernelsight.fitting.experimental_design import greedy_design, positions
from kernelsight.fitting.expressions import predict_family
from kernelsight.fitting.measured import (
    FEW_ROWS,
    MOST_POINTS,
    SHARE_OF_FEW,
    STUDENTS,
    features_of,
    fit_nearby,
    kernels_of,
)
from kernelsight.fitting.splits import site_names
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.kernel_constants import family_facts
from kernelsight.kernels.nearby import nearby_delta
from kernelsight.kernels.network import correction, scaled
from kernelsight.kernels.pack import default_pack

CELLS = (
    ("gemm", "bf16", "trtllm"),
    ("decode_attention", "bf16/bf16", "trtllm"),
    ("prefill_attention", "bf16/bf16", "trtllm"),
)
SITE_SHARES = (0.1, 0.2, 0.5)
POINTS = (40, 120, 400)
SEEDS = 3
# points of a whole measured site, scored rows per site, and points that a plan chooses among
ROWS_OF_SITE, ASKED_ROWS, CANDIDATES = 30, 30, 1200
# most training steps of the correction, in units of those for STEPS_ROWS rows
EFFORT = 1.0


class Grid:
    """Rows of one cell on the target GPU: a correction's inputs, residuals of the expression, and sites."""

    def __init__(self, sweep: Path, gpu: str, family: str, dtype: str, engine: str) -> None:
        table = training_rows([sweep], family, [gpu], f"and engine = '{engine}' and dtype = '{dtype}'")
        table = table.filter(pa.array(is_serving(family, table)))
        self.family = family
        latency_model, tables = (
            FAMILIES[family].latency_model,
            (facts("kernel_implementations"), facts("gpus"), facts("fabrics")),
        )
        without = family_facts(family, *tables[:2]).generation[gpu]
        expected = predict_family(
            family, latency_model, table, default_pack(), *tables, without=without, measured=False
        )
        self.residual = np.log(table["latency_us"].to_numpy() / expected)
        self.inputs = features_of(family, latency_model, table, *tables)
        self.at = positions(self.inputs)
        self.kernels = kernels_of(table)
        names, self.site = site_names(family, table)
        order = np.random.default_rng(7).permutation(len(names))
        self.scored_sites, self.open_sites = np.sort(order[: len(names) // 3]), np.sort(order[len(names) // 3 :])
        self.pool = np.flatnonzero(np.isin(self.site, self.open_sites))
        self.scored_rows = self.rows_of(self.scored_sites, ASKED_ROWS)

    def rows_of(self, sites: np.ndarray, each: int) -> np.ndarray:
        """Return at most ``each`` rows of every site, evenly spaced in their order."""
        return np.concatenate([_spaced(np.flatnonzero(self.site == site), each) for site in sites])

    def error(self, known: np.ndarray, shipped: bool = False) -> tuple[float, float]:
        """Return (median, mean) absolute error in % at the scored sites, from the measured rows ``known``."""
        residual = self._shipped(known) if shipped else self._interpolated(known)
        error_percent = 100.0 * np.abs(np.expm1(residual - self.residual[self.scored_rows]))
        return float(np.median(error_percent)), float(error_percent.mean())

    def _interpolated(self, known: np.ndarray) -> np.ndarray:
        """Return the scored rows' residuals, interpolated from the rows ``known``."""
        known = _spaced(known, MOST_POINTS)
        shift, one = float(np.median(self.residual[known])), ["one"] * max(known.size, self.scored_rows.size)
        points = fit_nearby(self.at[known], self.residual[known] - shift, one[: known.size])
        return shift + nearby_delta(self.at[self.scored_rows], one[: self.scored_rows.size], points)

    def _shipped(self, known: np.ndarray) -> np.ndarray:
        """Return the scored rows' residuals by the correction network and the points, as a fit of the GPU has them."""
        seen, kernels = self.inputs[known], [self.kernels[row] for row in known]
        weights = np.ones(seen.shape[1])
        gpus = ["target"] * known.size
        sites, student = self.site[known], STUDENTS.get(self.family, WIDE)
        fit = fit_correction(seen, self.residual[known], kernels, gpus, "target", sites, weights, EFFORT, student)
        strength = SHARE_OF_FEW if known.size <= FEW_ROWS else 1.0
        network = as_stored(fit.network._replace(strength=strength * fit.network.strength))
        nodes = {name: number for number, name in enumerate(fit.nodes)}
        node = np.array([nodes[name] for name in kernels])
        residual = self.residual[known] - correction(np, seen, node, network)
        points = fit_nearby(scaled(seen, network), residual, kernels)
        inputs, kernels = self.inputs[self.scored_rows], [self.kernels[row] for row in self.scored_rows]
        node = np.array([nodes.get(name, -1) for name in kernels])
        return correction(np, inputs, node, network) + nearby_delta(scaled(inputs, network), kernels, points)

    def chance(self, count: int, whole: bool) -> list[np.ndarray]:
        """Return random draws of ``count`` whole sites, or of ``count`` points."""
        draws = [np.random.default_rng(seed) for seed in range(SEEDS)]
        if whole:
            return [self.rows_of(draw.choice(self.open_sites, count, replace=False), ROWS_OF_SITE) for draw in draws]
        return [draw.choice(self.pool, count, replace=False) for draw in draws]

    def planned(self, count: int) -> np.ndarray:
        """Return the first ``count`` points of a plan in which all calls have the same weight."""
        pool = _spaced(np.random.default_rng(0).permutation(self.pool), CANDIDATES)
        ones = np.ones(pool.size)
        steps = greedy_design(positions(self.inputs[pool]), ones, ones, ones, ["one"] * pool.size)
        return pool[[step.candidate for step, _ in zip(steps, range(count), strict=False)]]

    def farthest(self, count: int) -> np.ndarray:
        """Return the rows of whole sites, each farthest from those before it by its rows' mean inputs."""
        centre = np.stack([self.at[self.site == site].mean(axis=0) for site in self.open_sites])
        distance = np.linalg.norm(centre[:, None] - centre, axis=2)
        chosen = [int(distance.mean(axis=1).argmin())]
        while len(chosen) < count:
            chosen.append(int(distance[chosen].min(axis=0).argmax()))
        return self.rows_of(self.open_sites[chosen], ROWS_OF_SITE)


def _spaced(rows: np.ndarray, most: int) -> np.ndarray:
    """Return at most ``most`` rows, evenly spaced."""
    return rows if rows.size <= most else rows[np.linspace(0, rows.size - 1, most).round().astype(int)]


def report(grid: Grid, title: str, shipped: bool) -> None:
    """Print the error of each strategy by the number of measured sites or points."""
    n_open = grid.open_sites.size
    print(f"\n{title}: {n_open} sites of {grid.pool.size} rows may be measured, {grid.scored_sites.size} are scored")
    print(f"{'measured':<36}{'points':>7}  {'chosen':>14}  {'chance':>14}   median / mean error, %")
    for share in SITE_SHARES:
        count = max(2, math.ceil(share * n_open - 1e-9))
        name = f"{count} sites whole ({share:.0%}), farthest first"
        _line(grid, name, grid.farthest(count), grid.chance(count, whole=True), shipped and share == SITE_SHARES[0])
    for count in POINTS:
        name = f"{count} points ({count / grid.pool.size:.1%}), planned"
        _line(grid, name, grid.planned(count), grid.chance(count, whole=False), shipped and count == POINTS[-1])
    if shipped:
        [half, *_] = grid.chance(n_open // 2, whole=True)
        rows = np.flatnonzero(np.isin(grid.site, np.unique(grid.site[half])))
        print(
            f"{'half the sites, every row':<36}{rows.size:>7}  {'':>14}  {_median_mean(grid.error(rows, True))}",
            flush=True,
        )


def _line(grid: Grid, name: str, chosen: np.ndarray, draws: list[np.ndarray], shipped: bool) -> None:
    """Print the error of chosen points beside the mean error of random draws."""
    by_chance = np.mean([grid.error(draw) for draw in draws], axis=0)
    print(
        f"{name:<36}{chosen.size:>7}  {_median_mean(grid.error(chosen))}  {_median_mean(by_chance)}", end="", flush=True
    )
    print(f"   with the network {_median_mean(grid.error(chosen, True))}" if shipped else "", flush=True)


def _median_mean(error: tuple[float, float]) -> str:
    """Return "median / mean" in percent."""
    return f"{error[0]:6.2f} / {error[1]:5.2f}"


def main() -> None:
    """Read the sweep and print one table per cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path, help="a sweep of calibrate import that holds the GPU")
    parser.add_argument("--gpu", default="h100_sxm", help="GPU whose sweep stands in for measurements")
    parser.add_argument("--shipped", action="store_true", help="also with the correction network: minutes a cell")
    arguments = parser.parse_args()
    for family, dtype, engine in CELLS:
        grid = Grid(arguments.sweep, arguments.gpu, family, dtype, engine)
        report(grid, f"{family} {dtype}, {engine}, {arguments.gpu}", arguments.shipped)


if __name__ == "__main__":
    main()
