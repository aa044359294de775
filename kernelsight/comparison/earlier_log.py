"""Regression of an earlier log: its TTFT and decode times predict those of a later log from lengths, queue and batch.

Without a model of the engine the earlier log is the model. TTFT grows with the prompt, with the prompt tokens queued
in front, and with the requests that decode; decode time with the tokens, with the requests that decode beside them, and
with the prompts that are computed meanwhile. Queue and batch are read from each log itself: a longer queue or a larger
batch of the later log counts as load, and the rest of the difference as the engine's.
"""

from __future__ import annotations

import numpy as np

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.observed_limits import active_seconds
from kernelsight.comparison.replay import REPLAYED_PARTS, Replayed
from kernelsight.comparison.signature_causes import Signature

LEAST_ROWS = 30
# Huber threshold in usual residuals; iterations of reweighted least squares
HUBER, ROUNDS = 2.0, 6


def predicted_by(before: Measured, after: Measured) -> Replayed | None:
    """Return the earlier log's prediction for the later log's requests, as a replay without parts.

    None if the earlier log has fewer than LEAST_ROWS requests with TTFT or with decode time.
    """
    ttft_features, decode_features = _first_token(before), _decode(before)
    ttft_weights = _weights(ttft_features, before.ttft_ms, before.ok)
    decode_weights = _weights(decode_features, before.decode_ms, before.ok & (before.output_tokens > 1))
    if ttft_weights is None or decode_weights is None:
        return None
    cached = np.isfinite(before.cached_tokens) & before.ok
    cached_share = (
        before.cached_tokens[cached].sum() / max(before.prompt_tokens[cached].sum(), 1) if cached.any() else 0.0
    )
    return _served(
        after, _first_token(after) @ ttft_weights, _decode(after) @ decode_weights, cached_share * after.prompt_tokens
    )


def calibrated(after: Measured, replayed: Replayed, earlier: Signature) -> Replayed:
    """Return a replay of the later log, corrected by the signature of the earlier log against its own replay."""
    request, slope, tpot = (value if np.isfinite(value) else 0.0 for value in earlier[:3])
    ttft_ms = replayed.ttft_ms + request + slope / 1e3 * after.prompt_tokens
    decode = (replayed.finish_ns - replayed.first_ns) / 1e6 * (1.0 + tpot / max(earlier.predicted[2], 1e-9))
    return _served(after, ttft_ms, decode, replayed.cached_tokens, replayed.served)


def _served(
    after: Measured, first_ms: np.ndarray, decode_ms: np.ndarray, cached: np.ndarray, served: np.ndarray | None = None
) -> Replayed:
    """Return times in ms as a replay without parts; a request without a predicted time is not served."""
    predicted = np.isfinite(first_ms) & np.isfinite(decode_ms)
    predicted = predicted if served is None else predicted & served
    begin = np.rint(after.sent_s * 1e9).astype(np.int64)
    moments = (begin + np.rint(1e6 * np.maximum(np.where(predicted, times, 0.0), 1e-3)).astype(np.int64)
               for times in (first_ms, np.maximum(first_ms, 1e-3) + np.maximum(decode_ms, 0.0)))  # fmt: skip
    first, finish = (np.where(predicted, moment, -1) for moment in moments)
    no_parts = np.zeros((1, 0), np.int64)
    return Replayed(
        np.rint(cached).astype(np.int64), begin, begin, first, finish, [no_parts] * len(REPLAYED_PARTS), no_parts
    )


def _weights(features: np.ndarray, times_ms: np.ndarray, chosen: np.ndarray) -> np.ndarray | None:
    """Return nonnegative weights of features, ms per unit, shape [features]: robust (Huber) least squares.

    ``features``: shape [requests, features]; ``chosen``: mask of requests. None with fewer than LEAST_ROWS requests.
    """
    from scipy.optimize import nnls

    with np.errstate(invalid="ignore"):
        rows = chosen & np.isfinite(times_ms) & (times_ms > 0.0) & np.isfinite(features).all(axis=1)
    if rows.sum() < LEAST_ROWS:
        return None
    features_used, times = features[rows], times_ms[rows]
    size = np.maximum(np.abs(features_used).max(axis=0), 1e-12)
    # relative errors count, with a floor so that very short times do not dominate
    weight = 1.0 / np.maximum(times, 0.2 * float(np.median(times)))
    weights = np.zeros(features_used.shape[1])
    for _ in range(ROUNDS):
        weights = nnls(features_used / size * weight[:, None], times * weight)[0] / size
        relative_error = np.abs(times - features_used @ weights) / np.maximum(times, 0.2 * float(np.median(times)))
        usual = max(1.4826 * float(np.median(relative_error)), 1e-3)
        bend = np.minimum(1.0, HUBER * usual / np.maximum(relative_error, 1e-12))
        weight = np.sqrt(bend) / np.maximum(times, 0.2 * float(np.median(times)))
    return weights


def _first_token(measured: Measured) -> np.ndarray:
    """Return features of TTFT, shape [requests, 4]: 1, own prompt, prompt tokens queued in front, decoding requests."""
    prompts = _computed(measured)
    first_s, last_s = _moments(measured)
    arrived = measured.ok & np.isfinite(first_s)
    running = _active_weight(first_s[arrived], last_s[arrived], measured.sent_s)
    in_front = _active_weight(measured.sent_s[arrived], first_s[arrived], measured.sent_s, prompts[arrived])
    in_front = np.maximum(in_front - np.where(arrived, prompts, 0.0), 0.0)
    return np.column_stack([np.ones(prompts.size), prompts, in_front, running])


def _decode(measured: Measured) -> np.ndarray:
    """Return features of decode time, shape [requests, 3]: tokens, tokens x batch size, prompt tokens meanwhile."""
    first_s, last_s = _moments(measured)
    finished = measured.ok & np.isfinite(first_s) & np.isfinite(last_s)
    tokens = np.maximum(measured.output_tokens - 1.0, 0.0)
    running = _mean_active(first_s[finished], last_s[finished], first_s, last_s)
    order = np.argsort(first_s[finished], kind="stable")
    upto = np.concatenate([[0.0], np.cumsum(_computed(measured)[finished][order])])
    moments = first_s[finished][order]
    read = upto[np.searchsorted(moments, last_s)] - upto[np.searchsorted(moments, first_s, side="right")]
    return np.column_stack([tokens, tokens * running, np.maximum(read, 0.0)])


def _computed(measured: Measured) -> np.ndarray:
    """Return prompt tokens that are computed, cached ones excluded, at least 1, shape [requests]."""
    return np.maximum(measured.prompt_tokens - np.nan_to_num(measured.cached_tokens), 1.0)


def _moments(measured: Measured) -> tuple[np.ndarray, np.ndarray]:
    """Return the moments of first and last tokens, s, shape [requests] each."""
    first_s = measured.sent_s + measured.ttft_ms / 1e3
    return first_s, first_s + np.nan_to_num(measured.decode_ms) / 1e3


def _active_weight(
    begin: np.ndarray, end: np.ndarray, at_s: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Return the total weight of the spans [begin, end) that are active at each moment ``at_s``; weight None: 1."""

    def upto(moments: np.ndarray) -> np.ndarray:
        order = np.argsort(moments, kind="stable")
        sums = np.concatenate([[0.0], np.cumsum(np.ones(order.size) if weight is None else weight[order])])
        return sums[np.searchsorted(moments[order], at_s, side="right")]

    return upto(begin) - upto(end)


def _mean_active(begin: np.ndarray, end: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Return the mean number of spans [begin, end) that are active between ``start`` and ``stop``, moments in s."""
    nonempty = np.isfinite(start) & np.isfinite(stop) & (stop > start)
    means = np.full(start.size, np.nan)
    start_s, stop_s = start[nonempty], stop[nonempty]
    seconds = active_seconds(begin, end, stop_s) - active_seconds(begin, end, start_s)
    means[nonempty] = seconds / (stop_s - start_s)
    return np.where(np.isfinite(start) & ~nonempty, 0.0, means)
