"""Decides the number of instances that keeps the objectives with a confidence, and the cheapest deployment with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kernelsight.scenario.launch.commands import PARALLEL
from kernelsight.scenario.objectives import Objective
from kernelsight.sizing.daily import Day, Hour, Start, hours_of, instance_hours, start_of
from kernelsight.sizing.evidence import UNKNOWN, Evidence, evidence_of

if TYPE_CHECKING:
    from kernelsight.sizing.candidates import Candidate
    from kernelsight.sizing.prospects import Sized
    from kernelsight.sizing.search import SizeSearch

# requests/s: so high that the deployment with the highest rate per GPU is the cheapest
ANY_RATE = 1e9
# most rounds of ranking: the best may change when its rate is searched in full, or others are looked at again
MOST_ROUNDS = 40
# most times the cost of the cheapest, and lowest rank, of deployments that get a probability at first
NEAR, MOST_NEAR = 2.0, 8
# deployments that get one at a time after that, while they may be cheaper than the best with the confidence
MOST_AGAIN = 4


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


def options_of(search: SizeSearch, objectives: Sequence[Objective], demand: Demand) -> list[Option]:
    """Return the deployments with a rate as options, the best first, whose rate is searched in full.

    At the confidence the best may cost more than at its highest rate: whatever may then be cheaper is looked at again.
    """
    known = _KnownEvidence(search, objectives, demand)
    options: list[Option] = []
    for _ in range(MOST_ROUNDS):
        options = known.options()
        if search.is_stopped:
            break
        if search.look_again(demand.least_cost, _cost_with_confidence(options)):
            continue
        if not options or search.is_sure(options[0].sized) or not search.confirm(options[0].sized):
            break
    return options


def still_open_of(search: SizeSearch, options: Sequence[Option], demand: Demand) -> set[str]:
    """Return the scenarios that may be cheaper than the best option: left out by their cost, or without probability."""
    most = _cost_with_confidence(options)
    left_out = {one.candidate.scenario_id for one in search.open_at(demand.least_cost, most)}
    unknown = [option.sized for option in options if option.evidence.chances is None]
    return left_out | {
        sized.candidate.scenario_id
        for sized in unknown
        if demand.least_cost(sized.candidate, sized.highest.rate) < most * (1.0 - 1e-9)
    }


def _cost_with_confidence(options: Sequence[Option]) -> float:
    """Return the cost of the best option with the confidence; infinite: none has it."""
    return options[0].cost if options and options[0].holds else math.inf


class _KnownEvidence:
    """The evidence of sized deployments, by scenario and rate, which grows while the search goes on."""

    def __init__(self, search: SizeSearch, objectives: Sequence[Objective], demand: Demand) -> None:
        self._search, self._objectives, self._demand = search, objectives, demand
        self._evidence: dict[tuple[str, float], Evidence] = {}
        self._examined: set[tuple[str, float]] = set()

    def options(self) -> list[Option]:
        """Return all deployments with a rate as options; those that may be the cheapest with their probability."""
        ranked = self._search.ranked()
        new, near = [sized for sized in ranked if _key(sized) not in self._evidence], _near(ranked) if ranked else []
        while True:
            near = [sized for sized in near if _key(sized) not in self._examined]
            if new or near:
                self._examine([*new, *(sized for sized in near if sized not in new)], near)
            options = [_option(self._search, sized, self._evidence[_key(sized)], self._demand) for sized in ranked]
            options.sort(key=lambda option: option.order)
            new, near = [], self._may_be_cheaper(ranked, options)
            if not near or self._search.is_stopped:
                return options

    def _may_be_cheaper(self, ranked: Sequence[Sized], options: Sequence[Option]) -> list[Sized]:
        """Return deployments without a probability that may be cheaper than the best option, some at a time."""
        if not options:
            return []
        most, least_cost = _cost_with_confidence(options), self._demand.least_cost
        unexamined = [sized for sized in ranked if _key(sized) not in self._examined]
        near = [one for one in unexamined if least_cost(one.candidate, one.highest.rate) < most * (1.0 - 1e-9)]
        return near[:MOST_AGAIN]

    def _examine(self, deployments: Sequence[Sized], near: Sequence[Sized]) -> None:
        """Find the evidence of deployments, with probabilities of those ``near`` the best."""
        search, ids = self._search, {sized.candidate.scenario_id for sized in near}
        opened = zip(search.forks, search.plans, strict=True)
        try:
            evidence = evidence_of(opened, deployments, ids, self._objectives)
        except KeyboardInterrupt:
            search.note_interrupt()
            evidence = dict.fromkeys((sized.candidate.scenario_id for sized in deployments), UNKNOWN)
        self._evidence |= {_key(sized): evidence[sized.candidate.scenario_id] for sized in deployments}
        self._examined |= {_key(sized) for sized in near}


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
