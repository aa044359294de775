"""What limits a deployment at its highest rate: one function, from what its trials show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelsight.sweeps.rate_search import Found
from kernelsight.sweeps.steady import counted

# a cache that was this full, seats that were this taken, held requests back
FULL_CACHE, FULL_SEATS = 0.95, 0.98
# a share of the time in which the GPU waits for the host that shows
HOST_SHARE = 0.25


def limit_of(found: Found, settings: Mapping[str, Any], replicas: int) -> str | None:
    """Return what gives way first above the found rate: KV cache, seats, host, prefill compute or decode bandwidth.

    ``settings``: of the deployment that decodes; ``replicas``: how many engines share the rate. None: no rate is found.
    The evidence is that of the lowest rate that broke the objectives: memory and seats in use, waiting for the host,
    and whether prompts or decode steps fill the time that is left.
    """
    if found.tried is None or found.rate is None:
        return None
    trying = found.broken or found.tried
    trials = trying.trials
    in_flight = trying.rate * np.mean([counted(trial.latencies["e2e"]).mean() for trial in trials]) / 1e3
    if max(trial.peak_kv_share for trial in trials) >= FULL_CACHE:
        return "KV cache"
    if in_flight >= FULL_SEATS * settings["max_num_seqs"] * replicas:
        return "seats"
    if np.mean([trial.exposed_host_share for trial in trials]) >= HOST_SHARE:
        return "host"
    alone = found.capacity.alone.latencies
    prefill_share = trying.rate * float((alone["ttft"] - alone["queue"]).mean()) / 1e3 / replicas
    busy_share = 1.0 - np.mean([trial.idle_share for trial in trials])
    if trying.verdict.tightest.metric in ("ttft", "queue") or prefill_share > 0.5 * busy_share:
        return "prefill compute"
    return "decode bandwidth"
