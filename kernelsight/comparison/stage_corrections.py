"""Corrections (factors on kernels, host times) fitted to the statistics of one run or a few, for use at other loads.

Maximum a posteriori: a run gives only TTFT and TPOT, so the miss is shared out by the prior standard deviation of every
part. The noise is heavy-tailed, and larger where the prediction's interval is wide, as near capacity: a run that no
small factors explain (another regime, such as a full cache) counts little. The effect of each part on TTFT and TPOT is
simulated, once per part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.comparison.stage_comparison import Stages, give_stages, stages_of_comparison
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.dataflow.session import Session
from kernelsight.scenario.corrections import fingerprint

METRICS = ("ttft_ms", "tpot_ms")
# prior standard deviations of logarithms of factors; NOISE: of the scatter of repeated runs and neighbouring loads.
# Chosen on InferenceX for gap analysis, and vice versa (benches/evaluation/lab/end_to_end.md)
KERNELS_SD = {
    **{"prefill_gemm": 0.2, "prefill_attention": 0.2, "prefill_moe": 0.3},
    **{"decode_gemm": 0.1, "decode_attention": 0.3, "moe": 0.2, "communication": 0.2},
}
# prior standard deviations, microseconds a step, and a request
HOST_SD = {"host": 500.0, "front_end": 5_000.0}
PARTS = (*KERNELS_SD, *HOST_SD)
SD = np.array([*KERNELS_SD.values(), *HOST_SD.values()])
NOISE = {"ttft_ms": 0.08, "tpot_ms": 0.03}
# share of the prediction interval's standard deviation that is added to the noise; its 90 % width in those
OF_INTERVAL, WIDTH_90 = 0.25, 3.29
# degrees of freedom of Student's t over the metrics of a run: outliers count less
DEGREES = 3.0
ITERATIONS = 30
# largest correction of a part, in its prior standard deviations
MOST_SD = 2.0
# step of a part in the difference quotient, in its prior standard deviations
STEP = 0.5


class Observed(NamedTuple):
    """Observations, shape [observations] each: number of the run, log(measured / predicted), its standard deviation."""

    run: np.ndarray
    miss: np.ndarray
    noise: np.ndarray


@reads("scenario_summary", "deployment_settings", "step_costs", "knot_corrections")
@produces("stage_corrections")
def correction_rows(
    comparisons: pa.Table,
    production_summaries: pa.Table,
    stage_vs_prediction: pa.Table,
    *,
    fork: Callable[[], Session],
) -> list[dict[str, Any]]:
    """Bounded factors on kernels that reduce the error of a log's stages.

    No rows for a log whose stages state neither TTFT nor TPOT.
    """
    rows = []
    for row in comparisons.to_pylist():
        comparison = stages_of_comparison(row, production_summaries)
        errors = [
            error
            for error in stage_vs_prediction.to_pylist()
            if error["comparison_id"] == comparison.comparison_id and error["statistic"] == "mean"
        ]
        with fork() as session:
            rows += _corrections(comparison, errors, session)
    return rows


def likeliest(observations: Observed, slopes: np.ndarray) -> np.ndarray:
    """Return the most likely value of each of PARTS: logarithms of factors, and microseconds of HOST_SD.

    ``slopes``: derivative of each observation's logarithm by each part, shape [observations, PARTS].
    """
    scaled, weight = np.zeros(len(PARTS)), np.ones(observations.miss.size)
    metrics = np.bincount(observations.run)
    for _ in range(ITERATIONS):
        weighted = (slopes * SD) * (weight / observations.noise**2)[:, None]
        scaled = np.linalg.solve(weighted.T @ (slopes * SD) + np.eye(len(PARTS)), weighted.T @ observations.miss)
        squared_residuals = ((observations.miss - (slopes * SD) @ scaled) / observations.noise) ** 2
        weight = ((DEGREES + metrics) / (DEGREES + np.bincount(observations.run, squared_residuals)))[observations.run]
    return np.clip(scaled, -MOST_SD, MOST_SD) * SD


def observed_misses(comparison: Stages, errors: Sequence[Mapping[str, Any]]) -> tuple[Observed, np.ndarray]:
    """Return the observations of the stages, and the indices (stage, metric) of each, shape [observations, 2].

    ``errors``: rows of ``stage_vs_prediction`` of means.
    """
    by_stage = {(row["log_id"], row["part"], row["metric"]): row for row in errors}
    observations, positions = [], []
    for number, stage in enumerate(comparison.stages):
        for column, metric in enumerate(METRICS):
            row = by_stage.get((stage.log_id, stage.part, metric))
            if row:
                width = math.log(row["high"] / row["low"]) if row["low"] else 0.0
                observations.append(
                    (-math.log1p(row["error"]), math.hypot(NOISE[metric], OF_INTERVAL * width / WIDTH_90))
                )
                positions.append((number, column))
    indices = np.array(positions, int).reshape(-1, 2)
    values = np.array(observations, float).reshape(-1, 2)
    return Observed(np.unique(indices[:, 0], return_inverse=True)[1], values[:, 0], values[:, 1]), indices


def _corrections(comparison: Stages, errors: Sequence[Mapping[str, Any]], session: Session) -> list[dict[str, Any]]:
    """Return the rows of ``stage_corrections`` of one comparison."""
    observations, indices = observed_misses(comparison, errors)
    if not observations.miss.size:
        return []
    with session.fork() as fork:
        give_stages(fork, comparison)
        settings_fingerprint = fingerprint(fork.table("deployment_settings").to_pylist()[0])
        values = likeliest(observations, _slopes(fork, comparison, settings_fingerprint)[indices[:, 0], indices[:, 1]])
    return [
        {"comparison_id": comparison.comparison_id, **row} for row in _rows(comparison, values, settings_fingerprint)
    ]


def _slopes(session: Session, comparison: Stages, settings_fingerprint: str) -> np.ndarray:
    """Return derivatives of the logarithms of each stage's means by each part, shape [stages, METRICS, PARTS]."""
    means = _means(session)
    slopes = []
    for values in np.diag(STEP * SD):
        with session.fork() as fork:
            fork.give("log_corrections", _rows(comparison, values, settings_fingerprint))
            slopes.append(np.log(_means(fork) / means) / values.sum())
    return np.stack(slopes, axis=-1)


def _means(session: Session) -> np.ndarray:
    """Return the mean TTFT and TPOT of each stage, shape [stages, 2]; NaN where there is none."""
    summary = sorted(session.table("scenario_summary").to_pylist(), key=lambda row: row["scenario_id"])
    names = [metric.replace("_ms", "_mean_ms") for metric in METRICS]
    return np.array([[row[name] for name in names] for row in summary], float)


def _rows(comparison: Stages, values: np.ndarray, settings_fingerprint: str) -> list[dict[str, Any]]:
    """Return correction rows of the PARTS whose value is not 0; ``values``: shape [PARTS]."""
    stage_names = ", ".join(stage.part for stage in comparison.stages[:3]) + (
        ", …" if len(comparison.stages) > 3 else ""
    )
    return [
        {
            "part": part,
            "factor": 1.0 if part in HOST_SD else math.exp(value),
            "exposed_us": float(value) if part in HOST_SD else 0.0,
            "n": sum(stage.requests for stage in comparison.stages),
            "fitted_on": f"statistics of {stage_names}",
            "fingerprint": settings_fingerprint,
        }
        for part, value in zip(PARTS, values, strict=True)
        if value
    ]
