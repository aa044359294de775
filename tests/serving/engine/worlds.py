"""Small worlds for the scheduler's loop: limits, host constants, step costs and requests, drawn or stated."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from hypothesis import strategies as st

from kernelsight.serving.engine import inputs, packed_costs, records, replica
from kernelsight.serving.engine.limits import Limits
from kernelsight.serving.engine.served import Served, ServedScenario
from tests.serving.engine.reference_costs import Costs
from tests.serving.engine.reference_scheduler import Request, Run, serve

NO_LIMIT = records.NO_LIMIT
T = TypeVar("T")
SECONDS_AT_MOST = 900.0  # the first call compiles, slowly where the machine is busy


class World(NamedTuple):
    """All that one simulation reads."""

    limits: Limits
    host: inputs.Host
    surface: inputs.Surface
    load: inputs.Load


def run_loop(world: World, keep_steps: bool = True, windows_from_us: float | None = None) -> Served:
    """Run the compiled loop on one engine; fails where it does not end."""
    costs, kept = packed_costs.pack(world.surface), {"keep_steps": keep_steps, "windows_from_us": windows_from_us}
    return in_time(lambda: replica.serve(world.load, world.limits, world.host, costs, **kept))


def in_time(simulate: Callable[[], T]) -> T:
    """Return what a simulation gives; fails where it does not end."""
    answer: list[T] = []
    # the compiled loop cannot be interrupted: a thread that is left behind turns a hang into a failure
    thread = threading.Thread(target=lambda: answer.append(simulate()), daemon=True)
    thread.start()
    thread.join(SECONDS_AT_MOST)
    assert not thread.is_alive(), "the loop does not end"
    assert answer, "the loop failed"
    return answer[0]


def run_reference(world: World) -> Run:
    """Run the reference scheduler."""
    load, requests = world.load, reference_requests(world.load)
    costs = Costs(world.surface, world.limits.window_tokens)
    how = {"max_concurrency": load.max_concurrency, "user_us": load.user_us}
    return serve(requests, world.limits, world.host, costs.gpu_time, load.hash_tokens, **how)


def reference_requests(load: inputs.Load) -> list[Request]:
    """Return a load's requests as the reference takes them."""
    priority = load.priority if load.priority.size else np.zeros(load.arrival_us.size, np.int64)
    adapter = load.adapter if load.adapter.size else np.full(priority.size, -1)
    columns = (load.arrival_us, load.prompt_tokens, load.output_tokens, hashes_of(load), priority, range(priority.size))
    return [
        Request(float(a), int(p), int(o), h, int(f), n, int(d))
        for a, p, o, h, f, n, d in zip(*columns, adapter, strict=True)
    ]


def hashes_of(load: inputs.Load) -> list[tuple[int, ...]]:
    """Return the hash blocks of each prompt."""
    if load.hash_tokens == 0:
        return [()] * load.arrival_us.size
    ends = load.hash_offsets
    return [tuple(load.hashes[a:b].tolist()) for a, b in zip(ends, ends[1:], strict=False)]


# ---------------------------------------------------------------- stated worlds


def constant_world(
    requests: list[tuple[float, int, int]], step_us: float = 100.0, host: dict | None = None, **limits: object
) -> World:
    """Return a world where every step takes ``step_us`` on the GPU; requests are (arrival us, prompt, output)."""
    flags = {
        **{"max_num_seqs": 8, "max_num_batched_tokens": 64, "long_prefill_token_threshold": 0, "max_model_len": 1000},
        **{"block_size": 4, "full_units": 1, "window_units": 0, "window_blocks": 0, "sequence_units": 0},
        **{"capacity_units": 1000, "window_tokens": 0, "chunked": True, "prefill_first": False},
        "asynchronous": False,
    } | limits
    concurrency = flags.pop("max_concurrency", NO_LIMIT)
    constants = {
        **{"exposed_us": 0.0, "base_us": 0.0, "per_request_us": 0.0, "per_token_us": 0.0, "eager_launches_us": 0.0},
        **{"request_us": 0.0, "overlapped": True, "graph_max_tokens": 0},
    } | (host or {})
    tokens = flags["max_num_batched_tokens"]
    nothing = (np.zeros(1), np.zeros(1), np.zeros((1, 1)))
    surface = inputs.Surface(
        *(np.full(tokens + 1, step_us), np.arange(tokens + 1), np.zeros(flags["max_num_seqs"] + 1)),
        *(*nothing, *nothing, *nothing),
    )
    load = load_of(requests)._replace(max_concurrency=concurrency)
    return World(Limits(**flags), inputs.Host(**constants), surface, load)


def load_of(requests: list[tuple[float, int, int]]) -> inputs.Load:
    """Return the columns of requests (arrival us, prompt tokens, output tokens)."""
    arrival, prompt, output = zip(*requests, strict=True)
    return inputs.Load(np.array(arrival, float), np.array(prompt, np.int64), np.array(output, np.int64))


def load_with_last(load: inputs.Load) -> inputs.Load:
    """Return the load with one request more, of one token, long after all others."""
    offsets = np.append(load.hash_offsets, load.hash_offsets[-1:])
    arrival_us = np.append(load.arrival_us, load.arrival_us[-1] + 1e7)
    more = {"prompt_tokens": np.append(load.prompt_tokens, 1), "output_tokens": np.append(load.output_tokens, 1)}
    if load.priority.size:
        more["priority"] = np.append(load.priority, 9)
    if load.adapter.size:
        more["adapter"] = np.append(load.adapter, -1)
    return load._replace(arrival_us=arrival_us, hash_offsets=offsets, **more)


# ---------------------------------------------------------------- drawn worlds


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a world of up to 12 requests: tight or ample KV capacity, all policies, constant or uneven step costs."""
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    whole = draw(st.booleans())  # whole numbers of microseconds: things happen at the same time
    limits = draw(limits_drawn())
    requests = draw(requests_drawn(whole))
    host = draw(hosts_drawn(whole))
    surface = draw_surface(dice, limits, whole, constant=draw(st.booleans()))
    limits = limits._replace(capacity_units=draw(capacities(limits, requests)))
    concurrency = draw(st.sampled_from([NO_LIMIT, NO_LIMIT, 1, 2, 3, 5]))
    user_us = draw(st.sampled_from([0.0, 0.0, 700.0]))
    return World(limits, host, surface, load_of(requests)._replace(max_concurrency=concurrency, user_us=user_us))


@st.composite
def caching_worlds(draw: st.DrawFn) -> World:
    """Draw a world of prompts that share prefixes: hashes of 1 to 4 blocks, often tight memory, some with windows."""
    world = draw(worlds())
    block_size = draw(st.sampled_from([1, 2, 4]))
    full, window = draw(st.sampled_from([(1, 0), (1, 0), (1, 2), (2, 1), (3, 0)]))
    limits = world.limits._replace(
        **{"block_size": block_size, "full_units": full, "window_units": window, "sequence_units": 0},
        **{"prefix_caching": True, "max_model_len": 80, "window_blocks": draw(st.integers(1, 4)) if window else 0},
        windows_apart=bool(window) and draw(st.booleans()),
    )
    load = draw(shared_prompts(world.load, block_size * draw(st.sampled_from([1, 1, 2, 4]))))
    requests = list(zip(load.arrival_us, load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True))
    return world._replace(load=load, limits=limits._replace(capacity_units=draw(capacities(limits, requests))))


@st.composite
def shared_prompts(draw: st.DrawFn, load: inputs.Load, hash_tokens: int) -> inputs.Load:
    """Give prompts of a load hashes: new texts, texts of earlier prompts that are repeated, cut, or gone on with.

    A text is one letter a hash; a hash stands for its letter and all before it. The last one of a prompt, where it is
    partly filled, is either the same as the whole one or one of its own.
    """
    lengths, texts = [], []
    own_tails = draw(st.booleans())
    letters = st.integers(0, draw(st.sampled_from([0, 1, 9])))
    for prompt in load.prompt_tokens.tolist():
        text, kind = [], draw(st.sampled_from(["new", "again", "longer", "cut"]))
        if texts and kind != "new":
            number = draw(st.integers(0, len(texts) - 1))
            text, prompt = list(texts[number]), lengths[number] if kind == "again" else prompt
            if kind == "longer":
                prompt = min(lengths[number] + draw(st.integers(0, 12)), 45)
        whole = -(-prompt // hash_tokens)
        text = text[:whole] + draw(st.lists(letters, min_size=max(whole - len(text), 0), max_size=max(whole, 0)))
        lengths.append(prompt)
        texts.append(text[:whole])
    names: dict[tuple, int] = {}
    hashes, offsets = [], [0]
    for prompt, text in zip(lengths, texts, strict=True):
        # a few requests do not say all their hashes
        said = draw(st.sampled_from([len(text)] * 5 + [len(text) // 2, 0]))
        for end in range(1, said + 1):
            filled = min(prompt - (end - 1) * hash_tokens, hash_tokens) if own_tails else hash_tokens
            hashes.append(names.setdefault((*text[:end], filled), len(names)))
        offsets.append(len(hashes))
    return load._replace(
        prompt_tokens=np.array(lengths, np.int64),
        hashes=np.array(hashes, np.int64),
        hash_offsets=np.array(offsets, np.int64),
        hash_tokens=hash_tokens,
    )


@st.composite
def limits_drawn(draw: st.DrawFn) -> Limits:
    """Draw scheduler limits; the KV capacity is set afterwards."""
    seqs = draw(st.integers(1, 6))
    full, window, fixed = draw(st.sampled_from([(1, 0, 0), (1, 2, 0), (2, 1, 1), (0, 1, 0), (0, 0, 1), (1, 0, 2)]))
    return Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 40)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 9])),
        max_model_len=draw(st.sampled_from([40, 80])),
        block_size=draw(st.sampled_from([1, 2, 4, 16])),
        full_units=full,
        window_units=window,
        window_blocks=draw(st.integers(1, 4)) if window else 0,
        sequence_units=fixed,
        capacity_units=0,
        window_tokens=draw(st.sampled_from([0, 1, 7, 30])),
        chunked=draw(st.booleans()),
        prefill_first=draw(st.booleans()),
        asynchronous=draw(st.booleans()),
        whole_prompts=draw(st.booleans()),
        windows_apart=bool(full and window) and draw(st.booleans()),
    )


@st.composite
def policies_drawn(draw: st.DrawFn, budget: int) -> dict[str, object]:
    """Draw what single engines do otherwise, all of it in any combination."""
    return {
        "static": draw(st.sampled_from([False, False, False, True])),
        "capacity_policy": draw(st.sampled_from(range(len(records.CAPACITY_POLICIES)))),
        "schedule_conservativeness": draw(st.sampled_from([0.1, 1.0, 1.5])),
        "batch_wait_timeout_iters": draw(st.sampled_from([0, 0, 1, 3, 10])),
        "batch_wait_tokens": budget * draw(st.sampled_from([0.0, 0.3, 0.8])),
        "scheduler_recv_interval": draw(st.sampled_from([1, 1, 2, 5, 1500])),
        "max_num_partial_prefills": draw(st.sampled_from([0, 0, 1, 2])),
        "max_long_partial_prefills": draw(st.sampled_from([0, 0, 1, 2])),
        "by_priority": draw(st.booleans()),
        "fewest_generated": draw(st.booleans()),
    }


@st.composite
def adapters_drawn(draw: st.DrawFn) -> dict[str, object]:
    """Draw limits of adapters."""
    slots = draw(st.integers(1, 3))
    return {
        "max_loras": slots,
        "adapter_places": slots + draw(st.integers(0, 2)),
        "adapter_head_waits": draw(st.booleans()),
        "adapter_load_us": draw(st.sampled_from([0.0, 20.0, 900.0])),
        "adapter_read_us": draw(st.sampled_from([0.0, 300.0])),
        "launched_tokens": draw(st.sampled_from([0, 2, NO_LIMIT])),
        "launched_prompt_tokens": draw(st.sampled_from([0, 5, NO_LIMIT])),
    }


@st.composite
def policy_worlds(draw: st.DrawFn) -> World:
    """Draw a world with policies of single engines, some of them with a prefix cache."""
    world = draw(worlds() | caching_worlds())
    policies = draw(policies_drawn(world.limits.max_num_batched_tokens))
    count = world.load.arrival_us.size
    priority = draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count))
    load = world.load._replace(priority=np.array(priority, np.int64))
    limits, host, surface = world.limits._replace(**policies), world.host, world.surface
    if draw(st.booleans()):
        adapter = draw(st.lists(st.integers(-1, 4), min_size=count, max_size=count))
        load, limits = load._replace(adapter=np.array(adapter, np.int64)), limits._replace(**draw(adapters_drawn()))
        surface = with_levels(surface, draw(st.sampled_from([[], [1], [1, 2], [1, 3]])))
        if surface.adapter_levels.size:
            host = draw(with_adapters(host))
    if wait_us := draw(st.sampled_from([0.0, 0.0, 30.0, 700.0])):
        limits = limits._replace(asynchronous=True, batch_wait_us=wait_us)
        host = host._replace(base_us=host.base_us + wait_us)
    return world._replace(load=load, limits=limits, host=host, surface=surface)


def with_levels(surface: inputs.Surface, levels: list[int]) -> inputs.Surface:
    """Let tokens cost more with adapters, by half for each."""
    adapted_us = np.array([surface.token_us * (1.0 + adapters / 2) for adapters in levels])
    return surface._replace(
        adapted_us=adapted_us.reshape(len(levels), surface.token_us.size), adapter_levels=np.array(levels, np.int64)
    )


@st.composite
def with_adapters(draw: st.DrawFn, host: inputs.Host) -> inputs.Host:
    """Add launches of adapters to a host."""
    added = {name: draw(st.sampled_from([0.0, 40.0])) for name in inputs.Host._fields if name.startswith("adapter_")}
    return host._replace(
        **added,
        exposed_us=host.exposed_us + added["adapter_gap_us"],
        gap_us=host.gap_us + added["adapter_gap_us"],
        eager_launches_us=host.eager_launches_us + added["adapter_eager_us"],
        captured_launches_us=host.captured_launches_us + added["adapter_captured_us"],
    )


@st.composite
def requests_drawn(draw: st.DrawFn, whole: bool) -> list[tuple[float, int, int]]:
    """Draw requests in order of arrival; some come together, some after a long pause."""
    clock = draw(st.sampled_from([0.0, 7.0, 1e6]))
    gaps = st.sampled_from([0.0, 0.0, 10.0, 50.0, 100.0, 250.0, 5000.0]) if whole else st.floats(0.0, 900.0)
    lengths = st.one_of(st.just(1), st.integers(1, 12), st.integers(1, 45))
    requests = []
    for _ in range(draw(st.integers(1, 12))):
        requests.append((clock, draw(lengths), draw(lengths)))
        clock += draw(gaps)
    return requests


@st.composite
def hosts_drawn(draw: st.DrawFn, whole: bool) -> inputs.Host:
    """Draw host constants, none of them or all."""
    if draw(st.booleans()):
        return inputs.Host(0.0, 0.0, 0.0, 0.0, 0.0, draw(st.sampled_from([0.0, 30.0])), True, 0)
    uneven = 0.0 if whole else 0.37
    return inputs.Host(
        exposed_us=draw(st.sampled_from([0.0, 5.0])) + uneven,
        base_us=draw(st.sampled_from([0.0, 40.0, 150.0])) + uneven,
        per_request_us=draw(st.sampled_from([0.0, 4.0])) + uneven,
        per_token_us=draw(st.sampled_from([0.0, 1.0])) + uneven,
        eager_launches_us=draw(st.sampled_from([0.0, 60.0])) + uneven,
        request_us=draw(st.sampled_from([0.0, 20.0, 400.0])) + uneven,
        overlapped=draw(st.booleans()),
        graph_max_tokens=draw(st.sampled_from([0, 4, 16])),
        captured_launches_us=draw(st.sampled_from([0.0, 15.0])) + uneven,
        exposed_per_request_us=draw(st.sampled_from([0.0, 3.0])) + uneven,
        per_prompt_token_us=draw(st.sampled_from([0.0, 7.0])),
        prompt_graph_max_tokens=draw(st.sampled_from([0, 4, 16])),
        piecewise_launches_us=draw(st.sampled_from([0.0, 30.0])) + uneven,
        exposed_requests_half=math.inf if whole else draw(st.sampled_from([math.inf, 3.0])),
        per_active_us=draw(st.sampled_from([0.0, 2.0])),
        ranks_padded=draw(st.booleans()),
        serial_us=draw(st.sampled_from([0.0, 90.0])),
        serial_token_us=draw(st.sampled_from([0.0, 5.0])),
    )


def units_of_blocks(limits: Limits, blocks: int) -> int:
    """KV units of a request with this many blocks."""
    kinds = limits.full_units * blocks, limits.window_units * min(blocks, limits.window_blocks)
    return (max(kinds) if limits.windows_apart else sum(kinds)) + limits.sequence_units


def capacities(limits: Limits, requests: list[tuple[float, int, int]]) -> st.SearchStrategy[int]:
    """KV capacities: exactly the largest request, one unit less, a little more, or ample."""
    blocks = [-(-(prompt + output - 1) // limits.block_size) for _, prompt, output in requests]
    most = max(units_of_blocks(limits, b) for b in blocks)
    return st.sampled_from([most, most, max(most - 1, 0), most + 1, most + 3, 2 * most, 1000])


def draw_surface(dice: np.random.Generator, limits: Limits, whole: bool, constant: bool) -> inputs.Surface:
    """Return step costs: tables that grow with tokens, grids that rise or fall along their knots."""
    tokens, seqs = limits.max_num_batched_tokens, limits.max_num_seqs
    padding = int(dice.choice([1, 4, 8]))
    padded = np.minimum(-(-np.arange(tokens + 1) // padding) * padding, tokens)

    def costs(size: tuple[int, ...], scale: float) -> np.ndarray:
        if constant:
            return np.full(size, scale)
        values = dice.uniform(0.0, scale, size)
        return np.round(values) if whole else values

    def grid(largest_x: int, largest_y: int, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        xs = np.unique(np.concatenate([[1], dice.integers(1, largest_x + 1, dice.integers(0, 3))])).astype(float)
        ys = np.unique(np.concatenate([[0], dice.integers(1, largest_y + 1, dice.integers(0, 4))])).astype(float)
        values = costs((xs.size, ys.size), scale)
        # beyond the last knot the last line goes on: upwards, so that no step takes less than no time
        values[:, -2:] = np.sort(values[:, -2:], axis=1)
        return xs, ys, values

    def perhaps(part: tuple[np.ndarray, np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return part if dice.random() < 0.8 else (np.zeros(0), np.zeros(0), np.zeros((0, 0)))

    token_us = 400.0 + np.cumsum(costs((tokens + 1,), 5.0))
    return inputs.Surface(
        *(token_us, padded, np.cumsum(costs((seqs + 1,), 3.0))),
        *(*perhaps(grid(seqs, 60, 40.0)), *perhaps(grid(seqs, 30, 20.0)), *perhaps(grid(tokens, 60, 20.0))),
        *(perhaps(grid(seqs, 60, 40.0)) if dice.random() < 0.4 else ()),
        padded_prompt_tokens=np.arange(tokens + 1) if dice.random() < 0.5 else padded[:0],
    )


# ---------------------------------------------------------------- several engines, sessions and warm-ups


class Fleet(NamedTuple):
    """A world that several engines serve: alike ones, behind a router."""

    world: World
    routing: inputs.Routing
    engines: int
    tiers: inputs.Tiers = inputs.Tiers()


def run_fleet(fleet: Fleet) -> ServedScenario:
    """Run the compiled loop on a fleet; fails where it does not end."""
    world = fleet.world
    pools = [replica.Pool(world.limits, world.host, packed_costs.pack(world.surface), fleet.engines, tiers=fleet.tiers)]
    return in_time(lambda: replica.serve_scenario(world.load, pools, fleet.routing, keep_steps=True))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Draw 1 to 3 engines, sessions, warm-ups and a router.

    Step costs are whole numbers, because engines that are alike do things at the same time: rounding must not decide
    which of them is first.
    """
    world = draw(worlds() | caching_worlds() | policy_worlds())
    limits, load = world.limits, world.load
    dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens, seqs = limits.max_num_batched_tokens, limits.max_num_seqs
    grid = (np.zeros(1), np.zeros(1), np.zeros((1, 1)))
    token_us = 50.0 + np.cumsum(dice.integers(0, draw(st.sampled_from([1, 9, 60])), tokens + 1)).astype(float)
    surface = inputs.Surface(token_us, np.arange(tokens + 1), np.zeros(seqs + 1), *grid, *grid, *grid)
    host = draw(hosts_drawn(whole=True))
    host = host._replace(base_us=host.base_us + limits.batch_wait_us)
    arrival_us = load.arrival_us if draw(st.booleans()) else np.full_like(load.arrival_us, load.arrival_us[0])
    load = load._replace(arrival_us=np.floor(arrival_us), max_concurrency=draw(st.sampled_from([NO_LIMIT, 1, 2, 4])))
    load = load._replace(user_us=draw(st.sampled_from([0.0, 0.0, 700.0])))
    warmups = draw(st.sampled_from([0, 0, 1, 2]))
    routing = inputs.Routing(
        router=draw(st.sampled_from(range(len(records.ROUTERS)))),
        cache_threshold=draw(st.sampled_from([0.0, 0.3, 0.8])),
        balance_abs_threshold=draw(st.sampled_from([0, 1, 32])),
        balance_rel_threshold=draw(st.sampled_from([1.0001, 1.5])),
        weights=inputs.Weights(*(draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])) for _ in inputs.Weights._fields)),
    )
    tier = st.sampled_from([0, 2, 8, NO_LIMIT]).map(inputs.Tier)
    policy = draw(st.sampled_from(range(len(records.WRITE_POLICIES))))
    tiers = inputs.Tiers(tuple(draw(st.lists(tier, max_size=2))), policy)
    load = draw(with_sessions(load._replace(warmups=min(warmups, load.arrival_us.size))))
    return Fleet(World(limits, host, surface, load), routing, draw(st.integers(1, 3)), tiers)


@st.composite
def with_sessions(draw: st.DrawFn, load: inputs.Load) -> inputs.Load:
    """Let some requests wait for one to three earlier ones that are no warm-ups; several may wait for the same."""
    pairs: list[tuple[int, int, float]] = []
    for i in range(load.warmups + 1, load.arrival_us.size):
        if draw(st.booleans()):
            before = draw(st.sets(st.integers(load.warmups, i - 1), min_size=1, max_size=3))
            pairs += [(i, one, draw(st.sampled_from([0.0, 10.0, 150.0, 5000.0]))) for one in sorted(before)]
    return load._replace(waits=waits_of(pairs))


def waits_of(pairs: list[tuple[int, int, float]]) -> inputs.Waits | None:
    """Return pairs (request, the one that it waits for, pause in microseconds) as the loop takes them."""
    if not pairs:
        return None
    request, after, pause_us = zip(*pairs, strict=True)
    return inputs.Waits(np.array(request), np.array(after), np.array(pause_us))
