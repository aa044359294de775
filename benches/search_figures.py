"""Figures of `benches/search.py` for the documentation: policies, strategies of Kernel Tuner, misleading sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from kernelsight.laboratory.searches.tuner_strategies import is_tuner


def figures_of(evaluation: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    """Return the figures of an evaluation that the pages show."""
    others = evaluation.get("without_nearest", {"policies": [], "calibration": {}})
    names = ("policy", "within_5", "within_2", "n_to_5", "n_to_2", "regret_20", "regret_50", "regret_100", "score")
    policies = [
        {name: row[name] for name in names} | {"without_nearest": part is others}
        for part in (evaluation, others)
        for row in part["policies"]
    ]
    selective_rows = [row for row in evaluation["spaces"] if row["policy"] == "selective"]
    calibration_of = {
        f"{count}{title}": each
        for part, title in ((evaluation, ""), (others, " without nearest"))
        for count, each in part["calibration"].items()
    }
    return {
        **{"policies": policies, "runs": len(selective_rows) * seeds, "spaces": len(selective_rows), "seeds": seeds},
        "within_2_by_space": sorted((row["within_2"] for row in selective_rows), reverse=True),
        "coverage": {name: each["coverage_90"] for name, each in calibration_of.items()},
        "ece": {name: each["ece"] for name, each in calibration_of.items()},
        "stops": evaluation["stops"],
    }


def tuner_figures(
    rows: Sequence[Mapping[str, Any]], harm: Sequence[Mapping[str, Any]], budget: int, most: float
) -> dict[str, Any]:
    """Return the figures of Kernel Tuner's strategies (``budget`` measurements) and of misleading sources.

    ``most``: largest acceptable excess of regret over the best search without other GPUs.
    """
    strategies = [
        {"name": row["policy"].partition(":")[2]}
        | {name: row[name] if np.isfinite(row[name]) else None for name in ("n_to_5", "n_to_2")}
        for row in rows
        if is_tuner(row["policy"])
    ]
    titles = {"as they are": "selective", "shuffled": "shuffled", "inverted": "inverted"}
    misleading = {
        title: [
            {"where": f"{row['space']} {row['gpu']}", "points": row[f"{name}, points worse"]}
            for row in harm[:-1]
            if row[f"{name}, points worse"] > 100 * most
        ]
        for title, name in titles.items()
    }
    return {
        **{"version": version("kernel-tuner"), "measurements": budget, "strategies": strategies},
        "misleading": misleading,
    }
