"""Forecasts of a recorded language model beside ``transfer``: bins, calibration, and risk by coverage.

The answers are in a file (``recorded_answers.json``): of a general language model that saw each prompt alone, without
tools and without the measurements; it was not trained to forecast kernels. ``questions`` makes the prompts again, so
that an answer counts only for the prompt that it was given to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernelsight.laboratory.searches import scores
from kernelsight.searching.arrays import OK, SpaceArrays
from kernelsight.searching.experience import bins_of, ranked_scores
from kernelsight.searching.forecasts import bin_probabilities
from kernelsight.searching.llm.prompt import messages, prompt_hash
from kernelsight.searching.replays import replay
from kernelsight.searching.rounds import rounds
from kernelsight.searching.scenarios import DEFAULTS
from kernelsight.searching.targets import target_of, truth_of

ANSWERS = Path(__file__).parent / "recorded_answers.json"
MODEL = "general"
# where, and of how many candidates; measurements after which ``transfer`` forecasts the same candidates
ASKED = (("convolution_milo", "A4000"), ("kt_gemm", "RTX_Titan"))
CANDIDATES, AFTER = 24, 20


def questions(arrays: SpaceArrays, gpu: str) -> tuple[np.ndarray, int, dict[int, list[dict[str, str]]]]:
    """Return the working rows asked about, evenly over the space, the anchor's (median latency), and the prompts."""
    measured = arrays.gpus[gpu]
    worked = np.flatnonzero(measured.status == OK)
    order = worked[np.argsort(measured.latency_us[worked], kind="stable")]
    anchor = int(order[(len(order) - 1) // 2])
    rows = np.unique(worked[np.linspace(0, len(worked) - 1, CANDIDATES).astype(int)])
    rows = rows[rows != anchor]
    at = {"parameters": str(arrays.parameters[anchor]), "latency_us": float(measured.latency_us[anchor]), "on": gpu}
    chats = {int(row): messages({"name": gpu}, at, {"parameters": str(arrays.parameters[row])}) for row in rows}
    return rows, anchor, chats


def recorded_bins(chats: Mapping[int, list[dict[str, str]]], answers: Mapping[str, list[float]]) -> np.ndarray:
    """Return the recorded probabilities of each prompt, (prompts, bins), summing to 1; KeyError: one has no answer."""
    stated = np.array([answers[prompt_hash(MODEL, chat)] for chat in chats.values()])
    return stated / stated.sum(1, keepdims=True)


def transfer_bins(arrays: SpaceArrays, gpu: str, rows: np.ndarray, anchor_log: float, after: int) -> np.ndarray:
    """Return the bins that ``transfer`` forecasts of rows after some measurements, (rows, bins)."""
    from kernelsight.searching import gaussian_process as gp
    from kernelsight.searching.forecasts import widening

    target = target_of(arrays, gpu)
    truth = truth_of(arrays, gpu, target.ids)
    scenario = DEFAULTS | {"seed": 0, "budget_measurements": after + 5}
    for one in rounds(target, scenario, replay(truth, target.ids, 0)):
        last, before = one, int((one.history.rounds < one.number).sum())
        if before >= after:
            break
    places = np.searchsorted(target.ids.astype(str), arrays.ids[rows].astype(str))
    assert last.forecast is not None and last.forecast.fit is not None
    mean, variance, _ = gp.predict(last.step.inputs, last.forecast.fit, places)
    earlier = last.history.until(before)
    return bin_probabilities(mean, np.sqrt(variance) * widening(earlier, mean), anchor_log)


def forecast_figures(bins: np.ndarray, hits: np.ndarray) -> dict[str, Any]:
    """Return the figures of forecasts: share right, calibration error, scores, and risk by tenths of coverage."""
    wrong = (bins.argmax(1) != hits).astype(float)
    return {
        "right": float(1.0 - wrong.mean()),
        "ece": scores.calibration_error(bins, hits),
        "brier": scores.half_brier(bins, hits),
        "crps": float(ranked_scores(bins, hits).mean()),
        "aurc": scores.area_under_risk(bins.max(1), wrong),
        "risk": [round(float(value), 3) for value in scores.risk_at(bins.max(1), wrong)],
    }


def compared(spaces: Mapping[str, SpaceArrays]) -> list[dict[str, Any]]:
    """Return the figures of each forecaster over the candidates that the model was asked about."""
    answers = json.loads(ANSWERS.read_text(encoding="utf-8"))["answers"]
    found: dict[str, list[np.ndarray]] = {}
    hits = []
    for space, gpu in ASKED:
        arrays = spaces[space]
        rows, anchor, chats = questions(arrays, gpu)
        log = float(np.log(arrays.gpus[gpu].latency_us[anchor]))
        hits.append(bins_of(np.log(arrays.gpus[gpu].latency_us[rows]), log))
        found.setdefault("recorded model, no measurement", []).append(recorded_bins(chats, answers))
        found.setdefault(f"transfer, {AFTER} measurements", []).append(transfer_bins(arrays, gpu, rows, log, AFTER))
        found.setdefault("all bins alike", []).append(np.full((len(rows), 8), 0.125))
    hit = np.concatenate(hits)
    return [{"forecaster": name} | forecast_figures(np.concatenate(bins), hit) for name, bins in found.items()]
