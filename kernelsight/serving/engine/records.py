"""Record types of the loop: host, client, engines, requests (limits: ``limits``), and offsets of step costs.

No Python object per request or event. Times are float64 microseconds; KV capacity is counted in *units* (one block of
one group of layers). A running request is *partial* while known tokens (its prompt, and after a preemption what it
generated) are left to compute, then *decoding*. A record is passed by reference, an array as seven words, which is why
there is one array of requests and one of costs.
"""

from __future__ import annotations

import numpy as np

PREFILL, DECODE, MIXED = 0, 1, 2
FINISHED, TOO_LONG, NO_MEMORY, EARLIER_TURN = 0, 1, 2, 3
OK = FINISHED  # a request that is not rejected finishes
ROUTERS = ("round_robin", "least_loaded", "prefix_aware", "session_affinity", "scored")
ROUND_ROBIN, LEAST_LOADED, PREFIX_AWARE, SESSION_AFFINITY, SCORED = range(5)
NOBODY = -1
FOREVER = np.inf
TICKET_BITS = 32  # a request's key in a heap: its ticket, and its number in the low bits
NUMBER = (1 << TICKET_BITS) - 1
BIN_WIDTH = np.log(1.002)
ITL_BINS = 12_000
LARGEST_BLOCK = 512
MOST_GROUPS = 256  # of an engine: one for each pipeline stage, and one
MOST_TOKENS = (1 << 30) - 1  # of a prompt, and of an output: no engine accepts longer ones
SUMS = 11  # columns of an engine's sums by part
NO_LIMIT = np.iinfo(np.int64).max
# what an admission reserves KV units for: its first chunk; its whole output; a changing share of the output
CAPACITY_POLICIES = ("max_utilization", "guaranteed_no_evict", "new_token_ratio")
MAX_UTILIZATION, GUARANTEED_NO_EVICT, NEW_TOKEN_RATIO = range(3)
# when a KV block is written to the tiers behind the GPU's cache, see ``tiers``
WRITE_POLICIES = ("through", "back", "on_eviction")
THROUGH, BACK, MOVED = range(3)
MOST_TIERS = 3
MOST_ADAPTERS = 256  # in the host memory of an engine

_WHOLE, _SHORT, _REAL, _TRUTH = np.int64, np.int32, np.float64, np.bool_


def record(**fields: object) -> np.dtype:
    """Return a record type with these fields, aligned as compiled code reads them."""
    return np.dtype(list(fields.items()), align=True)


# host overhead of one engine, microseconds
HOST = record(
    exposed_us=_REAL,
    base_us=_REAL,
    per_request_us=_REAL,
    per_token_us=_REAL,
    eager_launches_us=_REAL,
    request_us=_REAL,
    overlapped=_TRUTH,
    graph_max_tokens=_WHOLE,
    captured_launches_us=_REAL,
    gap_us=_REAL,  # part of the exposed time: gaps between the kernels of a forward pass
    exposed_per_request_us=_REAL,
    per_prompt_token_us=_REAL,
    prompt_graph_max_tokens=_WHOLE,  # largest piecewise CUDA graph of steps with prompts; 0: none
    piecewise_launches_us=_REAL,
    exposed_requests_half=_REAL,  # running requests of which each costs half of exposed_per_request_us; inf: none
    per_output_token_us=_REAL,  # of the front end's streaming, which sets the pace where steps are shorter
    per_active_us=_REAL,  # of each pipeline stage's scheduler before a batch, for each running request
    ranks_padded=_TRUTH,  # ranks that step together are padded to the largest batch among them
    serial_us=_REAL,  # of the front end for a request, and for a prompt token, while the next request waits
    serial_token_us=_REAL,
    adapter_gap_us=_REAL,  # parts of exposed_us, eager_launches_us and captured_launches_us that adapters add
    adapter_eager_us=_REAL,
    adapter_captured_us=_REAL,
    drafts_us=_REAL,  # launches of the draft model's passes, which begin once the tokens of the step are known
)

# offsets of a surface in the flat array of costs: for every whole x the knot below it (x_at) and the weight of the
# knot above (share_at), the knots of y, and the values by (x, y); y_size 0: an absent part
SURFACE = record(x_at=_WHOLE, share_at=_WHOLE, x_size=_WHOLE, y_at=_WHOLE, y_size=_WHOLE, at=_WHOLE)

# step costs of one deployment: dense tables over tokens and sampled sequences (from 0), and four surfaces
LAYOUT = record(
    tokens_at=_WHOLE,
    prompts_at=_WHOLE,  # distance from the cost of tokens to that of as many in a step with prompts
    sampled_at=_WHOLE,
    decode=SURFACE,
    window=SURFACE,
    prefill=SURFACE,
    mixed=SURFACE,  # decodes of steps with prompts, where these cost otherwise than in steps without
    # part of the cost of tokens with pipeline stages: the embedding, and all transfers between stages
    embedding_at=_WHOLE,
    transfer_at=_WHOLE,
    # parts of the cost of tokens: routed experts, and collectives; added up by engine only if ``split``
    split=_TRUTH,
    moe_at=_WHOLE,
    communication_at=_WHOLE,
    sampled_communication_at=_WHOLE,  # of the cost of sampled sequences: the collectives of their logits
    # ranks that step together: routed experts and their collectives, by the mean number of tokens of a rank
    experts_at=_WHOLE,
    experts_communication_at=_WHOLE,
    padded_at=_WHOLE,  # the size of the CUDA graph that serves a number of tokens
    # distance from the time of a cost to its energy, joules, and from there to the part of the time that was measured
    energy_at=_WHOLE,
)

# tokens, and numbers of requests, have 32 bits: a million requests take memory that is slower than the loop
REQUEST = record(
    # inputs
    arrival_us=_REAL,
    ready_us=_REAL,  # of a later turn: latest end of the requests that it waits for, plus pause
    priority=_WHOLE,  # lower goes first
    prompt=_SHORT,
    target=_SHORT,  # prompt + output tokens; on a prefill engine: prompt + first token
    tokens_after_transfer=_SHORT,  # output tokens that a decode engine generates
    # its session: the requests that wait for it are a slice of the array of edges
    edge_at=_SHORT,
    edge_count=_SHORT,
    beside=_SHORT,  # the first of these are sent when it is: other first requests of the session
    waits_for=_SHORT,  # requests before it that have not finished
    first_of=_SHORT,  # first request of its session; -1: it is alone
    left=_SHORT,  # of the first request: requests of the session that have not ended
    # its outcome; times are -1 until they happen
    received_us=_REAL,  # end of its KV transfer
    sent_us=_REAL,
    scheduled_us=_REAL,
    first_token_us=_REAL,
    finish_us=_REAL,
    requeued_us=_REAL,  # waiting again, after preemptions
    recomputed_us=_REAL,  # from admissions after a preemption to its next token (or the next preemption)
    status=_SHORT,
    replica=_SHORT,
    prefill_replica=_SHORT,  # the prefill engine of its prompt; -1: none
    preemptions=_SHORT,
    cached_tokens=_SHORT,  # prompt tokens found in the prefix cache at first admission, tiers included
    tier_tokens=_SHORT,  # of them those in tiers behind the GPU's cache
    # its prompt as hash blocks: a slice of the array of hashes
    hash_count=_SHORT,
    kept=_SHORT,  # leading hash blocks that it references
    shared_units=_SHORT,  # KV units of its tokens that belong to hash blocks
    hash_at=_WHOLE,
    # scheduler state
    loaded_us=_REAL,  # running: end of its load from a KV tier, for which it waits; 0: none
    load_us=_REAL,  # from its first admission to the end of its load
    visible_us=_REAL,  # when the scheduler sees it; preempted: at once
    preempted_us=_REAL,  # its last preemption
    resumed_us=_REAL,  # its admission after a preemption; -1 from its next token on
    last_token_us=_REAL,
    context_offset=_WHOLE,  # decoding: computed tokens minus the decode clock
    ticket=_WHOLE,  # its number in the order of admission
    leaves_at=_WHOLE,  # decode clock at which it finishes; -1: not decoding
    fills_at=_WHOLE,  # decode clock at which its attention window is full; -1: full, or no window
    known=_SHORT,  # prompt + generated tokens; not updated while it decodes
    computed=_SHORT,  # tokens in the KV cache; not updated while it decodes: then context_offset + clock
    chunk=_SHORT,  # tokens scheduled in this step
    reserved=_SHORT,  # with drafts: tokens that it has KV units for; 0: the computed ones
    group=_SHORT,  # decoding: its group, see ``batch``
    received=_SHORT,  # waiting on a decode engine: tokens with transferred KV; 0: none
    # list links: neighbours in the batch by admission; the next partial, fresh, and waiting (or finished) request
    before=_SHORT,
    after=_SHORT,
    next_partial=_SHORT,
    next_fresh=_SHORT,
    next_waiting=_SHORT,
    adapter=_SHORT,  # number of its adapter; -1: none
    place=_SHORT,  # running with an adapter: its place, see ``adapters``
    follows=_TRUTH,  # not sent in order of arrival: a later turn of a session, or another first request
    decoding=_TRUTH,
    fresh=_TRUTH,  # decoding, with its last token not from the last decode step
    skipped=_TRUTH,  # decoding, but without a token in this step: the budget was exhausted
    moving=_TRUTH,  # its KV is being transferred to a decode engine
    chunk_returns_us=_REAL,  # with pipeline stages: return of the batch with its latest chunk, before its last one
    all_in_flight=_TRUTH,  # per-request progress: its prompt's last chunk is in flight, or it was preempted in flight
)

# an edge of the dependency graph: the request that waits, and its pause from the end of the one before
EDGE = record(to=_WHOLE, pause_us=_REAL)

# a hash block, the freed private units of a request, or a tier (see ``tiers``)
ENTRY = record(
    valid=_WHOLE,  # its leading KV blocks that are cached; of private entries: units
    users=_WHOLE,  # running requests that reference it
    before=_WHOLE,
    after=_WHOLE,
    queued=_TRUTH,
)

# KV transfer from a prefill to a decode engine, microseconds; window layers send at most their window
LINK = record(token_us=_REAL, window_token_us=_REAL, window_tokens=_WHOLE, sequence_us=_REAL, latency_us=_REAL)

# weights of the scores by which a router chooses, and of a block in a tier against one on the GPU; see ``router``
WEIGHTS = record(prefix=_REAL, tier=_REAL, kv_use=_REAL, queue=_REAL, running=_REAL, load=_REAL, adapter=_REAL)

# the benchmark client and the router
CLIENT = record(
    now=_REAL,  # time of the last event
    until_us=_REAL,  # the loop returns before what happens later; inf: never, see ``loop``
    next_us=_REAL,  # the first event after ``until_us``, as far as was known when the loop returned
    next=_WHOLE,  # first request in order of arrival that is not sent yet
    filled=_WHOLE,  # records that are filled; the loop returns before it needs one more, see ``request_blocks``
    in_flight=_WHOLE,  # slots in use: requests, and sessions that have begun
    ended=_WHOLE,
    turns=_WHOLE,  # scheduled turns and KV transfers
    warmups=_WHOLE,  # leading requests that the measured ones wait for
    warmups_left=_WHOLE,
    offset_us=_REAL,  # from arrival times to simulated time
    max_concurrency=_WHOLE,
    user_us=_REAL,  # between the starts of two users of a closed loop; 0: all start at once
    together_until=_WHOLE,  # after the last of the requests that are sent at once at the start; 0: none
    router=_WHOLE,
    routed=_WHOLE,  # routed requests
    front=_WHOLE,  # engines that it sends to: all, or the prefill engines, which come first
    prefills=_TRUTH,  # these engines prefill for decode engines
    handed=_WHOLE,  # requests that decode engines received
    link=LINK,
    hash_tokens=_WHOLE,
    cache_threshold=_REAL,
    balance_abs_threshold=_WHOLE,
    balance_rel_threshold=_REAL,
    weights=WEIGHTS,
)

# requests that decode together: each gets its next token in the same step (see ``batch``)
_GROUP = {
    "group": _WHOLE,  # its index; 0 where there is one
    "decoding": _WHOLE,
    "clock": _WHOLE,  # decode steps that it has ended
    "last_decode_end": _REAL,  # the end of the last one
    "fresh": _WHOLE,
    "context_offset_sum": _WHOLE,
    "inside": _WHOLE,  # tokens inside the attention window
    "below": _WHOLE,  # requests whose window is not full
    "leaving": _WHOLE,  # size of the heap of finishes
    "filling": _WHOLE,  # size of the heap of windows that fill
    # with drafts, where requests advance by different numbers of tokens: KV units for the next step with all drafts,
    # requests whose drafts max_model_len cuts, tokens inside the attention window of the draft model
    "units_next": _WHOLE,
    "near_end": _WHOLE,
    "draft_inside": _WHOLE,
    # requests by the clock modulo block_size at which they need a block
    "block_boundaries": (_WHOLE, (LARGEST_BLOCK,)),
}

# a group that is in flight, or empty
GROUP = record(
    **_GROUP,
    noted=_WHOLE,  # requests that get a token from its batch and are not in the group, see ``groups``
    admitted=_WHOLE,  # tickets that the engine had issued when its batch was formed
)

# the group in an engine's record is the one that the next step takes; its requests are ready to decode
ENGINE = record(
    now=_REAL,
    previous_start=_REAL,
    # the queue
    in_flight=_WHOLE,  # requests sent to this engine that have not finished
    link_free_us=_REAL,  # when the link has sent the KV of all computed prompts
    first_waiting=_WHOLE,
    last_waiting=_WHOLE,
    handed_on_us=_REAL,  # when the front end has processed the last request
    busy_us=_REAL,  # when it has done the serial part of its work
    admitted=_WHOLE,  # tickets issued
    first_ended=_WHOLE,  # finished requests that the client has not processed
    # the current step or decode run, until ``due_us``; a planned run is not executed yet, so that a new request can
    # cut it short
    underway=_TRUTH,
    planned=_TRUTH,
    planned_steps=_WHOLE,
    due_us=_REAL,
    # of a rank that steps together with others: time of its next step and its growth by step; of these the GPU's; and
    # the same of the slowest rank
    own_us=_REAL,
    own_slope=_REAL,
    own_gpu_us=_REAL,
    own_gpu_slope=_REAL,
    pace_us=_REAL,
    pace_slope=_REAL,
    blocked=_TRUTH,  # the head of the queue cannot be admitted before a running request finishes
    found=_WHOLE,  # cached tokens of the last admission candidate
    stalled=_TRUTH,  # requests decode, but not in this step
    step_prompt_tokens=_WHOLE,
    step_decode_tokens=_WHOLE,  # of a rank that steps together with others
    step_found=_WHOLE,  # cached prompt tokens of requests first admitted in it
    step_looked_up=_WHOLE,  # all their prompt tokens
    step_preempted=_WHOLE,  # preemptions since the last step row
    # per-request progress
    batches=_WHOLE,  # in flight
    oldest_batch=_WHOLE,  # slot of the one that returns next
    prepared_us=_REAL,  # when the host has prepared the newest one
    left_out=_WHOLE,  # requests that decode, but not in the batch that is formed
    clocks=(_WHOLE, (MOST_GROUPS,)),  # of the groups in flight
    # the batch
    free_units=_WHOLE,  # blank units and those that can be evicted
    blank_units=_WHOLE,
    first_free=_WHOLE,  # free queue of entries, the next to evict first
    last_free=_WHOLE,
    running=_WHOLE,
    loading=_WHOLE,  # running requests that wait for a load from a tier
    oldest=_WHOLE,
    newest=_WHOLE,
    partial=_WHOLE,  # first partial request, in order of admission
    last_partial=_WHOLE,
    partial_count=_WHOLE,
    **_GROUP,
    decode_steps=_WHOLE,  # so far, of all groups
    skipped=_WHOLE,  # decoding requests without a token in this step
    skipped_tokens=_WHOLE,  # their computed tokens
    skipped_inside=_WHOLE,  # those inside the window
    skipped_below=_WHOLE,  # how many of their windows are not full
    decode_y=_WHOLE,  # knots below the last mean contexts, where the next search begins
    window_y=_WHOLE,
    # policies
    forming=_TRUTH,  # a static batch still admits requests
    formed_us=_REAL,  # requests visible by this time
    joined=_WHOLE,  # requests that it admitted
    full_running=_WHOLE,  # running requests at the last failed admission, until it is retried
    prefills_delayed=_TRUTH,  # this step decodes only
    waited_iters=_WHOLE,  # steps that prompts have been delayed
    # ranks that step together: the record of the first one counts for all
    prefills_held=_TRUTH,  # this step decodes only, until all ranks have prompts
    unbalanced_iters=_WHOLE,  # steps in which some rank had no prompt to compute
    balanced_iters=_WHOLE,  # steps that prompts waited although all had one
    joint_steps=_WHOLE,  # steps since no rank ran a request
    prompts_left=_TRUTH,  # the last step that took prompts left some in the queue
    received_us=_REAL,  # requests visible by this time are received
    polled_steps=_WHOLE,  # steps before the last poll
    polled_prompt_steps=_WHOLE,  # those with prompts
    ratio_from=_REAL,  # new-token ratio when it was last set
    ratio_step=_WHOLE,  # decode step from which it decays
    # KV tiers; counts in blocks: of this step, and in total
    loads_us=_REAL,  # end of the transfers that the step waits for
    link_read_us=_REAL,  # when the link from host to GPU is free, and the one back
    link_write_us=_REAL,
    tier_read_us=(_REAL, (MOST_TIERS,)),  # when each tier's own link is
    tier_write_us=(_REAL, (MOST_TIERS,)),
    load_blocks=(_WHOLE, (MOST_TIERS,)),
    pending_writes=(_WHOLE, (MOST_TIERS,)),
    tier_hit=(_WHOLE, (MOST_TIERS,)),  # found at first admissions
    tier_read=(_WHOLE, (MOST_TIERS,)),
    tier_written=(_WHOLE, (MOST_TIERS,)),
    tier_evicted=(_WHOLE, (MOST_TIERS,)),
    # adapters: of each place in host memory the number of its adapter from 1 (0: empty), the running requests that use
    # it, whether it has a slot on the GPU, and when it was used last
    adapter_number=(_SHORT, (MOST_ADAPTERS,)),
    adapter_running=(_SHORT, (MOST_ADAPTERS,)),
    adapter_on_gpu=(_SHORT, (MOST_ADAPTERS,)),
    adapter_used_us=(_REAL, (MOST_ADAPTERS,)),
    adapters_us=_REAL,  # loads that the step which is formed waits for
    adapters=_WHOLE,  # different ones that running requests use
    level=_WHOLE,  # of the step that is formed: which costs of tokens it has, see ``adapters``
    adapter_loads=_WHOLE,  # to the GPU, in total
    # totals
    steps=_WHOLE,
    prompt_steps=_WHOLE,
    gpu_us=_REAL,
    host_us=_REAL,
    idle_us=_REAL,
    energy_j=_REAL,  # dynamic, of kernels on one GPU of the engine; with pipeline stages on one of each
    row_energy_j=_REAL,  # the same at the last step row
    measured_us=_REAL,  # GPU time of kernels that a sweep of the GPU measured
    first_us=_REAL,
    last_us=_REAL,
    preempted=_WHOLE,
    peak_units=_WHOLE,
    gap_sum_us=_REAL,
    prompt_tokens=_WHOLE,
    draft_tokens=_WHOLE,  # draft tokens verified
    accepted_tokens=_WHOLE,  # draft tokens accepted
    rows=_WHOLE,
    # GPU time by kind of step (decode only, with prompts) and part, only where step costs are split
    step_kind_us=(_REAL, (2,)),
    moe_us=(_REAL, (2,)),
    communication_us=(_REAL, (2,)),
    decode_attention_us=(_REAL, (2,)),
    prefill_attention_us=_REAL,
    sums=(_REAL, (SUMS,)),  # times of steps by part up to the end of the last one, see ``waits``
)


# a pipeline stage of an engine, and a batch in flight
STAGE = record(
    share=_REAL,  # share of the layers
    free_us=_REAL,  # when the last batch leaves it
    gpu_us=_REAL,
    idle_us=_REAL,
    due_us=_REAL,  # when the batch returns
    group=_WHOLE,  # of the batch's decoding requests; without a batch, an empty one
)
