"""Attribution of a group of runs' error to parts: prefill, decode, communication, host, scheduling.

A run's predicted TTFT and TPOT are split into parts. Ridge regression then fits one factor per part and group to the
measurements. A diagnosis of where to look, not a proof: steps of equal length do not separate host from kernel time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PARTS = ("prefill_kernels", "decode_kernels", "communication", "host", "scheduling")
# prior standard deviations: of a part's relative error, and of constant host times in ms
PRIOR_SHARE, PRIOR_STEP_MS, PRIOR_REQUEST_MS = 0.5, 2.0, 50.0
NOISE = 0.1
FEWEST_RUNS = 5


def parts_of(row: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Return predicted TTFT and TPOT of a served run by part, in ms; the parts add up to the prediction.

    TPOT is split like the whole run's time, because prefill steps interrupt decoding. Of TTFT, the wait for the first
    step is scheduling; the rest is split like the time of the prefill steps.
    """
    busy_s = row["gpu_s"] + row["host_exposed_s"]
    seconds = {
        "prefill_kernels": row["prefill_kernels_s"],
        "decode_kernels": row["decode_kernels_s"],
        "communication": row["prefill_communication_s"] + row["decode_communication_s"],
        "host": row["host_exposed_s"],
        "scheduling": 0.0,
    }
    total_s = sum(seconds.values()) or 1.0
    tpot = {name: row["tpot_mean_ms"] * value / total_s for name, value in seconds.items()}
    prefill_s = row["prefill_kernels_s"] + row["prefill_communication_s"]
    computing_ms = max(row["ttft_mean_ms"] - row["queue_ms"], 0.0)
    host_ms = computing_ms * row["host_exposed_s"] / busy_s if busy_s else 0.0
    ms_per_prefill_s = (computing_ms - host_ms) / prefill_s if prefill_s else 0.0
    ttft = {
        "prefill_kernels": row["prefill_kernels_s"] * ms_per_prefill_s,
        "decode_kernels": 0.0,
        "communication": row["prefill_communication_s"] * ms_per_prefill_s,
        "host": host_ms,
        "scheduling": row["ttft_mean_ms"] - host_ms - prefill_s * ms_per_prefill_s,
    }
    return ttft, tpot


def attribute(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean error of TTFT and TPOT of a group of served runs, and its attribution to each part.

    All as fractions of the measured value, (measured - predicted) / measured: above 0 if the prediction is too short.
    ``unexplained``: root mean square of the residuals. Only ``n`` for fewer than FEWEST_RUNS runs.
    """
    attribution: dict[str, Any] = {"n": len(rows)}
    if len(rows) < FEWEST_RUNS:
        return attribution
    parts = [parts_of(row) for row in rows]
    features, relative_errors, metrics = [], [], []
    for row, (ttft, tpot) in zip(rows, parts, strict=True):
        for metric, split, measured in (("ttft", ttft, row["ttft_ms"]), ("tpot", tpot, row["tpot_ms"])):
            scales = [split[name] / measured for name in PARTS]
            constants = [0.0, 1.0 / measured] if metric == "tpot" else [1.0 / measured, 0.0]
            features.append([*scales, *constants])
            relative_errors.append((measured - sum(split.values())) / measured)
            metrics.append(metric)
    x, y = np.array(features), np.clip(np.array(relative_errors), -2.0, 1.0)
    prior = np.array([*[PRIOR_SHARE] * len(PARTS), PRIOR_REQUEST_MS, PRIOR_STEP_MS])
    weights = np.linalg.solve(x.T @ x / NOISE**2 + np.diag(prior**-2.0), x.T @ y / NOISE**2)
    for metric in ("ttft", "tpot"):
        is_metric = np.array(metrics) == metric
        attributed = (x[is_metric] * weights).mean(axis=0)
        by_part = dict(zip(PARTS, attributed[: len(PARTS)].tolist(), strict=True))
        by_part["host"] += float(attributed[len(PARTS) :].sum())
        unexplained = y[is_metric] - x[is_metric] @ weights
        attribution[metric] = {
            "miss": float(y[is_metric].mean()),
            **by_part,
            "unexplained": float(np.sqrt((unexplained**2).mean())),
        }
    return attribution
