"""The scheduler's limits: each declared once, with where its value comes from and how the loop stores it.

A field of ``Limits`` is a column of ``deployment_settings`` or ``memory_plan`` of the same name, or says what it is
made of. From the fields follow ``limits_of`` (from a deployment to its limits), ``LIMITS`` (the record that the loop
reads) and ``is_plain`` (whether a policy is in force).
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np

from kernelsight.serving.engine.records import CAPACITY_POLICIES, MAX_UTILIZATION, MOST_TIERS, record

POLICY = "policy"  # a field whose default is the plain scheduler; another value is asked for only where it is set


def column(name: str, scale: float | None = None) -> Callable[[dict[str, Any]], Any]:
    """Return what reads a column of another name, or unit: ``scale`` of ours in one of theirs."""
    return (lambda row: row[name]) if scale is None else (lambda row: row[name] * scale)


def equals(name: str, value: str) -> Callable[[dict[str, Any]], bool]:
    """Return what says whether a column has this value."""
    return lambda row: row[name] == value


def capacity_policy_of(name: str) -> int:
    """Return the number of a capacity policy; one that looks at prompts reserves nothing for running requests."""
    return MAX_UTILIZATION if name == "prompt_fits" else CAPACITY_POLICIES.index(name)


def _only_alone(name: str) -> Callable[[dict[str, Any]], int]:
    """Return what reads a limit that TensorRT-LLM ignores where ranks step together (``should_check_waiting``)."""
    return lambda row: 0 if row["lock_step"] else row[name]


class Limits(NamedTuple):
    """Scheduler limits of one deployment, in tokens, requests and KV units; fields of the record LIMITS."""

    max_num_seqs: Annotated[int, lambda row: min(row["max_num_seqs"], row["max_num_batched_tokens"])]
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    max_model_len: int
    block_size: int
    full_units: int
    window_units: int
    window_blocks: int
    sequence_units: int
    capacity_units: int
    window_tokens: int
    chunked: Annotated[bool, column("enable_chunked_prefill")]
    prefill_first: Annotated[bool, equals("prefill_policy", "prefill_first")]
    asynchronous: Annotated[bool, column("async_scheduling")]
    prefix_caching: Annotated[bool, column("enable_prefix_caching")] = False
    # a batch is formed, prefilled and decoded to its end before the next one
    static: Annotated[bool, equals("scheduling", "static"), POLICY] = False
    capacity_policy: Annotated[int, lambda row: capacity_policy_of(row["capacity_policy"]), POLICY] = MAX_UTILIZATION
    # a prompt is admitted where all of it fits, not its first chunk alone
    whole_prompts: Annotated[bool, equals("capacity_policy", "prompt_fits")] = False
    schedule_conservativeness: float = 1.0
    # steps that prompts are held back for at most; 0: none
    batch_wait_timeout_iters: Annotated[int, _only_alone("batch_wait_timeout_iters"), POLICY] = 0
    # tokens of a step that are enough
    batch_wait_tokens: Annotated[
        float, lambda row: row["batch_wait_max_tokens_ratio"] * row["max_num_batched_tokens"]
    ] = 0.0
    # decode steps from one look for new requests to the next
    scheduler_recv_interval: Annotated[int, POLICY] = 1
    # prompts that are computed in part, at once; 0: no limit
    max_num_partial_prefills: Annotated[int, POLICY] = 0
    # and of those longer than long_prefill_token_threshold
    max_long_partial_prefills: Annotated[int, POLICY] = 0
    # the queue and the victims of preemption go by priority, then by when they were sent
    by_priority: Annotated[bool, equals("scheduling_policy", "priority"), POLICY] = False
    # who has generated the fewest tokens is preempted, and goes last; else the newest
    fewest_generated: Annotated[bool, equals("preemption_policy", "fewest_generated"), POLICY] = False
    # time for which a look for new requests lasts
    batch_wait_us: Annotated[float, column("batch_wait_timeout_ms", 1e3)] = 0.0
    # tokens that are proposed for a sequence in each step; 0: no speculative decoding
    drafts: Annotated[int, column("num_speculative_tokens")] = 0
    # probability that a proposed token is accepted, where those before it were
    acceptance: Annotated[float, column("draft_acceptance_rate")] = 0.0
    # ranks that step together compute prompts in the same steps
    balance: Annotated[bool, lambda row: row["lock_step"] and row["attention_dp_balance"], POLICY] = False
    # steps with a rank that has no prompt, after which the others do not wait for it
    attention_dp_timeout_iters: int = 50
    # steps that prompts wait where all ranks have one
    attention_dp_batching_wait_iters: int = 10
    # ranks that step together compute prompts in every Nth step
    prefill_schedule_interval: Annotated[
        int, lambda row: row["prefill_schedule_interval"] if row["lock_step"] else 1, POLICY
    ] = 1
    # with pipeline stages: chunks of one prompt are in several batches at once; else the next waits for the one before
    chunks_overlap: bool = True
    # layers with a window have a pool of their own: a request takes the larger of its units in both, not their sum
    windows_apart: bool = False


_DECLARED = get_type_hints(Limits, include_extras=True)
_TYPES = get_type_hints(Limits)


def _notes(name: str) -> tuple[Any, ...]:
    return getattr(_DECLARED[name], "__metadata__", ())


_SOURCES = {name: next(filter(callable, _notes(name)), column(name)) for name in Limits._fields}
_POLICIES = {name: Limits._field_defaults[name] for name in Limits._fields if POLICY in _notes(name)}
_STORED = {int: np.int64, float: np.float64, bool: np.bool_}

# what the loop reads: the limits, and what follows from the load and the pipeline stages
LIMITS = record(
    **{name: _STORED[_TYPES[name]] for name in Limits._fields},
    hash_tokens=np.int64,  # tokens that one hash of a prompt stands for; 0: no prefix caching
    requests=np.int64,  # requests of the scenario: as many entries stand for their private blocks
    plain=np.bool_,  # no policy
    stages=np.int64,  # pipeline stages, and batches that are in flight at most
    draft_model=np.bool_,  # a model proposes the drafts, whose costs are known
    draft_window_tokens=np.int64,  # what its layers with a window see
    per_request_progress=np.bool_,  # decoding requests differ in what they have yet to get: stages or drafts
    ranks=np.int64,  # engines that begin and end each step together; 1: none
    rank=np.int64,  # which of them, from 0
    entries_at=np.int64,  # its first entry for a hash block, and for the private blocks of a request
    private_at=np.int64,
    # KV tiers: how many, when blocks are written, whether requests load beside the steps of others (else their step
    # waits) and from when they are queued on; the links, microseconds a block, and the entries of each tier
    tiers=np.int64,
    write_policy=np.int64,
    load_ahead=np.bool_,
    prefetch=np.bool_,
    link_read_us=np.float64,
    link_write_us=np.float64,
    tier_at=(np.int64, (MOST_TIERS,)),
    tier_read_us=(np.float64, (MOST_TIERS,)),
    tier_write_us=(np.float64, (MOST_TIERS,)),
    tier_latency_us=(np.float64, (MOST_TIERS,)),
)


def limits_of(deployment: dict[str, Any], plan: dict[str, Any], window_tokens: int) -> Limits:
    """Return the limits of one engine from its rows of ``deployment_settings`` and ``memory_plan``."""
    row = {**deployment, **plan, "window_tokens": window_tokens}
    return Limits(**{name: source(row) for name, source in _SOURCES.items()})


def is_plain(limits: Limits) -> bool:
    """Whether no policy is in force."""
    return all(getattr(limits, name) == value for name, value in _POLICIES.items())
