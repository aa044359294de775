"""What the documentation shows of `benches/search.py`: policies, strategies of Kernel Tuner, sources that mislead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from kernelsight.evaluation.searches.tuner_strategies import is_tuner


def figures_of(found: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    """Return what pages show of an evaluation."""
    others = found.get("without_nearest", {"policies": [], "calibration": {}})
    names = ("policy", "within_5", "within_2", "n_to_5", "n_to_2", "regret_20", "regret_50", "regret_100", "score")
    policies = [
        {name: row[name] for name in names} | {"without_nearest": part is others}
        for part in (found, others)
        for row in part["policies"]
    ]
    own = [row for row in found["spaces"] if row["policy"] == "selective"]
    stated = {
        f"{count}{title}": each
        for part, title in ((found, ""), (others, " without nearest"))
        for count, each in part["calibration"].items()
    }
    return {
        **{"policies": policies, "runs": len(own) * seeds, "spaces": len(own), "seeds": seeds},
        "within_2_by_space": sorted((row["within_2"] for row in own), reverse=True),
        "coverage": {name: each["coverage_90"] for name, each in stated.items()},
        "ece": {name: each["ece"] for name, each in stated.items()},
        "stops": found["stops"],
    }


def tuner_figures(
    rows: Sequence[Mapping[str, Any]], harm: Sequence[Mapping[str, Any]], budget: int, most: float
) -> dict[str, Any]:
    """Return what pages show of Kernel Tuner's strategies (``budget`` measurements) and of sources that mislead.

    ``most``: regret by which a search may be worse than the best one without other GPUs.
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
