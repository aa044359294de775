"""A search space that grows: new source texts become rows of the target, behind those that it has."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelsight.searching.arrays import features_of
from kernelsight.searching.source_edits import numbers_of
from kernelsight.searching.targets import Target

# a row of ``kernel_candidates``, its parameters as an object
Candidate = dict[str, Any]


def source_id(text: str, parameters_id: str) -> str:
    """Return the id of a candidate with a source text of its own."""
    return ",".join(filter(None, [f"source={hashlib.sha256(text.encode()).hexdigest()[:10]}", parameters_id]))


def grown(target: Target, candidates: Sequence[Candidate]) -> Target:
    """Return the target with rows for the candidates behind its own, whose features describe source texts too.

    Other GPUs never measured a new text: there it counts as what it was derived from.
    """
    place_of = {row["candidate_id"]: number for number, row in enumerate(candidates)}
    texts = [numbers_of(row["source_text"]) if row.get("source_text") else {} for row in candidates]
    names = sorted({name for text in texts for name in text})
    described = [
        {**row["parameters"], **{name: text.get(name, 0.0) for name in names}}
        for row, text in zip(candidates, texts, strict=True)
    ]
    features = features_of(target.space, described)
    logs, fails = target.logs, target.fails
    for row in candidates[len(target.ids) :]:
        parent = place_of.get(row.get("parent_id"))
        known = parent is not None and parent < len(logs)
        logs = np.vstack([logs, logs[parent] if known else np.zeros(logs.shape[1])])
        fails = np.append(fails, fails[parent] if known else 0.0)
    ids = np.array([row["candidate_id"] for row in candidates], dtype=object)
    return target._replace(
        ids=ids, features=features.matrix, regimes=features.regimes, levels=features.levels, logs=logs, fails=fails
    )
