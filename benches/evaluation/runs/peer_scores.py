"""Scores of a peer tool beside KernelSight's, as it is and calibrated, on the runs that the peer predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from kernelsight.evaluation.runs.run_scores import (
    GROUP,
    METRICS,
    group_of,
    is_scored_separately,
    score,
    scored_runs,
    scores,
    with_errors,
)
from kernelsight.laboratory.runs.peer import LAUNCHED, NOMINAL, STEP_TOKENS, predictions
from kernelsight.laboratory.runs.run_classes import kinds_of, repeats


def peer_reports(replayed: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the keys of a backtest's report on AIConfigurator, by kind of its predictions.

    ``replayed``: runs by level of host constants. InvalidInput, RunFailed: the tool cannot be started.
    """
    of_kind = predictions(next(iter(replayed.values())))
    keys = {"peer": LAUNCHED, "peer_nominal": NOMINAL, "peer_step_tokens": STEP_TOKENS}
    return {key: report_of_peer(replayed, of_kind[kind]) for key, kind in keys.items()}


def report_of_peer(
    replayed: Mapping[str, Sequence[Mapping[str, Any]]], peer: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """Return a peer tool's scores beside KernelSight's, on the runs that the peer predicts.

    ``replayed``: runs by level of host constants; ``peer``: (TTFT, TPOT), ms, by run_id. In full and by group for the
    first level, and under ``levels`` for all levels.
    """
    served = {level: [row for row in scored_runs(rows) if row.get("errors")] for level, rows in replayed.items()}
    first = next(iter(replayed))
    return compared_with(served[first], calibrated(replayed[first], peer), peer) | {
        "behind": {level: behind(rows, peer) for level, rows in replayed.items()},
        "levels": {level: kinds_of(row for row in rows if row["run_id"] in peer) for level, rows in served.items()},
    }


def behind(rows: Sequence[Mapping[str, Any]], peer: Mapping[str, tuple[float, float]]) -> dict[str, int]:
    """Return the number of groups that both predict, and of those with a larger median error than the peer's."""
    groups = compared_with([row for row in scored_runs(rows) if row.get("errors")], peer, peer)["groups"]
    worse = {
        metric: sum(group["ours"][metric]["median_ape"] > group["peer"][metric]["median_ape"] for group in groups)
        for metric in ("ttft", "tpot")
    }
    return {"groups": len(groups), **worse}


def calibrated(
    rows: Sequence[Mapping[str, Any]], peer: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Return a peer tool's predictions, calibrated by one factor on TTFT and one on TPOT for each group of runs.

    A factor is the median of measured / predicted over the group's runs of the fitting fifth; 1 without any.
    """
    repeated_runs = repeats(rows)
    ratios: dict[tuple, list[tuple[float, float]]] = {}
    for row in rows:
        if (
            row["fitting"]
            and row["run_id"] in peer
            and row["run_id"] not in repeated_runs
            and not is_scored_separately(row)
        ):
            ttft_ms, tpot_ms = peer[row["run_id"]]
            ratios.setdefault(group_of(row), []).append((row["ttft_ms"] / ttft_ms, row["tpot_ms"] / tpot_ms))
    factors = {
        group: tuple(median(column) for column in zip(*columns, strict=True)) for group, columns in ratios.items()
    }
    columns = {}
    for row in rows:
        if row["run_id"] in peer:
            ttft, tpot = factors.get(group_of(row), (1.0, 1.0))
            columns[row["run_id"]] = (peer[row["run_id"]][0] * ttft, peer[row["run_id"]][1] * tpot)
    return columns


def compared_with(
    rows: Sequence[Mapping[str, Any]],
    calibrated_peer: Mapping[str, tuple[float, float]],
    peer: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    """Return scores of a peer tool, as it is and calibrated, and of KernelSight, on the runs that the peer predicts."""
    predicted_by_both = []
    for row in rows:
        if row["run_id"] in peer:
            peer_errors = {
                "errors": with_errors(row, *peer[row["run_id"]]),
                "calibrated": with_errors(row, *calibrated_peer[row["run_id"]]),
            }
            predicted_by_both.append({**row, "ours": row["errors"], **peer_errors})

    def pair(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        others = {
            name: {metric: score([row[name][metric] for row in members]) for metric in METRICS}
            for name in ("calibrated", "ours")
        }
        return {"n": len(members), "peer": scores(members), **others}

    groups: dict[tuple, list] = {}
    for row in predicted_by_both:
        groups.setdefault(group_of(row), []).append(row)
    return {
        "n": len(predicted_by_both),
        "not_predicted": len(rows) - len(predicted_by_both),
        **pair(predicted_by_both),
        "dense": pair([row for row in predicted_by_both if not row["is_moe"]]),
        "moe": pair([row for row in predicted_by_both if row["is_moe"]]),
        "groups": [
            {**dict(zip(GROUP, key, strict=True)), **pair(members)}
            for key, members in sorted(groups.items(), key=lambda item: str(item[0]))
        ],
    }
