"""Splits of measured kernels into training and test rows: by GPU, by generation, and by sites of the target GPU."""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.kernels.families import FAMILIES

HEADLINE_TRAIN = ("a100_sxm", "l40s", "h100_sxm", "h200_sxm")
GENERATIONS: dict[str, tuple[str, ...]] = {
    "ampere": ("a100_sxm",),
    "ada": ("l40s",),
    "hopper": ("h100_sxm", "h200_sxm"),
    "sm_100": ("b200_sxm", "gb200"),
    "sm_120": ("rtx_pro_6000_server",),
}
# fields of a site: rows with the same values are held out together, over all dtypes, engines and other columns
SITES: dict[str, tuple[str, ...]] = {
    "gemm": ("n", "k"),
    "prefill_attention": ("heads", "kv_heads", "head_dim"),
    "decode_attention": ("heads", "kv_heads", "head_dim"),
    "moe": ("hidden", "intermediate", "top_k", "local_experts", "moe_tp", "moe_ep"),
    "encoder_attention": ("heads", "head_dim"),
    "quantize": ("columns",),
}
# fields of a whole layer, whose sites at every parallel split are held out together
LAYERS: dict[str, tuple[str, ...]] = {"moe": ("hidden", "intermediate", "top_k", "local_experts")}
# fields that grow with the load: in families that SITES does not list, a site has all other fields of the shape
LOAD = {
    "batch",
    "m",
    "new_tokens",
    "cached_tokens",
    "context",
    "tokens",
    "rows",
    "sequences",
    "queries",
    "pairs",
    "bytes",
}
# fields that hold one GPU's share of a layer: field, the number of shares
WHOLE = {"intermediate": "moe_tp", "local_experts": "moe_ep"}
LEAST_SITES = 2
# a family with fewer sites is reported, but is not part of the goals of the target-measured tier
SITES_OF_A_GOAL = 20


class Split(NamedTuple):
    """One split of the evaluation into training and test GPUs.

    ``budget``: share of the target's sites that are trained on too; ``whole_layers``: sites are whole layers (LAYERS).
    """

    name: str
    train_gpus: tuple[str, ...]
    test_gpus: tuple[str, ...]
    tier: str = "cross-generation"
    budget: float = 0.0
    whole_layers: bool = False


def generation_folds(gpus: tuple[str, ...]) -> list[Split]:
    """Return the leave-one-generation-out splits of ``gpus``: each generation is tested by a fit to the others.

    >>> [fold.test_gpus for fold in generation_folds(HEADLINE_TRAIN)]
    [('a100_sxm',), ('l40s',), ('h100_sxm', 'h200_sxm')]
    """
    folds = []
    for name, members in GENERATIONS.items():
        test = tuple(gpu for gpu in members if gpu in gpus)
        train = tuple(gpu for gpu in gpus if gpu not in members)
        if test and train:
            folds.append(Split(f"without {name}", train, test))
    return folds


def shape_columns(family: str) -> list[str]:
    """Return the columns of training rows that are fields of the measured shape, not derived from it.

    >>> shape_columns("gemm")
    ['m', 'n', 'k']
    """
    return [name for name, sql in FAMILIES[family].columns.items() if "shape." in sql]


def site_names(family: str, rows: pa.Table, whole_layers: bool = False) -> tuple[list[str], np.ndarray]:
    """Return the sites of the rows as "family|value,value", and each row's index among them, shape (rows,).

    ``whole_layers``: a layer of experts is one site, however it is split over GPUs.

    >>> rows = pa.table({"n": [4096.0, 512.0, 4096.0], "k": [512.0, 512.0, 512.0]})
    >>> names, of_row = site_names("gemm", rows)
    >>> [names[site] for site in of_row]
    ['gemm|4096,512', 'gemm|512,512', 'gemm|4096,512']
    """
    sites = {**SITES, **LAYERS} if whole_layers else SITES
    fields = sites.get(family) or [name for name in shape_columns(family) if name not in LOAD]
    values = [_site_values(name, rows) for name in fields]
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for column in values:
        # numbers of the combinations so far, kept small so that their product does not overflow
        _, code = np.unique(column, return_inverse=True)
        _, codes = np.unique(codes * (code.max(initial=0) + 1) + code, return_inverse=True)
    _, first = np.unique(codes, return_index=True)
    names = [f"{family}|{','.join(str(column[row]) for column in values)}" for row in first]
    return names, codes


def _site_values(name: str, rows: pa.Table) -> np.ndarray:
    values = rows[name].to_numpy() * (rows[WHOLE[name]].to_numpy() if name in WHOLE else 1.0)
    return np.nan_to_num(values.astype(float), nan=-1.0).astype(np.int64)


def budget_sites(names: list[str], budget: float) -> list[str]:
    """Return the first max(2, ceil(budget x sites)) sites in ascending SHA-256 of their name.

    >>> budget_sites(["quantize|1024", "quantize|2048", "quantize|4096"], 0.1)
    ['quantize|1024', 'quantize|2048']
    """
    ordered = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    # a share such as 0.1 is not exact in binary: a rounding error above a whole number must not add a site
    return ordered[: max(LEAST_SITES, math.ceil(budget * len(ordered) - 1e-9))]


def in_budget(family: str, rows: pa.Table, budget: float, whole_layers: bool = False) -> np.ndarray:
    """Return for each row of the target whether its site is among those that a budget measures, shape (rows,)."""
    names, of_row = site_names(family, rows, whole_layers)
    chosen = set(budget_sites(names, budget))
    return np.array([name in chosen for name in names], dtype=bool)[of_row]
