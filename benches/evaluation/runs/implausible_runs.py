"""Implausible measured runs: signs of stalls, of a slow front end, of shared concurrency; predictions are not used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MANY_WORKERS = "concurrency is shared by several engines"
STALLS = "measured TTFT falls as load rises: stalls"
FRONT_END = "measured TTFT grows with output length: front end or admission"
# minimum ratio of TTFTs: lighter to heavier load, longer to shorter output
FALL, GROWTH = 2.0, 2.5
CONFIGURATION = ("campaign", "model", "gpu", "engine", "engine_version", "quantization", "tp", "ep", "measured_on")


def signs_of(runs: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return the first sign of an implausible measurement of each run, or None.

    Stalls: a run of the same configuration and lengths with at least twice the load had less than half the TTFT.
    Front end: a run of the same prompts and load with at most half the output length had 2.5 times less TTFT.
    """
    by_lengths: dict[tuple, list[Mapping]] = {}
    by_prompts: dict[tuple, list[Mapping]] = {}
    for run in runs:
        key = tuple(run[name] for name in CONFIGURATION)
        by_lengths.setdefault((*key, run["isl"], run["osl"]), []).append(run)
        by_prompts.setdefault((*key, run["isl"], run["max_concurrency"]), []).append(run)
    signs: list[str | None] = []
    for run in runs:
        key = tuple(run[name] for name in CONFIGURATION)
        load = run["max_concurrency"] or 0
        heavier = [
            other["ttft_ms"]
            for other in by_lengths[(*key, run["isl"], run["osl"])]
            if (other["max_concurrency"] or 0) >= 2 * load
        ]
        shorter = [
            other["ttft_ms"]
            for other in by_prompts[(*key, run["isl"], run["max_concurrency"])]
            if 2 * other["osl"] <= run["osl"]
        ]
        if run["workers"] > 1:
            signs.append(MANY_WORKERS)
        elif heavier and min(heavier) * FALL < run["ttft_ms"]:
            signs.append(STALLS)
        elif shorter and min(shorter) * GROWTH < run["ttft_ms"]:
            signs.append(FRONT_END)
        else:
            signs.append(None)
    return signs
