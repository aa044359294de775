"""Cases of a search evaluation: each replayed on a core, with results in a journal so that it can be resumed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.dataflow.workers import work, worker_pool
from kernelsight.laboratory.searches import scores, tuner_strategies
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching.arrays import SpaceArrays
from kernelsight.searching.experience import bins_of
from kernelsight.searching.forecasts import bin_probabilities, widening
from kernelsight.searching.journal import open_journal
from kernelsight.searching.replays import replay
from kernelsight.searching.rounds import STOP_BELOW, STOP_FROM, Round, rounds
from kernelsight.searching.scenarios import DEFAULTS
from kernelsight.searching.search_tables import regrets
from kernelsight.searching.targets import Target, target_of, truth_of

CALIBRATED_AT = (20, 50)
# fewer replays than this run in this process
LEAST_FOR_PROCESSES = 24
# maximum number of candidates that calibration is scored on, evenly over the space
MOST_SCORED = 20_000


class Case(NamedTuple):
    """One search to replay: a space, the GPU to search for, what it learns from, the policy, seed and budget."""

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
    """Scores of one replay's forecasts after some measurements, and points of reliability and risk-coverage curves."""

    scores: dict[str, float]
    by_confidence: np.ndarray
    risk: np.ndarray


class Result(NamedTuple):
    """Result of a replay.

    ``regret``: after each measurement, shape [budget]; ``stop``: (measurements, regret) where it would have stopped;
    ``calibration``: by number of measurements; ``score``: score P; ``notes``: of the target.
    """

    case: Case
    regret: np.ndarray
    stop: tuple[int, float] | None
    calibration: dict[int, Calibration]
    score: float | None
    notes: tuple[str, ...]


_spaces: Mapping[str, SpaceArrays] = {}
_targets: dict[tuple[Any, ...], Target] = {}


def _begin(spaces: Mapping[str, SpaceArrays]) -> None:
    """Set the spaces of this process."""
    global _spaces
    _spaces = spaces
    _targets.clear()


def replayed(spaces: Mapping[str, SpaceArrays], cases: Sequence[Case]) -> Iterator[Result]:
    """Yield the result of each case, in order; LEAST_FOR_PROCESSES or more are distributed over all cores."""
    workers = os.cpu_count() or 1
    if len(cases) < LEAST_FOR_PROCESSES or workers < 2:
        _begin(spaces)
        yield from map(_replay, cases)
        return
    with worker_pool(workers, _begin, spaces) as pool:
        yield from pool.map(partial(work, _replay), cases, chunksize=4)


def _replay(case: Case) -> Result:
    """Return the result of one replayed search."""
    key = (case.space, case.gpu, case.sources)
    if key not in _targets:
        _targets[key] = target_of(_spaces[case.space], case.gpu, case.sources)
    target = _targets[key]
    truth = truth_of(_spaces[case.space], case.gpu, target.ids)
    logs = np.log(truth.latency_us)
    if tuner_strategies.is_tuner(case.policy):
        best = tuner_strategies.best_rows(case.policy, _spaces[case.space], truth, target.ids, case.seed, case.budget)
        return Result(case, _padded(regrets(best, logs), case.budget), None, {}, scores.score_p(best, logs), ())
    scenario = DEFAULTS | {"seed": case.seed, "budget_measurements": case.budget, "batch": case.batch}
    scenario |= {"policy": case.policy} | dict(case.changes)
    best_rows: list[int] = []
    stop, calibration = None, {}
    with one_blas_thread():
        for search_round in rounds(target, scenario, replay(truth, target.ids, case.seed)):
            measured_count = len(best_rows)
            if stop is None and measured_count >= STOP_FROM and search_round.better < STOP_BELOW:
                stop = (measured_count, float(regrets(best_rows[-1:], logs)[0]))
            if case.policy == "selective" and measured_count in CALIBRATED_AT:
                unseen = unseen_scores(search_round, logs)
                if unseen is not None:
                    calibration[measured_count] = unseen
            best_rows += search_round.best.tolist()
    best = np.array(best_rows, dtype=np.int64)
    regret = _padded(regrets(best, logs), case.budget)
    return Result(case, regret, stop, calibration, scores.score_p(best, logs), target.notes)


def _padded(regret: np.ndarray, budget: int) -> np.ndarray:
    """Return the regret after each measurement, shape [budget]; a search that ended earlier keeps its last value."""
    return np.concatenate([regret, np.full(budget - len(regret), regret[-1])])


def unseen_scores(search_round: Round, logs: np.ndarray) -> Calibration | None:
    """Return the calibration of a round's forecast over all working candidates not measured before; None without one.

    ``logs``: logarithms of all candidates' latencies, NaN for those that fail.
    """
    forecast = search_round.forecast
    if forecast is None or forecast.fit is None:
        return None
    earlier = search_round.history.until(int((search_round.history.rounds < search_round.number).sum()))
    rows = np.setdiff1d(np.flatnonzero(~np.isnan(logs)), earlier.rows)
    if len(rows) > MOST_SCORED:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_SCORED).astype(int)]
    mean, variance, _ = gp.predict(search_round.step.inputs, forecast.fit, rows)
    sd, anchor = np.sqrt(variance) * widening(earlier, mean), float(np.nanmedian(logs))
    bins, hits = bin_probabilities(mean, sd, anchor), bins_of(logs[rows], anchor)
    confidence, is_right = bins.max(1), (bins.argmax(1) == hits).astype(float)
    return Calibration(
        scores.forecast_scores(mean, sd, logs[rows], anchor),
        scores.by_confidence(confidence, is_right),
        scores.risk_at(confidence, 1.0 - is_right),
    )


def kept_results(
    spaces: Mapping[str, SpaceArrays], cases: Sequence[Case], path: Path, header: str, resume: bool
) -> list[Result]:
    """Return the results of all cases, each written to a journal before the next one starts.

    ``header``: identifies the evaluation that the journal belongs to; ``resume``: read earlier results from it. The
    caller removes the journal after writing what follows from the results.
    """
    journal, earlier = open_journal(path, header, resume)
    results = [_from_row(case, row) for case, row in zip(cases, earlier, strict=False)]
    with journal:
        for result in replayed(spaces, cases[len(results) :]):
            journal.append(_as_row(result))
            results.append(result)
    return results


def _as_row(result: Result) -> dict[str, Any]:
    """Return a result as a row of the journal; numbers keep all their digits."""
    calibration = {
        str(count): [point_scores.scores, point_scores.by_confidence.tolist(), point_scores.risk.tolist()]
        for count, point_scores in result.calibration.items()
    }
    row = {"regret": result.regret.tolist(), "stop": result.stop, "score": result.score}
    return row | {"calibration": calibration, "notes": result.notes}


def _from_row(case: Case, row: Mapping[str, Any]) -> Result:
    calibration = {
        int(count): Calibration(calibration_scores, np.array(by_confidence), np.array(risk))
        for count, (calibration_scores, by_confidence, risk) in row["calibration"].items()
    }
    stop = None if row["stop"] is None else (row["stop"][0], row["stop"][1])
    return Result(case, np.array(row["regret"]), stop, calibration, row["score"], tuple(row["notes"]))
