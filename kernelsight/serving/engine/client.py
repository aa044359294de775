"""The benchmark client: when it sends requests (open or closed loop, sessions), and what follows when they finish.

Requests are sent in order of arrival, each in a free slot of the closed loop (``max_concurrency``). A session (requests
connected by dependencies) keeps one slot from its first request until all of them have ended. A request that waits for
others is sent when each of them has finished and its pause is over; several may wait for one (parallel sub-agents). The
clock of measured requests starts when the last warm-up request has finished.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.records import EARLIER_TURN, FOREVER, NOBODY, OK


@inlined
def next_send_us(client: np.void, requests: np.ndarray, turns: np.ndarray) -> float:
    """Return when the next request will be sent, as far as is known now; infinite while none can be."""
    turn_us = turns[0, 0] if client.turns > 0 else FOREVER
    if client.next == requests.size or client.in_flight >= client.max_concurrency:
        return turn_us
    if client.next >= client.warmups and client.warmups_left > 0:
        return turn_us
    moment_us = max(requests[client.next].arrival_us + client.offset_us, client.now)
    if client.user_us > 0.0 and client.next >= client.warmups:  # the slot of the user who joins the loop next
        moment_us = max(moment_us, client.in_flight * client.user_us + client.offset_us)
    return min(turn_us, moment_us)


@inlined
def take_next(client: np.void, requests: np.ndarray, edges: np.ndarray, turns: np.ndarray) -> int:
    """Return the request that is sent now; at equal times later turns and finished KV transfers go first.

    Where a session begins with several requests, the others need no slot: they are sent at their arrival, or now.
    """
    if client.turns > 0 and turns[0, 0] <= client.now:
        return pop_turn(client, turns)
    r = client.next
    client.next += 1
    client.in_flight += 1
    for k in range(requests[r].edge_at, requests[r].edge_at + requests[r].beside):
        push_turn(client, turns, max(requests[edges[k].to].arrival_us + client.offset_us, client.now), edges[k].to)
    while client.next < requests.size and requests[client.next].follows:
        client.next += 1
    return r


@inlined
def note_ended(client: np.void, engine: np.void, requests: np.ndarray, edges: np.ndarray, turns: np.ndarray) -> None:
    """Process an engine's finished requests: free their slots, or schedule the requests that wait for them."""
    r = engine.first_ended
    if client.prefills:
        r = in_order(requests, r)
    while r >= 0:
        following = requests[r].next_waiting
        if requests[r].tokens_after_transfer > 0:
            begin_transfer(client, engine, requests, turns, r)
        else:
            note_end(client, requests, edges, turns, r)
        r = following
    engine.first_ended = NOBODY


@compiled
def in_order(requests: np.ndarray, r: int) -> int:
    """Reverse a list of finished requests into order of admission; return its first."""
    previous = NOBODY
    while r >= 0:
        following = requests[r].next_waiting
        requests[r].next_waiting = previous
        previous, r = r, following
    return previous


@compiled
def begin_transfer(client: np.void, engine: np.void, requests: np.ndarray, turns: np.ndarray, r: int) -> None:
    """Transfer the KV of a computed prompt: queued on the engine's link, then its latency."""
    request, link = requests[r], client.link
    sending_us = link.sequence_us + link.token_us * request.prompt
    sending_us += link.window_token_us * min(request.prompt, link.window_tokens)
    engine.link_free_us = max(engine.link_free_us, client.now) + sending_us
    request.target += request.tokens_after_transfer
    request.tokens_after_transfer = 0
    request.finish_us = -1.0
    request.moving = True
    push_turn(client, turns, engine.link_free_us + link.latency_us, r)


@inlined
def note_end(client: np.void, requests: np.ndarray, edges: np.ndarray, turns: np.ndarray, r: int) -> None:
    """Record that a request has finished."""
    client.ended += 1
    request = requests[r]
    for k in range(request.edge_at + request.beside, request.edge_at + request.edge_count):
        follower = requests[edges[k].to]
        follower.ready_us = max(follower.ready_us, client.now + edges[k].pause_us)
        follower.waits_for -= 1
        if follower.waits_for == 0 and follower.status == OK:
            push_turn(client, turns, follower.ready_us, edges[k].to)
    leave_slot(client, requests, r)
    if r < client.warmups:
        end_warmup(client, requests)


@inlined
def leave_slot(client: np.void, requests: np.ndarray, r: int) -> None:
    """Free the slot of a request that has ended; of a session, with its last request."""
    first = requests[r].first_of
    if first >= 0:
        requests[first].left -= 1
    if first < 0 or requests[first].left == 0:
        client.in_flight -= 1


@compiled
def note_rejected(client: np.void, requests: np.ndarray, edges: np.ndarray, r: int) -> None:
    """Record that a request was rejected: the requests that wait for it, directly or not, are never sent.

    These were never queued, so that their ``next_waiting`` may link those whose followers are still to be visited.
    """
    client.ended += 1
    leave_slot(client, requests, r)
    if r < client.warmups:
        end_warmup(client, requests)
    requests[r].next_waiting = NOBODY
    while r >= 0:
        request = requests[r]
        r = request.next_waiting
        for k in range(request.edge_at + request.beside, request.edge_at + request.edge_count):
            follower = requests[edges[k].to]
            if follower.status == OK:
                follower.status = EARLIER_TURN
                follower.replica = request.replica
                client.ended += 1
                leave_slot(client, requests, edges[k].to)
                follower.next_waiting = r
                r = edges[k].to


@compiled
def end_warmup(client: np.void, requests: np.ndarray) -> None:
    """Count a finished warm-up; with the last one the clock of the measured requests starts."""
    client.warmups_left -= 1
    if client.warmups_left == 0 and client.warmups < requests.size:
        client.offset_us = client.now - requests[client.warmups].arrival_us


@compiled
def forget_gaps(engines: np.ndarray, histogram: np.ndarray) -> None:
    """Clear the inter-token latencies so far, all of warm-ups: the last one has ended, no other request has begun."""
    histogram[:] = 0
    for i in range(engines.size):
        engines[i].gap_sum_us = 0.0


# ---------------------------------------------------------------- a heap of (time, request): later turns, KV transfers


@compiled
def push_turn(client: np.void, turns: np.ndarray, moment_us: float, r: int) -> None:
    """Add a turn that is sent, or a transfer that ends, at ``moment_us``."""
    slot = client.turns
    client.turns += 1
    while slot > 0:
        parent = (slot - 1) // 2
        if turns[parent, 0] < moment_us or (turns[parent, 0] == moment_us and turns[parent, 1] < r):
            break
        turns[slot, 0], turns[slot, 1] = turns[parent, 0], turns[parent, 1]
        slot = parent
    turns[slot, 0], turns[slot, 1] = moment_us, r


@compiled
def pop_turn(client: np.void, turns: np.ndarray) -> int:
    """Remove and return the earliest entry; at equal times, the first in order of arrival."""
    first = int(turns[0, 1])
    client.turns -= 1
    last = client.turns
    moment_us, r = turns[last, 0], turns[last, 1]
    slot = 0
    while 2 * slot + 1 < last:
        child = 2 * slot + 1
        if child + 1 < last and (
            turns[child + 1, 0] < turns[child, 0]
            or (turns[child + 1, 0] == turns[child, 0] and turns[child + 1, 1] < turns[child, 1])
        ):
            child += 1
        if moment_us < turns[child, 0] or (moment_us == turns[child, 0] and r < turns[child, 1]):
            break
        turns[slot, 0], turns[slot, 1] = turns[child, 0], turns[child, 1]
        slot = child
    turns[slot, 0], turns[slot, 1] = moment_us, r
    return first
