"""Columns of requests into records and back, in one pass each way: one pass per column would dominate short runs."""

from __future__ import annotations

import numpy as np

from kernelsight.serving.compilation.compiled import entry
from kernelsight.serving.engine.records import FINISHED, MOST_TOKENS, NOBODY
from kernelsight.serving.engine.served import Outcome, empty_outcome


@entry
def fill_requests(
    requests: np.ndarray, arrival_us: np.ndarray, prompt_tokens: np.ndarray, output_tokens: np.ndarray
) -> None:
    """Fill zeroed REQUEST records: inputs, and the fields of an unsent request that are not zero."""
    for i in range(requests.size):
        request = requests[i]
        request.arrival_us = arrival_us[i]
        request.prompt = request.known = min(prompt_tokens[i], MOST_TOKENS)
        request.target = request.prompt + min(output_tokens[i], MOST_TOKENS)
        request.status = FINISHED
        request.sent_us = request.scheduled_us = request.first_token_us = request.finish_us = -1.0
        request.resumed_us = request.received_us = -1.0
        request.leaves_at = request.fills_at = request.first_of = request.prefill_replica = NOBODY


@entry
def read_requests(requests: np.ndarray, whole: np.ndarray, real: np.ndarray) -> None:
    """Copy the fields of ``WHOLE`` and ``REAL``, in their order, to the rows of two arrays."""
    for i in range(requests.size):
        request = requests[i]
        whole[0, i], whole[1, i] = request.status, request.replica
        whole[2, i], whole[3, i] = request.preemptions, request.cached_tokens
        whole[4, i], real[6, i] = request.prefill_replica, request.received_us
        whole[5, i], real[7, i] = request.tier_tokens, request.load_us
        real[0, i], real[1, i] = request.sent_us, request.scheduled_us
        real[2, i], real[3, i] = request.first_token_us, request.finish_us
        real[4, i], real[5, i] = request.requeued_us, request.recomputed_us


def outcome_of(requests: np.ndarray) -> Outcome:
    """Return the outcome of each request, as columns."""
    out = empty_outcome(requests.size)
    read_requests(requests, *out)
    return out
