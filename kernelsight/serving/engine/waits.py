"""Parts of each request's time: its TTFT and decode time, split by the parts of the steps that it was in.

An engine adds up the times of its steps by part. When a request is first admitted, gets its first token or finishes,
the loop stores these sums or takes the difference to the stored ones: the exact time of each part between two of these
moments, without a row per step. On a decode engine it begins when the request is admitted there, after its KV transfer.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import compiled
from kernelsight.serving.engine.groups import noted_request
from kernelsight.serving.engine.records import FINISHED, SUMS
from kernelsight.serving.engine.served import Outcome, RequestParts

# columns of an engine's sums since it started; times by kind of step (decode only, with prompts) take two columns
STEPS, PROMPT_STEPS, PREFILL_ATTENTION, GPU, DECODE_ATTENTION, MOE, COMMUNICATION = 0, 1, 2, 3, 5, 7, 9
PARTS = (
    *("front_end", "queue", "prefill_gemm", "prefill_attention", "decode_gemm", "decode_attention"),
    *("moe", "communication", "host", "preemption"),
)
PREEMPTION, HOST = PARTS.index("preemption"), PARTS.index("host")
# width of a request's row: first its sums; at the end its parts, all steps, and those with prompts
WIDTH = len(PARTS) + 2
# requests whose sums are turned into parts in one call
BLOCK = 65_536


def fresh_sums(requests: int, wanted: bool) -> np.ndarray:
    """Return zeroed rows for the sums of requests, shape [requests, phases, WIDTH]; no rows unless ``wanted``."""
    return np.zeros((requests if wanted else 0, 2, WIDTH))


@compiled
def keep_sums(engine: np.void) -> None:
    """Store the engine's times by part at the end of a step, before steps that begin then are added."""
    sums = engine.sums
    sums[STEPS], sums[PROMPT_STEPS], sums[PREFILL_ATTENTION] = (
        engine.steps,
        engine.prompt_steps,
        engine.prefill_attention_us,
    )
    for kind in range(2):
        sums[GPU + kind], sums[DECODE_ATTENTION + kind] = engine.step_kind_us[kind], engine.decode_attention_us[kind]
        sums[MOE + kind], sums[COMMUNICATION + kind] = engine.moe_us[kind], engine.communication_us[kind]


@compiled
def note_admitted(engine: np.void, requests: np.ndarray, sums: np.ndarray, ticket: int) -> None:
    """Begin a phase of the requests that were first admitted with tickets from ``ticket`` on.

    Decode on an engine that received the request's KV, prefill otherwise.
    """
    r = engine.newest
    while r >= 0 and requests[r].ticket >= ticket:
        request = requests[r]
        if request.resumed_us < 0.0:
            phase = 1 if request.first_token_us >= 0.0 else 0
            for column in range(SUMS):
                sums[r, phase, column] = engine.sums[column]
        r = request.before


@compiled
def note_first_token(engine: np.void, sums: np.ndarray, r: int) -> None:
    """End a request's prefill, and begin its decode."""
    for column in range(SUMS):
        now = engine.sums[column]
        sums[r, 0, column] = now - sums[r, 0, column]
        sums[r, 1, column] = now


@compiled
def note_computed(engine: np.void, requests: np.ndarray, sums: np.ndarray) -> None:
    """Record the first tokens of prompts that are completed by the step that ends now."""
    r = engine.partial
    while r >= 0:
        request = requests[r]
        if request.first_token_us < 0.0 and request.computed + request.chunk >= request.known:
            note_first_token(engine, sums, r)
        r = request.next_partial


@compiled
def note_returned(engine: np.void, requests: np.ndarray, heaps: np.ndarray, sums: np.ndarray, group: np.void) -> None:
    """Record the first tokens of a batch that returns, see ``returned_batches.end_batch``; ``group``: its group."""
    for k in range(group.noted):
        r, known, _ = noted_request(heaps[group.group], k)
        if requests[r].first_token_us < 0.0 and requests[r].known == known:
            note_first_token(engine, sums, r)


@compiled
def note_finished(engine: np.void, requests: np.ndarray, sums: np.ndarray) -> None:
    """End the decode of the requests that the engine has finished and the client has not processed."""
    r = engine.first_ended
    while r >= 0:
        for column in range(SUMS):
            sums[r, 1, column] = engine.sums[column] - sums[r, 1, column]
        r = requests[r].next_waiting


def request_parts(
    out: Outcome, prompt_tokens: np.ndarray, sums: np.ndarray, request_us: float, per_prompt_token_us: float
) -> RequestParts:
    """Return the parts of every request; zeros for one that was rejected.

    ``sums``: of each request and phase, see ``fresh_sums``; overwritten with the parts, so that a million requests need
    no second copy. ``request_us``, ``per_prompt_token_us``: time of the front end.
    """
    parts_ns = sums.view(np.int64)
    for start in range(0, sums.shape[0], BLOCK):
        rows = slice(start, start + BLOCK)
        outcome_of_rows = out.of(rows)
        front_us = request_us + per_prompt_token_us * prompt_tokens[rows]
        parts_ns[rows] = _parts(
            outcome_of_rows, front_us, np.ascontiguousarray(sums[rows, :, :SUMS].transpose(1, 2, 0))
        )
    return RequestParts(*(part.transpose(1, 2, 0) for part in np.split(parts_ns, [len(PARTS)], axis=2)))


def _parts(out: Outcome, front_us: np.ndarray, spent: np.ndarray) -> np.ndarray:
    """Return nanoseconds of PARTS and numbers of steps of some requests, shape [requests, phases, WIDTH].

    ``spent``: shape [phases, SUMS, requests]. Time lost to preemptions is a part; the other parts divide the rest of
    the phase in proportion to the steps of that time. Exposed host time is the remainder without kernels, so that parts
    add up to the phase in whole nanoseconds.
    """
    done = out.status == FINISHED
    moments = [
        np.where(done, times, 0.0) for times in (out.sent_us, out.scheduled_us, out.first_token_us, out.finish_us)
    ]
    sent, scheduled, first, finish = moments
    moments_ns = [np.rint(times * 1e3).astype(np.int64) for times in moments]
    parts_ns = np.zeros((2, WIDTH, done.size), np.int64)
    for phase, (begin, end) in enumerate(((scheduled, first), (first, finish))):
        parts_ns[phase, len(PARTS) :] = np.where(done, np.rint(spent[phase, [STEPS, PROMPT_STEPS]]), 0.0)
        length_us = end - begin
        # the phase that lost time to preemptions is not recorded: almost always it is decode
        lost_us = np.minimum(out.requeued_us + out.recomputed_us, length_us) * phase
        share = np.divide(length_us - lost_us, length_us, out=np.zeros(done.size), where=length_us > 0.0)
        parts_ns[phase, 2:8] = np.rint(np.where(done, _kernels(spent[phase]) * share * 1e3, 0.0))
        parts_ns[phase, PREEMPTION] = np.rint(np.where(done, lost_us, 0.0) * 1e3)
    front_us = np.minimum(front_us, scheduled - sent)
    parts_ns[0, 0] = np.rint(np.where(done, front_us, 0.0) * 1e3)
    parts_ns[0, 1] = moments_ns[1] - moments_ns[0] - parts_ns[0, 0]
    for phase, length in enumerate((moments_ns[2] - moments_ns[1], moments_ns[3] - moments_ns[2])):
        parts_ns[phase, HOST] = length - parts_ns[phase, 2 : len(PARTS)].sum(axis=0)
    return parts_ns.transpose(2, 0, 1)


def _kernels(spent: np.ndarray) -> np.ndarray:
    """Return microseconds of the parts from prefill_gemm to communication, shape [6, requests]."""
    moe, communication = (spent[column] + spent[column + 1] for column in (MOE, COMMUNICATION))
    moe_and_communication = spent[MOE : MOE + 2] + spent[COMMUNICATION : COMMUNICATION + 2]
    gemm = spent[GPU : GPU + 2] - moe_and_communication - spent[DECODE_ATTENTION : DECODE_ATTENTION + 2]
    attention = spent[DECODE_ATTENTION] + spent[DECODE_ATTENTION + 1]
    prefill = spent[PREFILL_ATTENTION]
    return np.stack([gemm[1] - prefill, prefill, gemm[0], attention, moe, communication])
