"""Builds launches of sparse attention: the indexer's scores by DeepGEMM, and attention of selected keys by FlashMLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelsight.measure.cuda.libraries import Bench
from kernelsight.measure.device import CannotMeasure

# of DeepSeek-V3.2: tokens of a page of index keys, bytes of the scale of a key, width of an index key
PAGE, SCALE_BYTES, INDEX_WIDTH = 64, 4, 128
# keys that attention selects; latent and rotated part of a key; heads of a block; width of a point of attention
SELECTED, RANK, ROPE, HEADS, LATENT_WIDTH = 2048, 512, 64, 64, 1088


def _queries(bench: Bench, width: int) -> tuple[int, int, int, int]:
    """Return sequences, new tokens of each, keys of each, and heads; CannotMeasure: the sizes do not fit."""
    sizes = bench.sizes
    batch, new = sizes["batch"], sizes["new_tokens"]
    if sizes["queries"] != batch * new or sizes["width"] != width:
        raise CannotMeasure(f"its queries are the new tokens of all sequences, and its width is {width}")
    return batch, new, new + sizes["cached_tokens"], sizes["heads"]


def scores(bench: Bench) -> Callable[[], Any]:
    """Scores of a prompt's queries, with the keys in one piece."""
    batch, new, keys, heads = _queries(bench, INDEX_WIDTH)
    if batch > 1:
        raise CannotMeasure("keys in one piece are those of one sequence")
    query = bench.tensor(new, heads, INDEX_WIDTH, eight_bit=True)
    key, scale = bench.tensor(keys, INDEX_WIDTH, eight_bit=True), bench.full(1.0, "float32", keys)
    weights, first = bench.full(1.0, "float32", new, heads), bench.full(0, "int32", new)
    last = bench.torch.arange(keys - new + 1, keys + 1, dtype=bench.torch.int32, device=bench.place)
    bench.moved = keys * (INDEX_WIDTH + SCALE_BYTES) + new * heads * INDEX_WIDTH
    return lambda: bench.library.fp8_mqa_logits(query, (key, scale), weights, first, last, clean_logits=False)


def paged_scores(bench: Bench) -> Callable[[], Any]:
    """Scores of one or two new tokens against a paged cache."""
    batch, new, keys, heads = _queries(bench, INDEX_WIDTH)
    if new > 2:
        raise CannotMeasure("the paged kernel takes one or two new tokens a sequence")
    pages, library = -(-keys // PAGE), bench.library
    query = bench.tensor(batch, new, heads, INDEX_WIDTH, eight_bit=True)
    cache = bench.tensor(batch * pages, PAGE, 1, INDEX_WIDTH + SCALE_BYTES, eight_bit=True).view(bench.torch.uint8)
    weights, lengths = bench.full(1.0, "float32", batch * new, heads), bench.full(keys, "int32", batch)
    table = bench.scattered(batch * pages).view(batch, pages)
    bench.moved = batch * (keys * (INDEX_WIDTH + SCALE_BYTES) + new * heads * INDEX_WIDTH)
    # computed once a step, and used by all layers
    plan = bench.once("plan", lambda: library.get_paged_mqa_logits_metadata(lengths, PAGE, library.get_num_sms()))
    return lambda: library.fp8_paged_mqa_logits(query, cache, weights, lengths, table, plan, keys, clean_logits=False)


def selected(bench: Bench) -> Callable[[], Any]:
    """Attention over selected latents; heads fill whole blocks."""
    batch, new, keys, heads = _queries(bench, LATENT_WIDTH)
    if batch > 1:
        raise CannotMeasure("keys in one piece are those of one sequence")
    padded, torch = -(-heads // HEADS) * HEADS, bench.torch
    query, latents = bench.tensor(new, padded, RANK + ROPE), bench.tensor(keys, 1, RANK + ROPE)
    chosen = torch.randint(keys, (new, 1, SELECTED), device=bench.place).to(torch.int32)
    bench.moved = min(keys, new * SELECTED) * (RANK + ROPE) * 2 + 2 * new * heads * (2 * RANK + ROPE)
    return lambda: bench.library.flash_mla_sparse_fwd(query, latents, chosen, (128 + ROPE) ** -0.5, RANK)
