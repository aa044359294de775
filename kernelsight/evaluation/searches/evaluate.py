"""Evaluates search policies by replays: each GPU of a file is searched for with what the others measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelsight import searching
from kernelsight.errors import InvalidInput, unknown
from kernelsight.evaluation.searches.cases import CALIBRATED_AT, Calibration, Case, Result, kept_results, replayed
from kernelsight.evaluation.searches.tuner_strategies import check_strategy, expanded, is_tuner
from kernelsight.searching import scores
from kernelsight.searching.arrays import OK, SpaceArrays, space_arrays
from kernelsight.searching.journal import digest
from kernelsight.searching.scenarios import DEFAULTS, POLICIES, check, gpus_of
from kernelsight.searching.space_files import SpaceTables

AT = (10, 20, 50, 100)
SPLITS = ("all", "without-nearest")


def evaluate(
    tables: SpaceTables,
    gpus: Sequence[str] | str = "all",
    policies: Sequence[str] = POLICIES,
    seeds: int = 10,
    budget: int = 100,
    batch: int = int(DEFAULTS["batch"]),
    splits: Sequence[str] = SPLITS,
    journal: Path | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Return scores of policies over all spaces and GPUs; InvalidInput or UnknownName: what cannot be evaluated.

    ``policies``: those of a search, and ``tuner:NAME`` for strategies of Kernel Tuner. ``splits``: ``all`` learns from
    every other GPU, ``without-nearest`` from all but the one whose measurements are most like those of the GPU that is
    searched for, such as another card with the same chip. ``journal``: keeps every replay; ``resume`` goes on from it.
    """
    policies = expanded(policies)
    for name in policies:
        if is_tuner(name):
            check_strategy(name)
        elif name not in POLICIES:
            raise unknown("policy", name, POLICIES, f"Known: {', '.join(POLICIES)}, tuner, tuner:STRATEGY.")
    if seeds <= 0:
        raise InvalidInput(f"seeds is {seeds}; give a whole number above 0.")
    check(DEFAULTS | {"budget_measurements": budget, "batch": batch})
    names = tables.kernel_spaces["space"].to_pylist()
    spaces = {name: space_arrays(tables.kernel_candidates, tables.kernel_measurements, name) for name in names}
    cases = list(_cases(spaces, gpus, policies, seeds, budget, batch, splits))
    if journal is None:
        return report(list(replayed(spaces, cases)), policies)
    folder, product = Path(__file__).parent, Path(searching.__file__).parent
    code = [path.read_text(encoding="utf-8") for path in (*sorted(folder.glob("*.py")), *sorted(product.rglob("*.py")))]
    journal_key = {"cases": [repr(case) for case in cases], "code": code}
    header = digest(journal_key, {"candidates": tables.kernel_candidates, "measurements": tables.kernel_measurements})
    return report(kept_results(spaces, cases, journal, header, resume), policies)


def transfers(policy: str) -> bool:
    """Return whether a policy learns from other GPUs."""
    return policy != "random" and not is_tuner(policy)


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
    every_gpu = sorted({gpu for arrays in spaces.values() for gpu in arrays.gpus})
    if not every_gpu:
        raise InvalidInput("no configuration of these spaces was measured on any GPU, so no search can be replayed.")
    if gpus != "all" and list(gpus) != ["all"]:
        for name in gpus:
            if name not in every_gpu:
                raise unknown("GPU", name, every_gpu, f"The file has {', '.join(every_gpu)}.")
    for space, names in chosen.items():
        for gpu in names:
            most = min(budget, int((spaces[space].gpus[gpu].status > 0).sum()))
            for split in splits:
                sources = None if split == "all" else without_nearest(spaces[space], gpu)
                if split != "all" and sources is None:
                    continue
                for policy in policies:
                    if split == "all" or transfers(policy):
                        for seed in range(seeds):
                            yield Case(space, gpu, split, sources, policy, seed, most, batch)


def without_nearest(arrays: SpaceArrays, gpu: str) -> tuple[str, ...] | None:
    """Return the other GPUs but the one whose measurements are most like these; None where fewer than two are left."""
    of_gpu = arrays.gpus[gpu]
    likeness = {}
    for name, other in arrays.gpus.items():
        shared = (of_gpu.status == OK) & (other.status == OK)
        if name != gpu and shared.sum() > 2:
            logs = np.log(of_gpu.latency_us[shared]), np.log(other.latency_us[shared])
            ranks = [np.argsort(np.argsort(each)) for each in logs]
            likeness[name] = float(np.corrcoef(*ranks)[0, 1])
    if len(likeness) < 2:
        return None
    nearest = max(likeness, key=lambda name: likeness[name])
    return tuple(name for name in likeness if name != nearest)


def report(results: Sequence[Result], policies: Sequence[str]) -> dict[str, Any]:
    """Return the report: policies, spaces, calibration and stops, and the same without the nearest GPU."""
    whole_report = _of_split([each for each in results if each.case.split == "all"], policies)
    others = [each for each in results if each.case.split != "all"]
    if others:
        whole_report["without_nearest"] = _of_split(others, [name for name in policies if transfers(name)])
    whole_report["notes"] = sorted(
        {f"{each.case.space}, {each.case.gpu}: {note}" for each in results for note in each.notes}
    )
    return whole_report


def _of_split(results: Sequence[Result], policies: Sequence[str]) -> dict[str, Any]:
    spaces, rows = [], []
    for policy in policies:
        of_policy = [each for each in results if each.case.policy == policy]
        by_space: dict[tuple[str, str], list[Result]] = {}
        for each in of_policy:
            by_space.setdefault((each.case.space, each.case.gpu), []).append(each)
        mine = [
            {"space": space, "gpu": gpu, "policy": policy} | _figures(members)
            for (space, gpu), members in by_space.items()
        ]
        spaces += mine
        means = {name: _mean(row[name] for row in mine) for name in (*(f"regret_{n}" for n in AT), "score")}
        rows.append(
            {"policy": policy} | _figures(of_policy) | means | {"regret_curve": _curve(list(by_space.values()))}
        )
    calibration = {}
    for count in CALIBRATED_AT:
        calibrations = [each.calibration[count] for each in results if count in each.calibration]
        if calibrations:
            calibration[str(count)] = _calibration(calibrations)
    stops = [each.stop for each in results if each.stop is not None and each.case.policy == "selective"]
    within = float(np.mean([regret <= 0.02 for _, regret in stops])) if stops else None
    median = float(np.median([count for count, _ in stops])) if stops else None
    stopped = {"n": len(stops), "within_2": within, "median_measurements": median}
    return {"policies": rows, "spaces": spaces, "calibration": calibration, "stops": stopped}


def _calibration(calibrations: Sequence[Calibration]) -> dict[str, Any]:
    """Return mean scores over replays, and the points of their reliability and risk-coverage curves."""
    means: dict[str, Any] = {name: _mean(row.scores[name] for row in calibrations) for name in calibrations[0].scores}
    points = np.mean([row.by_confidence for row in calibrations], axis=0)
    means["reliability"] = [
        {"confidence": float(total / share), "right": float(hits / share), "share": float(share)}
        for total, hits, share in points
        if share > 0
    ]
    risk = np.mean([row.risk for row in calibrations], axis=0)
    means["risk_coverage"] = [{"coverage": (n + 1) / 10, "risk": float(value)} for n, value in enumerate(risk)]
    return means


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


def _curve(by_space: Sequence[Sequence[Result]]) -> list[float]:
    """Return the regret after each measurement: mean over spaces of the median over seeds."""
    if not by_space:
        return []
    longest = max(len(of_space[0].regret) for of_space in by_space)
    medians = [np.median([each.regret for each in of_space], axis=0) for of_space in by_space]
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
