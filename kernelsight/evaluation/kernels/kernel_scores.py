"""Rows of ``kernel_scores``: the scores of an evaluation by scope, cell and set of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BASELINES = ("roofline", "roofline_waves", "affine_roofline", "nearest_gpu")
COLUMNS = ("scope", "family", "dtype", "shapes", "n", "mape", "median_ape", "p90_ape", "time_weighted_ape")
COLUMNS += ("bias", "coverage_90", "width_90", *(f"{name}_mape" for name in BASELINES))


def score_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per scope, cell and set of shapes: its metrics, and the MAPE of each baseline.

    ``result``: the report of ``evaluate``. Scopes: overall, pooled, unseen_implementation; covered (all rows of a cell,
    or the mean over cells), seen and unseen (its two parts), uncovered; nothing_of_target: covered, with kernels that
    the training GPUs make likely; nothing_of_target_seen: likewise of overall, or of seen.
    """
    rows = _pair_rows("overall", result["overall"], result["overall_baselines"])
    unnamed = result["nothing_of_target"]
    for scope, pair in (
        *((scope, result[scope]) for scope in ("pooled", "unseen_implementation", "covered")),
        *(("nothing_of_target", unnamed["covered"]), ("nothing_of_target_seen", unnamed["overall"])),
    ):
        rows += _pair_rows(scope, pair) if pair["grid"]["n"] or scope in ("pooled", "unseen_implementation") else []
    for cell in result["families"]:
        cell_key = {"family": cell["family"], "dtype": cell["dtype"]}
        for scope, scores in (("covered", cell), ("seen", cell["seen"]), ("unseen", cell["unseen"])):
            if scores["grid"]["n"]:
                rows += [cell_key | row for row in _pair_rows(scope, scores, scores["baselines"])]
        for scope, scores in (("nothing_of_target", cell), ("nothing_of_target_seen", cell["seen"])):
            if scores["nothing_of_target"]["grid"]["n"]:
                rows += [cell_key | row for row in _pair_rows(scope, scores["nothing_of_target"])]
    for cell in result["uncovered"]:
        cell_key = {"family": cell["family"], "dtype": cell["dtype"]}
        rows += [cell_key | row for row in _pair_rows("uncovered", cell, cell["baselines"])]
    return rows


def _pair_rows(scope: str, pair: Mapping[str, Any], baselines: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the rows of grid and serving shapes of one scope."""
    return [
        {
            "scope": scope,
            "shapes": shapes,
            **pair[shapes],
            **{
                f"{name}_mape": pair_of_baseline[shapes]["mape"] for name, pair_of_baseline in (baselines or {}).items()
            },
        }
        for shapes in ("grid", "serving")
    ]
