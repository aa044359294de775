"""One replica's simulation from Python: columns into records, the compiled loop, records into columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernelsight.serving.loop import serve_until_full
from kernelsight.serving.records import (
    CLIENT,
    ENGINE,
    ENTRY,
    FINISHED,
    HOST,
    ITL_BINS,
    LARGEST_BLOCK,
    LAYOUT,
    LIMITS,
    NO_LIMIT,
    NO_POLICY,
    NOBODY,
    REQUEST,
    Host,
    Limits,
    Load,
    Outcome,
    Served,
    Surface,
    Totals,
    Uses,
)
from kernelsight.serving.steps import COLUMNS, RUNNING, START, WAITING
from kernelsight.serving.windows import NARROWEST_US, add_steps, fresh, windows_of

# step rows that are held at once; most scenarios have few times as many
CHUNK = 16_384

# fields of the engine record, in the order of Totals
TOTALS = (
    *("steps", "gpu_us", "host_us", "idle_us", "first_us", "last_us"),
    *("preempted", "peak_units", "gap_sum_us", "prompt_tokens"),
)


# fields of the engine record that name the first or last of a list: none in a fresh one
QUEUES = (
    *("first_waiting", "last_waiting", "first_ended", "oldest", "newest", "partial", "last_partial", "fresh"),
    *("first_free", "last_free"),
)


class PackedCosts(NamedTuple):
    """A surface as the loop reads it: one flat array, and where each part stands in it."""

    values: np.ndarray
    layout: np.void
    surface: Surface


def pack(surface: Surface) -> PackedCosts:
    """Lay a surface out in one array; tokens already cost what the CUDA graph that pads them costs."""
    layout = np.zeros(1, LAYOUT)[0]
    pieces: list[np.ndarray] = []
    used = 0

    def place(values: np.ndarray) -> int:
        nonlocal used
        pieces.append(np.ascontiguousarray(values, dtype=np.float64).ravel())
        used += values.size
        return used - values.size

    layout["tokens_at"] = place(surface.token_us[surface.padded_tokens])
    layout["sampled_at"] = place(surface.sampled_us)
    most = {"decode": surface.sampled_us.size, "window": surface.sampled_us.size, "prefill": surface.token_us.size}
    for name in ("decode", "window", "prefill"):
        xs, ys, grid = (getattr(surface, f"{name}_{part}") for part in ("x", "y", "us"))
        below, share = _between(xs, most[name] - 1)
        layout[name] = (place(below), place(share), below.size, place(ys), ys.size, place(grid))
    return PackedCosts(np.concatenate(pieces), layout, surface)


def _between(knots: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """For each whole number up to ``largest``: the position of the knot below, and the weight of the one above."""
    if knots.size == 0:
        return np.zeros(0), np.zeros(0)
    values = np.arange(largest + 1)
    below = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, max(knots.size - 2, 0))
    above = np.minimum(below + 1, knots.size - 1)
    gap = np.where(above > below, knots[above] - knots[below], 1.0)
    return below.astype(float), np.where(above > below, (values - knots[below]) / gap, 0.0)


def unpack_uses(uses: np.ndarray, costs: PackedCosts) -> Uses:
    """Return the uses by part, of shape (3 phases, ...); tokens are counted where their CUDA graph pads them to."""
    surface, layout = costs.surface, costs.layout
    counted = uses[:, layout["tokens_at"] :][:, : surface.padded_tokens.size]
    tokens = np.zeros((3, surface.token_us.size))
    paid = np.flatnonzero(counted.any(axis=0))
    for phase in range(3):
        np.add.at(tokens[phase], surface.padded_tokens[paid], counted[phase, paid])
    grids = []
    for name in ("decode", "window", "prefill"):
        grid = getattr(surface, f"{name}_us")
        grids.append(uses[:, layout[name]["at"] :][:, : grid.size].reshape(3, *grid.shape))
    return Uses(tokens, uses[:, layout["sampled_at"] :][:, : surface.sampled_us.size], *grids)


def check_caching(load: Load, limits: Limits) -> None:
    """ValueError: hash blocks that are no whole number of KV blocks, or layers that cannot share by prefix."""
    if load.hash_tokens % limits.block_size:
        raise ValueError(
            f"hash blocks of {load.hash_tokens} tokens are no whole number of blocks of {limits.block_size}"
        )
    if limits.window_units or limits.sequence_units or limits.full_units != 1:
        raise ValueError("layers with windows or a state of their own share nothing by prefix here")


def in_flight_at(moments_us: np.ndarray, requests: np.ndarray) -> np.ndarray:
    """Return how many requests were sent, not turned away, and had not ended at each moment, shape [moments]."""
    accepted = requests["status"] == FINISHED
    sent, ended = np.sort(requests["sent_us"][accepted]), np.sort(requests["finish_us"][accepted])
    return np.searchsorted(sent, moments_us, side="right") - np.searchsorted(ended, moments_us, side="right")


def serve(
    load: Load,
    limits: Limits,
    host: Host,
    costs: PackedCosts,
    *,
    keep_steps: bool = False,
    windows_from_us: float | None = None,
    scratch: np.ndarray | None = None,
) -> Served:
    """Simulate one replica; all requests end, as finished or as turned away.

    ``windows_from_us``: where windows of time begin; None: none are counted. ``scratch``: an array of shape
    (3, costs.values.size) that takes the uses where nobody reads them; Served has none.
    ValueError: no request, or a block size beyond what the engine record has room for.
    """
    n = load.arrival_us.size
    if n == 0 or not 0 < limits.block_size <= LARGEST_BLOCK:
        raise ValueError(
            f"a replica needs a request and blocks of 1 to {LARGEST_BLOCK} tokens, not {n} and {limits.block_size}"
        )
    requests = np.zeros(n, REQUEST)
    requests["arrival_us"] = load.arrival_us
    requests["prompt"] = requests["known"] = load.prompt_tokens
    requests["target"] = load.prompt_tokens + load.output_tokens
    requests["status"] = FINISHED
    if load.priority.size:
        requests["priority"] = load.priority
    caching = limits.prefix_caching and load.hash_tokens > 0
    hashes, entries = np.zeros(1, np.int64), np.zeros(1, ENTRY)
    if caching:
        check_caching(load, limits)
        hashes = load.hashes
        requests["hash_at"], requests["hash_count"] = load.hash_offsets[:-1], np.diff(load.hash_offsets)
        # the hash blocks, then the private blocks that each request leaves
        entries = np.zeros(int(hashes.max(initial=-1)) + 1 + n, ENTRY)
    for name in ("sent_us", "scheduled_us", "first_token_us", "finish_us", "resumed_us"):
        requests[name] = -1.0
    for name in ("leaves_at", "fills_at"):
        requests[name] = NOBODY
    engines = np.zeros(1, ENGINE)
    for name in ("now", "previous_start", "first_us", "last_us"):
        engines[name] = load.arrival_us[0]
    for name in QUEUES:
        engines[name] = NOBODY
    engines["free_units"] = engines["blank_units"] = limits.capacity_units
    engines["full_running"] = NO_LIMIT
    clients = np.zeros(1, CLIENT)
    clients["now"], clients["max_concurrency"] = load.arrival_us[0], limits.max_concurrency
    heaps = np.zeros((1, 2, 2 * min(limits.max_num_seqs, n) + 16, 2), np.int64)
    uses = np.zeros((3, costs.values.size)) if scratch is None else scratch
    histogram = np.zeros(ITL_BINS, np.int64)
    stated, overhead = np.zeros(1, LIMITS), np.array([tuple(host)], HOST)
    for name in set(LIMITS.names) & set(limits._fields):
        stated[name] = getattr(limits, name)
    stated["plain"] = all(getattr(limits, name) == value for name, value in NO_POLICY.items())
    stated["hash_tokens"], stated["requests"] = load.hash_tokens if caching else 0, n
    counted = windows_from_us is not None
    rows = np.zeros((1, CHUNK if keep_steps or counted else 0, COLUMNS))
    kept, (sums, peaks), width_us = [], fresh(), NARROWEST_US
    while True:
        serve_until_full(
            *(clients, engines, requests, heaps, hashes, entries[np.newaxis], stated, overhead),
            *(costs.values, np.array([costs.layout]), uses, histogram, rows),
        )
        passed = rows[0, : engines[0]["rows"]]
        if counted:
            width_us = add_steps(passed, sums, peaks, windows_from_us, width_us)
        if keep_steps:
            kept.append(passed.copy())
        if clients[0]["ended"] == n:
            break
        engines["rows"] = 0
    steps = np.concatenate(kept) if kept else rows[0, :0]
    if keep_steps:
        steps[:, WAITING] = in_flight_at(steps[:, START], requests) - steps[:, RUNNING]
    engine = engines[0]
    windows = windows_of(sums, peaks, windows_from_us, width_us, engine["last_us"], requests) if counted else None
    totals = Totals(*(engine[name].item() for name in TOTALS))
    out = Outcome(*(requests[name].copy() for name in Outcome._fields))
    return Served(out, unpack_uses(uses, costs) if scratch is None else None, histogram, totals, steps, windows)
