"""Attributes the error of a group of runs to parts: prefill, decode, communication, host, scheduling.

A run's predicted TTFT and TPOT are split into parts. Ridge regression then finds one factor per part and group that
brings prediction and measurement closest together. A diagnosis of where to look, not a proof: steps of equal length
do not separate host from kernel time.
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
    busy = row["gpu_s"] + row["host_exposed_s"]
    token = {
        "prefill_kernels": row["prefill_kernels_s"],
        "decode_kernels": row["decode_kernels_s"],
        "communication": row["prefill_communication_s"] + row["decode_communication_s"],
        "host": row["host_exposed_s"],
        "scheduling": 0.0,
    }
    held = sum(token.values()) or 1.0
    tpot = {name: row["tpot_mean_ms"] * value / held for name, value in token.items()}
    prompt = row["prefill_kernels_s"] + row["prefill_communication_s"]
    computing = max(row["ttft_mean_ms"] - row["queue_ms"], 0.0)
    host = computing * row["host_exposed_s"] / busy if busy else 0.0
    share = (computing - host) / prompt if prompt else 0.0
    ttft = {
        "prefill_kernels": row["prefill_kernels_s"] * share,
        "decode_kernels": 0.0,
        "communication": row["prefill_communication_s"] * share,
        "host": host,
        "scheduling": row["ttft_mean_ms"] - host - prompt * share,
    }
    return ttft, tpot


def attribute(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return for a group of served runs the mean error of TTFT and TPOT, and the share attributed to each part.

    All as fractions of the measured value, (measured - predicted) / measured: + if the prediction is too short.
    ``unexplained`` is the root mean square of the residuals.
    """
    answer: dict[str, Any] = {"n": len(rows)}
    if len(rows) < FEWEST_RUNS:
        return answer
    parts = [parts_of(row) for row in rows]
    features, misses, owners = [], [], []
    for row, (ttft, tpot) in zip(rows, parts, strict=True):
        for metric, split, measured in (("ttft", ttft, row["ttft_ms"]), ("tpot", tpot, row["tpot_ms"])):
            scales = [split[name] / measured for name in PARTS]
            constants = [0.0, 1.0 / measured] if metric == "tpot" else [1.0 / measured, 0.0]
            features.append([*scales, *constants])
            misses.append((measured - sum(split.values())) / measured)
            owners.append(metric)
    x, y = np.array(features), np.clip(np.array(misses), -2.0, 1.0)
    prior = np.array([*[PRIOR_SHARE] * len(PARTS), PRIOR_REQUEST_MS, PRIOR_STEP_MS])
    weights = np.linalg.solve(x.T @ x / NOISE**2 + np.diag(prior**-2.0), x.T @ y / NOISE**2)
    for metric in ("ttft", "tpot"):
        mine = np.array(owners) == metric
        carried = (x[mine] * weights).mean(axis=0)
        by_part = dict(zip(PARTS, carried[: len(PARTS)].tolist(), strict=True))
        by_part["host"] += float(carried[len(PARTS) :].sum())
        unexplained = y[mine] - x[mine] @ weights
        answer[metric] = {
            "miss": float(y[mine].mean()),
            **by_part,
            "unexplained": float(np.sqrt((unexplained**2).mean())),
        }
    return answer
