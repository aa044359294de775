"""Regret of kernel choices on a GPU with few or no measurements, for `search choose` and for simpler rules.

    python benches/choices.py sweep.parquet --gpu l40s --sources a100_sxm,h100_sxm,h200_sxm    # develop like this
    python benches/choices.py sweep.parquet --gpu gb200                                        # each look is recorded

A published sweep stands in for the GPU: which engine and implementation is fastest at each serving shape where at least
two were measured (a site: a shape with its number formats). Regret = latency of the choice / of the fastest - 1, in %:
mean / 90th percentile, and the share of sites within 2 %. Rules: random (the mean of the candidates), always one engine
(the best one in hindsight), the nearest GPU's ranking of the same engines, the kernel model's fastest, and contrasts of
`search choose`: before any measurement, and after rounds of `search plan` up to a share of the sites, scored at the
others. Coverage is of the 90 % intervals of log ratios to the pick.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from kernelsight.catalog.tables import facts
from kernelsight.choices.candidates import Choice, measured_rows, shared_sites, site_columns, with_expectations
from kernelsight.choices.choices import SIGMAS, Contrasts, contrasts
from kernelsight.choices.shapes_to_measure import budget_of, plan
from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.fitting.cells import is_serving
from kernelsight.fitting.splits import HEADLINE_TRAIN
from kernelsight.present.output import as_text

FAMILIES = ("decode_attention", "prefill_attention", "mla_decode", "mla_prefill", "moe", "gemm")
SHARES = (0.01, 0.05, 0.1)
# shares of a budget after which the plan is recomputed
ROUNDS = (0.3, 0.5, 0.7, 0.85, 1.0)
# largest number of scored sites of a family; evenly spaced ones of more
MOST_SITES = 20_000
WITHIN = 0.02
COLUMNS = ("family", "gpu", "rule", "sites", "measured", "mean", "p90", "within_2", "expected", "coverage_90", "cpu_s")


class Case(NamedTuple):
    """A family on the target GPU: candidates without latencies, their true latencies, and the nearest GPU's, us."""

    choice: Choice
    truth: np.ndarray
    nearest: np.ndarray


def case_of(
    sweeps: Sequence[Path], family: str, gpu: str, sources: Sequence[str], most: int = MOST_SITES
) -> Case | None:
    """Return a family's candidates on the target GPU; None if no site has two."""
    rows = measured_rows(sweeps, family, [gpu])
    rows = shared_sites(family, rows.filter(pl.Series(is_serving(family, rows.to_arrow()), dtype=pl.Boolean)))
    if not rows.height:
        return None
    sites = rows.select(site_columns(family)).unique(maintain_order=True)
    if sites.height > most:
        sites = sites[np.unique(np.linspace(0, sites.height - 1, most).round().astype(int))]
        rows = rows.join(sites, on=sites.columns, how="semi", nulls_equal=True, maintain_order="left")
    others = measured_rows(sweeps, family, sources)
    choice = with_expectations(family, gpu, rows.with_columns(latency_us=pl.lit(None, pl.Float64)), others)
    key = [*site_columns(family), "engine", "implementation"]
    truth = _beside(choice.rows, rows, key)
    near = others.filter(pl.col("gpu") == nearest_of(gpu, sources))
    by_engine = near.group_by(key[:-1]).agg(pl.col("latency_us").min())
    same, any_kernel = _beside(choice.rows, near, key), _beside(choice.rows, by_engine, key[:-1])
    return Case(choice, truth, np.where(np.isnan(same), any_kernel, same))


def _beside(rows: pl.DataFrame, known: pl.DataFrame, key: list[str]) -> np.ndarray:
    """Return the latency in ``known`` of each row by ``key``, us; NaN without one."""
    known = known.select(*key, found=pl.col("latency_us"))
    found = rows.join(known, on=key, how="left", nulls_equal=True, maintain_order="left")["found"]
    return found.to_numpy().astype(float)


def nearest_of(gpu: str, sources: Sequence[str]) -> str:
    """Return the source GPU nearest in compute capability, then in memory bandwidth."""
    rows = {row["gpu"]: row for row in facts("gpus").to_pylist()}

    def distance(name: str) -> tuple[float, float]:
        rate = math.log(rows[name]["memory_bandwidth_bytes_per_s"] / rows[gpu]["memory_bandwidth_bytes_per_s"])
        return abs(float(rows[name]["compute_capability"]) - float(rows[gpu]["compute_capability"])), abs(rate)

    return min(sources, key=distance)


def revealed(case: Case, sites: np.ndarray) -> Choice:
    """Return the choice with the latencies of ``sites`` known."""
    known = np.isin(case.choice.candidates.site, sites)
    latency = np.where(known, case.truth, np.nan)
    level = np.log(case.choice.model_us) - case.choice.candidates.model
    rows = case.choice.rows.with_columns(latency_us=pl.Series(latency).fill_nan(None))
    return case.choice._replace(rows=rows, candidates=case.choice.candidates._replace(log_us=np.log(latency) - level))


def measured_sites(case: Case, share: float) -> np.ndarray:
    """Return the sites that rounds of plans measure, up to a share of all sites."""
    budget = budget_of(case.choice, share)
    sites = np.empty(0, dtype=np.int64)
    for part in ROUNDS:
        sites = np.append(sites, plan(revealed(case, sites), max(2, math.ceil(part * budget))))
    return sites


def regrets(case: Case, score: np.ndarray, kept: np.ndarray | None = None) -> np.ndarray:
    """Return each site's regret of the candidates with the lowest score (the mean of ties)."""
    table = pl.DataFrame(
        {"site": case.choice.candidates.site, "us": case.truth, "score": np.nan_to_num(score, nan=np.inf)}
    )
    table = table if kept is None else table.filter(pl.Series(kept))
    table = table.with_columns(best=pl.col("us").min().over("site"))
    table = table.filter(pl.col("score") <= pl.col("score").min().over("site"))
    return table.group_by("site").agg(regret=(pl.col("us") / pl.col("best")).mean() - 1.0)["regret"].to_numpy()


def coverage(case: Case, ratios: Contrasts, kept: np.ndarray) -> float:
    """Return the share of candidates whose true log ratio to the pick is inside the 90 % interval."""
    site = case.choice.candidates.site
    position = np.unique(site, return_inverse=True)[1]
    pick = np.zeros(position.max() + 1)
    picked = np.flatnonzero(ratios.ratio == 0.0)
    pick[position[picked]] = np.log(case.truth[picked])
    miss = np.log(case.truth) - pick[position] - ratios.ratio
    others = kept & (ratios.ratio > 0.0)
    return float((np.abs(miss[others]) <= SIGMAS * ratios.ratio_sd[others]).mean())


def rows_of(case: Case, shares: Sequence[float]) -> list[dict[str, Any]]:
    """Return one table row per rule."""
    all_rows = np.ones(case.truth.size, dtype=bool)
    candidates = case.choice.candidates
    engines = case.choice.rows["engine"].to_numpy()
    fixed = {name: regrets(case, np.where(engines == name, 0.0, 1.0)) for name in sorted(set(engines.tolist()))}
    best = min(fixed, key=lambda name: fixed[name].mean())
    rows = [
        _row(case, "random", regrets(case, np.zeros(case.truth.size))),
        _row(case, f"always {best}", fixed[best]),
        _row(case, "nearest GPU's order", regrets(case, case.nearest)),
        _row(case, "kernel model", regrets(case, candidates.model)),
    ]
    for share in (0.0, *shares):
        started = time.process_time()
        sites = measured_sites(case, share) if share else np.empty(0, dtype=np.int64)
        ratios, _ = contrasts(revealed(case, sites))
        kept = all_rows & ~np.isin(candidates.site, sites)
        more = {
            "measured": sites.size,
            "expected": 100.0 * float(ratios.regret[kept & (ratios.ratio == 0.0)].mean()),
            "coverage_90": 100.0 * coverage(case, ratios, kept),
            "cpu_s": time.process_time() - started,
        }
        name = f"contrasts, {share:.0%} measured" if share else "contrasts, none measured"
        rows.append(_row(case, name, regrets(case, ratios.mean, kept), **more))
    return rows


def _row(case: Case, rule: str, regret: np.ndarray, **more: Any) -> dict[str, Any]:
    """Return a rule's row: mean and 90th percentile of its regrets, share within 2 %, in percent."""
    figures = {"mean": 100.0 * regret.mean(), "p90": 100.0 * np.quantile(regret, 0.9)}
    within = {"within_2": 100.0 * float((regret <= WITHIN).mean())}
    sites = int(np.unique(case.choice.candidates.site).size)
    return {
        "family": case.choice.family,
        "gpu": case.choice.gpu,
        "rule": rule,
        "sites": sites,
        **figures,
        **within,
        **more,
    }


def main() -> None:
    """Print the table of each family; write all rows with ``-o``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--sources", default=",".join(HEADLINE_TRAIN), help="GPUs to learn from")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="shares of the sites to measure")
    parser.add_argument("--sites", type=int, default=MOST_SITES, help="sites of a family that are scored, at most")
    parser.add_argument("-o", "--output", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    sources = [name for name in arguments.sources.split(",") if name != arguments.gpu]
    all_rows: list[dict[str, Any]] = []
    with one_blas_thread():
        for family in arguments.families.split(","):
            case = case_of(arguments.sweeps, family, arguments.gpu, sources, arguments.sites)
            if case is None:
                print(f"{family}: no site of {arguments.gpu} has two candidates", flush=True)
                continue
            rows = rows_of(case, [float(share) for share in arguments.shares.split(",") if share])
            all_rows += rows
            shown = [{name: _short(row.get(name)) for name in COLUMNS} for row in rows]
            print(as_text(shown, list(COLUMNS)), flush=True)
            if arguments.output:
                arguments.output.write_text(json.dumps(all_rows, indent=1) + "\n", encoding="utf-8")


def _short(value: Any) -> Any:
    """Return a cell's value: floats rounded, None as an empty text."""
    return "" if value is None else round(value, 2) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
