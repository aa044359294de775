"""Experience to train a forecaster by: prompt, forecast, outcome and reward of each measured candidate.

The reward is 1 less the ranked probability score over the eight bins of speed-up: a proper scoring rule, which is
largest on average for the probabilities that one holds (Gneiting and Raftery, JASA 2007, section 4.2). A candidate that
did not work has no speed-up, and so no reward.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.caches.durable import durable_file
from kernelsight.searching.forecasts import BIN_EDGES, BINS, bin_probabilities
from kernelsight.searching.growth import Candidate
from kernelsight.searching.llm.forecaster import anchor_of, nearest
from kernelsight.searching.llm.prompt import messages

RULE = "1 - ranked probability score over bins"
BIN_NAMES = tuple(f"bin_{number}" for number in range(1, BINS + 1))


def bins_of(logs: np.ndarray, anchor_log: float) -> np.ndarray:
    """Return the bins, from 0, of measured log latencies."""
    return np.searchsorted(np.log(np.array(BIN_EDGES)), anchor_log - logs, side="right")


def ranked_scores(probabilities: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """Return the ranked probability score of each forecast: squared gaps of cumulative probability / (bins - 1)."""
    happened = np.eye(probabilities.shape[1])[hits]
    return (np.cumsum(probabilities - happened, axis=1)[:, :-1] ** 2).mean(1)


def of_forecasts(
    forecasts: pa.Table,
    candidates: Mapping[str, Candidate],
    times: Mapping[str, float],
    anchor: str,
    gpu: Mapping[str, Any],
    neighbours: int,
) -> Iterator[dict[str, Any]]:
    """Yield the experience of forecasts relative to a measured anchor; ``times``: us, of the candidates that worked."""
    for row in forecasts.to_pylist():
        name = row["candidate_id"]
        if name in times and name != anchor:
            seen = {other: time for other, time in times.items() if other != name}
            bins = np.array([row[column] for column in BIN_NAMES])
            yield _one(row, bins, candidates, seen, anchor, gpu, neighbours, ("ok", times[name]))


def of_search(
    results: Mapping[str, pa.Table],
    candidates: Mapping[str, Candidate],
    scenario: Mapping[str, Any],
    gpu: Mapping[str, Any],
    neighbours: int,
) -> Iterator[dict[str, Any]]:
    """Yield the experience of a search: each candidate that a round forecast and measured for the first time.

    The prompt holds what had been measured before the round; its anchor is the scenario's where that was, else the
    candidate of median latency.
    """
    forecasts = {(row["round"], row["candidate_id"]): row for row in results["kernel_forecasts"].to_pylist()}
    lists: dict[str, list[float]] = {}
    rows = results["search_measurements"].to_pylist()
    for number in sorted({row["round"] for row in rows}):
        of_round = [row for row in rows if row["round"] == number]
        times = {name: float(np.median(each)) for name, each in lists.items()}
        known = scenario if scenario["anchor"] in times else {**scenario, "anchor": None}
        for row in of_round if times else ():
            forecast = forecasts.get((number, row["candidate_id"]))
            if forecast is not None and row["run"] == 1:
                anchor = anchor_of(times, known)
                log = np.log(np.array([forecast["latency_us"]]))
                sd = np.array([max(forecast["log_sd"], 1e-6)])
                bins = bin_probabilities(log, sd, float(np.log(times[anchor])))[0]
                outcome = (row["status"], row["latency_us"])
                yield _one(forecast, bins, candidates, times, anchor, gpu, neighbours, outcome)
        for row in of_round:
            if row["status"] == "ok":
                lists.setdefault(row["candidate_id"], []).append(row["latency_us"])


def _one(
    forecast: Mapping[str, Any],
    bins: np.ndarray,
    candidates: Mapping[str, Candidate],
    times: Mapping[str, float],
    anchor: str,
    gpu: Mapping[str, Any],
    neighbours: int,
    outcome: tuple[str, float | None],
) -> dict[str, Any]:
    name, on = forecast["candidate_id"], gpu["name"]
    status, latency_us = outcome
    measured = [{**candidates[other], "latency_us": time, "on": on} for other, time in times.items()]
    beside = nearest(candidates[name], measured, neighbours, (name, anchor))
    prompt = messages(gpu, {**candidates[anchor], "latency_us": times[anchor], "on": on}, candidates[name], beside)
    row: dict[str, Any] = {"status": status, "latency_us": latency_us, "speed_up": None, "bin": None}
    reward = None
    if latency_us is not None:
        hit = bins_of(np.log(np.array([latency_us])), float(np.log(times[anchor])))
        row |= {"speed_up": times[anchor] / latency_us, "bin": int(hit[0]) + 1}
        reward = 1.0 - float(ranked_scores(bins[None], hit)[0])
    stated = {column: float(value) for column, value in zip(BIN_NAMES, bins, strict=True)}
    return {
        "candidate_id": name,
        "round": forecast["round"],
        "anchor": anchor,
        "prompt": prompt,
        "forecaster": forecast["forecaster"],
        "forecast": stated | {"confidence": float(bins.max()), "p_ok": forecast["p_ok"]},
        "outcome": row,
        "reward": reward,
        "rule": RULE,
    }


def write_experience(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write experience as JSON lines, atomically; RunFailed: it cannot be written."""
    with durable_file(path) as draft:
        Path(draft).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
