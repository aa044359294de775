"""Router over several engines: round robin, least loaded, prefix-aware, session affinity, or weighted scores.

``prefix_aware`` follows SGLang's router (sgl-router, cache_aware): it remembers which prompts it sent to which engine,
not what the engine still has cached. If the engines' loads differ by more than ``balance_abs_threshold`` requests and
by more than the factor ``balance_rel_threshold``, or if no engine was sent more than ``cache_threshold`` of the prompt,
the least loaded engine gets it. Not modelled: SGLang's tree evicts its least recently used texts beyond a size, and a
prompt without a match goes to the engine with the smallest tree.

``session_affinity`` sends the first request of a session to the least loaded engine, and its other ones to the same.

``scored`` follows llm-d's scheduler (table ``router_scorers``): each score of an engine is between 0 and 1, and the
highest sum of weight times score gets the request, ties round robin. It reads the current state of each engine:

- prefix: blocks of the prompt that are cached, as the engine would find them, those in tiers behind the GPU's cache
  counting ``tier`` each, over the whole blocks of the prompt;
- kv_use: 1 - the share of the KV cache that running requests hold;
- queue, running: of waiting and of running requests, (most - own) / (most - fewest) over the engines; 1 if all equal;
- adapter: 1 where its adapter is on the GPU, 0.8 where a slot is empty, otherwise 0; 0 for requests without one;
- load: one half without waiting requests, falling to 0 at ``LOAD_THRESHOLD`` of them.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled
from kernelsight.serving.engine.adapters import place_of, slots_in_use
from kernelsight.serving.engine.prefix import cached_prefix
from kernelsight.serving.engine.records import LEAST_LOADED, NOBODY, ROUND_ROBIN, SCORED, SESSION_AFFINITY
from kernelsight.serving.engine.state import Scenario
from kernelsight.serving.engine.tiers import tier_blocks

# waiting requests at which the score of load is 0
LOAD_THRESHOLD = 128
# score of an engine that has an empty slot for an adapter
EMPTY_SLOT = 0.8


@compiled
def least_loaded(engines: np.ndarray, routed: int) -> int:
    """Return the engine with the fewest waiting and running requests; ties go round robin."""
    best = routed % engines.size
    for k in range(1, engines.size):
        i = (routed + k) % engines.size
        if engines[i].in_flight < engines[best].in_flight:
            best = i
    return best


@compiled
def is_balanced(client: np.void, engines: np.ndarray) -> bool:
    """Whether the engines' loads are balanced enough to route by prefix."""
    fewest = most = engines[0].in_flight
    for i in range(1, engines.size):
        fewest, most = min(fewest, engines[i].in_flight), max(most, engines[i].in_flight)
    return most - fewest <= client.balance_abs_threshold or most <= client.balance_rel_threshold * fewest


@compiled
def longest_match(request: np.void, hashes: np.ndarray, sent: np.ndarray) -> tuple:
    """Return (engine, leading hash blocks) of the first engine that was sent the longest prefix of a prompt."""
    best, longest = 0, 0
    for i in range(sent.shape[0]):
        blocks = 0
        while blocks < request.hash_count and sent[i, hashes[request.hash_at + blocks]]:
            blocks += 1
        if blocks > longest:
            best, longest = i, blocks
    return best, longest


@compiled
def engine_of_session(requests: np.ndarray, r: int) -> int:
    """Return the engine of the session's first request; -1: this is the first."""
    first = requests[r].first_of
    if first < 0 or first == r:
        return NOBODY
    return requests[first].prefill_replica if requests[first].prefill_replica >= 0 else requests[first].replica


@compiled
def prefix_score(
    request: np.void, hashes: np.ndarray, entries: np.ndarray, limits: np.void, tier_weight: float
) -> float:
    """Return the share of a prompt's whole blocks that an engine has cached; in KV tiers each is ``tier_weight``."""
    if limits.hash_tokens == 0:
        return 0.0
    cached, _ = cached_prefix(request, hashes, entries, limits)
    blocks = cached // limits.block_size
    behind = tier_blocks(request, hashes, entries, limits, blocks) if limits.tiers > 0 else 0
    return (blocks + tier_weight * behind) / max(request.prompt // limits.block_size, 1)


@compiled
def adapter_score(engine: np.void, limits: np.void, request: np.void) -> float:
    """Return how soon an engine could run the adapter of a request: 1 from now on, with a load to an empty slot 0.8."""
    if request.adapter < 0 or limits.max_loras == 0:
        return 0.0
    p = place_of(engine, limits, request.adapter)
    if p >= 0 and engine.adapter_on_gpu[p] == 1:
        return 1.0
    return EMPTY_SLOT if slots_in_use(engine, limits) < limits.max_loras else 0.0


@compiled
def among(own: int, fewest: int, most: int) -> float:
    """Return the score of a number of requests: 1 for the fewest of all engines, 0 for the most."""
    return 1.0 if most == fewest else (most - own) / (most - fewest)


@compiled
def best_scored(client: np.void, scenario: Scenario, request: np.void) -> int:
    """Return the engine with the highest sum of weighted scores; ties go round robin."""
    engines, limits = scenario.engines[: client.front], scenario.limits
    weights = client.weights
    most_waiting = fewest_waiting = engines[0].in_flight - engines[0].running
    most_running = fewest_running = engines[0].running
    for i in range(1, engines.size):
        waiting, running = engines[i].in_flight - engines[i].running, engines[i].running
        most_waiting, fewest_waiting = max(most_waiting, waiting), min(fewest_waiting, waiting)
        most_running, fewest_running = max(most_running, running), min(fewest_running, running)
    best, highest = NOBODY, -1.0
    for k in range(engines.size):
        i = (client.routed + k) % engines.size
        engine, own = engines[i], limits[i]
        waiting, capacity = engine.in_flight - engine.running, max(own.capacity_units, 1)
        score = weights.prefix * prefix_score(request, scenario.hashes, scenario.entries, own, weights.tier)
        score += weights.kv_use * (1.0 - (own.capacity_units - engine.free_units) / capacity)
        score += weights.queue * among(waiting, fewest_waiting, most_waiting)
        score += weights.running * among(engine.running, fewest_running, most_running)
        score += weights.adapter * adapter_score(engine, own, request)
        score += weights.load * (0.5 * (1.0 - min(waiting, LOAD_THRESHOLD) / LOAD_THRESHOLD))
        if score > highest:
            best, highest = i, score
    return best


@compiled
def route(scenario: Scenario, r: int) -> int:
    """Return the engine for request ``r``, of those that the client sends to."""
    client, requests, hashes, sent = scenario.clients[0], scenario.requests, scenario.hashes, scenario.sent
    engines = scenario.engines[: client.front]
    request = requests[r]
    if client.router == ROUND_ROBIN:
        i = client.routed % engines.size
    elif client.router == LEAST_LOADED:
        i = least_loaded(engines, client.routed)
    elif client.router == SESSION_AFFINITY:
        i = engine_of_session(requests, r)
        if i < 0:
            i = least_loaded(engines, client.routed)
    elif client.router == SCORED:
        i = best_scored(client, scenario, request)
    else:
        i, blocks = longest_match(request, hashes, sent)
        tokens = min(blocks * client.hash_tokens, request.prompt)
        if tokens <= client.cache_threshold * request.prompt or not is_balanced(client, engines):
            i = least_loaded(engines, client.routed)
        for block in range(request.hash_count):
            sent[i, hashes[request.hash_at + block]] = True
    client.routed += 1
    return i


@compiled
def route_decode(client: np.void, engines: np.ndarray) -> int:
    """Return the decode engine for a prefilled request: round robin, or the least loaded one."""
    i = client.handed % engines.size if client.router == ROUND_ROBIN else least_loaded(engines, client.handed)
    client.handed += 1
    return i
