"""What the loop works on: records of limits, host, engine and requests, and one flat array of step costs.

No Python object a request or an event. Times are float64 microseconds; KV capacity is counted in *units* (one block of
one group of layers). A request is *partial* while known tokens (its prompt, and after a preemption what it generated)
are still to be computed, then *decoding*. Records are passed by reference, an array as seven words, which is why there
is one array of requests and one of costs.
"""

from __future__ import annotations

import numpy as np

PREFILL, DECODE, MIXED = 0, 1, 2
FINISHED, TOO_LONG, NO_MEMORY, EARLIER_TURN = 0, 1, 2, 3
ROUTERS = ("round_robin", "least_loaded", "prefix_aware")
ROUND_ROBIN, LEAST_LOADED, PREFIX_AWARE = range(3)
NOBODY = -1
FOREVER = np.inf
TICKET_BITS = 32  # a heap names a request by its ticket and, in the bits below, its number: in order of admission
NUMBER = (1 << TICKET_BITS) - 1
BIN_WIDTH = np.log(1.002)
ITL_BINS = 12_000
LARGEST_BLOCK = 512
NO_LIMIT = np.iinfo(np.int64).max
# how much room an admission needs: its first chunk; its whole answer; a changing share of the answers
CAPACITY_POLICIES = ("max_utilization", "guaranteed_no_evict", "new_token_ratio")
MAX_UTILIZATION, GUARANTEED_NO_EVICT, NEW_TOKEN_RATIO = range(3)

_WHOLE, _REAL, _TRUTH = np.int64, np.float64, np.bool_


def _record(**fields: object) -> np.dtype:
    return np.dtype(list(fields.items()), align=True)


# scheduler limits of one deployment: tokens, requests, KV units
LIMITS = _record(
    max_num_seqs=_WHOLE,
    max_num_batched_tokens=_WHOLE,
    long_prefill_token_threshold=_WHOLE,
    max_model_len=_WHOLE,
    block_size=_WHOLE,
    full_units=_WHOLE,
    window_units=_WHOLE,
    window_blocks=_WHOLE,
    sequence_units=_WHOLE,
    capacity_units=_WHOLE,
    window_tokens=_WHOLE,
    hash_tokens=_WHOLE,  # tokens that one hash of a prompt stands for; 0: no prefix caching
    requests=_WHOLE,  # requests of the scenario: as many entries stand for their private blocks
    chunked=_TRUTH,
    prefill_first=_TRUTH,
    asynchronous=_TRUTH,
    static=_TRUTH,  # a batch is formed, prefilled and decoded to its end before the next one
    capacity_policy=_WHOLE,
    schedule_conservativeness=_REAL,
    batch_wait_timeout_iters=_WHOLE,  # steps that prompts are held back for at most; 0: none
    batch_wait_tokens=_REAL,  # tokens of a step that are enough
    scheduler_recv_interval=_WHOLE,  # decode steps from one look for new requests to the next
    max_num_partial_prefills=_WHOLE,  # prompts that are computed in part, at once; 0: no limit
    max_long_partial_prefills=_WHOLE,  # and of those longer than long_prefill_token_threshold
    plain=_TRUTH,  # none of the policies from static on
    by_priority=_TRUTH,  # the queue and the victims of preemption go by priority, then by when they were sent
    fewest_generated=_TRUTH,  # who has generated the fewest tokens is preempted, and goes last; else the newest
    batch_wait_us=_REAL,  # time for which a look for new requests lasts
    stages=_WHOLE,  # pipeline stages, and batches that are in flight at most
    drafts=_WHOLE,  # tokens that are proposed for a sequence in each step; 0: no speculative decoding
    acceptance=_REAL,  # probability that a proposed token is accepted, where those before it were
    draft_model=_TRUTH,  # a model proposes them, whose costs are known
    draft_window_tokens=_WHOLE,  # what its layers with a window see
    one_by_one=_TRUTH,  # decoding requests differ in what they have yet to get: pipeline stages, or drafts
)

# host overhead of one engine, microseconds
HOST = _record(
    exposed_us=_REAL,
    base_us=_REAL,
    per_request_us=_REAL,
    per_token_us=_REAL,
    eager_launches_us=_REAL,
    request_us=_REAL,
    overlapped=_TRUTH,
    graph_max_tokens=_WHOLE,
    captured_launches_us=_REAL,
    gap_us=_REAL,  # of the exposed time: what passes between the kernels of a forward pass
    exposed_per_request_us=_REAL,
    per_prompt_token_us=_REAL,
)

# where a surface stands in the flat array of costs: for every whole x the knot below it (x_at) and the weight of the
# knot above (share_at), the knots of y, and the values by (x, y); y_size 0: no such part
SURFACE = _record(x_at=_WHOLE, share_at=_WHOLE, x_size=_WHOLE, y_at=_WHOLE, y_size=_WHOLE, at=_WHOLE)

# step costs of one deployment: dense tables over tokens and sampled sequences (from 0), and three surfaces
LAYOUT = _record(
    tokens_at=_WHOLE,
    sampled_at=_WHOLE,
    decode=SURFACE,
    window=SURFACE,
    prefill=SURFACE,
    # of what tokens cost, with pipeline stages: the embedding, and all transfers from stage to stage
    embedding_at=_WHOLE,
    transfer_at=_WHOLE,
)

REQUEST = _record(
    # stated
    arrival_us=_REAL,
    prompt=_WHOLE,
    target=_WHOLE,  # prompt + output tokens; on a prefill engine: prompt + first token
    rest=_WHOLE,  # output tokens that a decode engine generates, after the KV of the prompt has been transferred
    priority=_WHOLE,  # the lower, the earlier
    next_turn=_WHOLE,  # of its session; -1: none
    think_us=_REAL,  # from the end of the turn before it until it is sent
    # what became of it; times are -1 until they happen
    status=_WHOLE,
    replica=_WHOLE,
    prefill_replica=_WHOLE,  # the engine that computed its prompt for another one; -1: none
    received_us=_REAL,  # when the KV of its prompt had come to the other one
    sent_us=_REAL,
    scheduled_us=_REAL,
    first_token_us=_REAL,
    finish_us=_REAL,
    preemptions=_WHOLE,
    cached_tokens=_WHOLE,  # prompt tokens found in the prefix cache at first admission
    requeued_us=_REAL,  # waiting again, after preemptions
    recomputed_us=_REAL,  # from admissions after a preemption to its next token (or the next preemption)
    # its prompt as hash blocks: a stretch of the array of hashes
    hash_at=_WHOLE,
    hash_count=_WHOLE,
    kept=_WHOLE,  # leading hash blocks that it keeps
    shared_units=_WHOLE,  # KV units of its own tokens that stand in hash blocks
    # what the scheduler knows of it
    visible_us=_REAL,  # when the engine's queue has it; preempted: at once
    preempted_us=_REAL,  # when it was last preempted,
    resumed_us=_REAL,  # and when it was admitted after that; -1: it gave a token since, or was never preempted
    last_token_us=_REAL,
    known=_WHOLE,  # prompt + generated tokens; of a decoding request up to date only when it leaves
    computed=_WHOLE,  # tokens in the cache; of a decoding request: base + clock
    base=_WHOLE,  # decoding: computed tokens less the decode clock
    chunk=_WHOLE,  # tokens scheduled in this step
    reserved=_WHOLE,  # tokens that it has KV units for, since drafts were rejected; 0: those computed
    received=_WHOLE,  # waiting on a decode engine: tokens whose KV has been transferred; 0: none
    ticket=_WHOLE,  # its number in the order of admission
    leaves_at=_WHOLE,  # decode clock at which it ends; -1: not decoding
    fills_at=_WHOLE,  # decode clock at which its window is full; -1: past, or no window
    follows=_TRUTH,  # it is a later turn of its session
    decoding=_TRUTH,
    fresh=_TRUTH,  # decoding, but gave its last token at another time than the last decode step
    held=_TRUTH,  # decoding, but not reached by the budget of this step
    moving=_TRUTH,  # the KV of its prompt is on the way to a decode engine
    away=_TRUTH,  # one by one: all its known tokens are computed or in flight
    # its neighbours in the batch, in order of admission; the next partial, fresh, and waiting (or ended) request
    before=_WHOLE,
    after=_WHOLE,
    next_partial=_WHOLE,
    next_fresh=_WHOLE,
    next_waiting=_WHOLE,
)

# a hash block, or the private units that a request left
ENTRY = _record(
    valid=_WHOLE,  # KV blocks of it that are in the cache, from its first on; units that were private
    users=_WHOLE,  # running requests that keep it
    before=_WHOLE,
    after=_WHOLE,
    queued=_TRUTH,
)

# what it takes to bring the KV of a prompt to a decode engine, microseconds; window layers send at most their window
LINK = _record(token_us=_REAL, window_token_us=_REAL, window_tokens=_WHOLE, sequence_us=_REAL, latency_us=_REAL)

# the benchmark client, and the router behind it
CLIENT = _record(
    now=_REAL,  # the last event
    next=_WHOLE,  # first request in order of arrival that was not sent yet
    in_flight=_WHOLE,  # slots that are taken: requests, and sessions that have begun
    ended=_WHOLE,
    turns=_WHOLE,  # turns, and transfers of KV, whose time is set
    warmups=_WHOLE,  # the first requests: measured ones wait for their end
    warmups_left=_WHOLE,
    offset_us=_REAL,  # from the clock of arrivals to that of the simulation
    max_concurrency=_WHOLE,
    router=_WHOLE,
    routed=_WHOLE,  # requests that went through the router
    front=_WHOLE,  # engines that it sends to: all, or those that prefill, which come first
    prefills=_TRUTH,  # what these engines compute goes on to decode engines
    handed=_WHOLE,  # requests that did
    link=LINK,
    hash_tokens=_WHOLE,
    cache_threshold=_REAL,
    balance_abs_threshold=_WHOLE,
    balance_rel_threshold=_REAL,
)

ENGINE = _record(
    now=_REAL,
    previous_start=_REAL,
    last_decode_end=_REAL,  # when the decoding requests got their last token
    # the queue
    in_flight=_WHOLE,  # requests that were sent here and did not end
    link_free_us=_REAL,  # when the KV of all prompts that ended here has been sent
    first_waiting=_WHOLE,
    last_waiting=_WHOLE,
    handed_on_us=_REAL,  # when the front end hands on the last request that was sent here
    admitted=_WHOLE,  # tickets given out
    first_ended=_WHOLE,  # requests that ended since the client last looked
    # the step or decode run that is under way, until ``due_us``; a planned run has not been taken yet, so that it can
    # be cut for a request that comes to it
    underway=_TRUTH,
    planned=_TRUTH,
    planned_steps=_WHOLE,
    due_us=_REAL,
    blocked=_TRUTH,  # the head of the queue is there, but cannot be admitted before a running request ends
    found=_WHOLE,  # cached tokens of the request that was looked at last for admission
    stalled=_TRUTH,  # others decode, but not in this step
    step_prompt_tokens=_WHOLE,
    step_found=_WHOLE,  # cached prompt tokens of requests that were first admitted in it,
    step_looked_up=_WHOLE,  # all their prompt tokens,
    step_preempted=_WHOLE,  # and preemptions since the last row of steps
    # one by one
    batches=_WHOLE,  # in flight
    oldest_batch=_WHOLE,  # where the one stands that ends first
    prepared_us=_REAL,  # when the host has prepared the last one
    # the batch
    free_units=_WHOLE,  # blank ones and those whose contents may be lost
    blank_units=_WHOLE,
    first_free=_WHOLE,  # queue of entries whose blocks are free, the next to be lost first
    last_free=_WHOLE,
    running=_WHOLE,
    oldest=_WHOLE,
    newest=_WHOLE,
    partial=_WHOLE,  # first partial request, in order of admission
    last_partial=_WHOLE,
    partial_count=_WHOLE,
    fresh=_WHOLE,
    decoding=_WHOLE,
    clock=_WHOLE,  # decode steps so far
    base_sum=_WHOLE,  # over decoding requests
    inside=_WHOLE,  # tokens inside the window, over decoding requests
    below=_WHOLE,  # decoding requests whose window is not full
    held=_WHOLE,  # decoding requests that this step's budget does not reach,
    held_tokens=_WHOLE,  # their computed tokens,
    held_inside=_WHOLE,  # those inside the window,
    held_below=_WHOLE,  # and how many of their windows are not full
    decode_y=_WHOLE,  # knots below the last mean contexts: where the next search begins
    window_y=_WHOLE,
    leaving=_WHOLE,  # entries of the heap of departures
    filling=_WHOLE,  # entries of the heap of windows that fill
    # policies
    forming=_TRUTH,  # a static batch still takes what was visible
    formed_us=_REAL,  # then
    joined=_WHOLE,  # requests that it took
    full_running=_WHOLE,  # running requests when the last admission failed, while it is not tried again
    prompts_held=_TRUTH,  # this step decodes only, prompts wait for more of them
    waited_iters=_WHOLE,  # steps that they have waited
    received_us=_REAL,  # requests visible by then have been received
    polled_steps=_WHOLE,  # steps before that,
    polled_prompt_steps=_WHOLE,  # and those of them with prompts
    ratio_from=_REAL,  # ratio of new tokens when it was last set,
    ratio_clock=_WHOLE,  # and the decode clock from which on it falls
    crossings=(_WHOLE, (LARGEST_BLOCK,)),  # decoding requests by the residue of the clock at which they need a block
    # totals
    steps=_WHOLE,
    prompt_steps=_WHOLE,
    gpu_us=_REAL,
    host_us=_REAL,
    idle_us=_REAL,
    first_us=_REAL,
    last_us=_REAL,
    preempted=_WHOLE,
    peak_units=_WHOLE,
    gap_sum_us=_REAL,
    prompt_tokens=_WHOLE,
    draft_tokens=_WHOLE,  # proposed
    accepted_tokens=_WHOLE,  # and accepted
    rows=_WHOLE,
)


# a pipeline stage of an engine; and, in the same ring, a batch in flight
STAGE = _record(
    share=_REAL,  # of the layers
    free_us=_REAL,  # when the last batch has left it
    gpu_us=_REAL,
    idle_us=_REAL,
    due_us=_REAL,  # when the tokens of the batch come back
    tokens=_WHOLE,  # how many do
)
