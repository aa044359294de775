"""Simulates one scenario from Python: columns into records, the compiled loop, records into columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kernelsight.serving.engine.input_checks import check_inputs
from kernelsight.serving.engine.inputs import Host, Load, Routing, Tiers, Transfer, together_until
from kernelsight.serving.engine.limits import LIMITS, Limits, is_plain
from kernelsight.serving.engine.loop import serve_until_full
from kernelsight.serving.engine.packed_costs import PackedCosts, joined_costs, layouts_by_adapters, unpack_uses
from kernelsight.serving.engine.records import (
    CLIENT,
    ENGINE,
    ENTRY,
    FOREVER,
    GROUP,
    HOST,
    ITL_BINS,
    LAYOUT,
    MOST_ADAPTERS,
    NO_LIMIT,
    NOBODY,
    PREFIX_AWARE,
    STAGE,
)
from kernelsight.serving.engine.request_blocks import RequestBlocks
from kernelsight.serving.engine.served import Served, ServedScenario, Totals
from kernelsight.serving.engine.session_records import put_waits
from kernelsight.serving.engine.state import Scenario
from kernelsight.serving.engine.step_rows import StepRows, stays_on
from kernelsight.serving.engine.steps import COLUMNS
from kernelsight.serving.engine.tally import Tally
from kernelsight.serving.engine.tier_records import NO_TIERS, entry_records, put_tiers, tier_blocks_of
from kernelsight.serving.engine.waits import fresh_sums, request_parts

# fields of the engine record, in the order of Totals
TOTALS = (
    *("steps", "gpu_us", "host_us", "idle_us", "first_us", "last_us"),
    *("preempted", "peak_units", "gap_sum_us", "prompt_tokens", "draft_tokens", "accepted_tokens", "energy_j"),
    "measured_us",
)


# fields of the engine record that hold the first or last request of a list: NOBODY in a fresh record
QUEUES = (
    *("first_waiting", "last_waiting", "first_ended", "oldest", "newest", "partial", "last_partial", "fresh"),
    *("first_free", "last_free"),
)


def check_caching(load: Load, limits: Limits) -> None:
    """Raise ValueError for hash blocks that are no multiple of the KV block size, and for layers without caching."""
    if load.hash_tokens % limits.block_size:
        raise ValueError(
            f"hash blocks of {load.hash_tokens} tokens are no whole number of blocks of {limits.block_size}"
        )
    if limits.sequence_units or not limits.full_units:
        raise ValueError("layers with a state of their own, or with windows alone, share nothing by prefix here")


class Draft(NamedTuple):
    """The draft model of a pool: its step costs and attention window (0: none)."""

    costs: PackedCosts
    window_tokens: int = 0


class Pool(NamedTuple):
    """Identical engines of one deployment: limits, host, step costs, and the layers of each pipeline stage.

    ``draft``: the draft model of speculative decoding (see ``Limits.drafts``); None: drafts cost nothing.
    ``ranks``: number of consecutive engines that begin and end each step together (see ``ranks``); 1: none.
    ``tiers``: KV tiers behind the GPU's prefix cache.
    """

    limits: Limits
    host: Host
    costs: PackedCosts
    engines: int = 1
    layers: tuple[int, ...] = (1,)
    draft: Draft | None = None
    ranks: int = 1
    tiers: Tiers = NO_TIERS


def decode_limits(limits: Limits) -> Limits:
    """Return the limits of decode engines, which compute prompts only after preemptions.

    These are recomputed in chunks beside the decodes; prefixes are cached on the prefill engines.
    """
    other_limits = {"prefix_caching": False, "batch_wait_timeout_iters": 0, "balance": False}
    return limits._replace(chunked=True, prefill_first=False, **other_limits)


def request_records(load: Load, hashed: bool, handed_over: bool, tally: Tally | None) -> RequestBlocks:
    """Return fresh REQUEST records.

    ``hashed``: with their prompts' hash blocks. ``handed_over``: prefilled on one engine, decoded on another (P/D
    disaggregation). ``tally``: adds up those that have ended.
    """
    blocks = RequestBlocks(load, hashed or handed_over or load.waits is not None, tally)
    requests = blocks.records
    if hashed:
        requests["hash_at"], requests["hash_count"] = load.hash_offsets[:-1], np.diff(load.hash_offsets)
    if handed_over:
        requests["tokens_after_transfer"] = load.output_tokens - 1
        requests["target"] = load.prompt_tokens + 1
    return blocks


def client_record(load: Load, routing: Routing, front: int, transfer: Transfer | None, filled: int) -> np.ndarray:
    """Return a fresh CLIENT record, shape [1].

    ``front``: number of engines that it sends to; ``filled``: number of requests whose records are filled.
    """
    client = np.zeros(1, CLIENT)
    client["filled"] = filled
    client["now"], client["until_us"] = load.arrival_us[0], FOREVER
    if load.waits is not None:
        client["next"] = np.setdiff1d(np.arange(load.arrival_us.size), load.waits.request)[0]
    client["warmups"] = client["warmups_left"] = load.warmups
    client["max_concurrency"], client["hash_tokens"] = load.max_concurrency, load.hash_tokens
    client["user_us"] = load.user_us
    if load.waits is None:
        settings = (load.warmups, load.max_concurrency, load.user_us)
        client["together_until"] = together_until(load.arrival_us, *settings)
    client["front"], client["prefills"] = front, transfer is not None
    if transfer is not None:
        client["link"] = tuple(transfer)
    for name, value in routing._asdict().items():
        client[name] = tuple(value) if name == "weights" else value
    return client


def engine_records(pools: Sequence[Pool], start_us: float) -> np.ndarray:
    """Return fresh ENGINE records, pool after pool, shape [engines]."""
    engines = np.zeros(sum(pool.engines for pool in pools), ENGINE)
    for name in ("now", "previous_start", "first_us", "last_us"):
        engines[name] = start_us
    for name in QUEUES:
        engines[name] = NOBODY
    sizes = [pool.engines for pool in pools]
    # with polls that take time, none has happened yet
    engines["previous_start"][np.repeat([pool.limits.batch_wait_us > 0.0 for pool in pools], sizes)] = -FOREVER
    capacity = np.repeat([pool.limits.capacity_units for pool in pools], sizes)
    engines["free_units"] = engines["blank_units"] = capacity
    engines["full_running"] = NO_LIMIT
    return engines


def limit_records(pools: Sequence[Pool], load: Load) -> np.ndarray:
    """Return the LIMITS records of all engines, shape [engines]."""
    pool_limits = np.zeros(len(pools), LIMITS)
    for record, pool in zip(pool_limits, pools, strict=True):
        limits = pool.limits if load.adapter.size else pool.limits._replace(max_loras=0)
        for name, value in limits._asdict().items():
            record[name] = value
        record["assumed_loras"] = 0 if load.adapter.size else pool.limits.max_loras
        levels, numbers = pool.costs.surface.adapter_levels, np.arange(1, MOST_ADAPTERS + 1)
        record["levels"] = 1 + levels.size
        record["level_of"][1:] = 1 + np.minimum(np.searchsorted(levels, numbers), levels.size - 1)
        record["plain"] = is_plain(limits)
        record["hash_tokens"] = load.hash_tokens if pool.limits.prefix_caching else 0
        record["stages"] = len(pool.layers)
        record["per_request_progress"] = len(pool.layers) > 1 or pool.limits.drafts > 0
        record["ranks"] = pool.ranks
        record["draft_model"] = pool.draft is not None
        record["draft_window_tokens"] = pool.draft.window_tokens if pool.draft else 0
        put_tiers(record, pool.tiers, pool.ranks, pool.limits.prefill_first)
    pool_limits["requests"] = load.arrival_us.size
    limits = np.repeat(pool_limits, [pool.engines for pool in pools])
    # the ranks of a replica are consecutive
    limits["rank"] = np.concatenate([np.arange(pool.engines) for pool in pools]) % limits["ranks"]
    return limits


def host_records(host: Host) -> np.ndarray:
    """Return HOST records of steps without kernels of adapters, and with them, shape [2]."""
    return np.array([tuple(host.without_adapters()), tuple(host)], HOST)


def level_layouts(pools: Sequence[Pool], layouts: np.ndarray) -> np.ndarray:
    """Return the layouts of pools by adapters of a step, shape [pools, levels]; those with fewer levels end unused."""
    most = max(1 + pool.costs.surface.adapter_levels.size for pool in pools)
    by_level = np.repeat(layouts, most).reshape(len(pools), most)
    for row, pool, layout in zip(by_level, pools, layouts, strict=True):
        own = layouts_by_adapters(layout, pool.costs.surface)
        row[: own.size] = own
    return by_level


def stage_records(pools: Sequence[Pool], start_us: float) -> np.ndarray:
    """Return fresh STAGE records, shape [engines, largest number of stages]; engines with fewer leave some unused."""
    stages = np.zeros((len(pools), max(len(pool.layers) for pool in pools)), STAGE)
    for stages_of_pool, pool in zip(stages, pools, strict=True):
        stages_of_pool["share"][: len(pool.layers)] = np.array(pool.layers) / sum(pool.layers)
        stages_of_pool["group"] = 1 + np.arange(stages_of_pool.size)
    stages["free_us"] = start_us
    return np.repeat(stages, [pool.engines for pool in pools], axis=0)


def group_records(limits: np.ndarray) -> np.ndarray:
    """Return fresh GROUP records, shape [engines, largest number of stages + 1]; [engines, 1] without pipelining."""
    stages = int(limits["stages"].max()) if limits["per_request_progress"].any() else 0
    groups = np.zeros((limits.size, stages + 1), GROUP)
    groups["group"], groups["fresh"] = np.arange(stages + 1), NOBODY
    return groups


def close_stages(engine: np.void, stages: np.ndarray) -> None:
    """Set the end and the idle time of an engine with stages: summed over stages, until the last one ends."""
    engine["last_us"] = max(engine["last_us"], stages["free_us"].max())
    engine["idle_us"] = (stages["idle_us"] + engine["last_us"] - stages["free_us"]).sum()


def fresh_scenario(
    load: Load,
    pools: Sequence[Pool],
    routing: Routing,
    transfer: Transfer | None,
    scratch: np.ndarray | None,
    split: bool,
    tally: Tally | None = None,
) -> tuple[Scenario, RequestBlocks]:
    """Return a scenario before its first arrival, without a buffer of step rows, and its requests' records.

    See ``serve_scenario``. InvalidInput: a load or an engine that cannot be simulated.
    """
    check_inputs(load, pools)
    n, sizes = load.arrival_us.size, [pool.engines for pool in pools]
    engines, limits = engine_records(pools, load.arrival_us[0]), limit_records(pools, load)
    front = engines.size if transfer is None else pools[0].engines
    caching, routed = bool(limits["hash_tokens"].any()), routing.router == PREFIX_AWARE and load.hash_tokens > 0
    blocks = int(load.hashes.max(initial=-1)) + 1 if caching or routed else 0
    costs, layouts = joined_costs(
        [*(pool.costs for pool in pools), *(pool.draft.costs for pool in pools if pool.draft)]
    )
    draft_layouts = np.zeros(len(pools), LAYOUT)
    draft_layouts[[pool.draft is not None for pool in pools]] = layouts[len(pools) :]
    layouts["split"] = split
    blocks_of_requests = request_records(load, caching or routed, transfer is not None, tally)
    requests = blocks_of_requests.records
    groups, most_running = group_records(limits), min(int(limits["max_num_seqs"].max()), n)
    heaps = 2 if groups.shape[1] == 1 else 3
    scenario = Scenario(
        clients=client_record(load, routing, front, transfer, blocks_of_requests.filled),
        engines=engines,
        requests=requests,
        edges=put_waits(requests, load.waits),
        turns=np.zeros((1 if load.waits is None and transfer is None else n, 2)),
        sent=np.zeros((front, blocks if routed else 1), np.bool_),
        heaps=np.zeros((*groups.shape, heaps, 2 * most_running + 16, 2), np.int64),
        hashes=load.hashes,
        entries=entry_records(limits, [(pool.tiers, pool.engines) for pool in pools], blocks, n)
        if caching
        else np.zeros(1, ENTRY),
        limits=limits,
        host=np.repeat(np.stack([host_records(pool.host) for pool in pools]), sizes, axis=0),
        costs=costs,
        layout=np.repeat(level_layouts(pools, layouts[: len(pools)]), sizes, axis=0),
        draft_layout=np.repeat(draft_layouts, sizes),
        uses=np.zeros((3, costs.size)) if scratch is None else scratch,
        histogram=np.zeros(ITL_BINS, np.int64),
        stages=stage_records(pools, load.arrival_us[0]),
        groups=groups,
        rows=np.zeros((engines.size, 0, COLUMNS)),
        sums=fresh_sums(n, split),
    )
    return scenario, blocks_of_requests


def serve_scenario(
    load: Load,
    pools: Sequence[Pool],
    routing: Routing | None = None,
    *,
    transfer: Transfer | None = None,
    keep_steps: bool = False,
    windows_from_us: float | None = None,
    scratch: np.ndarray | None = None,
    split: bool = False,
    tally: Tally | None = None,
) -> ServedScenario:
    """Simulate one client, its router and all engines, until every request is finished or rejected.

    ``transfer``: the first pool prefills, the second decodes, and KV is transferred between them.
    ``windows_from_us``: start of the first window of time; None: no windows. ``scratch``: an array of shape
    (3, size of the pools' costs) for uses that are not read. ``split``: with the parts of requests' times (``waits``).
    ``tally``: adds up the requests of a single engine, whose outcome is not returned then.
    InvalidInput: see ``check_inputs``. ValueError: pipeline stages without their costs.
    """
    n = load.arrival_us.size
    if any(len(pool.layers) > 1 and not pool.costs.surface.embedding_us.size for pool in pools):
        raise ValueError("pipeline stages need to know what of a step's time is embedding, and what transfers")
    scenario, requests = fresh_scenario(load, pools, routing or Routing(), transfer, scratch, split, tally)
    for limits in (pool.limits for pool in pools):
        if limits.prefix_caching and load.hash_tokens:
            check_caching(load, limits)
    engines, depths = scenario.engines, scenario.limits["stages"].tolist()
    per_request_progress = scenario.limits["per_request_progress"].tolist()
    rows = StepRows(depths, per_request_progress, keep_steps, windows_from_us)
    scenario = scenario._replace(rows=rows.buffer)
    run_loop = serve_until_full.bound(*scenario)
    while scenario.clients[0]["ended"] < n:
        run_loop()
        # the loop returned because records are needed, or because the step rows are full
        if not requests.turn_over(scenario.clients[0]):
            rows.take(engines)
    for engine, stages, depth, per_request in zip(engines, scenario.stages, depths, per_request_progress, strict=True):
        if per_request:
            close_stages(engine, stages[:depth])
    out, parts = requests.outcome(), None
    steps, windows = rows.finish(engines, lambda i: tally.stays() if tally else stays_on(i, engines.size, out))
    totals = [Totals(*(engine[name].item() for name in TOTALS)) for engine in engines]
    uses = draft_uses = None
    if scratch is None:
        firsts = list(zip(pools, np.cumsum([0, *(pool.engines for pool in pools[:-1])]), strict=True))
        uses = [unpack_uses(scenario.uses, pool.costs, scenario.layout[i, 0]) for pool, i in firsts]
        draft_uses = [
            unpack_uses(scenario.uses, pool.draft.costs, scenario.draft_layout[i]) if pool.draft else None
            for pool, i in firsts
        ]
    if split:
        host = pools[0].host
        parts = request_parts(out, load.prompt_tokens, scenario.sums, host.request_us, host.per_prompt_token_us)
    tiers = [
        tier_blocks_of(engine, int(limits["tiers"])) for engine, limits in zip(engines, scenario.limits, strict=True)
    ]
    return ServedScenario(out, uses, scenario.histogram, totals, steps, windows, draft_uses, parts, tiers)


def serve(
    load: Load,
    limits: Limits,
    host: Host,
    costs: PackedCosts,
    *,
    layers: tuple[int, ...] = (1,),
    draft: Draft | None = None,
    tiers: Tiers = NO_TIERS,
    keep_steps: bool = False,
    windows_from_us: float | None = None,
    scratch: np.ndarray | None = None,
    split: bool = False,
    tally: Tally | None = None,
) -> Served:
    """Simulate a single engine with its own client; see ``Pool`` and ``serve_scenario``."""
    options = {"keep_steps": keep_steps, "windows_from_us": windows_from_us, "scratch": scratch, "split": split}
    options["tally"] = tally
    served = serve_scenario(load, [Pool(limits, host, costs, layers=layers, draft=draft, tiers=tiers)], **options)
    uses = served.uses[0] if served.uses else None
    windows = served.windows[0] if served.windows else None
    draft_uses = served.draft_uses[0] if served.draft_uses else None
    engine_results = served.totals[0], served.steps[0], windows, draft_uses, served.parts, served.tiers[0]
    return Served(served.out, uses, served.histogram, *engine_results)
