"""Plans the few shapes to measure on a GPU so that the fastest implementation can be chosen at all others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from kernelsight.choices.candidates import Choice, hidden_octaves
from kernelsight.choices.choices import Contrasts, contrasts, shape_texts
from kernelsight.choices.contrasts import Sizes
from kernelsight.errors import InvalidInput
from kernelsight.measure.suite import FAMILIES
from kernelsight.searching.gaussian_process import matern, squared_distances

# share of a budget that is chosen at random before expected regret decides: without measurements, expectations mislead
# (benches/evaluation/lab/choices.md)
BY_CHANCE = 0.3
# columns that define kinds of sites, which behave similarly; random sites of each kind that precede all others
KINDS, OF_KIND = ("dtype", "distribution", "head_dim", "window"), 2
# kernels of the sweeps that `calibrate measure` runs under another name
MEASURED_AS = dict.fromkeys(("flash_attention_2", "flash_attention_3", "flash_attention_4"), "flash_attention_vllm")


def budget_of(choice: Choice, budget: float) -> int:
    """Return the number of shapes in a budget, a share of all, at least two; InvalidInput: it is not in (0, 1].

    Measured shapes count towards it.
    """
    if not 0.0 < budget <= 1.0:
        raise InvalidInput(f"--budget is {budget:g}; give the share of shapes to measure, above 0 and at most 1.")
    return max(2, math.ceil(budget * np.unique(choice.candidates.site).size - 1e-9))


def plan(choice: Choice, shapes: int, known_contrasts: tuple[Contrasts, Sizes] | None = None) -> np.ndarray:
    """Return the sites to measure next, in order, so that ``shapes`` are measured in all.

    A share of the shapes is random (in ascending SHA-256 of their names, two of every kind first), the others are those
    of largest expected regret, each of which lowers the regret near it. ``known_contrasts``: those of the choice, where
    they were computed before.
    """
    candidates = choice.candidates
    sites, first_rows = np.unique(candidates.site, return_index=True)
    missing = np.bincount(candidates.site - sites[0], ~np.isfinite(candidates.log_us))[sites - sites[0]] > 0
    missing_count = max(0, shapes - int((~missing).sum()))
    by_chance = min(missing_count, max(0, math.ceil(BY_CHANCE * shapes) - int((~missing).sum())))
    if missing.all():
        by_chance = missing_count
    chosen = _by_chance(choice, first_rows, missing)[:by_chance]
    if missing_count > by_chance:
        posterior, sizes = known_contrasts or contrasts(choice)
        missing[chosen] = False
        weight = np.where(missing, _site_regrets(choice, posterior)[first_rows], -1.0)
        positions = candidates.features[first_rows] * sizes.own_scales
        chosen = np.append(chosen, _greedy(weight, positions, chosen, missing_count - by_chance))
    return sites[chosen]


def _by_chance(choice: Choice, first_rows: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Return the indices of the missing sites in random order, rare kinds of sites first."""
    rows = choice.rows[first_rows[missing]]
    names = zip(rows["dtype"], rows["distribution"], shape_texts(choice.family, rows), strict=True)
    digests = [hashlib.sha256(f"{choice.family}|{'|'.join(map(str, name))}".encode()).hexdigest() for name in names]
    kind_of_row = rows.select(
        pl.struct(*(name for name in KINDS if name in rows.columns), pl.Series("hides", hidden_octaves(rows) > 0))
    )
    # the first of each kind before the second of any: without measurements a choice costs most at a rare kind
    ordered = pl.DataFrame({"row": np.flatnonzero(missing), "digest": digests, "kind": kind_of_row.to_series()})
    turn = pl.col("digest").rank("ordinal").over("kind")
    return ordered.sort(turn.clip(1, OF_KIND + 1), "digest")["row"].to_numpy()


def _site_regrets(choice: Choice, posterior: Contrasts) -> np.ndarray:
    """Return for each candidate the expected regret of its site's pick."""
    site = choice.candidates.site - choice.candidates.site.min()
    pick = np.full(site.max() + 1, np.inf)
    np.minimum.at(pick, site, np.where(posterior.ratio <= 0.0, posterior.regret, np.inf))
    return pick[site]


def _greedy(weight: np.ndarray, positions: np.ndarray, measured: np.ndarray, count: int) -> np.ndarray:
    """Return ``count`` sites of largest weight, each lowering the weights near it, as ``measured`` ones do."""
    weight, chosen = weight.copy(), []
    for site in measured:
        weight = _lowered(weight, positions, site)
    for _ in range(count):
        best = int(np.argmax(weight))
        if weight[best] < 0.0:
            break
        chosen.append(best)
        weight = _lowered(weight, positions, best)
        weight[best] = -1.0
    return np.array(chosen, dtype=np.int64)


def _lowered(weight: np.ndarray, positions: np.ndarray, site: int) -> np.ndarray:
    near = matern(squared_distances(positions, positions[site : site + 1]))[:, 0]
    return np.where(weight < 0.0, weight, weight * (1.0 - near**2))


def planned_rows(choice: Choice, sites: Sequence[int]) -> pl.DataFrame:
    """Return the candidates of the planned sites, in order, with the implementations of `calibrate measure`.

    Columns: place, dtype, distribution, shape (JSON), engine, implementation, measured_as (null: it cannot run it).
    """
    order = {site: rank for rank, site in enumerate(sites)}
    ranks = np.array([order.get(site, -1) for site in choice.candidates.site.tolist()])
    chosen = np.flatnonzero(ranks >= 0)
    chosen = chosen[np.argsort(ranks[chosen], kind="stable")]
    rows = choice.rows[chosen]
    columns = {
        "place": ranks[chosen] + 1,
        "dtype": rows["dtype"],
        "distribution": rows["distribution"],
        "shape": shape_texts(choice.family, rows),
        "engine": rows["engine"],
        "implementation": rows["implementation"],
        "measured_as": [
            measured_as(choice.family, dtype, name)
            for dtype, name in zip(rows["dtype"], rows["implementation"], strict=True)
        ],
    }
    return pl.DataFrame(columns, schema_overrides={"measured_as": pl.String})


def measured_as(family: str, dtype: str, implementation: str) -> str | None:
    """Return the implementation of `calibrate measure` that runs a kernel, or None.

    >>> measured_as("decode_attention", "bf16/fp8", "flash_attention_3"), measured_as("moe", "bf16", "cutlass_moe")
    ('flash_attention_vllm', None)
    """
    family_entry = FAMILIES.get(family)
    if family_entry is None or dtype not in family_entry.dtypes:
        return None
    name = MEASURED_AS.get(implementation, implementation)
    return name if name in family_entry.implementations else None


def suite_of_plan(choice: Choice, rows: pl.DataFrame, name: str) -> dict[str, Any]:
    """Return the suite of the planned rows that `calibrate measure` can run; InvalidInput: it can run none."""
    measurable = rows.filter(pl.col("measured_as").is_not_null())
    if not measurable.height:
        kernels = ", ".join(sorted(rows["implementation"].unique().to_list()))
        raise InvalidInput(
            f"`calibrate measure` cannot run any {choice.family} kernel of this plan ({kernels}); "
            "give -o FILE.parquet to write the list of shapes for a collector of your own."
        )
    family_entry = FAMILIES[choice.family]
    fields = (*family_entry.sizes, *family_entry.defaults)
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for row in measurable.iter_rows(named=True):
        shape = pl.Series([row["shape"]]).str.json_decode(pl.Struct(dict.fromkeys(fields, pl.Int64)))[0]
        key = (row["measured_as"], row["dtype"])
        start = {"family": choice.family, "implementation": key[0], "dtype": key[1], "cache": family_entry.caches[0]}
        entry = entries.setdefault(key, {**start, "points": []})
        point = {field: shape[field] for field in fields if shape[field] is not None}
        if point not in entry["points"]:
            entry["points"].append(point)
    doc = f"Shapes of {choice.family} to measure on {choice.gpu} first, to choose the fastest implementation."
    return {"suite": name, "doc": doc, "entries": list(entries.values())}
