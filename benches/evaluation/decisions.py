"""Decisions on measured runs: predicted probabilities that an objective (SLO) is kept, scored against the outcome.

An objective is drawn around the measured value, so that a decision can be right or wrong. The probability is that of
``size``, from the prediction and its 90 % interval; baselines are "always yes" and one error factor for all
predictions. Scores: Brier score, reliability.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.sizing.probability import NORMAL, SUREST, spare_of

# objectives are drawn between these multiples of the measured value, log-uniformly
LEAST, MOST = 0.7, 1.4
# bands of probability for the reliability table
EDGES = (0.0, 0.05, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
# metrics whose objective is a minimum instead of a maximum
AT_LEAST = ("throughput",)


class Decision(NamedTuple):
    """One objective on one metric of one run.

    ``drawn``: the objective over the measured value; ``spare``: margin of the prediction to the objective in standard
    deviations; ``error``: log(predicted / measured), with the sign at which above 0 is too pessimistic.
    """

    campaign: str
    run_id: str
    metric: str
    drawn: float
    spare: float
    error: float

    @property
    def holds(self) -> bool:
        """Whether the run kept the objective."""
        return self.drawn >= 1.0

    @property
    def probability(self) -> float:
        """The predicted probability that the run keeps the objective."""
        return NORMAL.cdf(min(max(self.spare, -SUREST), SUREST))


def decisions_of(rows: Iterable[Mapping[str, Any]]) -> list[Decision]:
    """Return one decision per measured metric of each run; ``rows``: scored runs, with ``compared``.

    The objective is drawn by a hash of run and metric: it does not depend on what else is scored.
    """
    return [
        _decision(row["campaign"], row["run_id"], metric, comparison)
        for row in rows
        for metric, comparison in row["compared"].items()
    ]


def _decision(campaign: str, run_id: str, metric: str, comparison: Mapping[str, float]) -> Decision:
    """Return the decision on one metric of one run; see ``decisions_of``."""
    share = int(hashlib.sha256(f"{campaign}/{run_id}/{metric}".encode()).hexdigest()[:12], 16) / 16.0**12
    drawn = LEAST * (MOST / LEAST) ** share
    error = math.log(comparison["predicted"] / comparison["measured"])
    if metric in AT_LEAST:  # the inverse has a maximum
        objective, bounds = comparison["measured"] / drawn, (1.0 / comparison["high"], 1.0 / comparison["low"])
        return Decision(
            campaign, run_id, metric, drawn, spare_of(1.0 / comparison["predicted"], *bounds, 1.0 / objective), -error
        )
    objective = comparison["measured"] * drawn
    return Decision(
        campaign,
        run_id,
        metric,
        drawn,
        spare_of(comparison["predicted"], comparison["low"], comparison["high"], objective),
        error,
    )


def by_one_factor(decisions: Sequence[Decision]) -> list[float]:
    """Return the probability of each decision under one log-normal error for all predictions (a baseline).

    Its standard deviation is that of the log errors of all other campaigns; 0.5 without others.
    """
    campaigns = np.array([decision.campaign for decision in decisions])
    errors = np.array([decision.error for decision in decisions])
    spreads = {
        name: float(np.sqrt(np.mean(errors[campaigns != name] ** 2))) if (campaigns != name).any() else math.nan
        for name in set(campaigns.tolist())
    }
    return [
        NORMAL.cdf((math.log(decision.drawn) - decision.error) / spreads[decision.campaign])
        if spreads[decision.campaign] > 0.0
        else 0.5
        for decision in decisions
    ]


def reliability(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return a row per band of probabilities (EDGES): number of decisions, mean probability, share that held."""
    rows = []
    for low, high in zip(EDGES, EDGES[1:], strict=False):
        in_band = [
            decision
            for decision in decisions
            if low <= decision.probability < high or (high == 1.0 == decision.probability)
        ]
        rows.append({"from": low, "to": high, **_counts(in_band)})
    return rows


def brier(decisions: Sequence[Decision], probabilities: Sequence[float]) -> float | None:
    """Return the Brier score: mean squared difference of probability and outcome (0 or 1); None without decisions."""
    outcomes = np.array([decision.holds for decision in decisions], dtype=float)
    return float(np.mean((np.asarray(probabilities) - outcomes) ** 2)) if outcomes.size else None


def decision_scores(decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return scores by campaign, and of "all": counts, and Brier scores of the predicted probabilities and baselines.

    ``brier_always``: of always yes; ``brier_factor``: of ``by_one_factor``; ``sure``: counts of the decisions with a
    probability of 90 % or more.
    """
    factor_probabilities = by_one_factor(decisions)
    groups: dict[str, list[int]] = {"all": list(range(len(decisions)))}
    for number, decision in enumerate(decisions):
        groups.setdefault(decision.campaign, []).append(number)
    by_campaign = {}
    for name, numbers in groups.items():
        group = [decisions[number] for number in numbers]
        sure = [decision for decision in group if decision.probability >= 0.9]
        by_campaign[name] = {
            **_counts(group),
            "brier": brier(group, [decision.probability for decision in group]),
            "brier_always": brier(group, [1.0] * len(group)),
            "brier_factor": brier(group, [factor_probabilities[number] for number in numbers]),
            "sure": _counts(sure),
        }
    return by_campaign


def _counts(decisions: Sequence[Decision]) -> dict[str, Any]:
    outcomes = [decision.holds for decision in decisions]
    return {
        "n": len(decisions),
        "said": float(np.mean([decision.probability for decision in decisions])) if outcomes else None,
        "held": float(np.mean(outcomes)) if outcomes else None,
    }
