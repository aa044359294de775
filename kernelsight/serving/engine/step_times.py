"""Times of single steps from their batches, without a simulation: the loop's own rule over arrays of batches."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import entry, inlined
from kernelsight.serving.engine import host as host_rules
from kernelsight.serving.engine.adapters import expected_adapters
from kernelsight.serving.engine.costs import host_times
from kernelsight.serving.engine.records import NOBODY
from kernelsight.serving.engine.state import StepCosts
from kernelsight.serving.engine.steps import single_step

MIDDLE, FAST, SLOW, ENERGY = range(4)
# faults of a batch
FITS, EMPTY, NEGATIVE, TOO_MANY_TOKENS, TOO_MANY_SEQUENCES = range(5)

step_interval = inlined(host_rules.step_interval)


@inlined
def fill_batch(
    engine: np.void, requests: np.ndarray, new: np.ndarray, past: np.ndarray, first: int, last: int, window: int
) -> tuple:
    """Set the sequences ``first`` to ``last`` into a batch's records; return (prompt tokens, decode tokens, fault).

    A sequence with one new token after past ones decodes; any other is a chunk that completes its prompt.
    """
    tokens = decodes = contexts = inside = chunks = 0
    engine.partial = NOBODY
    for i in range(first, last):
        if new[i] < 1 or past[i] < 0:
            return 0, 0, NEGATIVE
        if new[i] == 1 and past[i] > 0:
            decodes += 1
            contexts += past[i]
            inside += min(past[i], window)
            continue
        if chunks == requests.size:
            return 0, 0, TOO_MANY_SEQUENCES
        request = requests[chunks]
        request.computed, request.chunk, request.known = past[i], new[i], past[i] + new[i]
        request.next_partial = NOBODY
        if chunks > 0:
            requests[chunks - 1].next_partial = chunks
        else:
            engine.partial = chunks
        chunks += 1
        tokens += new[i]
    if decodes + chunks > requests.size:
        return 0, 0, TOO_MANY_SEQUENCES
    engine.decoding, engine.context_offset_sum, engine.inside = decodes, contexts, inside
    return tokens, decodes, EMPTY if first == last else FITS


@entry
def time_steps(
    new: np.ndarray,
    past: np.ndarray,
    offsets: np.ndarray,
    engines: np.ndarray,
    requests: np.ndarray,
    hosts: np.ndarray,
    costs: np.ndarray,
    layouts: np.ndarray,
    level_of: np.ndarray,
    uses: np.ndarray,
    window: int,
    most_tokens: int,
    log_sd: float,
    times: np.ndarray,
) -> int:
    """Fill ``times``, shape [4, batches]: time, p05 and p95 of each step, us, and energy, J; return the first fault.

    The energy is that of kernels on one GPU, without what an active GPU draws anyway. Batch b has the sequences
    ``offsets[b]`` to ``offsets[b + 1]``. ``costs``: shape [3, ...], median and both ends. ``layouts``: without adapters
    and at each level of them, which ``level_of`` has by their number; ``hosts``: without adapters, and with them.
    ``engines``, ``requests``, ``uses``: working memory: one record, one for each sequence, uses of costs. A fault is
    its kind plus 8 times the batch; FITS: none.
    """
    engine = engines[0]
    for b in range(offsets.size - 1):
        tokens, decodes, fault = fill_batch(engine, requests, new, past, offsets[b], offsets[b + 1], window)
        if fault == FITS and tokens + decodes > most_tokens:
            fault = TOO_MANY_TOKENS
        if fault != FITS:
            return fault + 8 * b
        engine.energy_j = 0.0
        # each sequence has one of the adapters, all equally often
        level = level_of[expected_adapters(level_of.size - 1, offsets[b + 1] - offsets[b])] if level_of.size > 1 else 0
        host, layout = hosts[min(level, 1)], layouts[level]
        gpu_us, _ = single_step(engine, requests, host, StepCosts(costs[MIDDLE], layout, uses), tokens, decodes, 0)
        times[ENERGY, b] = engine.energy_j
        fast_us, _ = single_step(engine, requests, host, StepCosts(costs[FAST], layout, uses), tokens, decodes, 0)
        slow_us, _ = single_step(engine, requests, host, StepCosts(costs[SLOW], layout, uses), tokens, decodes, 0)
        chunks = offsets[b + 1] - offsets[b] - decodes
        hidden_us, exposed_us, _ = host_times(chunks + decodes, tokens + decodes, chunks, host)
        total_us, p05_us, p95_us, _, _, _ = step_interval(gpu_us, fast_us, slow_us, hidden_us, exposed_us, log_sd)
        times[MIDDLE, b], times[FAST, b], times[SLOW, b] = total_us, p05_us, p95_us
    return FITS
