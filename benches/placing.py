"""Where to measure: sites that `calibrate plan` would choose, against chance and a regular grid.

    python benches/placing.py sweep.parquet

The published sweep of GB200 plays the device. A third of its sites is only asked about; of the others a strategy
chooses which are measured, and what is left of a head that was fitted without the GPU's generation is interpolated
between them (the Gaussian process of :mod:`kernelsight.eta.nearby`). Median and mean absolute error in % at the sites
that are asked about, over the sites that were measured; chance is the mean of SEEDS draws.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import facts
from kernelsight.eta.cells import is_serving
from kernelsight.eta.heads import predict_family
from kernelsight.eta.held_out import group_of, halves_for
from kernelsight.eta.intervals import spread
from kernelsight.eta.nearby import MOST_POINTS, fit_nearby, nearby_delta
from kernelsight.eta.pack import default_pack
from kernelsight.eta.placing import place
from kernelsight.eta.splits import SITES, site_names
from kernelsight.eta.training import training_rows
from kernelsight.roofline.families import FORMS

TARGET, GENERATION = "gb200", "sm_100"
CELLS = (("gemm", "bf16", "trtllm"), ("decode_attention", "bf16/bf16", "trtllm"))
SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SEEDS = 5
# rows of one site that are measured, and that are asked about
ROWS_OF_SITE, ASKED_ROWS = 10, 30
SIZES = {
    "gemm": ("m", "n", "k"),
    "decode_attention": ("batch", "context", "heads", "kv_heads", "head_dim"),
}


class Grid:
    """Rows of one cell on the target: sizes in octaves, what the head leaves of them, and the site of each."""

    def __init__(self, sweep: Path, family: str, dtype: str, engine: str) -> None:
        words = f"and engine = '{engine}' and dtype = '{dtype}'"
        table = training_rows([sweep], family, [TARGET], words)
        table = table.filter(pa.array(is_serving(family, table)))
        pack = default_pack()
        tables = facts("kernel_implementations"), facts("gpus"), facts("fabrics")
        head = predict_family(family, FORMS[family], table, pack, *tables, without=GENERATION, measured=False)
        self.left = np.log(table["latency_us"].to_numpy() / head)
        self.sizes = np.log2(np.stack([np.maximum(table[name].to_numpy(), 1.0) for name in SIZES[family]], axis=1))
        self.names, self.site = site_names(family, table)
        self.fields = [SIZES[family].index(name) for name in SITES[family]]
        self.deviation = _deviations(pack, family, dtype, head)

    def rows_of(self, sites: np.ndarray, each: int) -> np.ndarray:
        """Return at most ``each`` rows of every site, evenly spaced in their order."""
        kept = []
        for site in sites:
            rows = np.flatnonzero(self.site == site)
            kept.append(rows[np.unique(np.linspace(0, rows.size - 1, min(rows.size, each)).round().astype(int))])
        return np.concatenate(kept)

    def error(self, measured: np.ndarray, asked: np.ndarray) -> tuple[float, float]:
        """Return (median, mean) absolute error in % at the sites asked about, from those measured."""
        most = max(3, MOST_POINTS // max(measured.size, 1))
        known, wanted = self.rows_of(measured, min(ROWS_OF_SITE, most)), self.rows_of(asked, ASKED_ROWS)
        shift = float(np.median(self.left[known]))
        points = fit_nearby(self.sizes[known], self.left[known] - shift, ["one"] * known.size)
        found = shift + nearby_delta(self.sizes[wanted], ["one"] * wanted.size, points)
        apart = 100.0 * np.abs(np.expm1(found - self.left[wanted]))
        return float(np.median(apart)), float(apart.mean())

    def planned(self, sites: np.ndarray) -> np.ndarray:
        """Return the sites in the order in which the plan measures them: by the model's own intervals."""
        first = np.array([np.flatnonzero(self.site == site)[0] for site in sites])
        deviation = np.array([self.deviation[self.site == site].mean() for site in sites])
        ones = np.ones(sites.size)
        steps = place(self.sizes[np.ix_(first, self.fields)], deviation, ones, ones, ["one"] * sites.size)
        chosen = [step.candidate for step in steps]
        rest = [number for number in range(sites.size) if number not in set(chosen)]
        return sites[[*chosen, *rest]]


def _deviations(pack: pa.Table, family: str, dtype: str, head: np.ndarray) -> np.ndarray:
    """Half width of each row's interval before the GPU is measured, in the logarithm."""
    rows = [row for row in pack.to_pylist() if row["family"] == family and row["part"] == "interval"]
    curves = {row["dtype"]: np.array(row["array"]) for row in rows if row["without"] == GENERATION}
    return np.log(spread(np, head, halves_for(curves, [group_of(dtype, True)])[0]))


def report(grid: Grid, title: str) -> None:
    """Print the errors of the strategies over the number of measured sites."""
    count = len(grid.names)
    order = np.random.default_rng(7).permutation(count)
    asked, offered = np.sort(order[: count // 3]), np.sort(order[count // 3 :])
    planned = grid.planned(offered)
    print(f"\n{title}: {offered.size} sites may be measured, {asked.size} others are asked about")
    print(f"{'sites':>6}  {'plan':>14}  {'chance':>14}  {'regular grid':>14}   median / mean error, %")
    for share in SHARES:
        taken = max(2, math.ceil(share * offered.size))
        regular = offered[np.unique(np.linspace(0, offered.size - 1, taken).round().astype(int))]
        draws = [np.random.default_rng(seed).choice(offered, taken, replace=False) for seed in range(SEEDS)]
        chance = np.mean([grid.error(draw, asked) for draw in (draws if share < 0.5 else draws[:1])], axis=0)
        found = (grid.error(planned[:taken], asked), chance, grid.error(regular, asked))
        print(f"{taken:>6}  " + "  ".join(f"{median:6.2f} / {mean:5.2f}" for median, mean in found), flush=True)


def main() -> None:
    """Read the sweep, and print one table a cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep", type=Path, help="a sweep of calibrate import that holds GB200")
    for family, dtype, engine in CELLS:
        report(Grid(parser.parse_args().sweep, family, dtype, engine), f"{family} {dtype}, {engine}, {TARGET}")


if __name__ == "__main__":
    main()
