"""Features of kernel calls, the inputs of a correction: log sizes and work, rounding of sizes to tiles, tiles to waves.

They depend on shapes and the number of multiprocessors alone. No rate is a feature, so that latency never rises when a
rate does (INV-10), and a correction is the same for warm and cold data.
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.latency_model import Columns

# upper bound of rounding losses, octaves: beyond it, as for one row on a tile of 16, losses do not differ
MOST_ROUNDING = 3.0
# lower bound of sizes, which keeps the logarithm of 0 finite
LEAST_SIZE = 2.0**-6


def names_of(family: str) -> list[str]:
    """Return the names of a family's features, in the order of their columns."""
    spec = FAMILIES[family].features
    grids = ["*".join(f"{name}/{tile:g}" for name, tile in factors) for factors in spec.grids]
    return [
        *spec.sizes,
        *spec.flags,
        *(f"{name} to {tile:g}" for name, tile in spec.paddings),
        *(f"{what} of {grid}" for grid in grids for what in ("waves", "rest")),
    ]


def features(xp: Any, family: str, call: Columns, gpu: Columns) -> Any:
    """Return the features of a family's calls, (rows, features), in the order of :func:`names_of`.

    ``call``: columns of its expression's view, (rows,) each; ``gpu``: sm_count, (rows,).
    """
    spec = FAMILIES[family].features
    call = _derived(xp, call)
    rounded: dict[tuple[str, float], Any] = {}

    def tiles(name: str, tile: float) -> Any:
        if (name, tile) not in rounded:
            rounded[name, tile] = _rounded(xp, call[name], tile)
        return rounded[name, tile]

    columns = [xp.log2(xp.maximum(call[name], LEAST_SIZE)) for name in spec.sizes]
    ones = xp.ones_like(columns[0])
    columns += [xp.where(call[name] > 0.0, ones, 0.0 * ones) for name in spec.flags]
    columns += [_octaves(xp, tiles(name, tile) * tile / call[name]) for name, tile in spec.paddings]
    for factors in spec.grids:
        waves = 1.0 / gpu["sm_count"]
        for name, tile in factors:
            waves = waves * tiles(name, tile)
        columns += [xp.log2(waves), _octaves(xp, xp.ceil(waves) / waves)]
    # features are contiguous in memory: a correction reads one at a time
    return xp.stack(xp.broadcast_arrays(*columns), axis=0).T


def _derived(xp: Any, call: Columns) -> Columns:
    """Return the call's columns with those that features derive from them: lanes, keys, group, packed, rows_per_expert.

    lanes: batch x heads; keys: that a decode reads; group: query heads per KV head; packed: query rows that share keys.
    """
    sizes = dict(call)
    if "heads" in call and "batch" in call:
        sizes["lanes"] = call["batch"] * call["heads"]
    if "keys" not in call and "context" in call and "window" in call:
        keys = call["context"] + 1.0
        sizes["keys"] = xp.where(call["window"] > 0, xp.minimum(keys, call["window"]), keys)
    if "kv_heads" in call:
        sizes["group"] = call["heads"] / call["kv_heads"]
        if "new_tokens" in call:
            sizes["packed"] = call["new_tokens"] * sizes["group"]
    if "rank_rows" in call:
        sizes["rows_per_expert"] = xp.maximum(call["rank_rows"] / call["active_experts"], LEAST_SIZE)
    return sizes


def _rounded(xp: Any, size: Any, tile: float) -> Any:
    """Return the number of tiles that a size takes, rounded up; a tile of 0 returns the size itself."""
    return xp.ceil(size / tile) if tile else size


def _octaves(xp: Any, ratio: Any) -> Any:
    return xp.minimum(xp.log2(ratio), MOST_ROUNDING)
