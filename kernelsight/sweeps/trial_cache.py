"""The on-disk cache of verdicts on trials, by rate, so that a repeated search continues where it ended.

Only verdicts are cached; the requests of a trial are simulated again when they are needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.caches.disk_cache import content_digest, read_cached, write_cached
from kernelsight.scenario.objectives import Objective
from kernelsight.sweeps.steady import Verdict

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# tables that trials depend on, beside the rows of scenarios
RESTS_ON = ("step_costs", "deployment_settings", "memory_plan", "host_settings")
# number of the rule by which trials are judged: verdicts of an earlier one are not taken
RULE = 3


class Judged(NamedTuple):
    """The result of the trials at a rate: their verdict, the mean stay, and whether a request was lost."""

    verdict: Verdict
    stay_ms: float
    lost: bool


class TrialCache:
    """Verdicts on the trials of a session's scenarios, by scenario, rate, requests and seeds."""

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._known: dict[str, list[Any]] = (read_cached(key, json.loads) if key else None) or {}

    def get(self, scenario_id: str, objectives: Sequence[Objective], *tried: float) -> Judged | None:
        """Return the cached result, or None; ``tried``: rate, requests, seeds, and ``longer`` of :func:`judge`."""
        judged = self._known.get(_name(scenario_id, objectives, tried))
        if judged is None:
            return None
        *figures, tightest, stay_ms, lost = judged
        return Judged(Verdict(*figures, objectives[tightest]), stay_ms, lost)

    def put(self, scenario_id: str, objectives: Sequence[Objective], *tried: Any) -> None:
        """Cache a result; ``tried``: as for ``get``, followed by the result."""
        *key, judged = tried
        *figures, tightest = judged.verdict
        objective_index = list(objectives).index(tightest)
        self._known[_name(scenario_id, objectives, key)] = [
            *(figure if isinstance(figure, bool) else float(figure) for figure in figures),
            *(objective_index, float(judged.stay_ms), bool(judged.lost)),
        ]
        if self._key:
            write_cached(self._key, json.dumps(self._known).encode())


def _name(scenario_id: str, objectives: Sequence[Objective], tried: Sequence[float]) -> str:
    slo = " ".join(f"{figure.column}:{figure.most_ms!r}" for figure in objectives)
    return " ".join([scenario_id, slo, *(repr(float(value)) for value in tried)])


def trial_cache(session: Session) -> TrialCache:
    """Return the cached verdicts on a session's scenarios, under the hash of all tables that they depend on."""
    keys = [session.key_of(name) for name in RESTS_ON]
    if None in keys:
        return TrialCache(None)
    digest = hashlib.sha256(" ".join([f"trials, rule {RULE}", *keys]).encode())  # type: ignore[list-item]
    for name in ("scenarios", "kv_transfers"):
        digest.update(content_digest(session.table(name)))
    return TrialCache(digest.hexdigest())
