"""Decisions on measured runs: whether a deployment keeps an objective at a load, how surely we say so, and how it went.

An objective is drawn around what a run measured, so that a decision can be right or wrong; the probability is that of
``size``: from the prediction and its 90 % interval. Beside it: always yes, and one factor for all predictions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.sizing.probability import NORMAL, SUREST, spare_of

# objectives are drawn between these multiples of what was measured, evenly on logarithms
LEAST, MOST = 0.7, 1.4
# probabilities that decisions are counted by
EDGES = (0.0, 0.05, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
# an objective on it is a least value, not a largest
AT_LEAST = ("throughput",)


class Decision(NamedTuple):
    """One objective on one metric of one run.

    ``drawn``: the objective over the measured value; ``spare``: standard deviations that the prediction has to spare;
    ``error``: log(predicted / measured), turned so that above 0 the prediction is too pessimistic.
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
        """The predicted probability that it does."""
        return NORMAL.cdf(min(max(self.spare, -SUREST), SUREST))


def decisions_of(rows: Iterable[Mapping[str, Any]]) -> list[Decision]:
    """Return one decision for each metric that each run measured; ``rows``: scored, with ``compared``.

    The objective of a run and a metric is drawn by their names: it is the same whatever else is scored.
    """
    return [
        _decision(row["campaign"], row["run_id"], metric, each)
        for row in rows
        for metric, each in row["compared"].items()
    ]


def _decision(campaign: str, run_id: str, metric: str, each: Mapping[str, float]) -> Decision:
    share = int(hashlib.sha256(f"{campaign}/{run_id}/{metric}".encode()).hexdigest()[:12], 16) / 16.0**12
    drawn = LEAST * (MOST / LEAST) ** share
    error = math.log(each["predicted"] / each["measured"])
    if metric in AT_LEAST:  # of what takes its inverse
        objective, sides = each["measured"] / drawn, (1.0 / each["high"], 1.0 / each["low"])
        return Decision(
            campaign, run_id, metric, drawn, spare_of(1.0 / each["predicted"], *sides, 1.0 / objective), -error
        )
    objective = each["measured"] * drawn
    return Decision(
        campaign, run_id, metric, drawn, spare_of(each["predicted"], each["low"], each["high"], objective), error
    )


def by_one_factor(decisions: Sequence[Decision]) -> list[float]:
    """Return the probability of each decision where every prediction is off by one factor, that of other campaigns.

    Its standard deviation is that of the errors of all other campaigns, on logarithms.
    """
    campaigns = np.array([each.campaign for each in decisions])
    errors = np.array([each.error for each in decisions])
    spreads = {
        name: float(np.sqrt(np.mean(errors[campaigns != name] ** 2))) if (campaigns != name).any() else math.nan
        for name in set(campaigns.tolist())
    }
    return [
        NORMAL.cdf((math.log(each.drawn) - each.error) / spreads[each.campaign])
        if spreads[each.campaign] > 0.0
        else 0.5
        for each in decisions
    ]


def reliability(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return for each band of probabilities: decisions, their mean probability, and the share that held."""
    rows = []
    for low, high in zip(EDGES, EDGES[1:], strict=False):
        mine = [each for each in decisions if low <= each.probability < high or (high == 1.0 == each.probability)]
        rows.append({"from": low, "to": high, **_counts(mine)})
    return rows


def brier(decisions: Sequence[Decision], probabilities: Sequence[float]) -> float | None:
    """Return the mean squared difference between probabilities and what happened; None without decisions."""
    held = np.array([each.holds for each in decisions], dtype=float)
    return float(np.mean((np.asarray(probabilities) - held) ** 2)) if held.size else None


def decision_scores(decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return by campaign and of all: decisions, Brier scores of ours, of always yes and of one factor, and how many
    of those held that were said to hold with 90 % or more."""
    factor = by_one_factor(decisions)
    groups: dict[str, list[int]] = {"all": list(range(len(decisions)))}
    for number, each in enumerate(decisions):
        groups.setdefault(each.campaign, []).append(number)
    by_campaign = {}
    for name, numbers in groups.items():
        mine = [decisions[number] for number in numbers]
        sure = [each for each in mine if each.probability >= 0.9]
        by_campaign[name] = {
            **_counts(mine),
            "brier": brier(mine, [each.probability for each in mine]),
            "brier_always": brier(mine, [1.0] * len(mine)),
            "brier_factor": brier(mine, [factor[number] for number in numbers]),
            "sure": _counts(sure),
        }
    return by_campaign


def _counts(decisions: Sequence[Decision]) -> dict[str, Any]:
    held = [each.holds for each in decisions]
    return {
        "n": len(decisions),
        "said": float(np.mean([each.probability for each in decisions])) if held else None,
        "held": float(np.mean(held)) if held else None,
    }
