"""What each request waited for: its TTFT and its decode time, split into parts of the steps that it was in.

The loop adds up, engine by engine, what steps cost by part, and writes these sums down before each step or decode run
(a *mark*). Whatever happens to a request happens at such a moment, so the difference of two marks is the exact time of
each part between its admission and its first token, or its first and its last token, without a row per step.
"""

from __future__ import annotations

import numpy as np

from kernelsight.serving.records import FINISHED
from kernelsight.serving.served import Outcome, RequestParts

# columns of a mark: sums since the engine started; those by kind of step (decode only, with prompts) take two
AT, STEPS, PROMPT_STEPS, HOST_US, PREFILL_ATTENTION, GPU, DECODE_ATTENTION, MOE, COMMUNICATION = (
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    9,
    11,
)
MARKS = 13
# marks of all engines in one buffer
CHUNK = 65_536
PARTS = (
    *("front_end", "queue", "prefill_gemm", "prefill_attention", "decode_gemm", "decode_attention"),
    *("moe", "communication", "host", "preemption"),
)
PREEMPTION, HOST = PARTS.index("preemption"), PARTS.index("host")


class Marks:
    """The marks of a scenario's engines, collected buffer by buffer; without ``wanted`` there are none."""

    def __init__(self, engines: int, wanted: bool) -> None:
        self.buffer = np.zeros((engines, max(CHUNK // engines, 64) if wanted else 0, MARKS))
        self.kept: list[list[np.ndarray]] = [[] for _ in range(engines)]

    def take(self, engines: np.ndarray) -> None:
        """Collect what the engines have written, and free the buffer."""
        if self.buffer.shape[1]:
            for i, engine in enumerate(engines):
                self.kept[i].append(self.buffer[i, : engine["marks"]].copy())
            engines["marks"] = 0

    def finish(self, engines: np.ndarray) -> list[np.ndarray] | None:
        """Return the marks of each engine, the last one at its end; None where none were wanted."""
        if not self.buffer.shape[1]:
            return None
        return [np.concatenate([*kept, last_mark(engine)]) for kept, engine in zip(self.kept, engines, strict=True)]


def last_mark(engine: np.void) -> np.ndarray:
    """Return the mark of an engine that has stopped, shape [1, MARKS]."""
    mark = np.zeros((1, MARKS))
    names = {AT: "last_us", STEPS: "steps", PROMPT_STEPS: "prompt_steps", HOST_US: "host_us"}
    names |= {PREFILL_ATTENTION: "prefill_attention_us"}
    for column, name in names.items():
        mark[0, column] = engine[name]
    for column, name in ((GPU, "step_kind_us"), (DECODE_ATTENTION, "decode_attention_us"), (MOE, "moe_us")):
        mark[0, column : column + 2] = engine[name]
    mark[0, COMMUNICATION:] = engine["communication_us"]
    return mark


def request_parts(
    out: Outcome, prompt_tokens: np.ndarray, marks: list[np.ndarray], request_us: float, per_prompt_token_us: float
) -> RequestParts:
    """Return the parts of every request; zeros for one that was rejected.

    ``marks``: of each engine; ``request_us``, ``per_prompt_token_us``: time of the front end. What a request lost to
    preemptions is a part; the others share what is left of the phase as the steps of that time do. Exposed host time is
    what kernels do not account for, so that parts add up to the phase in whole nanoseconds.
    """
    done = out.status == FINISHED
    moments = [
        np.where(done, times, 0.0) for times in (out.sent_us, out.scheduled_us, out.first_token_us, out.finish_us)
    ]
    sent, scheduled, first, finish = moments
    whole = [np.rint(times * 1e3).astype(np.int64) for times in moments]
    found = np.zeros((2, len(PARTS), done.size), np.int64)
    steps = np.zeros((2, 2, done.size), np.int64)
    prefill_engine = np.where(out.prefill_replica >= 0, out.prefill_replica, out.replica)
    phases = ((scheduled, first, prefill_engine), (first, finish, out.replica))
    for phase, (begin, end, engines) in enumerate(phases):
        spent = np.zeros((MARKS, done.size))
        for number, sums in enumerate(marks):
            own = np.flatnonzero(done & (engines == number))
            if own.size:
                spent[:, own] = (_at(sums, end[own]) - _at(sums, begin[own])).T
        steps[phase] = np.rint(spent[[STEPS, PROMPT_STEPS]]).astype(np.int64)
        length_us = end - begin
        # which of the phases lost time to preemptions is not kept: almost all of it lies behind the first token
        lost_us = np.minimum(out.requeued_us + out.recomputed_us, length_us) * phase
        share = np.divide(length_us - lost_us, length_us, out=np.zeros(done.size), where=length_us > 0.0)
        found[phase, 2:8] = np.rint(np.where(done, _kernels(spent) * share * 1e3, 0.0)).astype(np.int64)
        found[phase, PREEMPTION] = np.rint(np.where(done, lost_us, 0.0) * 1e3).astype(np.int64)
    lengths = whole[2] - whole[1], whole[3] - whole[2]
    front_us = np.minimum(request_us + per_prompt_token_us * prompt_tokens, scheduled - sent)
    found[0, 0] = np.rint(np.where(done, front_us, 0.0) * 1e3).astype(np.int64)
    found[0, 1] = whole[1] - whole[0] - found[0, 0]
    for phase, length in enumerate(lengths):
        found[phase, HOST] = length - found[phase, 2:].sum(axis=0)
    return RequestParts(found, steps)


def _at(marks: np.ndarray, moments_us: np.ndarray) -> np.ndarray:
    """Return the sums at each moment: those of the last mark until then, shape [moments, MARKS]."""
    return marks[np.maximum(np.searchsorted(marks[:, AT], moments_us, side="right") - 1, 0)]


def _kernels(spent: np.ndarray) -> np.ndarray:
    """Return microseconds of the parts from prefill_gemm to communication, shape [6, requests]."""
    moe, communication = (spent[column] + spent[column + 1] for column in (MOE, COMMUNICATION))
    others = spent[MOE : MOE + 2] + spent[COMMUNICATION : COMMUNICATION + 2]
    gemm = spent[GPU : GPU + 2] - others - spent[DECODE_ATTENTION : DECODE_ATTENTION + 2]
    attention = spent[DECODE_ATTENTION] + spent[DECODE_ATTENTION + 1]
    prefill = spent[PREFILL_ATTENTION]
    return np.stack([gemm[1] - prefill, prefill, gemm[0], attention, moe, communication])
