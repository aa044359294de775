"""Decides the number of instances that keeps the objectives with a confidence, and the cheapest deployment with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.scenario.launch.commands import PARALLEL
from kernelsight.scenario.objectives import Objective
from kernelsight.sizing.daily import Day, Hour, Start, hours_of, instance_hours, start_of
from kernelsight.sizing.evidence import UNKNOWN, Evidence, evidence_of

if TYPE_CHECKING:
    from kernelsight.sizing.prospects import Sized
    from kernelsight.sizing.search import SizeSearch

# requests/s: so high that the deployment with the highest rate per GPU is the cheapest
ANY_RATE = 1e9
# rounds of ranking: the best may change when its rate is searched in full
MOST_ROUNDS = 4
# most times the cost of the cheapest, and lowest rank, of deployments that get a probability
NEAR, MOST_NEAR = 2.0, 8


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

    @property
    def sustained_rate(self) -> float:
        """The rate that all instances must sustain, with the margin, in the unit of ``rate``."""
        return ANY_RATE if self.total_gpus is not None else self.rate / (1.0 - self.margin)


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

    @property
    def weight(self) -> float:
        """The cost of all instances: dollars per hour, or GPUs where no price is known or their total is fixed.

        With a day it is the mean over its hours.
        """
        return self.mean_instances * self.sized.candidate.weight

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
        cost = round(self.weight / self.rate, 12) if self.sized.candidate.gpus_taken else round(self.weight, 9)
        return not self.holds, cost, least_probable_last, settings, self.load, self.sized.candidate.scenario_id


def demand_of(
    rate: float | None, confidence: float, margin: float, peak: float, total_gpus: int | None = None
) -> Demand:
    """Return the demand of a rate and its ``peak`` factor, or of ``total_gpus``; InvalidInput: values out of range."""
    if total_gpus is not None and (isinstance(total_gpus, bool) or not isinstance(total_gpus, int) or total_gpus < 1):
        raise InvalidInput(f"total_gpus is {total_gpus!r}; give a whole number of GPUs, at least 1.")
    for name, value, low, high in (("confidence", confidence, 0.5, 0.99), ("margin", margin, 0.0, 0.9)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidInput(f"{name} is {value!r}; give a share from {low:g} to {high:g}.")
    if isinstance(peak, bool) or not isinstance(peak, int | float) or not 1.0 <= peak <= 1000.0:
        raise InvalidInput(f"peak is {peak!r}; give how many times the mean rate the peak is, from 1 to 1,000.")
    return Demand((rate or ANY_RATE) * peak, float(confidence), float(margin), total_gpus, peak=float(peak))


def with_day(demand: Demand, day: Day, startup_s: float | None, disk_bytes_per_s: float | None) -> Demand:
    """Return the demand at a day's peak with the hours of the day, and with what cold starts depend on.

    The factor of ``--peak``, for bursts within an hour, applies to each hour.
    """
    scale = demand.rate / day.peak
    day = day._replace(amounts=tuple(scale * amount for amount in day.amounts))
    return demand._replace(day=day, startup_s=startup_s, disk_bytes_per_s=disk_bytes_per_s)


def options_of(search: SizeSearch, objectives: Sequence[Objective], demand: Demand) -> list[Option]:
    """Return the deployments with a rate as options, the best first, whose rate is searched in full."""
    evidence_by_key: dict[tuple[str, float], Evidence] = {}
    options: list[Option] = []
    for _ in range(MOST_ROUNDS):
        ranked = search.ranked()
        if not ranked:
            return []
        near = _near(ranked)
        new = [sized for sized in ranked if _key(sized) not in evidence_by_key]
        forks_and_plans = zip(search.forks, search.plans, strict=True)
        try:
            evidence = evidence_of(forks_and_plans, new, {sized.candidate.scenario_id for sized in near}, objectives)
        except KeyboardInterrupt:
            search.note_interrupt()
            evidence = dict.fromkeys((sized.candidate.scenario_id for sized in new), UNKNOWN)
        evidence_by_key |= {_key(sized): evidence[sized.candidate.scenario_id] for sized in new}
        options = sorted(
            (_option(search, sized, evidence_by_key[_key(sized)], demand) for sized in ranked),
            key=lambda option: option.order,
        )
        if search.is_stopped or search.is_sure(options[0].sized) or not search.confirm(options[0].sized):
            break
    return options


def _near(ranked: Sequence[Sized]) -> list[Sized]:
    """Return the deployments that may be chosen: the cheapest, and the cheapest of each GPU."""
    cheapest_of_gpus = {tuple(sized.candidate.gpus): sized for sized in reversed(ranked)}.values()
    near = [sized for sized in ranked if sized.weight <= NEAR * ranked[0].weight][:MOST_NEAR]
    return [*near, *(sized for sized in cheapest_of_gpus if sized not in near)]


def _key(sized: Sized) -> tuple[str, float]:
    return sized.candidate.scenario_id, sized.highest.rate


def _option(search: SizeSearch, sized: Sized, evidence: Evidence, demand: Demand) -> Option:
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
    start = start_of(search.weights_bytes(sized.candidate), demand.disk_bytes_per_s, demand.startup_s)
    return option._replace(hours=tuple(hours_of(demand.day, rate * most)), start=start)
