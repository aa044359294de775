"""Data-parallel ranks that share the experts of a mixture: they begin and end each step together.

Every MoE layer exchanges tokens among all ranks, so a step lasts as long as its slowest rank, and routed experts work
on the tokens of all. In a CUDA graph ranks are padded to the largest batch among them (vLLM
``coordinate_batch_across_dp``, SGLang ``DpPaddingMode.MAX_LEN``, TensorRT-LLM ``CUDAGraphRunner``); otherwise the
experts get the tokens that there are. A rank without requests runs an empty batch beside the others: it waits for them,
and takes no time of its own.

A prompt on one rank delays the decodes of all. TensorRT-LLM's ``attention_dp_config.enable_balance`` holds prompts back
until every rank has one (``RequestScheduler._balance_adp_context_requests``).
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.engine.admission import next_prompt
from kernelsight.serving.engine.compiled import compiled
from kernelsight.serving.engine.pipeline import form_batch, put_in_flight, send_batch
from kernelsight.serving.engine.queue import horizon_us, next_visible_us, queue_head
from kernelsight.serving.engine.steps import END, STAGE_WAIT


@compiled
def begin_ranks(
    engines: np.ndarray,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.ndarray,
    host: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    costs: np.ndarray,
    layout: np.void,
    draft_layout: np.void,
    uses: np.ndarray,
    stages: np.ndarray,
    flights: np.ndarray,
    rows: np.ndarray,
    sums: np.ndarray,
    first: int,
    now: float,
) -> None:
    """Begin a step of the ranks from ``first`` on; arrays have an item for each engine, as in ``loop``."""
    ranks = limits[first].ranks
    if limits[first].balance:
        held = holds_prompts(engines, requests, limits, hashes, entries, first, ranks, now)
        for i in range(first, first + ranks):
            engines[i].prefills_held = held
    for i in range(first, first + ranks):
        form_rank(engines[i], requests, heaps[i], limits[i], hashes, entries[i], sums, now)
    expert_tokens = shared_tokens(engines, host, first, ranks)
    end_us = now
    for i in range(first, first + ranks):
        engine = engines[i]
        if engine.step_prompt_tokens + engine.step_decode_tokens > 0:
            send_batch(
                engine, requests, limits[i], host, costs, layout, draft_layout, uses, stages[i], 0,
                engine.step_prompt_tokens, engine.step_decode_tokens, expert_tokens, rows[i],
            )  # fmt: skip
            put_in_flight(engine, requests, stages[i, 0], flights[i, 0], engine.step_decode_tokens)
            end_us = max(end_us, stages[i, 0].due_us)
    for i in range(first, first + ranks):
        wait_for_ranks(engines[i], stages[i, 0], layout, rows[i], end_us)


@compiled
def holds_prompts(
    engines: np.ndarray,
    requests: np.ndarray,
    limits: np.ndarray,
    hashes: np.ndarray,
    entries: np.ndarray,
    first: int,
    ranks: int,
    now: float,
) -> bool:
    """Whether this step decodes only, so that all ranks compute prompts in the same steps; counts the steps."""
    counts, prompts, decodes = engines[first], True, True
    for i in range(first, first + ranks):
        engine, own = engines[i], limits[i]
        horizon = horizon_us(engine, own)
        # a rank that decodes sees what came before its last step began, an idle one what came until now
        if engine.running == 0:
            horizon = now
        waits = engine.partial >= 0 or next_prompt(engine, requests, own, hashes, entries[i], horizon) >= 0
        prompts = prompts and waits
        decodes = decodes and engine.decoding > 0
    if prompts:
        counts.unbalanced_iters = 0
        if not decodes:
            return False
        counts.balanced_iters += 1
        if counts.balanced_iters <= limits[first].attention_dp_batching_wait_iters:
            return True
        counts.balanced_iters = 0
        return False
    counts.unbalanced_iters += 1
    if decodes and counts.unbalanced_iters < limits[first].attention_dp_timeout_iters:
        return True
    counts.unbalanced_iters = 0
    return False


@compiled
def form_rank(
    engine: np.void,
    requests: np.ndarray,
    heaps: np.ndarray,
    limits: np.void,
    hashes: np.ndarray,
    entries: np.ndarray,
    sums: np.ndarray,
    now: float,
) -> None:
    """Schedule a rank's part of a step; it stays empty where the rank sees no request yet."""
    engine.step_prompt_tokens = engine.step_decode_tokens = 0
    horizon = horizon_us(engine, limits)
    idle = engine.running == 0 and queue_head(engine, requests, limits, horizon) < 0
    if idle:
        if next_visible_us(engine, requests, limits, horizon) + limits.batch_wait_us > now:
            engine.previous_start = now
            return
        horizon = now
    engine.now = now
    prompt_tokens, decode_tokens = form_batch(engine, requests, heaps, limits, hashes, entries, sums, idle, horizon)
    engine.step_prompt_tokens, engine.step_decode_tokens = prompt_tokens, decode_tokens


@compiled
def shared_tokens(engines: np.ndarray, host: np.void, first: int, ranks: int) -> int:
    """Tokens that each rank sends to the experts, in the mean; the largest batch, where a CUDA graph holds all."""
    largest = total = prompt_tokens = 0
    for i in range(first, first + ranks):
        tokens = engines[i].step_prompt_tokens + engines[i].step_decode_tokens
        largest, total = max(largest, tokens), total + tokens
        prompt_tokens += engines[i].step_prompt_tokens
    most = host.prompt_graph_max_tokens if prompt_tokens > 0 else host.graph_max_tokens
    return largest if largest <= most else -(-total // ranks)


@compiled
def wait_for_ranks(engine: np.void, stage: np.void, layout: np.void, rows: np.ndarray, end_us: float) -> None:
    """Let a rank wait until the step of all has ended; in a profile, that is time in collectives."""
    if engine.step_prompt_tokens + engine.step_decode_tokens == 0:
        engine.now = end_us
        return
    wait_us = end_us - stage.due_us
    stage.due_us = stage.free_us = engine.due_us = end_us
    stage.idle_us += wait_us
    engine.batches, engine.underway = 1, True
    if layout.split:
        kind = 1 if engine.step_prompt_tokens > 0 else 0
        engine.step_kind_us[kind] += wait_us
        engine.communication_us[kind] += wait_us
    if rows.shape[0] > 0:
        row = rows[engine.rows - 1]
        row[END] = end_us
        row[STAGE_WAIT] += wait_us
