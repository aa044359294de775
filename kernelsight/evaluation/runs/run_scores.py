"""Errors and scores of predicted runs against measured ones: TTFT, TPOT and throughput, overall and by group."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

METRICS = ("ttft", "tpot", "throughput")
FITTING_PART = 5
GROUP = ("model", "gpu", "engine", "quantization")
MEASURED = ("ttft_ms", "tpot_ms")
# columns and tolerance by which two rows count as the same measurement
SAME = (*GROUP, "tp", "ep", "isl", "osl", "max_concurrency")
ROUNDING_MS = 0.006


def group_of(run: Mapping[str, Any]) -> tuple:
    """Return the key of a run's group: model, GPU, engine, precision."""
    return tuple(run[name] for name in GROUP)


def is_fitting(run_id: str) -> bool:
    """Whether a run belongs to the fifth that constants may be fitted on: SHA-256 of its id, modulo 5, is 0.

    >>> sum(is_fitting(str(number)) for number in range(1000))
    193
    """
    return int(hashlib.sha256(run_id.encode()).hexdigest(), 16) % FITTING_PART == 0


def measured_both(run: Mapping[str, Any]) -> bool:
    """Whether a run measured TTFT and TPOT at stated lengths, as reports by group and load require."""
    return all(run.get(name) is not None for name in (*MEASURED, "isl", "osl"))


def stated_again(runs: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the ids of scored runs that duplicate the measurement of an earlier scored run (possibly rounded).

    >>> run = dict.fromkeys(SAME, 1) | {"ttft_ms": 341.127, "tpot_ms": 5.0896, "run_id": "r0"}
    >>> sorted(stated_again([run, run | {"run_id": "r1", "ttft_ms": 341.13}, run | {"run_id": "r2", "tpot_ms": 6.0}]))
    ['r1']
    """
    runs_of_key: dict[tuple, list[Mapping[str, Any]]] = {}
    duplicates = set()
    for run in runs:
        if is_fitting(run["run_id"]) or not measured_both(run):
            continue
        others = runs_of_key.setdefault(tuple(run[name] for name in SAME), [])
        if any(all(abs(run[name] - other[name]) < ROUNDING_MS for name in MEASURED) for other in others):
            duplicates.add(run["run_id"])
        else:
            others.append(run)
    return duplicates


def is_scored_separately(run: Mapping[str, Any]) -> bool:
    """Whether a run is scored separately: disaggregated, inferred speculative decoding, or for a reason it states."""
    reason = run.get("scored_separately") or run.get("prefill_workers")
    return bool(reason) or run.get("speculative") is not None


def throughput(concurrency: float, osl: float, ttft_ms: float, tpot_ms: float) -> float:
    """Return output tokens per second of a closed loop: concurrency x osl / (TTFT + TPOT x (osl - 1)).

    >>> throughput(2, 101, 1000.0, 10.0)
    101.0
    """
    return 1000.0 * concurrency * osl / (ttft_ms + tpot_ms * (osl - 1))


def with_errors(run: Mapping[str, Any], ttft_ms: float, tpot_ms: float) -> dict[str, float]:
    """Return predicted / measured - 1 by metric, from a run's predicted mean TTFT and TPOT, ms."""
    load = (run["max_concurrency"] or 1, run["osl"])
    measured = throughput(*load, run["ttft_ms"], run["tpot_ms"])
    return {
        "ttft": ttft_ms / run["ttft_ms"] - 1.0,
        "tpot": tpot_ms / run["tpot_ms"] - 1.0,
        "throughput": throughput(*load, ttft_ms, tpot_ms) / measured - 1.0,
    }


def score(errors: Sequence[float]) -> dict[str, float | int | None]:
    """Return n, APE (median, mean, 90th percentile), bias (mean) and median of signed relative errors, as fractions."""
    if not len(errors):
        return {"n": 0, **dict.fromkeys(("median_ape", "mape", "p90_ape", "bias", "median_error"))}
    signed = np.asarray(errors, dtype=float)
    ape = np.abs(signed)
    return {
        "n": int(signed.size),
        "median_ape": float(np.median(ape)),
        "mape": float(ape.mean()),
        "p90_ape": float(np.quantile(ape, 0.9)),
        "bias": float(signed.mean()),
        "median_error": float(np.median(signed)),
    }


def scores(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict]:
    """Return the scores by metric over the rows that have errors."""
    errors = [row["errors"] for row in rows if row.get("errors")]
    return {metric: score([error[metric] for error in errors]) for metric in METRICS}


def grouped(rows: Iterable[Mapping[str, Any]], names: Sequence[str], key_of: Callable[[Mapping], tuple]) -> list[dict]:
    """Return one row per group, sorted: ``names`` of its key, number of rows with errors, and scores by metric."""
    groups: dict[tuple, list] = {}
    for row in rows:
        groups.setdefault(key_of(row), []).append(row)
    return [
        {**dict(zip(names, key, strict=True)), "n": sum(1 for row in members if row.get("errors")), **scores(members)}
        for key, members in sorted(groups.items(), key=lambda item: tuple(str(part) for part in item[0]))
    ]


def concurrency_band(value: int | None) -> str:
    """Return the band of a concurrency, between powers of two.

    >>> concurrency_band(4), concurrency_band(100), concurrency_band(None)
    ('1-4', '65-128', 'open loop')
    """
    if value is None:
        return "open loop"
    for low, high in ((1, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 128), (129, 256)):
        if value <= high:
            return f"{low}-{high}"
    return "257-"


def scored_runs(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the runs that are scored: outside the fitting fifth, not scored separately, without duplicates."""
    candidates = [row for row in rows if not is_scored_separately(row)]
    duplicates = stated_again(candidates)
    return [row for row in candidates if not row["fitting"] and row["run_id"] not in duplicates]
