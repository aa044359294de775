"""What a correction sees of a call: logarithms of sizes and work, and how sizes round up to tiles and tiles to waves.

Only shapes and the number of multiprocessors enter, no rate: a correction takes the rates of its GPU as given, so that
latency falls or stays when a rate rises (INV-10), and is the same whether data is warm or cold.
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.latency_model import Columns

# octaves beyond which a rounding loss is all the same: a product of one row on a tile of 16 loses as any other
MOST_ROUNDING = 3.0
# sizes are counted from here, so that the logarithm of nought is finite
LEAST_SIZE = 2.0**-6


def names_of(family: str) -> list[str]:
    """Return the names of a family's features, in the order of their columns.

    >>> names_of("quantize")
    ['rows', 'columns', 'bytes', 'waves of rows/1', 'rest of rows/1']
    """
    spec = FAMILIES[family].features
    grids = ["*".join(f"{name}/{tile:g}" for name, tile in factors) for factors in spec.grids]
    return [
        *spec.sizes,
        *spec.flags,
        *(f"{name} to {tile:g}" for name, tile in spec.paddings),
        *(f"{what} of {grid}" for grid in grids for what in ("waves", "rest")),
    ]


def features(xp: Any, family: str, call: Columns, gpu: Columns) -> Any:
    """Return (rows, features) of a family's calls; ``call``: columns of its expression's view, ``gpu``: sm_count."""
    spec = FAMILIES[family].features
    call = _derived(xp, call)
    rounded: dict[tuple[str, float], Any] = {}

    def tiles(name: str, tile: float) -> Any:
        if (name, tile) not in rounded:
            rounded[name, tile] = _rounded(xp, call[name], tile)
        return rounded[name, tile]

    columns = [xp.log2(xp.maximum(call[name], LEAST_SIZE)) for name in spec.sizes]
    one = xp.ones_like(columns[0])
    columns += [xp.where(call[name] > 0.0, one, 0.0 * one) for name in spec.flags]
    columns += [_octaves(xp, tiles(name, tile) * tile / call[name]) for name, tile in spec.paddings]
    for factors in spec.grids:
        waves = 1.0 / gpu["sm_count"]
        for name, tile in factors:
            waves = waves * tiles(name, tile)
        columns += [xp.log2(waves), _octaves(xp, xp.ceil(waves) / waves)]
    # a feature lies in one piece, so that a row of the transpose is read at once
    return xp.stack(xp.broadcast_arrays(*columns), axis=0).T


def _derived(xp: Any, call: Columns) -> Columns:
    """Add batch x heads, query heads that share a key, query rows that share keys, and rows of one expert."""
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
    """Tiles that a size takes; a tile of 0 leaves the size as it is, of 1 or more rounds up."""
    return xp.ceil(size / tile) if tile else size


def _octaves(xp: Any, ratio: Any) -> Any:
    return xp.minimum(xp.log2(ratio), MOST_ROUNDING)
