"""Causes of a whole log's misses that its signature shows: their size, and what of the signature each leaves.

Between two logs the engine's version may be the cause, with the kernels that explain it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import Replayed
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput
from kernelsight.forward.forward_step import predict_step
from kernelsight.number_format import deviation
from kernelsight.scenario.flags import ALIASES, DEPLOYMENT_FLAGS
from kernelsight.upgrades.differences import kernel_rows

# the setting, and SGLang's name of it in its server_info
VERSION, SPELLINGS = "engine_version", {"version": "engine_version"}
# least and most of the measured change of decoding, as shares of its logarithm, that kernels explain if they predict it
EXPLAINS = (1.0 / 3.0, 3.0)
# kernels that are named, and the least change of one in a step that is named
MOST_NAMED, LEAST_SHARE = 3, 0.01


def with_kernels(
    causes: Sequence[Cause], rows: Sequence[Mapping[str, Any]], flags: Mapping[str, Any], session: Session
) -> list[Cause]:
    """Return causes, the version's with the kernels that it changes where these explain the change of decoding.

    ``rows``: of ``log_changes``; ``flags``: of the deployment, {} where none is stated.
    """
    by_name = {row["what"]: row for row in rows}
    change = by_name.get("decode_at_the_same_load")
    if VERSION not in by_name or not flags or change is None or not change["factor"]:
        return list(causes)
    versions = (by_name[VERSION]["before_word"], by_name[VERSION]["after_word"])
    try:
        named = _explanation(flags, versions, by_name, math.log(change["factor"]), session)
    except InvalidInput:  # a version in which the deployment cannot run, or words that are none
        named = ""
    return [
        cause._replace(value=f"{cause.value}{named}") if (cause.kind, cause.name) == ("setting", VERSION) else cause
        for cause in causes
    ]


def _explanation(
    flags: Mapping[str, Any],
    versions: tuple[str, str],
    by_name: Mapping[str, Mapping[str, Any]],
    log_change: float,
    session: Session,
) -> str:
    """Return the kernels that change, in brackets; "" where they do not explain the change."""
    own = {name: value for name, value in flags.items() if ALIASES.get(name, name) in DEPLOYMENT_FLAGS}
    lengths = [by_name[name]["after"] or 1.0 for name in ("prompt_tokens", "output_tokens")]
    running = by_name["in_flight"]["after"] if "in_flight" in by_name else 1.0
    sizes = {"batch_size": max(1, round(running)), "context_len": int(lengths[0] + lengths[1] / 2.0), "input_len": None}
    steps = []
    for version in versions:
        with session.fork() as fork:
            steps.append(predict_step(fork, own | {VERSION: version}, "decode", dict(sizes)))
    totals = [step["total_us"] for step in steps]
    predicted = math.log(totals[1] / totals[0])
    if not EXPLAINS[0] <= predicted / log_change <= EXPLAINS[1] if log_change else True:
        return ""
    kernels = [
        f"{row['family']} {' to '.join(dict.fromkeys([row['kernel_from'], row['kernel_to']]))}"
        for row in kernel_rows(*steps)
        if abs(row["ms_per_step_to"] - row["ms_per_step_from"]) > LEAST_SHARE * totals[0] / 1e3
    ]
    return f" ({', '.join(kernels[:MOST_NAMED])}: {deviation(math.expm1(predicted))} predicted)" if kernels else ""


GROUPS = 6
LEAST_IN_GROUP = 5
# allowed model error: ms a request before its first token, microseconds a prompt token, a share of TPOT
REQUEST_MS, PROMPT_TOKEN_US, TPOT_SHARE = 20.0, 8.0, 0.03
# requests that queue longer in the replay are left out, ms: the queue hides their own time
LONG_QUEUE_MS = 60.0


class Signature(NamedTuple):
    """Measured less predicted: intercept of TTFT, ms, its slope by prompt token, us, and TPOT, ms; NaN: not measured.

    ``predicted``: the same three figures of the replay.
    """

    request_ms: float
    prompt_token_us: float
    tpot_ms: float
    predicted: tuple[float, float, float]

    @property
    def misfit(self) -> float:
        """Sum of squares of the three figures, in units of the allowed model error."""
        allowed = (REQUEST_MS, PROMPT_TOKEN_US, TPOT_SHARE * self.predicted[2])
        return sum((value / size) ** 2 for value, size in zip(self[:3], allowed, strict=True) if np.isfinite(value))


def signature(measured: Measured, replayed: Replayed, chosen: np.ndarray) -> Signature:
    """Return the signature of measured less replayed times; ``chosen``: mask of requests, shape [requests]."""
    usable = chosen & measured.ok & replayed.served
    decode_ms, predicted_decode_ms = measured.decode_ms, (replayed.finish_ns - replayed.first_ns) / 1e6
    has_tokens = usable & (measured.output_tokens > 3) & np.isfinite(decode_ms)
    intervals = np.maximum(measured.output_tokens - 1.0, 1.0)
    tpot_ms, predicted_tpot_ms = (
        _median((values / intervals)[has_tokens]) for values in (decode_ms - predicted_decode_ms, predicted_decode_ms)
    )
    has_ttft = usable & np.isfinite(measured.ttft_ms)
    # a queue that the replay has too hides the time of the request itself
    is_short_queue = has_ttft & (replayed.queue_ms < LONG_QUEUE_MS)
    request, prompt = _line(measured.prompt_tokens, measured.ttft_ms - replayed.ttft_ms, is_short_queue)
    trend = _line(measured.prompt_tokens, replayed.ttft_ms, is_short_queue)
    return Signature(request, 1e3 * prompt, tpot_ms, (trend[0], 1e3 * trend[1], predicted_tpot_ms))


def _line(tokens: np.ndarray, values: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Return intercept and slope of ``values`` by tokens, through the medians of GROUPS quantile groups; NaN: too few.

    ``rows``: mask of requests. Without three groups of different lengths the slope is 0.
    """
    if np.count_nonzero(rows) < GROUPS * LEAST_IN_GROUP:
        return np.nan, np.nan
    tokens, values = tokens[rows], values[rows]
    edges = np.unique(np.quantile(tokens, np.linspace(0.0, 1.0, GROUPS + 1)))
    if edges.size < 3:
        return _median(values), 0.0
    group = np.clip(np.searchsorted(edges, tokens, side="right") - 1, 0, edges.size - 2)
    full_groups = [number for number in range(edges.size - 1) if np.count_nonzero(group == number) >= LEAST_IN_GROUP]
    points = np.array(
        [[np.median(tokens[group == number]), np.median(values[group == number])] for number in full_groups]
    )
    if len(points) < 3:
        return _median(values), 0.0
    slope, intercept = np.polyfit(points[:, 0], points[:, 1], 1)
    return float(intercept), float(slope)


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else np.nan


# log and prediction agree if the misfit of the signature is smaller
AGREES = 6.0
# a cause fits if it leaves at most this share of the misfit and no more than this, or very little of a large misfit
MOST_LEFT, FITS, LEAST_LEFT = 0.4, 8.0, 0.12
LEAST_HOST_MS = 0.5
# factors on kernels beyond these are too large for an error of the model: another setting, or another machine
LEAST_FACTOR, MOST_FACTOR = 0.68, 1.45
# penalties on the misfit, against a setting's 0: a cause with a fitted size, an error of the model, and another number
# of GPUs, which is the setting that is best known
SIZED, MODEL, PARALLEL = 1.5, 4.0, 2.0


class Cause(NamedTuple):
    """One row of ``causes``; ``value``: a number, or the word of a setting; moments in s, ``share`` of all time."""

    kind: str
    name: str
    value: float | str | None = None
    from_s: float | None = None
    to_s: float | None = None
    share: float | None = None

    def as_row(self, place: int) -> dict[str, Any]:
        """Return its row of ``causes`` or ``change_causes``: a number is ``value``, a text ``word``."""
        word = self.value if isinstance(self.value, str) else None
        return {**self._asdict(), "place": place, "value": None if word is not None else self.value, "word": word}


class CandidateCause(NamedTuple):
    """A candidate cause, the misfit of the signature that it leaves, and a penalty that is added in comparisons."""

    cause: Cause
    misfit: float
    penalty: float = 0.0


def best_fitting(candidates: Sequence[CandidateCause], observed: Signature) -> CandidateCause | None:
    """Return the candidate with the smallest penalised misfit of a signature; None if none leaves little enough."""
    most = max(min(FITS, MOST_LEFT * observed.misfit), LEAST_LEFT * observed.misfit, AGREES / 2)
    fitting = [candidate for candidate in candidates if candidate.misfit <= most]
    return min(fitting, key=lambda candidate: candidate.misfit + candidate.penalty, default=None)


def closed_forms(observed: Signature, from_server: bool) -> list[CandidateCause]:
    """Return candidate causes whose effect on the signature has a closed form, at their best sizes.

    ``from_server``: TTFT starts at the server; otherwise time before the engine is the client's.
    """
    waits_before_engine = "front_end" if from_server else "client"
    request, prompt, tpot = observed[:3]
    explained = []

    def misfit_of(request_ms: float, prompt_us: float, tpot_ms: float) -> float:
        return observed._replace(request_ms=request_ms, prompt_token_us=prompt_us, tpot_ms=tpot_ms).misfit

    if np.isfinite(prompt) and prompt > PROMPT_TOKEN_US:
        cause = Cause("front_end", "per_prompt_token_us", prompt)
        explained.append(CandidateCause(cause, misfit_of(request, 0.0, tpot), SIZED))
    if np.isfinite(request) and abs(request) > 1.5 * REQUEST_MS:
        explained.append(
            CandidateCause(Cause("front_end", waits_before_engine, request), misfit_of(0.0, prompt, tpot), SIZED)
        )
    if np.isfinite(tpot) and observed.predicted[2] > 0:
        if tpot > -LEAST_HOST_MS:  # host time is not negative
            # every step takes as much longer, and one step precedes the first token
            explained.append(CandidateCause(Cause("part", "host", tpot), misfit_of(request - tpot, prompt, 0.0), MODEL))
        factor = 1.0 + tpot / observed.predicted[2]
        if LEAST_FACTOR <= factor <= MOST_FACTOR:
            slope_left = prompt - (factor - 1.0) * observed.predicted[1]
            explained.append(CandidateCause(Cause("part", "gpu", factor), misfit_of(request, slope_left, 0.0), MODEL))
    return explained


def lasts(best: CandidateCause, after: Signature, from_server: bool) -> bool:
    """Whether a cause with a closed form reduces the misfit of a later signature."""
    same_cause = [candidate for candidate in closed_forms(after, from_server) if candidate.cause[:2] == best.cause[:2]]
    return bool(same_cause) and same_cause[0].misfit < after.misfit
