"""Corrections from the statistics of one run or a few: bounded factors on kernels, for a deployment's other loads.

What one run shows of its deployment holds for its other loads in part: TTFT and TPOT of the run are brought part of
the way to what was measured, and never further than a bound. Factors are found by simulating the run again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.comparison.stage_comparison import Stages, give_stages, stages_of_comparison
from kernelsight.dataflow.rows import as_table
from kernelsight.dataflow.session import Session
from kernelsight.scenario.corrections import fingerprint

METRICS = ("ttft_ms", "tpot_ms")
# share of the logarithm of an error that is taken, and the most: chosen on InferenceX for gap analysis, and vice versa
TAKEN = {"ttft_ms": 0.5, "tpot_ms": 0.75}
MOST = {"ttft_ms": math.log(1.2), "tpot_ms": math.log(1.4)}
# kernels whose factor TTFT decides, and those of TPOT; what both phases run counts as TPOT says, which has more steps
PREFILL = ("prefill_gemm", "prefill_attention")
DECODE = ("decode_gemm", "decode_attention", "moe", "communication")
ROUNDS = 3
# kernels never become slower or faster than this
LARGEST_LOG_FACTOR = 0.7


def correction_table(
    comparisons: pa.Table, production_summaries: pa.Table, stage_vs_prediction: pa.Table, session: Session
) -> pa.Table:
    """Return ``stage_corrections``: none for a log whose stages state no TTFT and no time per token."""
    rows = []
    for row in comparisons.to_pylist():
        comparison = stages_of_comparison(row, production_summaries)
        errors = [
            each
            for each in stage_vs_prediction.to_pylist()
            if each["comparison_id"] == comparison.comparison_id and each["statistic"] == "mean"
        ]
        rows += _corrections(comparison, errors, session)
    return as_table(contracts()["stage_corrections"], rows)


def wanted_of(errors: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return by metric how far the logarithm of the prediction should move: a bounded part of the mean error.

    >>> {name: round(value, 3) for name, value in wanted_of([{"metric": "tpot_ms", "error": -0.2}]).items()}
    {'tpot_ms': 0.167}
    """
    moves = {}
    for metric in METRICS:
        misses = [-math.log1p(each["error"]) for each in errors if each["metric"] == metric]
        if misses:
            moves[metric] = float(np.clip(TAKEN[metric] * np.mean(misses), -MOST[metric], MOST[metric]))
    return moves


def _corrections(comparison: Stages, errors: Sequence[Mapping[str, Any]], session: Session) -> list[dict[str, Any]]:
    wanted = wanted_of(errors)
    if not wanted:
        return []
    with session.fork() as fork:
        give_stages(fork, comparison)
        known = fingerprint(fork.table("deployment_settings").to_pylist()[0])
        first, factors = _means(fork), dict.fromkeys(METRICS, 0.0)
        for _ in range(ROUNDS):
            with fork.fork() as one:
                one.give("log_corrections", _rows(comparison, factors, known))
                reached = _means(one)
            for metric, aim in wanted.items():
                moved = float(np.mean(np.log(reached[metric] / first[metric])))
                step = factors[metric] + aim - moved
                factors[metric] = min(max(step, -LARGEST_LOG_FACTOR), LARGEST_LOG_FACTOR)
    return [{"comparison_id": comparison.comparison_id, **row} for row in _rows(comparison, factors, known)]


def _means(session: Session) -> dict[str, np.ndarray]:
    """Return the mean TTFT and TPOT of each stage."""
    summary = sorted(session.table("scenario_summary").to_pylist(), key=lambda row: row["scenario_id"])
    return {metric: np.array([row[metric.replace("_ms", "_mean_ms")] for row in summary]) for metric in METRICS}


def _rows(comparison: Stages, factors: Mapping[str, float], known: str) -> list[dict[str, Any]]:
    """Return the rows of a correction by these logarithms of factors."""
    stage_names = ", ".join(stage.part for stage in comparison.stages[:3]) + (
        ", …" if len(comparison.stages) > 3 else ""
    )
    return [
        {
            "part": part,
            "factor": math.exp(factors[metric]),
            "exposed_us": 0.0,
            "n": sum(stage.requests for stage in comparison.stages),
            "fitted_on": f"statistics of {stage_names}",
            "fingerprint": known,
        }
        for metric, parts in zip(METRICS, (PREFILL, DECODE), strict=True)
        for part in parts
    ]
