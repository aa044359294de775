"""Causes of a whole log's misses that its signature shows: their size, and what of the signature each leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.comparison.signature import PROMPT_TOKEN_US, REQUEST_MS, Signature

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
