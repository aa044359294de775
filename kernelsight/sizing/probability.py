"""The probability that a deployment keeps its objectives at a load, from the intervals of kernels, host and load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from kernelsight.scenario.objectives import Objective
from kernelsight.serving.engine.host import Z_90
from kernelsight.sweeps.rate_intervals import Intervals, nearest_figure

NORMAL = NormalDist()
# most standard deviations: a probability of 0.99997
SUREST = 4.0


class Chances(NamedTuple):
    """Standard deviations to spare until an objective breaks, at shares of the highest rate; they fall with the share.

    >>> chances = Chances((0.5, 1.0), (3.0, 0.0))
    >>> round(chances.at(1.0), 2), round(chances.at(0.75), 2), round(chances.share_for(0.9), 2)
    (0.5, 0.89, 0.74)
    """

    shares: tuple[float, ...]
    spare: tuple[float, ...]

    def at(self, share: float) -> float:
        """Return the probability that every objective holds at a share of the highest rate."""
        return NORMAL.cdf(self._spare_at(share))

    def share_for(self, probability: float) -> float:
        """Return the largest share of the rate, up to 1, with at least a probability; 0: none has it."""
        deviations = NORMAL.inv_cdf(probability) - 1e-9
        if self._spare_at(1.0) >= deviations:
            return 1.0
        pairs = list(zip(self.shares, self.spare, strict=True))
        for (low, more), (high, less) in reversed(list(zip(pairs, pairs[1:], strict=False))):
            if more >= deviations > less:
                return low * (high / low) ** ((more - deviations) / (more - less))
        return 0.0

    def _spare_at(self, share: float) -> float:
        pairs = list(zip(self.shares, self.spare, strict=True))
        if share <= pairs[0][0]:
            return pairs[0][1]
        for (low, more), (high, less) in zip(pairs, pairs[1:], strict=False):
            if share <= high:
                return more + (less - more) * math.log(share / low) / math.log(high / low)
        return pairs[-1][1]


def chances_of(
    at_rates: Mapping[float, Intervals], objectives: Sequence[Objective], rate: float, low: float | None
) -> Chances:
    """Return the chances of a highest rate from its intervals at shares of it.

    Slow kernels or a slow host make all objectives worse at once (their errors are fully correlated), so that all hold
    where the tightest holds. ``low``: the lower end of the 90 % interval of the rate between runs, whose noise, from
    bursts, is added to the errors that all runs share.
    """
    shares = sorted(at_rates)
    spares = [spare_in(at_rates[share], at_rates[1.0], objectives) for share in shares]
    spare = [min(spares[: index + 1]) for index in range(len(spares))]
    noise = math.log(rate / low) / Z_90 if low and low < rate else 0.0
    falls = [
        (spare[max(index - 1, 0)] - spare[min(index + 1, len(spare) - 1)])
        / max(math.log(shares[min(index + 1, len(shares) - 1)] / shares[max(index - 1, 0)]), 1e-9)
        for index in range(len(shares))
    ]
    widened = [value / math.sqrt(1.0 + (noise * fall) ** 2) for value, fall in zip(spare, falls, strict=True)]
    return Chances(tuple(shares), tuple(min(widened[: index + 1]) for index in range(len(widened))))


def spare_in(figures: Intervals, at_rate: Intervals, objectives: Sequence[Objective]) -> float:
    """Return the standard deviations until the tightest objective breaks, on logarithms of its figure.

    The figure at the highest rate keeps the objective by definition, even where tails of short runs are above it.
    """
    spare = SUREST
    for objective in objectives:
        row, figure = figures.get(nearest_figure(objective)), nearest_figure(objective)
        if not row or not row["predicted"]:
            continue  # outputs of one token have no TPOT
        most = max(objective.most_ms, at_rate.get(figure, {}).get("predicted") or 0.0)
        spare = min(spare, spare_of(row["predicted"], row["low"], row["high"], most))
    return max(spare, -SUREST)


def spare_of(predicted: float, low: float, high: float, most: float) -> float:
    """Return the standard deviations from a prediction up to the largest allowed value, on logarithms.

    Each side of the 90 % interval is taken as normal. Above 0 the prediction is allowed.
    """
    distance = math.log(most / predicted)
    deviation = abs(math.log(max(high if distance > 0.0 else low, 1e-9) / predicted)) / Z_90
    return distance / deviation if deviation > 0.0 else math.copysign(SUREST, distance)
