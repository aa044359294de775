"""What a correction sees of a call: logarithms of sizes and work, and how sizes round up to tiles and tiles to waves.

Only shapes and the number of multiprocessors enter, no rate: a correction takes the rates of its GPU as given, so that
latency falls or stays when a rate rises (INV-10), and is the same whether data is warm or cold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Columns = Mapping[str, Any]
# octaves beyond which a rounding loss is all the same: a product of one row on a tile of 16 loses as any other
MOST_ROUNDING = 3.0
# sizes are counted from here, so that the logarithm of nought is finite
LEAST_SIZE = 2.0**-6


class Features(NamedTuple):
    """Columns of a family's features; the range of ``sizes`` and ``flags`` tells how far a call lies from a sweep.

    ``sizes``: call columns, as log2; ``flags``: 1 where the column is positive; ``paddings``: (column, tile), octaves
    by which it rounds up; ``grids``: factors (column, tile) of a number of blocks, as log2 of waves and their rounding.
    """

    sizes: tuple[str, ...]
    flags: tuple[str, ...] = ()
    paddings: tuple[tuple[str, float], ...] = ()
    grids: tuple[tuple[tuple[str, float], ...], ...] = ()


def _product(tile_m: float, tile_n: float) -> tuple[tuple[str, float], ...]:
    return (("m", tile_m), ("n", tile_n))


_GEMM_TILES = (_product(64, 64), _product(128, 128), _product(256, 128), _product(128, 64))
_LANES = (("batch", 1.0), ("heads", 1.0))
# what runs side by side counts as one number, so that few measured heads stand for many batches
_PREFILL = Features(
    ("new_tokens", "lanes", "flops", "bytes"),
    paddings=(("new_tokens", 64.0), ("new_tokens", 128.0)),
    grids=tuple((*_LANES, ("new_tokens", tile)) for tile in (64.0, 128.0)),
)
_BYTES = Features(("group_size", "bytes"))
FEATURES: dict[str, Features] = {
    "gemm": Features(
        ("m", "n", "k", "flops", "bytes"),
        paddings=(("m", 16.0), ("m", 64.0), ("m", 256.0), ("n", 128.0)),
        grids=_GEMM_TILES,
    ),
    "batched_gemm": Features(
        ("batch", "m", "n", "k", "flops", "bytes"),
        paddings=(("m", 16.0), ("m", 64.0), ("n", 128.0)),
        grids=tuple((("batch", 1.0), *tile) for tile in _GEMM_TILES[:2]),
    ),
    "prefill_attention": _PREFILL._replace(
        sizes=("new_tokens", "cached_tokens", "lanes", "group", "head_dim", "flops", "bytes"),
        flags=("window",),
        grids=(*_PREFILL.grids, *((("batch", 1.0), ("kv_heads", 1.0), ("packed", tile)) for tile in (64.0, 128.0))),
    ),
    "encoder_attention": _PREFILL,
    "mla_prefill": _PREFILL,
    "decode_attention": Features(
        ("keys", "lanes", "group", "head_dim", "flops", "bytes"),
        flags=("window",),
        paddings=(("keys", 64.0), ("keys", 128.0), ("group", 8.0), ("group", 16.0)),
        grids=((("batch", 1.0), ("kv_heads", 1.0)), _LANES),
    ),
    "mla_decode": Features(
        ("batch", "context", "heads", "flops", "bytes"), paddings=(("heads", 64.0),), grids=((("batch", 1.0),), _LANES)
    ),
    "sparse_attention": Features(("queries", "visible_pairs", "heads", "width", "flops", "bytes")),
    "linear_attention": Features(("rows", "columns", "sequences", "flops", "bytes")),
    "moe": Features(
        ("tokens", "hidden", "intermediate", "rank_rows", "active_experts", "rows_per_expert", "flops", "bytes"),
        flags=("even",),
        paddings=(("rows_per_expert", 16.0), ("rows_per_expert", 64.0), ("rows_per_expert", 128.0)),
        grids=tuple(
            (("active_experts", 0.0), ("rows_per_expert", tile), (width, 128.0))
            for tile in (16.0, 64.0, 128.0)
            for width in ("intermediate", "hidden")
        ),
    ),
    **dict.fromkeys(
        ("norm", "activation", "rope", "kv_write", "quantize", "embedding", "sampling"),
        Features(("rows", "columns", "bytes"), grids=((("rows", 1.0),),)),
    ),
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"), _BYTES),
}  # fmt: skip


def names_of(family: str) -> list[str]:
    """Return the names of a family's features, in the order of their columns.

    >>> names_of("quantize")
    ['rows', 'columns', 'bytes', 'waves of rows/1', 'rest of rows/1']
    """
    spec = FEATURES[family]
    grids = ["*".join(f"{name}/{tile:g}" for name, tile in factors) for factors in spec.grids]
    return [
        *spec.sizes,
        *spec.flags,
        *(f"{name} to {tile:g}" for name, tile in spec.paddings),
        *(f"{what} of {grid}" for grid in grids for what in ("waves", "rest")),
    ]


def features(xp: Any, family: str, call: Columns, gpu: Columns) -> Any:
    """Return (rows, features) of a family's calls; ``call``: columns of its expression's view, ``gpu``: sm_count."""
    spec = FEATURES[family]
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
    found = dict(call)
    if "heads" in call and "batch" in call:
        found["lanes"] = call["batch"] * call["heads"]
    if "keys" not in call and "context" in call and "window" in call:
        keys = call["context"] + 1.0
        found["keys"] = xp.where(call["window"] > 0, xp.minimum(keys, call["window"]), keys)
    if "kv_heads" in call:
        found["group"] = call["heads"] / call["kv_heads"]
        if "new_tokens" in call:
            found["packed"] = call["new_tokens"] * found["group"]
    if "rank_rows" in call:
        found["rows_per_expert"] = xp.maximum(call["rank_rows"] / call["active_experts"], LEAST_SIZE)
    return found


def _rounded(xp: Any, size: Any, tile: float) -> Any:
    """Tiles that a size takes; a tile of 0 leaves the size as it is, of 1 or more rounds up."""
    return xp.ceil(size / tile) if tile else size


def _octaves(xp: Any, ratio: Any) -> Any:
    return xp.minimum(xp.log2(ratio), MOST_ROUNDING)
