"""The scheduler's limits: each declared once, with where its value comes from and how the loop stores it.

A field of ``Limits`` is the column of ``deployment_settings`` or ``memory_plan`` with its name, or its annotation
computes it. From the fields follow ``limits_of`` (from a deployment to its limits), ``LIMITS`` (the record that the
loop reads) and ``is_plain`` (whether a policy is in force).
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np

from kernelsight.scenario.speculation import MOST_DRAFTS, accepted_by_position
from kernelsight.serving.engine.host import graph_tokens
from kernelsight.serving.engine.records import (
    CAPACITY_POLICIES,
    MAX_UTILIZATION,
    MOST_ADAPTERS,
    MOST_TIERS,
    NO_LIMIT,
    record,
)

POLICY = "policy"  # marks fields whose default is the plain scheduler: rules for other values run only where one is set


def column(name: str, scale: float | None = None) -> Callable[[dict[str, Any]], Any]:
    """Return a function that reads a column with another name, or, times ``scale``, with another unit."""
    return (lambda row: row[name]) if scale is None else (lambda row: row[name] * scale)


def equals(name: str, value: str) -> Callable[[dict[str, Any]], bool]:
    """Return a function that compares a column with this value."""
    return lambda row: row[name] == value


def capacity_policy_of(name: str) -> int:
    """Return the index of a capacity policy; ``prompt_fits`` reserves nothing for running requests."""
    return MAX_UTILIZATION if name == "prompt_fits" else CAPACITY_POLICIES.index(name)


def _only_alone(name: str) -> Callable[[dict[str, Any]], int]:
    """Return a function that reads a limit which TensorRT-LLM ignores with attention DP (``should_check_waiting``)."""
    return lambda row: 0 if row["lock_step"] else row[name]


def _launched(row: dict[str, Any]) -> tuple[int, int]:
    """Return the largest steps, of decodes and with prompts, that launch adapters' kernels without an adapter."""
    return {"skipped": (0, 0), "in_graphs": graph_tokens(row), "launched": (NO_LIMIT, NO_LIMIT)}[row["adapters_unused"]]


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
    # a prompt is admitted where all of it fits, not just its first chunk
    whole_prompts: Annotated[bool, equals("capacity_policy", "prompt_fits")] = False
    schedule_conservativeness: float = 1.0
    # most steps that prompts are delayed; 0: never
    batch_wait_timeout_iters: Annotated[int, _only_alone("batch_wait_timeout_iters"), POLICY] = 0
    # tokens of a step at which prompts are no longer delayed
    batch_wait_tokens: Annotated[
        float, lambda row: row["batch_wait_max_tokens_ratio"] * row["max_num_batched_tokens"]
    ] = 0.0
    # decode steps between polls for new requests
    scheduler_recv_interval: Annotated[int, POLICY] = 1
    # most partly computed prompts at a time; 0: no limit
    max_num_partial_prefills: Annotated[int, POLICY] = 0
    # most of these that are longer than long_prefill_token_threshold; 0: no limit
    max_long_partial_prefills: Annotated[int, POLICY] = 0
    # priority scheduling: queue and victims of preemption are ordered by priority, then by time of sending
    by_priority: Annotated[bool, equals("scheduling_policy", "priority"), POLICY] = False
    # the request with the fewest generated tokens is preempted, and queued last (SGLang); otherwise the newest
    fewest_generated: Annotated[bool, equals("preemption_policy", "fewest_generated"), POLICY] = False
    # duration of a poll for new requests
    batch_wait_us: Annotated[float, column("batch_wait_timeout_ms", 1e3)] = 0.0
    # draft tokens per sequence and step; 0: no speculative decoding
    drafts: Annotated[int, column("num_speculative_tokens")] = 0
    # probability by position that a draft token is accepted, if those before it were; one number: at every position
    acceptance: Annotated[tuple[float, ...] | float, accepted_by_position] = 0.0
    # passes that propose, and the most drafts that are accepted; tokens of a sequence that a later pass goes on from
    draft_depth: Annotated[int, lambda row: row["speculative_num_steps"] or row["num_speculative_tokens"]] = MOST_DRAFTS
    draft_branches: Annotated[int, lambda row: row["speculative_eagle_topk"] or 1] = 1
    # all drafts come from one pass of a block head
    draft_block: Annotated[bool, column("drafts_in_block")] = False
    # ranks that step together compute prompts in the same steps (TensorRT-LLM: attention DP balance)
    balance: Annotated[bool, lambda row: row["lock_step"] and row["attention_dp_balance"], POLICY] = False
    # steps after which ranks with prompts no longer wait for a rank without
    attention_dp_timeout_iters: int = 50
    # steps that prompts are delayed although all ranks have one
    attention_dp_batching_wait_iters: int = 10
    # ranks that step together compute prompts in every Nth step
    prefill_schedule_interval: Annotated[
        int, lambda row: row["prefill_schedule_interval"] if row["lock_step"] else 1, POLICY
    ] = 1
    # adapters on the GPU at a time, and in host memory; 0: requests have none
    max_loras: Annotated[int, POLICY] = 0
    adapter_places: int = 0
    # a request whose adapter has no slot holds back those behind it
    adapter_head_waits: bool = False
    # time to load an adapter from host memory to the GPU, and from disk to host memory
    adapter_load_us: float = 0.0
    adapter_read_us: float = 0.0
    # tokens of a step that decodes, and of one with prompts, up to which adapters' kernels run though no request has
    # one
    launched_tokens: Annotated[int, lambda row: _launched(row)[0]] = 0
    launched_prompt_tokens: Annotated[int, lambda row: _launched(row)[1]] = 0
    # with pipeline stages: chunks of one prompt are in several batches at once; otherwise one waits for another
    chunks_overlap: bool = True
    # layers with a window have a pool of their own: a request takes the larger of its units in both, not their sum
    windows_apart: bool = False


_DECLARED = get_type_hints(Limits, include_extras=True)
_TYPES = get_type_hints(Limits)


def _notes(name: str) -> tuple[Any, ...]:
    return getattr(_DECLARED[name], "__metadata__", ())


_SOURCES = {name: next(filter(callable, _notes(name)), column(name)) for name in Limits._fields}
_POLICIES = {name: Limits._field_defaults[name] for name in Limits._fields if POLICY in _notes(name)}
_STORED = {int: np.int64, float: np.float64, bool: np.bool_, tuple[float, ...] | float: (np.float64, (MOST_DRAFTS,))}

# the record that the loop reads: limits, and values that follow from load, pipeline stages and KV tiers
LIMITS = record(
    **{name: _STORED[_TYPES[name]] for name in Limits._fields},
    hash_tokens=np.int64,  # tokens of a hash block; 0: no prefix caching
    requests=np.int64,  # of the scenario: each has an entry for its private blocks
    plain=np.bool_,  # no policy is in force
    stages=np.int64,  # pipeline stages; the same number of batches may be in flight
    draft_model=np.bool_,  # drafts come from a model with step costs
    draft_window_tokens=np.int64,  # width of its windowed attention
    per_request_progress=np.bool_,  # decoding requests do not advance in lock step: pipeline stages, or drafts
    ranks=np.int64,  # engines that begin and end each step together; 1: none
    rank=np.int64,  # index of this one
    # slots of a load that names no adapters; levels of costs, one of them without adapters, and the level by adapters
    assumed_loras=np.int64,
    levels=np.int64,
    level_of=(np.int16, (MOST_ADAPTERS + 1,)),
    entries_at=np.int64,  # its first entry for a hash block, and for the private blocks of a request
    private_at=np.int64,
    # KV tiers: their number, write policy, load_ahead and prefetch (see ``inputs.Tiers``); times of the links, us a
    # block; the entries of each tier
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
