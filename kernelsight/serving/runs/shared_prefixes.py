"""Hash blocks of the prompts of a replica, by which its requests share KV blocks, from the loads' hash_ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import memoised
from kernelsight.errors import InvalidInput

# largest load whose prefixes are cached for the next simulation of it, requests
MOST_MEMOISED = 20_000
# ids up to this many times their count are renumbered by a lookup table, others by sorting
SPREAD = 4


def shares_prefixes(deployment: dict[str, Any], plan: dict[str, Any]) -> bool:
    """Whether the prefix cache is on: prompts that begin with the same tokens share KV blocks."""
    return deployment["enable_prefix_caching"] and plan["full_units"] > 0 and plan["sequence_units"] == 0


def shared_prefixes(
    requests: pa.Table, rows: np.ndarray, deployment: dict[str, Any], plan: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return (hash blocks numbered from 0, offsets by request, tokens of a block) of a replica's prompts.

    Empty without prefix caching: models with recurrent states, or with windowed layers alone, share no prefixes here.
    InvalidInput: hash blocks of several sizes.
    """
    nothing = np.zeros(0, np.int64), np.zeros(rows.size + 1, np.int64), 0
    if not shares_prefixes(deployment, plan) or requests["hash_ids"].null_count == requests.num_rows:
        return nothing
    block = plan["block_size"]
    # engines hash a prompt's blocks with the adapter that computed them
    apart = deployment["max_loras"] > 0 and requests["adapter"].null_count < requests.num_rows
    if rows.size > MOST_MEMOISED:
        return _prefixes(requests, rows, block, apart) or nothing
    # simulations of one load at other costs have the same prefixes
    key = ("prefixes", int(rows[0]), int(rows[-1]), rows.size, block, apart)
    return memoised((requests,), key, lambda: _prefixes(requests, rows, block, apart)) or nothing


def _prefixes(
    requests: pa.Table, rows: np.ndarray, block: int, apart: bool
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Return ``shared_prefixes`` of evenly spaced rows, without a cache; None where they hold no hash block.

    ``apart``: requests with different adapters share nothing.
    """
    prompts_with_hashes = requests.select(["hash_ids", "hash_block_tokens"]).take(pa.array(rows)).combine_chunks()
    sizes = pc.unique(prompts_with_hashes["hash_block_tokens"].drop_null()).to_pylist()
    if not sizes:
        return None
    if len(sizes) > 1:
        raise InvalidInput(f"hash blocks of {', '.join(map(str, sorted(sizes)))} tokens are in one load; use one size.")
    lists = prompts_with_hashes["hash_ids"].combine_chunks()
    numbers = numbered(lists.flatten().to_numpy())
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    if apart:
        adapter = pc.fill_null(requests["adapter"], -1).to_numpy()[rows]
        numbers = numbered(numbers * (adapter.max() + 2) + np.repeat(adapter, counts) + 1)
    if sizes[0] % block:
        prompts = requests["prompt_tokens"].to_numpy()[rows]
        numbers, counts = laid_over(numbers, counts, prompts, sizes[0], block)
        sizes = [block]
    return numbers.astype(np.int64), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), sizes[0]


def numbered(ids: np.ndarray) -> np.ndarray:
    """Return ids renumbered from 0 in ascending order; dense ids need no sorting.

    >>> numbered(np.array([7, 3, 7, 4])).tolist(), numbered(np.array([10**15, -1])).tolist()
    ([2, 0, 2, 1], [1, 0])
    """
    if ids.size and ids.min() >= 0 and ids.max() < SPREAD * ids.size:
        is_used = np.zeros(int(ids.max()) + 1, bool)
        is_used[ids] = True
        return (np.cumsum(is_used) - 1)[ids]
    return np.unique(ids, return_inverse=True)[1]


def laid_over(
    numbers: np.ndarray, counts: np.ndarray, prompts: np.ndarray, size: int, block: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of KV blocks, and their number per prompt, from hash blocks of another size.

    ``numbers``: hash blocks of all prompts; ``counts``: their number per prompt; ``prompts``: tokens of each; ``size``,
    ``block``: tokens of a hash block and of a KV block. A hash identifies all tokens up to the end of its block, so
    that the last hash block under a KV block identifies it.

    >>> laid_over(np.array([0, 1, 0, 2]), np.array([2, 2]), np.array([70, 80]), 48, 32)
    (array([0, 1, 2, 0, 3, 4]), array([3, 3]))
    """
    # a prompt whose last, partly filled hash block has no hash ends with the KV block before the one that it fills
    hashed = np.minimum(prompts, counts * size)
    blocks_each = np.where(hashed == prompts, -(-prompts // block), hashed // block)
    owner = np.repeat(np.arange(blocks_each.size), blocks_each)
    block_number = np.arange(blocks_each.sum()) - np.repeat(np.cumsum(blocks_each) - blocks_each, blocks_each)
    last = (np.minimum((block_number + 1) * block, hashed[owner]) - 1) // size
    hashes = numbers[(np.cumsum(counts) - counts)[owner] + last]
    return numbered(hashes * (block_number.max(initial=0) + 1) + block_number), blocks_each
