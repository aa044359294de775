"""Decides the number of instances that keeps the objectives with a confidence, and what they cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from kernelsight.number_format import number
from kernelsight.scenario.launch.commands import PARALLEL
from kernelsight.sizing.daily import Day, Hour, Start, hours_of, instance_hours, start_of
from kernelsight.sizing.evidence import Evidence

if TYPE_CHECKING:
    from kernelsight.sizing.candidates import Candidate
    from kernelsight.sizing.prospects import Sized

# requests/s: so high that the deployment with the highest rate per GPU is the cheapest
ANY_RATE = 1e9
# factor by which a rough rate, and the share of it that has the confidence, may be wrong
DOUBT = 1.08
SHORT_SIZES = {"tensor_parallel_size": "TP", "data_parallel_size": "DP", "expert_parallel_size": "EP"}


class Demand(NamedTuple):
    """The demand to serve: ``rate`` at the peak, requests/s or users, with a ``confidence`` and a spare ``margin``.

    ``total_gpus``: find the highest rate of as many GPUs instead; ``rate`` is then one that no instances reach.
    ``day``: hourly demand that instances follow; ``startup_s``, ``disk_bytes_per_s``: of a cold start, where they are
    given. ``electricity_price``: dollars per kilowatt-hour of the building's energy. ``peak``: ``rate`` over its mean
    (within an hour, where there is a day); tokens are paid by the mean.
    """

    rate: float
    confidence: float = 0.9
    margin: float = 0.0
    total_gpus: int | None = None
    day: Day | None = None
    startup_s: float | None = None
    disk_bytes_per_s: float | None = None
    electricity_price: float | None = None
    peak: float = 1.0

    def least_cost(self, candidate: Candidate, rate: float) -> float:
        """Return the cost below which a candidate is at no confidence, where one instance has at most ``rate``.

        Dollars per hour, or GPUs where no price is known; with a day the mean over its hours. With a fixed number of
        GPUs it is the cost at a rate that none reaches, in inverse proportion to what is served.
        """
        served = max(rate * (1.0 - self.margin), 1e-12)
        amounts = self.day.amounts if self.day else (self.rate if self.total_gpus is None else ANY_RATE,)
        instances = [max(math.ceil(amount / served * (1.0 - 1e-9)), 1) for amount in amounts]
        return sum(instances) / len(instances) * candidate.weight


class Option(NamedTuple):
    """A deployment with the instances that serve the demand, and the probability that they keep every objective.

    ``rate``: served at the peak, requests/s or users; ``load``: that over the highest rate of all instances;
    ``probability``: None where it was not computed; ``holds``: whether it reaches the confidence at any load;
    ``hours``, ``start``: instances by the hour, and the cold start of one, where the demand has a day.
    """

    sized: Sized
    evidence: Evidence
    instances: int
    rate: float
    load: float
    probability: float | None
    holds: bool
    hours: tuple[Hour, ...] = ()
    start: Start | None = None

    def __str__(self) -> str:
        candidate, rate = self.sized.candidate, number(self.sized.highest.rate, 3)
        named = ((short, candidate.flags.get(name)) for name, short in SHORT_SIZES.items())
        sizes = " ".join(f"{short} {size}" for short, size in named if size)
        cost = candidate.cost_text(self.weight)
        return f"{', '.join(candidate.gpus)} at {sizes}, {cost}, up to {rate} {candidate.unit} each"

    @property
    def weight(self) -> float:
        """The cost of all instances: dollars per hour, or GPUs where no price is known or their total is fixed.

        With a day it is the mean over its hours.
        """
        return self.mean_instances * self.sized.candidate.weight

    @property
    def cost(self) -> float:
        """``weight``, with a fixed number of GPUs over what they serve: that by which options are ranked."""
        return self.weight / self.rate * ANY_RATE if self.sized.candidate.gpus_taken else self.weight

    @property
    def mean_instances(self) -> float:
        """The mean number of instances that run or start over the day; all of them where that is no more."""
        if self.start is None:
            return float(self.instances)
        return min(instance_hours(self.hours, self.start.seconds) / len(self.hours), float(self.instances))

    @property
    def order(self) -> tuple:
        """The sort key: options that hold first, then by cost, probability (highest first), and number of settings."""
        settings = sum(name not in PARALLEL for name in self.sized.candidate.flags)
        least_probable_last = -round(self.probability or 0.0, 2)
        cost = round(self.cost, 6)
        return not self.holds, cost, least_probable_last, settings, self.load, self.sized.candidate.scenario_id

    def most_share(self, demand: Demand) -> float:
        """Return the most that the share of a rough rate with the confidence may be."""
        return min(DOUBT * self.evidence.chances.share_for(demand.confidence) / (1.0 - demand.margin), 1.0)


def demand_of(
    rate: float | None, confidence: float, margin: float, peak: float, total_gpus: int | None = None
) -> Demand:
    """Return the demand of a rate and its ``peak`` factor, or of ``total_gpus``."""
    return Demand((rate or ANY_RATE) * peak, confidence, margin, total_gpus, peak=peak)


def with_day(demand: Demand, day: Day, startup_s: float | None, disk_bytes_per_s: float | None) -> Demand:
    """Return the demand at a day's peak with the hours of the day, and with what cold starts depend on.

    The factor of ``--peak``, for bursts within an hour, applies to each hour.
    """
    scale = demand.rate / day.peak
    day = day._replace(amounts=tuple(scale * amount for amount in day.amounts))
    return demand._replace(day=day, startup_s=startup_s, disk_bytes_per_s=disk_bytes_per_s)


def option_of(sized: Sized, evidence: Evidence, demand: Demand) -> Option:
    """Return a deployment with the instances that keep the objectives with the confidence, where any number does."""
    chances, rate = evidence.chances, sized.highest.rate
    share = chances.share_for(demand.confidence) if chances else 0.0
    most = min(share or 1.0, 1.0 - demand.margin)
    if demand.total_gpus is not None:
        instances = demand.total_gpus // sized.candidate.gpu_count
        served = instances * rate * most
    else:
        instances = max(math.ceil(demand.rate / (rate * most) * (1.0 - 1e-9)), 1)
        served = demand.rate
    load = served / (instances * rate)
    probability = chances.at(load) if chances else None
    option = Option(sized, evidence, instances, served, load, probability, share > 0.0)
    if demand.day is None:
        return option
    weights_bytes = sized.prospect.trials.weights_bytes(sized.candidate.scenario_id)
    start = start_of(weights_bytes, demand.disk_bytes_per_s, demand.startup_s)
    return option._replace(hours=tuple(hours_of(demand.day, rate * most)), start=start)
