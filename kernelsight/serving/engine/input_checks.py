"""What the compiled loop refuses: it has no guards of its own, and such values end in a crash or in an endless loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelsight.errors import InvalidInput
from kernelsight.serving.engine.records import LARGEST_BLOCK, MOST_ADAPTERS, MOST_GROUPS

if TYPE_CHECKING:
    from kernelsight.serving.engine.inputs import Load
    from kernelsight.serving.engine.limits import Limits

# least value of limits by which the loop divides or counts down; the others may be 0
LEAST_LIMITS = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "block_size": 1}
NOT_NEGATIVE = ("full_units", "window_units", "window_blocks", "sequence_units", "capacity_units", "drafts")
# the host's one figure that may be infinite: a share that no number of requests reaches
UNBOUNDED = "exposed_requests_half"


def check_inputs(load: Load, pools: Sequence[Any]) -> None:
    """Raise InvalidInput for a load, or an engine of ``pools`` (``replica.Pool``), that cannot be simulated.

    >>> from kernelsight.serving.engine.inputs import Load
    >>> check_inputs(Load(np.zeros(1), np.ones(1, int), np.ones(1, int), max_concurrency=0), [])
    Traceback (most recent call last):
    kernelsight.errors.InvalidInput: max_concurrency is 0; give a whole number of requests or sessions, at least 1.
    """
    for fault in _load_faults(load):
        raise InvalidInput(fault)
    check_clients(load.max_concurrency, load.user_us)
    check_pools(pools)


def check_clients(max_concurrency: int | np.ndarray, user_us: float | np.ndarray) -> None:
    """Raise InvalidInput for a closed loop of fewer than one session, or whose users never start; shape [scenarios]."""
    fewest = int(np.min(max_concurrency))
    if fewest < 1:
        raise InvalidInput(f"max_concurrency is {fewest}; give a whole number of requests or sessions, at least 1.")
    if not _are_times(np.asarray(user_us, dtype=float)):
        raise InvalidInput("the time between two users who start is no number from 0; correct concurrency_ramp_s.")


def check_lengths(arrival_us: np.ndarray, prompt_tokens: np.ndarray, output_tokens: np.ndarray) -> None:
    """Raise InvalidInput for requests without a finite arrival or without tokens; shape [requests] each."""
    if not np.isfinite(arrival_us).all():
        raise InvalidInput("a request has no finite arrival; correct arrival_s.")
    for name, tokens in (("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens)):
        if tokens.min() < 1:
            raise InvalidInput(f"a request has {name} of {tokens.min()}; give a whole number of tokens, at least 1.")


def check_pools(pools: Sequence[Any]) -> None:
    """Raise InvalidInput for engines with limits, host times or step costs that no engine can have."""
    for pool in pools:
        for fault in (*_limit_faults(pool.limits), *_engine_faults(pool)):
            raise InvalidInput(fault)


def _load_faults(load: Load) -> Iterator[str]:
    n = load.arrival_us.size
    if n == 0:
        yield "no request is given to serve; give a load of at least one."
        return
    check_lengths(load.arrival_us, load.prompt_tokens, load.output_tokens)
    if not 0 <= load.warmups <= n:
        yield f"{load.warmups} of {n} requests are warm-ups; correct num_warmups."
    ends = load.hash_offsets
    if ends.size and (ends.size != n + 1 or ends[0] < 0 or ends[-1] > load.hashes.size or (np.diff(ends) < 0).any()):
        yield "the hash blocks of the requests are not those of the load; correct hash_ids."
    if load.hashes.min(initial=0) < 0:
        yield "a hash block has a negative number; correct hash_ids."
    if load.waits is not None:
        requests = np.concatenate([load.waits.request, load.waits.after])
        if requests.min(initial=0) < 0 or requests.max(initial=0) >= n:
            yield "a request waits for one that the load lacks; correct request_dependencies."
        if not _are_times(load.waits.pause_us):
            yield "a pause before a request is no number from 0; correct think_s."


def _limit_faults(limits: Limits) -> Iterator[str]:
    for name in (*LEAST_LIMITS, *NOT_NEGATIVE):
        value, least = getattr(limits, name), LEAST_LIMITS.get(name, 0)
        if value < least:
            yield f"{name} is {value}; an engine needs at least {least}."
    if limits.block_size > LARGEST_BLOCK:
        yield f"block_size is {limits.block_size} tokens; give {LARGEST_BLOCK} at most."
    if limits.max_loras > 0 and not limits.max_loras <= limits.adapter_places <= MOST_ADAPTERS:
        places = f"{limits.max_loras} adapters on the GPU and {limits.adapter_places} in host memory"
        yield f"{places}; give {MOST_ADAPTERS} at most."
    if not _are_times(np.array([limits.batch_wait_us])):
        yield f"batch_wait_timeout_ms is {limits.batch_wait_us / 1e3:g}; give a number from 0."


def _engine_faults(pool: Any) -> Iterator[str]:
    if pool.engines < 1 or pool.ranks < 1:
        yield f"{pool.engines} engines of {pool.ranks} ranks cannot serve; give at least one of each."
    if not 1 <= len(pool.layers) < MOST_GROUPS:
        yield f"an engine has {len(pool.layers)} pipeline stages; give 1 to {MOST_GROUPS - 1}."
    wrong = [name for name, value in pool.host._asdict().items() if name != UNBOUNDED and not np.isfinite(value)]
    if wrong:
        yield f"the host time {wrong[0]} is no finite number; correct host_overheads."
    # energies behind the times may be unknown
    if not np.isfinite(pool.costs.values[: int(pool.costs.layout["energy_at"])]).all():
        yield "a step cost is no finite number; correct the kernel latencies."


def _are_times(values: np.ndarray) -> bool:
    """Return whether all values are finite and not negative."""
    return bool((np.isfinite(values) & (values >= 0.0)).all())
