"""Adapters (LoRA) of one engine: which requests a step may take, loads over PCIe and from disk, eviction.

As in vLLM: at most ``max_loras`` adapters have a slot on the GPU, and ``adapter_places`` are in host memory, those on
the GPU included. A request runs with its adapter on the GPU; an adapter that no running request uses may be evicted,
the least recently used first. A request whose adapter finds no slot is passed over, or holds back those behind it
(``adapter_head_waits``: SGLang before 0.5.6). The step that admits a request waits until its adapter is loaded:
``adapter_read_us`` from disk where host memory does not hold it, ``adapter_load_us`` over PCIe. vLLM counts the
adapters of the requests that a step schedules; here all running requests count, which differs where the token budget
leaves some out. Requests without an adapter need no slot.

Steps cost by the different adapters that running requests have (``set_level``). Where none has one, some engines launch
the adapters' kernels nevertheless, in steps of up to ``launched_tokens`` (``launched_prompt_tokens``): such a step
costs as with one adapter. Of a load that names no adapters each request has one of ``max_loras``, all equally often.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled, inlined
from kernelsight.serving.engine.records import FOREVER, NOBODY
from kernelsight.serving.engine.tiers import end_writes


@compiled
def place_of(engine: np.void, limits: np.void, adapter: int) -> int:
    """Return the place in host memory that holds an adapter; -1: none."""
    for p in range(limits.adapter_places):
        if engine.adapter_number[p] == adapter + 1:
            return p
    return NOBODY


@compiled
def least_used(engine: np.void, limits: np.void, on_gpu: bool) -> int:
    """Return the place to evict: an empty one, else the least recently used that no running request uses; -1: none.

    ``on_gpu``: of the places that have a slot on the GPU.
    """
    best, moment = NOBODY, FOREVER
    for p in range(limits.adapter_places):
        if on_gpu and engine.adapter_on_gpu[p] == 0:
            continue
        if engine.adapter_number[p] == 0:
            return p
        if engine.adapter_running[p] == 0 and engine.adapter_used_us[p] < moment:
            best, moment = p, engine.adapter_used_us[p]
    return best


@compiled
def slots_in_use(engine: np.void, limits: np.void) -> int:
    """Return the slots on the GPU that hold an adapter."""
    count = 0
    for p in range(limits.adapter_places):
        count += engine.adapter_on_gpu[p]
    return count


@compiled
def has_slot(engine: np.void, limits: np.void, request: np.void) -> bool:
    """Whether a request could run now: its adapter is on the GPU, or a slot is free or can be freed."""
    if request.adapter < 0 or limits.max_loras == 0:
        return True
    p = place_of(engine, limits, request.adapter)
    if p >= 0 and engine.adapter_on_gpu[p] == 1:
        return True
    return slots_in_use(engine, limits) < limits.max_loras or least_used(engine, limits, True) >= 0


@compiled
def take_slot(engine: np.void, limits: np.void, request: np.void) -> None:
    """Load the adapter of an admitted request, unless it is on the GPU; count the request as one that uses it."""
    p = place_of(engine, limits, request.adapter)
    if p < 0 or engine.adapter_on_gpu[p] == 0:
        if slots_in_use(engine, limits) == limits.max_loras:
            engine.adapter_on_gpu[least_used(engine, limits, True)] = 0
        if p < 0:
            p = least_used(engine, limits, False)
            engine.adapter_number[p] = request.adapter + 1
            engine.adapters_us += limits.adapter_read_us
        engine.adapter_on_gpu[p] = 1
        engine.adapters_us += limits.adapter_load_us
        engine.adapter_loads += 1
    engine.adapters += 1 if engine.adapter_running[p] == 0 else 0
    engine.adapter_running[p] += 1
    request.place = p


@inlined
def leave_slot(engine: np.void, request: np.void) -> None:
    """Count a request that leaves the batch as one that used its adapter last now."""
    if request.adapter >= 0:
        engine.adapter_running[request.place] -= 1
        engine.adapters -= 1 if engine.adapter_running[request.place] == 0 else 0
        engine.adapter_used_us[request.place] = engine.now


@inlined
def expected_adapters(slots: int, requests: int) -> int:
    """Return how many different adapters requests are expected to have, each one of ``slots``; rounded up."""
    return int(np.ceil(slots * (1.0 - (1.0 - 1.0 / slots) ** requests) - 1e-9))


@inlined
def set_level(engine: np.void, limits: np.void, prompt_tokens: int, decode_tokens: int) -> None:
    """Set the level of a scheduled step: 0 without adapters, else that of ``Surface.adapter_levels``, from 1."""
    if limits.levels > 1:
        adapters = engine.adapters
        if limits.assumed_loras > 0:
            adapters = expected_adapters(limits.assumed_loras, engine.running)
        most = limits.launched_prompt_tokens if prompt_tokens > 0 else limits.launched_tokens
        if adapters == 0 and prompt_tokens + decode_tokens <= most:
            adapters = 1
        engine.level = limits.level_of[adapters]


@inlined
def wait_for_loads(engine: np.void, limits: np.void, end_us: float) -> float:
    """Return how long a step that would end at ``end_us`` waits for KV tiers and adapters."""
    wait_us = 0.0
    if limits.tiers > 0:
        end_writes(engine, limits)
        wait_us = max(engine.loads_us - end_us, 0.0)
    if limits.max_loras > 0:
        wait_us += engine.adapters_us
        engine.adapters_us = 0.0
    return wait_us


@inlined
def load_before_decodes(engine: np.void, limits: np.void) -> None:
    """Wait, before a decode run, for the adapters of requests whose prompts another engine computed."""
    if limits.max_loras > 0:
        engine.idle_us += engine.adapters_us
        engine.now += engine.adapters_us
        engine.adapters_us = 0.0
