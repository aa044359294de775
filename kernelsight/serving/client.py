"""The benchmark client: when requests are sent, and what follows from those that ended.

Requests go out in order of arrival, each into a free slot of the closed loop. A session keeps its slot from its first
turn to the end of its last one; a later turn goes out when the turn before it has ended and the think time is over.
Measured requests begin their clock when the last warm-up has ended.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compiled import compiled, inlined
from kernelsight.serving.records import EARLIER_TURN, FOREVER, NOBODY


@inlined
def next_send_us(client: np.void, requests: np.ndarray, turns: np.ndarray) -> float:
    """When the next request goes out, as far as is known now; infinite while none can."""
    turn_us = turns[0, 0] if client.turns > 0 else FOREVER
    if client.next == requests.size or client.in_flight >= client.max_concurrency:
        return turn_us
    if client.next >= client.warmups and client.warmups_left > 0:
        return turn_us
    return min(turn_us, max(requests[client.next].arrival_us + client.offset_us, client.now))


@inlined
def take_next(client: np.void, requests: np.ndarray, turns: np.ndarray) -> int:
    """The request that goes out now: of those at one time, a later turn first, or one whose KV has been transferred."""
    if client.turns > 0 and turns[0, 0] <= client.now:
        return pop_turn(client, turns)
    r = client.next
    client.next += 1
    client.in_flight += 1
    while client.next < requests.size and requests[client.next].follows:
        client.next += 1
    return r


@inlined
def note_ended(client: np.void, engine: np.void, requests: np.ndarray, turns: np.ndarray) -> None:
    """Take what an engine has ended: free its slots, or set the time of the sessions' next turns."""
    r = engine.first_ended
    if client.prefills:
        r = in_order(requests, r)
    while r >= 0:
        following = requests[r].next_waiting
        if requests[r].rest > 0:
            begin_transfer(client, engine, requests, turns, r)
        else:
            note_end(client, requests, turns, r)
        r = following
    engine.first_ended = NOBODY


@compiled
def in_order(requests: np.ndarray, r: int) -> int:
    """Turn a list of ended requests around, so that the first that was admitted is the first; returns it."""
    previous = NOBODY
    while r >= 0:
        following = requests[r].next_waiting
        requests[r].next_waiting = previous
        previous, r = r, following
    return previous


@compiled
def begin_transfer(client: np.void, engine: np.void, requests: np.ndarray, turns: np.ndarray, r: int) -> None:
    """Send the KV of a computed prompt on: one after another over the engine's link, then the latency."""
    request, link = requests[r], client.link
    sending_us = link.sequence_us + link.token_us * request.prompt
    sending_us += link.window_token_us * min(request.prompt, link.window_tokens)
    engine.link_free_us = max(engine.link_free_us, client.now) + sending_us
    request.target += request.rest
    request.rest = 0
    request.finish_us = -1.0
    request.moving = True
    push_turn(client, turns, engine.link_free_us + link.latency_us, r)


@inlined
def note_end(client: np.void, requests: np.ndarray, turns: np.ndarray, r: int) -> None:
    """One request has ended with its last token."""
    client.ended += 1
    turn = requests[r].next_turn
    if turn >= 0:
        push_turn(client, turns, client.now + requests[turn].think_us, turn)
    else:
        client.in_flight -= 1
    if r < client.warmups:
        end_warmup(client, requests)


@compiled
def note_rejected(client: np.void, requests: np.ndarray, r: int) -> None:
    """A request was turned away: its session ends with it, its slot is free."""
    client.ended += 1
    client.in_flight -= 1
    if r < client.warmups:
        end_warmup(client, requests)
    turn = requests[r].next_turn
    while turn >= 0:
        requests[turn].status = EARLIER_TURN
        requests[turn].replica = requests[r].replica
        client.ended += 1
        turn = requests[turn].next_turn


@compiled
def end_warmup(client: np.void, requests: np.ndarray) -> None:
    """Count a warm-up that has ended; with the last one the clock of the measured requests begins."""
    client.warmups_left -= 1
    if client.warmups_left == 0 and client.warmups < requests.size:
        client.offset_us = client.now - requests[client.warmups].arrival_us


# ---------------------------------------------------------------- a heap of (time, request): later turns, KV on its way


@compiled
def push_turn(client: np.void, turns: np.ndarray, moment_us: float, r: int) -> None:
    """Add a turn that goes out, or a transfer that ends, at ``moment_us``."""
    place = client.turns
    client.turns += 1
    while place > 0:
        parent = (place - 1) // 2
        if turns[parent, 0] < moment_us or (turns[parent, 0] == moment_us and turns[parent, 1] < r):
            break
        turns[place, 0], turns[place, 1] = turns[parent, 0], turns[parent, 1]
        place = parent
    turns[place, 0], turns[place, 1] = moment_us, r


@compiled
def pop_turn(client: np.void, turns: np.ndarray) -> int:
    """Remove the entry that is due first; at one time, the first in order of arrival."""
    first = int(turns[0, 1])
    client.turns -= 1
    last = client.turns
    moment_us, r = turns[last, 0], turns[last, 1]
    place = 0
    while 2 * place + 1 < last:
        child = 2 * place + 1
        if child + 1 < last and (
            turns[child + 1, 0] < turns[child, 0]
            or (turns[child + 1, 0] == turns[child, 0] and turns[child + 1, 1] < turns[child, 1])
        ):
            child += 1
        if moment_us < turns[child, 0] or (moment_us == turns[child, 0] and r < turns[child, 1]):
            break
        turns[place, 0], turns[place, 1] = turns[child, 0], turns[child, 1]
        place = child
    turns[place, 0], turns[place, 1] = moment_us, r
    return first
