"""The return of a batch, with per-request progress: its requests get their tokens, and continue or finish."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.batch import (
    advance,
    count_ahead,
    forget_partial,
    is_ready,
    push_fresh,
    reserve,
    start_decoding,
    stop_decoding,
    tokens_held,
    tokens_in_step,
    unlink,
)
from kernelsight.serving.engine.drafts import accepted_drafts
from kernelsight.serving.engine.groups import change_group, merge, noted_request
from kernelsight.serving.engine.heaps import FLYING, entrant
from kernelsight.serving.engine.prefix import release
from kernelsight.serving.engine.queue import take
from kernelsight.serving.engine.records import NOBODY, TICKET_BITS
from kernelsight.serving.engine.state import Core
from kernelsight.serving.engine.steps import count_decode_gaps, end_decodes, end_request, note_finish, note_token


@compiled
def end_batch(core: Core, histogram: np.ndarray) -> None:
    """Process the return of the oldest batch: its requests get their tokens, and continue or finish.

    Its group is then merged with the group that waits for the next batch.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    engine.now = engine.due_us
    batch = core.stages[engine.oldest_batch]
    group = core.groups[batch.group]
    decodes = group.decoding
    if decodes > 0:
        change_group(core, batch)
        count_decode_gaps(engine, requests, histogram, decodes, engine.now)
        engine.last_decode_end = engine.now
    if limits.drafts > 0:
        give_drafts(core, group, histogram, decodes > 0)
    else:
        if decodes > 0:
            advance(core, 1)
        for k in range(group.noted):
            before = core.heaps[group.group, FLYING, k, 1] >> TICKET_BITS
            end_decodes(core, before)
            give_token(core, group, histogram, k)
        end_decodes(core, engine.admitted)
    if decodes > 0 and core.groups[batch.group].decoding > 0:
        merge(core, core.groups[batch.group])
    engine.oldest_batch = (engine.oldest_batch + 1) % limits.stages
    engine.batches -= 1
    engine.last_us = engine.now
    engine.underway = False


@compiled
def give_drafts(core: Core, group: np.void, histogram: np.ndarray, decodes: bool) -> None:
    """Give the requests of a batch that returns their tokens, in order of admission.

    ``decodes``: the group in the engine's record is the one that returns; its next step's demand is added up.
    """
    engine, requests = core.engine, core.requests
    k, r = 0, NOBODY
    if decodes:
        r = engine.oldest
        engine.clock += 1
        engine.inside = engine.draft_inside = engine.units_next = engine.near_end = 0
    while r >= 0 and requests[r].ticket < group.admitted:
        if not is_ready(engine, requests[r]):
            r = requests[r].after
            continue
        while k < group.noted and core.heaps[group.group, FLYING, k, 1] < entrant(requests, r):
            give_token(core, group, histogram, k)
            k += 1
        following = requests[r].after
        take_accepted(core, r)
        r = following
    while k < group.noted:
        give_token(core, group, histogram, k)
        k += 1


@inlined
def take_accepted(core: Core, r: int) -> None:
    """Give a decoding request its accepted drafts, besides the token that its group's clock counts.

    They arrive together: one inter-token gap is counted, as a streaming client sees one chunk.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    request = requests[r]
    drafts = tokens_in_step(request, limits) - 1
    tokens = request.context_offset + engine.clock
    accepted = accepted_drafts(r, tokens, min(drafts, limits.draft_depth), limits.acceptance)
    engine.draft_tokens += drafts
    engine.accepted_tokens += accepted
    engine.context_offset_sum += accepted
    request.context_offset += accepted
    request.leaves_at -= accepted
    reserve(request, limits, tokens + drafts)
    request.chunk = 0
    count_ahead(engine, request, limits, tokens + accepted, 1)
    if request.leaves_at <= engine.clock:
        stop_decoding(engine, requests, limits, r)
        end_request(core, r)


@compiled
def give_token(core: Core, group: np.void, histogram: np.ndarray, k: int) -> None:
    """Give the k-th noted request of a batch its token; one that was preempted in flight gets it in the queue.

    A request preempted in flight and recomputed takes its token from one of its two batches only.
    """
    engine, requests, limits = core.engine, core.requests, core.limits
    r, known, drafts = noted_request(core.heaps[group.group], k)
    request = requests[r]
    if request.known != known:
        return
    if drafts > 0:
        # recomputed since and in flight again: it continues after the one token of that batch
        accepted = (
            0
            if request.all_in_flight
            else accepted_drafts(r, known, min(drafts, limits.draft_depth), limits.acceptance)
        )
        engine.draft_tokens += drafts
        engine.accepted_tokens += accepted
        request.known = min(known + accepted, request.target - 1)
    note_token(engine, request, histogram)
    if request.known < request.target:
        if request.all_in_flight:
            request.all_in_flight = False
            if engine.decoding == 0:
                engine.last_decode_end = engine.now
            start_decoding(engine, requests, core.heaps[engine.group], limits, r)
            if engine.last_decode_end != engine.now:
                push_fresh(engine, requests, r)
        return
    if request.computed == 0:
        # it is in the queue: a request in the batch has at least one computed token
        take(engine, requests, r)
        request.requeued_us += engine.now - request.preempted_us
    else:
        if not request.all_in_flight:
            forget_partial(engine, requests, r)
        request.all_in_flight = False
        release(core, r, tokens_held(engine, request))
        unlink(engine, requests, r)
    note_finish(engine, request, r)
