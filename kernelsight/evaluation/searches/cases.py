"""Replays of searches, one per case, on all cores; what is kept of each, so that a killed evaluation goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.dataflow.workers import work, worker_pool
from kernelsight.evaluation.searches import tuner_strategies
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching import scores
from kernelsight.searching.arrays import SpaceArrays
from kernelsight.searching.forecasts import widening
from kernelsight.searching.intervals import bin_probabilities, bins_of
from kernelsight.searching.journal import open_journal
from kernelsight.searching.replay import replay
from kernelsight.searching.rounds import STOP_BELOW, STOP_FROM, Round, rounds
from kernelsight.searching.scenarios import DEFAULTS
from kernelsight.searching.search_tables import forecast_scores
from kernelsight.searching.targets import Target, target_of, truth_of

CALIBRATED_AT = (20, 50)
# fewer replays than this are not worth other processes
LEAST_FOR_PROCESSES = 24
# candidates that calibration is scored on, evenly over a larger space
MOST_SCORED = 20_000


class Case(NamedTuple):
    """One search to replay."""

    space: str
    gpu: str
    split: str
    sources: tuple[str, ...] | None
    policy: str
    seed: int
    budget: int
    batch: int
    changes: tuple[tuple[str, Any], ...] = ()  # of the scenario's other columns


class Calibration(NamedTuple):
    """Scores of the forecasts of one replay after some measurements, and what their pictures are drawn from."""

    scores: dict[str, float]
    by_confidence: np.ndarray
    risk: np.ndarray


class Result(NamedTuple):
    """What is kept of a replay: regret after each measurement, where it would have stopped, calibration, score P."""

    case: Case
    regret: np.ndarray
    stop: tuple[int, float] | None
    calibration: dict[int, Calibration]
    score: float | None
    notes: tuple[str, ...]


_spaces: Mapping[str, SpaceArrays] = {}
_targets: dict[tuple[Any, ...], Target] = {}


def _begin(spaces: Mapping[str, SpaceArrays]) -> None:
    global _spaces
    _spaces = spaces
    _targets.clear()


def replayed(spaces: Mapping[str, SpaceArrays], cases: Sequence[Case]) -> Iterator[Result]:
    """Yield the result of each case, in order; many are shared out to a process for each core."""
    workers = os.cpu_count() or 1
    if len(cases) < LEAST_FOR_PROCESSES or workers < 2:
        _begin(spaces)
        yield from map(_replay, cases)
        return
    with worker_pool(workers, _begin, spaces) as pool:
        yield from pool.map(partial(work, _replay), cases, chunksize=4)


def _replay(case: Case) -> Result:
    """Replay one search."""
    key = (case.space, case.gpu, case.sources)
    if key not in _targets:
        _targets[key] = target_of(_spaces[case.space], case.gpu, case.sources)
    target = _targets[key]
    truth = truth_of(_spaces[case.space], case.gpu, target.ids)
    logs = np.log(truth.latency_us)
    if tuner_strategies.is_tuner(case.policy):
        best = tuner_strategies.best_rows(case.policy, _spaces[case.space], truth, target.ids, case.seed, case.budget)
        return Result(case, _padded(scores.regrets(best, logs), case.budget), None, {}, scores.score_p(best, logs), ())
    scenario = DEFAULTS | {"seed": case.seed, "budget_measurements": case.budget, "batch": case.batch}
    scenario |= {"policy": case.policy} | dict(case.changes)
    best_rows: list[int] = []
    stop, calibration = None, {}
    with one_blas_thread():
        for made in rounds(target, scenario, replay(truth, target.ids, case.seed)):
            before = len(best_rows)
            if stop is None and before >= STOP_FROM and made.better < STOP_BELOW:
                stop = (before, float(scores.regrets(best_rows[-1:], logs)[0]))
            if case.policy == "selective" and before in CALIBRATED_AT:
                unseen = unseen_scores(made, logs)
                if unseen is not None:
                    calibration[before] = unseen
            best_rows += made.best.tolist()
    best = np.array(best_rows, dtype=np.int64)
    regret = _padded(scores.regrets(best, logs), case.budget)
    return Result(case, regret, stop, calibration, scores.score_p(best, logs), target.notes)


def _padded(regret: np.ndarray, budget: int) -> np.ndarray:
    """Return the regret after each measurement of the budget; a search that ended earlier keeps its last."""
    return np.concatenate([regret, np.full(budget - len(regret), regret[-1])])


def unseen_scores(made: Round, logs: np.ndarray) -> Calibration | None:
    """Return the scores of a round's forecast over all working candidates that were not measured before it."""
    forecast = made.forecast
    if forecast is None or forecast.fit is None:
        return None
    earlier = made.history.until(int((made.history.rounds < made.number).sum()))
    rows = np.setdiff1d(np.flatnonzero(~np.isnan(logs)), earlier.rows)
    if len(rows) > MOST_SCORED:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_SCORED).astype(int)]
    mean, variance, _ = gp.predict(made.step.inputs, forecast.fit, rows)
    sd, anchor = np.sqrt(variance) * widening(earlier, mean), float(np.nanmedian(logs))
    bins, hits = bin_probabilities(mean, sd, anchor), bins_of(logs[rows], anchor)
    confidence, right = bins.max(1), (bins.argmax(1) == hits).astype(float)
    return Calibration(
        forecast_scores(mean, sd, logs[rows], anchor),
        scores.by_confidence(confidence, right),
        scores.risk_at(confidence, 1.0 - right),
    )


def kept_results(
    spaces: Mapping[str, SpaceArrays], cases: Sequence[Case], path: Path, header: str, resume: bool
) -> list[Result]:
    """Return the results of all cases; each is on the disk in a journal before the next, and is read back from it.

    ``header``: what the journal belongs to. The journal is removed by whoever has written what follows from it.
    """
    journal, earlier = open_journal(path, header, resume)
    results = [_read(case, row) for case, row in zip(cases, earlier, strict=False)]
    with journal:
        for result in replayed(spaces, cases[len(results) :]):
            journal.append(_written(result))
            results.append(result)
    return results


def _written(result: Result) -> dict[str, Any]:
    """Return a result as a line of a journal; numbers keep all their digits."""
    calibration = {
        str(count): [each.scores, each.by_confidence.tolist(), each.risk.tolist()]
        for count, each in result.calibration.items()
    }
    plain = {"regret": result.regret.tolist(), "stop": result.stop, "score": result.score}
    return plain | {"calibration": calibration, "notes": result.notes}


def _read(case: Case, row: Mapping[str, Any]) -> Result:
    calibration = {
        int(count): Calibration(calibration_scores, np.array(by_confidence), np.array(risk))
        for count, (calibration_scores, by_confidence, risk) in row["calibration"].items()
    }
    stop = None if row["stop"] is None else (row["stop"][0], row["stop"][1])
    return Result(case, np.array(row["regret"]), stop, calibration, row["score"], tuple(row["notes"]))
