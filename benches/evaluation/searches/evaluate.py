"""Evaluation of search policies by replays: searches for each GPU of a file, with the others' measurements known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelsight import searching
from kernelsight.errors import InvalidInput, unknown
from kernelsight.laboratory.searches import scores
from kernelsight.laboratory.searches.cases import CALIBRATED_AT, Calibration, Case, Result, kept_results, replayed
from kernelsight.laboratory.searches.tuner_strategies import check_strategy, expanded, is_tuner
from kernelsight.searching.arrays import OK, SpaceArrays, space_arrays
from kernelsight.searching.journal import digest
from kernelsight.searching.scenarios import DEFAULTS, POLICIES, check
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
    """Return the report of search policies over all spaces and GPUs.

    ``policies``: those of a search, and ``tuner:NAME`` for strategies of Kernel Tuner. ``splits``: ``all`` learns from
    every other GPU, ``without-nearest`` from all except the one whose measurements correlate best with the searched
    GPU's, such as another card with the same chip. ``journal``: file of finished replays, which ``resume`` continues.
    InvalidInput, UnknownName: a policy, GPU, seed count or budget that cannot be evaluated.
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
    """Whether a policy learns from other GPUs."""
    return policy != "random" and not is_tuner(policy)


def gpus_of(arrays: SpaceArrays, names: str | Sequence[str]) -> list[str]:
    """Return the GPUs of a space among ``names``, or with "all" all of them."""
    if names == "all" or list(names) == ["all"]:
        return list(arrays.gpus)
    return [name for name in names if name in arrays.gpus]


def _cases(
    spaces: Mapping[str, SpaceArrays],
    gpus: Sequence[str] | str,
    policies: Sequence[str],
    seeds: int,
    budget: int,
    batch: int,
    splits: Sequence[str],
) -> Iterator[Case]:
    """Yield the cases of all spaces, GPUs, splits, policies and seeds; InvalidInput, UnknownName as ``evaluate``."""
    gpus_of_space = {space: gpus_of(arrays, gpus) for space, arrays in spaces.items()}
    all_gpus = sorted({gpu for arrays in spaces.values() for gpu in arrays.gpus})
    if not all_gpus:
        raise InvalidInput("no configuration of these spaces was measured on any GPU, so no search can be replayed.")
    if gpus != "all" and list(gpus) != ["all"]:
        for name in gpus:
            if name not in all_gpus:
                raise unknown("GPU", name, all_gpus, f"The file has {', '.join(all_gpus)}.")
    for space, names in gpus_of_space.items():
        for gpu in names:
            max_measurements = min(budget, int((spaces[space].gpus[gpu].status > 0).sum()))
            for split in splits:
                sources = None if split == "all" else without_nearest(spaces[space], gpu)
                if split != "all" and sources is None:
                    continue
                for policy in policies:
                    if split == "all" or transfers(policy):
                        for seed in range(seeds):
                            yield Case(space, gpu, split, sources, policy, seed, max_measurements, batch)


def without_nearest(arrays: SpaceArrays, gpu: str) -> tuple[str, ...] | None:
    """Return the other GPUs without the one that correlates best with ``gpu`` (ranks of latencies); None: under two.

    GPUs with fewer than three candidates in common are left out too.
    """
    target = arrays.gpus[gpu]
    correlations = {}
    for name, other in arrays.gpus.items():
        shared = (target.status == OK) & (other.status == OK)
        if name != gpu and shared.sum() > 2:
            logs = np.log(target.latency_us[shared]), np.log(other.latency_us[shared])
            ranks = [np.argsort(np.argsort(latency_logs)) for latency_logs in logs]
            correlations[name] = float(np.corrcoef(*ranks)[0, 1])
    if len(correlations) < 2:
        return None
    nearest = max(correlations, key=lambda name: correlations[name])
    return tuple(name for name in correlations if name != nearest)


def report(results: Sequence[Result], policies: Sequence[str]) -> dict[str, Any]:
    """Return the report: scores of policies, by space, calibration and stops; and the same of ``without_nearest``."""
    whole_report = _of_split([result for result in results if result.case.split == "all"], policies)
    other_split = [result for result in results if result.case.split != "all"]
    if other_split:
        whole_report["without_nearest"] = _of_split(other_split, [name for name in policies if transfers(name)])
    whole_report["notes"] = sorted(
        {f"{result.case.space}, {result.case.gpu}: {note}" for result in results for note in result.notes}
    )
    return whole_report


def _of_split(results: Sequence[Result], policies: Sequence[str]) -> dict[str, Any]:
    """Return the report of one split."""
    spaces, rows = [], []
    for policy in policies:
        policy_results = [result for result in results if result.case.policy == policy]
        by_space: dict[tuple[str, str], list[Result]] = {}
        for result in policy_results:
            by_space.setdefault((result.case.space, result.case.gpu), []).append(result)
        space_rows = [
            {"space": space, "gpu": gpu, "policy": policy} | _figures(members)
            for (space, gpu), members in by_space.items()
        ]
        spaces += space_rows
        means = {name: _mean(row[name] for row in space_rows) for name in (*(f"regret_{n}" for n in AT), "score")}
        rows.append(
            {"policy": policy} | _figures(policy_results) | means | {"regret_curve": _curve(list(by_space.values()))}
        )
    calibration = {}
    for count in CALIBRATED_AT:
        calibrations = [result.calibration[count] for result in results if count in result.calibration]
        if calibrations:
            calibration[str(count)] = _calibration(calibrations)
    stops = [result.stop for result in results if result.stop is not None and result.case.policy == "selective"]
    within_share = float(np.mean([regret <= 0.02 for _, regret in stops])) if stops else None
    median = float(np.median([count for count, _ in stops])) if stops else None
    stopped = {"n": len(stops), "within_2": within_share, "median_measurements": median}
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
    """Return the mean of the values that are not None; None without any."""
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


def _curve(by_space: Sequence[Sequence[Result]]) -> list[float]:
    """Return the regret after each measurement: mean over spaces of the median over seeds."""
    if not by_space:
        return []
    longest = max(len(space_results[0].regret) for space_results in by_space)
    medians = [np.median([median.regret for median in space_results], axis=0) for space_results in by_space]
    return np.mean([np.pad(median, (0, longest - len(median)), mode="edge") for median in medians], axis=0).tolist()


def _figures(results: Sequence[Result]) -> dict[str, Any]:
    """Return figures of replays: shares within 5 and 2 % of the best, median measurements to that (None: not reached).

    Also the median regret after each number of measurements of AT, and the mean score P.
    """
    if not results:
        return {"runs": 0}
    ends = np.array([result.regret[-1] for result in results])
    row: dict[str, Any] = {"runs": len(results)}
    row |= {f"within_{percent}": float((ends <= percent / 100).mean()) for percent in (5, 2)}
    for percent in (5, 2):
        counts = [scores.first_within(result.regret, percent / 100) or np.inf for result in results]
        median = float(np.median(counts))
        row[f"n_to_{percent}"] = median if np.isfinite(median) else None
    for count in AT:
        row[f"regret_{count}"] = float(
            np.median([result.regret[min(count, len(result.regret)) - 1] for result in results])
        )
    return row | {"score": _mean(result.score for result in results)}
