"""One scenario's simulation from Python: columns into records, the compiled loop, records into columns."""

from __future__ import annotations

from collections.abc import Sequence
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
    PREFIX_AWARE,
    REQUEST,
    Host,
    Limits,
    Load,
    Routing,
    Served,
    ServedScenario,
    Surface,
    Totals,
    Transfer,
    Uses,
)
from kernelsight.serving.request_columns import fill_requests, outcome_of
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


def joined_costs(packed: Sequence[PackedCosts]) -> tuple[np.ndarray, np.ndarray]:
    """Return the costs of several pools in one array, and where the parts of each stand, shape [pools]."""
    if len(packed) == 1:
        return packed[0].values, np.array([packed[0].layout])
    layouts = np.array([costs.layout for costs in packed])
    starts = np.concatenate([[0], np.cumsum([costs.values.size for costs in packed])])[:-1]
    for layout, start in zip(layouts, starts, strict=True):
        for name in ("tokens_at", "sampled_at"):
            layout[name] += start
        for part in ("decode", "window", "prefill"):
            for name in ("x_at", "share_at", "y_at", "at"):
                layout[part][name] += start
    return np.concatenate([costs.values for costs in packed]), layouts


def unpack_uses(uses: np.ndarray, costs: PackedCosts, layout: np.void) -> Uses:
    """Return the uses by part, of shape (3 phases, ...); tokens are counted where their CUDA graph pads them to."""
    surface = costs.surface
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
    if limits.sequence_units or not limits.full_units:
        raise ValueError("layers with a state of their own, or with windows alone, share nothing by prefix here")


class Pool(NamedTuple):
    """Engines that are alike: one deployment's limits, host and costs."""

    limits: Limits
    host: Host
    costs: PackedCosts
    engines: int = 1


def decode_limits(limits: Limits) -> Limits:
    """Return the limits of engines that decode what others prefill: prompts are the exception, after preemptions.

    These are recomputed beside the decodes, in chunks; prefixes are cached where prompts are computed.
    """
    return limits._replace(chunked=True, prefill_first=False, prefix_caching=False, batch_wait_timeout_iters=0)


def stays_on(engine: int, engines: int, requests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return when the requests that an engine did not turn away came to it and left it, in no common order."""
    accepted = requests["status"] == FINISHED
    if engines == 1:
        return requests["sent_us"][accepted], requests["finish_us"][accepted]
    own = requests[accepted & (requests["replica"] == engine)]
    sent_on = requests[requests["prefill_replica"] == engine]
    came = np.where(own["received_us"] >= 0.0, own["received_us"], own["sent_us"])
    # a prefill engine gives the first token and is done
    left = np.concatenate([own["finish_us"], sent_on["first_token_us"]])
    return np.concatenate([came, sent_on["sent_us"]]), left


def in_flight_at(moments_us: np.ndarray, came_us: np.ndarray, left_us: np.ndarray) -> np.ndarray:
    """Return how many requests had come and had not left at each moment, shape [moments]."""
    came, left = np.sort(came_us), np.sort(left_us)
    return np.searchsorted(came, moments_us, side="right") - np.searchsorted(left, moments_us, side="right")


def request_records(load: Load, hashed: bool, handed_over: bool) -> np.ndarray:
    """Return fresh REQUEST records, shape [requests].

    ``hashed``: with their prompts' hash blocks. ``handed_over``: who gives the first token does not give the others.
    """
    requests = np.zeros(load.arrival_us.size, REQUEST)
    fill_requests(requests, load.arrival_us, load.prompt_tokens, load.output_tokens)
    if load.priority.size:
        requests["priority"] = load.priority
    if hashed:
        requests["hash_at"], requests["hash_count"] = load.hash_offsets[:-1], np.diff(load.hash_offsets)
    if load.follows is not None:
        later = np.flatnonzero(load.follows >= 0)
        requests["next_turn"][load.follows[later]] = later
        requests["follows"][later] = True
        requests["think_us"] = load.think_us
    if handed_over:
        requests["rest"] = load.output_tokens - 1
        requests["target"] = load.prompt_tokens + 1
    return requests


def client_record(load: Load, routing: Routing, front: int, transfer: Transfer | None) -> np.ndarray:
    """Return a fresh CLIENT record, shape [1]; ``front``: engines that it sends to."""
    client = np.zeros(1, CLIENT)
    client["now"] = load.arrival_us[0]
    client["warmups"] = client["warmups_left"] = load.warmups
    client["max_concurrency"], client["hash_tokens"] = load.max_concurrency, load.hash_tokens
    client["front"], client["prefills"] = front, transfer is not None
    if transfer is not None:
        client["link"] = tuple(transfer)
    for name, value in routing._asdict().items():
        client[name] = value
    return client


def engine_records(pools: Sequence[Pool], start_us: float) -> np.ndarray:
    """Return fresh ENGINE records, pool after pool, shape [engines]."""
    engines = np.zeros(sum(pool.engines for pool in pools), ENGINE)
    for name in ("now", "previous_start", "first_us", "last_us"):
        engines[name] = start_us
    for name in QUEUES:
        engines[name] = NOBODY
    capacity = np.repeat([pool.limits.capacity_units for pool in pools], [pool.engines for pool in pools])
    engines["free_units"] = engines["blank_units"] = capacity
    engines["full_running"] = NO_LIMIT
    return engines


def limit_records(pools: Sequence[Pool], load: Load) -> np.ndarray:
    """Return the LIMITS records of all engines, shape [engines]."""
    stated = np.zeros(len(pools), LIMITS)
    for record, pool in zip(stated, pools, strict=True):
        for name in set(LIMITS.names) & set(Limits._fields):
            record[name] = getattr(pool.limits, name)
        record["plain"] = all(getattr(pool.limits, name) == value for name, value in NO_POLICY.items())
        record["hash_tokens"] = load.hash_tokens if pool.limits.prefix_caching else 0
    stated["requests"] = load.arrival_us.size
    return np.repeat(stated, [pool.engines for pool in pools])


def serve_scenario(
    load: Load,
    pools: Sequence[Pool],
    routing: Routing | None = None,
    *,
    transfer: Transfer | None = None,
    keep_steps: bool = False,
    windows_from_us: float | None = None,
    scratch: np.ndarray | None = None,
) -> ServedScenario:
    """Simulate one client, its router and all engines; all requests end, as finished or as turned away.

    ``transfer``: one pool prefills, the other decodes, and the KV of prompts goes from the one to the other.
    ``windows_from_us``: where windows of time begin; None: none are counted. ``scratch``: an array of shape
    (3, size of the pools' costs) that takes the uses where nobody reads them.
    ValueError: no request, or a block size beyond what the engine record has room for.
    """
    n, routing = load.arrival_us.size, routing or Routing()
    for limits in (pool.limits for pool in pools):
        if n == 0 or not 0 < limits.block_size <= LARGEST_BLOCK:
            raise ValueError(
                f"a replica needs a request and blocks of 1 to {LARGEST_BLOCK} tokens, not {n} and {limits.block_size}"
            )
        if limits.prefix_caching and load.hash_tokens:
            check_caching(load, limits)
    engines = engine_records(pools, load.arrival_us[0])
    front = engines.size if transfer is None else pools[0].engines
    clients = client_record(load, routing, front, transfer)
    limits = limit_records(pools, load)
    host = np.repeat(np.array([tuple(pool.host) for pool in pools], HOST), [pool.engines for pool in pools])
    caching, routed = bool(limits["hash_tokens"].any()), routing.router == PREFIX_AWARE and load.hash_tokens > 0
    requests = request_records(load, caching or routed, transfer is not None)
    blocks = int(load.hashes.max(initial=-1)) + 1 if caching or routed else 0
    # the hash blocks, then the private blocks that each request leaves
    entries = np.zeros((engines.size, blocks + n if caching else 1), ENTRY)
    sent = np.zeros((front, blocks if routed else 1), np.bool_)
    turns = np.zeros((1 if load.follows is None and transfer is None else n, 2))
    heaps = np.zeros((engines.size, 2, 2 * min(int(limits["max_num_seqs"].max()), n) + 16, 2), np.int64)
    costs, layouts = joined_costs([pool.costs for pool in pools])
    layout = np.repeat(layouts, [pool.engines for pool in pools])
    uses = np.zeros((3, costs.size)) if scratch is None else scratch
    histogram = np.zeros(ITL_BINS, np.int64)
    counted = windows_from_us is not None
    chunk = max(CHUNK // engines.size, 1024) if keep_steps or counted else 0
    rows = np.zeros((engines.size, chunk, COLUMNS))
    kept: list[list[np.ndarray]] = [[] for _ in engines]
    sums, widths_us = [fresh() for _ in engines], [NARROWEST_US] * engines.size
    while True:
        serve_until_full(
            *(clients, engines, requests, turns, sent, heaps, load.hashes, entries, limits, host),
            *(costs, layout, uses, histogram, rows),
        )
        for i, engine in enumerate(engines):
            passed = rows[i, : engine["rows"]]
            if counted:
                widths_us[i] = add_steps(passed, *sums[i], windows_from_us, widths_us[i])
            if keep_steps:
                kept[i].append(passed.copy())
        if clients[0]["ended"] == n:
            break
        engines["rows"] = 0
    steps, windows = [np.concatenate(each) if each else rows[0, :0] for each in kept], []
    for i in range(engines.size if keep_steps or counted else 0):
        stays = stays_on(i, engines.size, requests)
        if keep_steps:
            steps[i][:, WAITING] = in_flight_at(steps[i][:, START], *stays) - steps[i][:, RUNNING]
        if counted:
            windows.append(windows_of(*sums[i], windows_from_us, widths_us[i], engines["last_us"][i], *stays))
    totals = [Totals(*(engine[name].item() for name in TOTALS)) for engine in engines]
    out = outcome_of(requests)
    paid = [unpack_uses(uses, pool.costs, at) for pool, at in zip(pools, layouts, strict=True)]
    return ServedScenario(out, paid if scratch is None else None, histogram, totals, steps, windows or None)


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
    """Simulate one engine by itself, with a client of its own; see ``serve_scenario``."""
    served = serve_scenario(
        load, [Pool(limits, host, costs)], keep_steps=keep_steps, windows_from_us=windows_from_us, scratch=scratch
    )
    uses = served.uses[0] if served.uses else None
    windows = served.windows[0] if served.windows else None
    return Served(served.out, uses, served.histogram, served.totals[0], served.steps[0], windows)
