"""Evaluates search policies by replays: each GPU of a file is searched for with what the others measured."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.errors import InvalidInput, unknown
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching import scores
from kernelsight.searching.arrays import OK, SpaceArrays, space_arrays
from kernelsight.searching.courses import forecast_scores
from kernelsight.searching.forecasts import widening
from kernelsight.searching.intervals import bin_probabilities, bins_of
from kernelsight.searching.replay import replay
from kernelsight.searching.rounds import STOP_BELOW, STOP_FROM, Round, rounds
from kernelsight.searching.scenarios import DEFAULTS, POLICIES, check, gpus_of
from kernelsight.searching.space_files import SpaceTables
from kernelsight.searching.targets import Target, target_of, truth_of

AT = (10, 20, 50, 100)
CALIBRATED_AT = (20, 50)
SPLITS = ("all", "without-nearest")
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


def evaluate(
    tables: SpaceTables,
    gpus: Sequence[str] | str = "all",
    policies: Sequence[str] = POLICIES,
    seeds: int = 10,
    budget: int = 100,
    batch: int = int(DEFAULTS["batch"]),
    splits: Sequence[str] = SPLITS,
) -> dict[str, Any]:
    """Return scores of policies over all spaces and GPUs; InvalidInput or UnknownName: what cannot be evaluated.

    ``splits``: ``all`` learns from every other GPU, ``without-nearest`` from all but the one whose measurements are
    most like those of the GPU that is searched for, such as another card with the same chip.
    """
    for name in policies:
        if name not in POLICIES:
            raise unknown("policy", name, POLICIES, f"Known: {', '.join(POLICIES)}.")
    if seeds <= 0:
        raise InvalidInput(f"seeds is {seeds}; give a whole number above 0.")
    check(DEFAULTS | {"budget_measurements": budget, "batch": batch})
    names = tables.kernel_spaces["space"].to_pylist()
    spaces = {name: space_arrays(tables.kernel_candidates, tables.kernel_measurements, name) for name in names}
    cases = list(_cases(spaces, gpus, policies, seeds, budget, batch, splits))
    return report(list(replayed(spaces, cases)), policies)


def _cases(
    spaces: Mapping[str, SpaceArrays],
    gpus: Sequence[str] | str,
    policies: Sequence[str],
    seeds: int,
    budget: int,
    batch: int,
    splits: Sequence[str],
) -> Iterator[Case]:
    chosen = {space: gpus_of(arrays, gpus) for space, arrays in spaces.items()}
    known = sorted({gpu for arrays in spaces.values() for gpu in arrays.gpus})
    if gpus != "all" and list(gpus) != ["all"]:
        for name in gpus:
            if name not in known:
                raise unknown("GPU", name, known, f"The file has {', '.join(known)}.")
    for space, names in chosen.items():
        for gpu in names:
            most = min(budget, int((spaces[space].gpus[gpu].status > 0).sum()))
            for split in splits:
                sources = None if split == "all" else without_nearest(spaces[space], gpu)
                if split != "all" and sources is None:
                    continue
                for policy in policies:
                    if split == "all" or policy != "random":
                        for seed in range(seeds):
                            yield Case(space, gpu, split, sources, policy, seed, most, batch)


def without_nearest(arrays: SpaceArrays, gpu: str) -> tuple[str, ...] | None:
    """Return the other GPUs but the one whose measurements are most like these; None where fewer than two are left."""
    own = arrays.gpus[gpu]
    likeness = {}
    for name, other in arrays.gpus.items():
        shared = (own.status == OK) & (other.status == OK)
        if name != gpu and shared.sum() > 2:
            logs = np.log(own.latency_us[shared]), np.log(other.latency_us[shared])
            ranks = [np.argsort(np.argsort(each)) for each in logs]
            likeness[name] = float(np.corrcoef(*ranks)[0, 1])
    if len(likeness) < 2:
        return None
    nearest = max(likeness, key=lambda name: likeness[name])
    return tuple(name for name in likeness if name != nearest)


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
    # compiled code and threads do not survive a fork
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin, initargs=(spaces,)) as pool:
        yield from pool.map(_replay, cases, chunksize=4)


def _replay(case: Case) -> Result:
    """Replay one search."""
    key = (case.space, case.gpu, case.sources)
    if key not in _targets:
        _targets[key] = target_of(_spaces[case.space], case.gpu, case.sources)
    target = _targets[key]
    truth = truth_of(_spaces[case.space], case.gpu, target.ids)
    logs = np.log(truth.latency_us)
    scenario = DEFAULTS | {"seed": case.seed, "budget_measurements": case.budget, "batch": case.batch}
    scenario |= {"policy": case.policy} | dict(case.changes)
    best: list[int] = []
    stop, calibration = None, {}
    with one_blas_thread():
        for made in rounds(target, scenario, replay(truth, target.ids, case.seed)):
            before = len(best)
            if stop is None and before >= STOP_FROM and made.better < STOP_BELOW:
                stop = (before, float(scores.regrets(best[-1:], logs)[0]))
            if case.policy == "selective" and before in CALIBRATED_AT:
                stated = unseen_scores(made, logs)
                if stated is not None:
                    calibration[before] = stated
            best += made.best.tolist()
    regret = scores.regrets(np.array(best, dtype=np.int64), logs)
    regret = np.concatenate([regret, np.full(case.budget - len(regret), regret[-1])])
    return Result(case, regret, stop, calibration, scores.score_p(np.array(best), logs), target.notes)


def unseen_scores(made: Round, logs: np.ndarray) -> Calibration | None:
    """Return the scores of a round's forecast over all working candidates that were not measured before it."""
    found = made.forecast
    if found is None or found.fit is None:
        return None
    earlier = made.history.until(int((made.history.rounds < made.number).sum()))
    rows = np.setdiff1d(np.flatnonzero(~np.isnan(logs)), earlier.rows)
    if len(rows) > MOST_SCORED:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_SCORED).astype(int)]
    mean, variance, _ = gp.predict(made.step.inputs, found.fit, rows)
    sd, anchor = np.sqrt(variance) * widening(earlier, mean), float(np.nanmedian(logs))
    bins, hits = bin_probabilities(mean, sd, anchor), bins_of(logs[rows], anchor)
    confidence, right = bins.max(1), (bins.argmax(1) == hits).astype(float)
    return Calibration(
        forecast_scores(mean, sd, logs[rows], anchor),
        scores.by_confidence(confidence, right),
        scores.risk_at(confidence, 1.0 - right),
    )


def report(results: Sequence[Result], policies: Sequence[str]) -> dict[str, Any]:
    """Return the report: policies, spaces, calibration and stops, and the same without the nearest GPU."""
    found = _of_split([each for each in results if each.case.split == "all"], policies)
    others = [each for each in results if each.case.split != "all"]
    if others:
        found["without_nearest"] = _of_split(others, [name for name in policies if name != "random"])
    found["notes"] = sorted({f"{each.case.space}, {each.case.gpu}: {note}" for each in results for note in each.notes})
    return found


def _of_split(results: Sequence[Result], policies: Sequence[str]) -> dict[str, Any]:
    spaces, rows = [], []
    for policy in policies:
        own = [each for each in results if each.case.policy == policy]
        by_space: dict[tuple[str, str], list[Result]] = {}
        for each in own:
            by_space.setdefault((each.case.space, each.case.gpu), []).append(each)
        mine = [
            {"space": space, "gpu": gpu, "policy": policy} | _figures(found) for (space, gpu), found in by_space.items()
        ]
        spaces += mine
        means = {name: _mean(row[name] for row in mine) for name in (*(f"regret_{n}" for n in AT), "score")}
        rows.append({"policy": policy} | _figures(own) | means | {"regret_curve": _curve(list(by_space.values()))})
    calibration = {}
    for count in CALIBRATED_AT:
        stated = [each.calibration[count] for each in results if count in each.calibration]
        if stated:
            calibration[str(count)] = _calibration(stated)
    stops = [each.stop for each in results if each.stop is not None and each.case.policy == "selective"]
    within = float(np.mean([regret <= 0.02 for _, regret in stops])) if stops else None
    median = float(np.median([count for count, _ in stops])) if stops else None
    stopped = {"n": len(stops), "within_2": within, "median_measurements": median}
    return {"policies": rows, "spaces": spaces, "calibration": calibration, "stops": stopped}


def _calibration(stated: Sequence[Calibration]) -> dict[str, Any]:
    """Return mean scores over replays, and the points of their reliability and risk-coverage curves."""
    found: dict[str, Any] = {name: _mean(row.scores[name] for row in stated) for name in stated[0].scores}
    points = np.mean([row.by_confidence for row in stated], axis=0)
    found["reliability"] = [
        {"confidence": float(total / share), "right": float(hits / share), "share": float(share)}
        for total, hits, share in points
        if share > 0
    ]
    risk = np.mean([row.risk for row in stated], axis=0)
    found["risk_coverage"] = [{"coverage": (n + 1) / 10, "risk": float(value)} for n, value in enumerate(risk)]
    return found


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _curve(by_space: Sequence[Sequence[Result]]) -> list[float]:
    """Return the regret after each measurement: mean over spaces of the median over seeds."""
    if not by_space:
        return []
    longest = max(len(found[0].regret) for found in by_space)
    medians = [np.median([each.regret for each in found], axis=0) for found in by_space]
    return np.mean([np.pad(each, (0, longest - len(each)), mode="edge") for each in medians], axis=0).tolist()


def _figures(results: Sequence[Result]) -> dict[str, Any]:
    """Return the figures of runs; counts are medians, null where half of the runs never got there."""
    if not results:
        return {"runs": 0}
    ends = np.array([each.regret[-1] for each in results])
    row: dict[str, Any] = {"runs": len(results)}
    row |= {f"within_{percent}": float((ends <= percent / 100).mean()) for percent in (5, 2)}
    for percent in (5, 2):
        counts = [scores.first_within(each.regret, percent / 100) or np.inf for each in results]
        middle = float(np.median(counts))
        row[f"n_to_{percent}"] = middle if np.isfinite(middle) else None
    for count in AT:
        row[f"regret_{count}"] = float(np.median([each.regret[min(count, len(each.regret)) - 1] for each in results]))
    return row | {"score": _mean(each.score for each in results)}
