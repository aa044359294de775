"""Routing over several engines: round robin, least loaded, prefix-aware, or by session.

``prefix_aware`` follows SGLang's router (sgl-router, cache_aware): it remembers which prompts it sent to which engine,
not what the engine still has cached. If the engines' loads differ by more than ``balance_abs_threshold`` requests and
by more than the factor ``balance_rel_threshold``, or if no engine was sent more than ``cache_threshold`` of the prompt,
the least loaded engine gets it. Not modelled: SGLang's tree evicts its least recently used texts beyond a size, and a
prompt without a match goes to the engine with the smallest tree.

``session_affinity`` sends the first request of a session to the least loaded engine, and all others after it.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.compiled import compiled
from kernelsight.serving.engine.records import LEAST_LOADED, NOBODY, ROUND_ROBIN, SESSION_AFFINITY


@compiled
def least_loaded(engines: np.ndarray, routed: int) -> int:
    """The engine with the fewest waiting and running requests; ties go round robin."""
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
    """(engine, leading hash blocks) of the first engine that was sent the longest prefix of a prompt."""
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
    """The engine that the session of a request began on; -1: it begins with this one."""
    first = requests[r].first_of
    if first < 0 or first == r:
        return NOBODY
    return requests[first].prefill_replica if requests[first].prefill_replica >= 0 else requests[first].replica


@compiled
def route(
    client: np.void, engines: np.ndarray, requests: np.ndarray, r: int, hashes: np.ndarray, sent: np.ndarray
) -> int:
    """The engine for request ``r``; ``sent``: hash blocks that each engine was sent, shape [engines, hash blocks]."""
    request = requests[r]
    if client.router == ROUND_ROBIN:
        i = client.routed % engines.size
    elif client.router == LEAST_LOADED:
        i = least_loaded(engines, client.routed)
    elif client.router == SESSION_AFFINITY:
        i = engine_of_session(requests, r)
        if i < 0:
            i = least_loaded(engines, client.routed)
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
    """The decode engine for a prefilled request: round robin, or the least loaded one."""
    i = client.handed % engines.size if client.router == ROUND_ROBIN else least_loaded(engines, client.handed)
    client.handed += 1
    return i
