"""The cheapest deployment at a rate: bounds first, then searches of what may still be cheaper than the best so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.scenario.launch.commands import PARALLEL
from kernelsight.scenario.objectives import Objective
from kernelsight.scenario.refusals import decisive, what_fits
from kernelsight.scenario.scenarios import Plan
from kernelsight.sizing.candidates import STEP_TOKENS, Candidate, planned
from kernelsight.sweeps.find_rate import open_trials, status_of
from kernelsight.sweeps.rate_search import FULL, LENIENT, ROUGH, ROUGH_WITH_ENDS, Found, RateSearch
from kernelsight.sweeps.trials import Trials

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

MEASURED = ("target-measured", "log-corrected")
# a rough rate may be off by this much: what is nearer to the best is searched in full
DOUBT = 1.08
# deployments that are tried with other tokens of a step, and by which factor that may raise a rate
MOST_TUNED, MOST_GAIN = 5, 1.4
# GPUs that cost this many times the best are left out, instead of searched for their exact rate
FAR = 20.0
FAR_DEARER = f"it costs more than {FAR:.0f} times the best"
NO_CHEAPER = "it is no cheaper than with the engine's own size of a step"


class Prospect(NamedTuple):
    """A candidate that can run, and what serves it."""

    candidate: Candidate
    trials: Trials
    search: RateSearch


class Sized(NamedTuple):
    """A prospect with its rate, and the instances that serve the asked rate."""

    prospect: Prospect
    found: Found
    instances: int

    @property
    def candidate(self) -> Candidate:
        """The deployment."""
        return self.prospect.candidate

    @property
    def weight(self) -> float:
        """What all instances cost: dollars an hour, or GPUs where no price is known."""
        return self.instances * self.candidate.weight

    @property
    def order(self) -> tuple[float, int, float, str]:
        """The cheapest first; of equal ones the one with the fewest settings, and then the most to spare."""
        settings = sum(name not in PARALLEL for name in self.candidate.flags)
        spare = self.instances * (self.found.rate or 0.0)
        return round(self.weight, 9), settings, -spare, self.candidate.scenario_id


class LeftOut(NamedTuple):
    """A deployment that was not searched, or has no rate, and why; ``miss``: its nearest latency over the largest."""

    flags: Mapping[str, Any]
    reason: str
    miss: float | None = None


class SizeSearch:
    """Searches deployments for the cheapest at a rate; sessions with their tables stay open until ``close``.

    ``unsupported``: sentences of engines that do not exist for GPUs of the search.
    """

    def __init__(
        self,
        session: Session,
        rate: float,
        objectives: Sequence[Objective],
        load: Mapping[str, Any],
        prices: Mapping[str, float],
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._session, self._rate, self._objectives = session, rate, list(objectives)
        self._load, self._prices = load, prices
        self._report = report or (lambda text: None)
        self.forks: list[Session] = []
        self.plans: list[Plan] = []
        self.sized: dict[str, Sized] = {}
        self.left_out: dict[str, LeftOut] = {}
        self.unsupported: dict[str, None] = {}
        self._sure: set[str] = set()
        self._tiers: dict[str, dict[str, Any]] = {}
        self._read: list[Session] = []

    def run(self, rows: Sequence[Mapping[str, Any]], tune: bool = True) -> list[Sized]:
        """Return deployments with a rate, the cheapest first; see ``left_out`` for the others.

        ``tune``: the best are tried with other sizes of a step. InvalidInput: no deployment can run.
        """
        prospects = self._open(rows)
        if not prospects:
            raise self._nothing_fits()
        by_gpu: dict[tuple, list[Prospect]] = {}
        for prospect in prospects:
            by_gpu.setdefault(tuple(prospect.candidate.gpus), []).append(prospect)
        best = None
        for group in sorted(by_gpu.values(), key=lambda group: min(map(self._least_cost, group))):
            found = self._search(group, best)
            best = min(filter(None, (best, found)), key=lambda sized: sized.order, default=None)
        self._make_sure()
        if tune and self.sized:
            self._tune(prospects)
            self._make_sure()
        self._make_sure_of_measured()
        self._give_ranges()
        return self.ranked()

    def ranked(self) -> list[Sized]:
        """Return what was sized, the cheapest first."""
        return sorted(self.sized.values(), key=lambda sized: sized.order)

    def close(self) -> None:
        """Free the tables of all deployments."""
        for fork in self.forks:
            fork.close()

    def _open(self, rows: Sequence[Mapping[str, Any]]) -> list[Prospect]:
        """Plan rows, and return those that can run with what bounds their rates."""
        fork = self._session.fork()
        self.forks.append(fork)
        plan, candidates = planned(fork, rows, self._load, self._prices)
        self.plans.append(plan)
        if not candidates:
            raise InvalidInput(next(fault for fault in plan.faults if fault))
        trials = open_trials(fork, plan)
        self._report(f"{len(trials.able):,} of {len(candidates):,} deployments fit")
        faults: dict[str, list[dict[str, Any]]] = {}
        for fault in fork.table("deployment_faults").to_pylist():
            faults.setdefault(fault["deployment_id"], []).append(fault)
        prospects = []
        for candidate in candidates:
            if candidate.scenario_id in trials.able:
                search = RateSearch(trials, candidate.scenario_id, self._objectives)
                prospects.append(Prospect(candidate, trials, search))
            else:
                found = decisive(faults.get(candidate.deployment_id, []))
                self.unsupported |= {fault["sentence"]: None for fault in found if fault["fault"] == "engine"}
                sentences = [fault["sentence"] for fault in found] or ["its prefill replicas cannot run"]
                self.left_out[candidate.scenario_id] = LeftOut(candidate.flags, "; ".join(sentences))
        return prospects

    def _search(self, prospects: Iterable[Prospect], elsewhere: Sized | None) -> Sized | None:
        """Search the prospects of a GPU in the order of the least that they could cost; return the cheapest.

        ``elsewhere``: the best on other GPUs so far.
        """
        best = None
        for prospect in sorted(prospects, key=self._least_cost):
            capacity = prospect.search.capacity
            if capacity.most <= 0.0:
                self._size(prospect, prospect.search.run(ROUGH))
                continue
            if not self._is_near(prospect, elsewhere):
                self._leave(prospect, FAR_DEARER)
                continue
            needed = self._needed(prospect.candidate, best)
            if needed > capacity.most:
                self._leave(prospect, "bounds on its rate make it dearer than another")
                continue
            if needed > 0.0 and not prospect.search.may_keep(needed / DOUBT):
                self._leave(prospect, "it does not reach the rate at which it would be cheaper than another")
                continue
            sized = self._size(prospect, prospect.search.run(ROUGH, needed or None))
            if sized and (best is None or sized.order < best.order):
                best = sized
        return best

    def _is_near(self, prospect: Prospect, best: Sized | None) -> bool:
        """Whether a prospect may cost less than ``FAR`` times the best."""
        if best is None:
            return True
        needed = self._rate / max(math.floor(FAR * best.weight / prospect.candidate.weight), 1)
        return needed <= prospect.search.capacity.most and prospect.search.may_keep(needed / DOUBT)

    def _size(self, prospect: Prospect, found: Found) -> Sized | None:
        """Keep a found rate with its instances, or why there is none."""
        if found.rate is None:
            self._leave(prospect, status_of(found), _miss(found))
            return None
        sized = Sized(prospect, found, max(math.ceil(self._rate / found.rate * (1.0 - 1e-9)), 1))
        self.sized[prospect.candidate.scenario_id] = sized
        return sized

    def _leave(self, prospect: Prospect, reason: str, miss: float | None = None) -> None:
        self.sized.pop(prospect.candidate.scenario_id, None)
        self.left_out[prospect.candidate.scenario_id] = LeftOut(prospect.candidate.flags, reason, miss)

    def _least_cost(self, prospect: Prospect) -> tuple[float, str]:
        """Return what a prospect costs at the least, by the bound on its rate."""
        candidate, most = prospect.candidate, prospect.search.capacity.most
        instances = max(math.ceil(self._rate / most), 1) if most > 0.0 else math.inf
        return instances * candidate.weight, candidate.scenario_id

    def _needed(self, candidate: Candidate, best: Sized | None) -> float:
        """Return the rate of one instance, requests/s, from which a candidate is no dearer than the best; 0: any."""
        if best is None:
            return 0.0
        # the rate of the best is rough, too
        weight = math.ceil(self._rate / best.found.rate * DOUBT) * best.candidate.weight
        instances = math.floor(weight / candidate.weight + 1e-9)
        return self._rate / instances if instances else math.inf

    def _needed_to_beat(self, candidate: Candidate, best: Sized) -> float:
        """Return the rate of one instance, requests/s, from which a candidate is cheaper than the best."""
        instances = math.ceil(best.weight / candidate.weight - 1e-9) - 1
        return self._rate / instances if instances else math.inf

    def _tune(self, prospects: Sequence[Prospect]) -> None:
        """Try what is nearest to being the best with other tokens of a step, where these are left to the engine.

        Of these only what is cheaper than the best is kept: the engine's own size is one setting less.
        """
        best = self.ranked()[0]
        near = []
        for prospect in prospects:
            needed = self._needed_to_beat(prospect.candidate, best)
            if needed <= prospect.search.capacity.most:
                level = prospect.search.look(needed / MOST_GAIN)
                near += [(level, prospect.candidate.scenario_id, prospect)] if level <= LENIENT else []
        rows = []
        for *_, prospect in sorted(near, key=lambda each: each[:2])[:MOST_TUNED]:
            flags = {name: value for name, value in prospect.candidate.flags.items() if name not in self._load}
            settings = prospect.trials.settings(prospect.candidate.scenario_id)
            if "max_num_batched_tokens" in flags or settings["scheduling"] == "static":
                continue
            rows += [
                {**flags, "max_num_batched_tokens": tokens}
                for tokens in STEP_TOKENS
                if tokens != settings["max_num_batched_tokens"]
            ]
        if not rows:
            return
        self._report(f"trying {len(rows)} deployments with other sizes of a step")
        for prospect in self._open(_without(rows, "request_rate")):
            needed = self._needed_to_beat(prospect.candidate, best)
            if math.isinf(needed) or not prospect.search.may_keep(needed / DOUBT):
                self._leave(prospect, NO_CHEAPER)
                continue
            sized = self._size(prospect, prospect.search.run(ROUGH, needed))
            if sized and sized.found.rate * DOUBT < needed:
                self._leave(prospect, NO_CHEAPER)
            elif sized and sized.order < best.order:
                # a rough rate is no measure for others
                sized = self._search_in_full(sized)
                best = sized if sized and sized.order < best.order else best

    def _make_sure(self) -> None:
        """Search the best in full; of what is so near that it may be cheaper, first ask for the rate that it needs."""
        while ranked := self.ranked():
            best = ranked[0]
            if self.is_sure(best):
                near = (sized for sized in ranked if self._may_be_cheaper(sized, best))
                best = next((sized for sized in near if not self._is_no_cheaper(sized, best)), None)
            if best is None:
                return
            self._search_in_full(best)

    def _search_in_full(self, sized: Sized) -> Sized | None:
        """Search a rate in full; return the deployment with it, None where no rate holds."""
        self._sure.add(sized.candidate.scenario_id)
        self._report(f"searching the rate of {sized.candidate.flags['gpu']} in full")
        return self._size(sized.prospect, sized.prospect.search.run(FULL, sized.found.rate))

    def is_sure(self, sized: Sized) -> bool:
        """Whether a rate was searched in full; others are rough: enough to say that they are dearer."""
        return sized.candidate.scenario_id in self._sure

    def _make_sure_of_measured(self) -> None:
        """Search the best deployment on measured GPUs in full: it is named where one that was not measured wins."""
        while best := next((one for one in self.ranked() if self.tier_of(one.candidate)["tier"] in MEASURED), None):
            if self.is_sure(best):
                return
            self._search_in_full(best)

    def tier_of(self, candidate: Candidate) -> dict[str, Any]:
        """Return the row of ``deployment_tiers`` of a deployment."""
        for fork in self.forks[len(self._read) :]:
            self._read.append(fork)
            self._tiers |= {row["deployment_id"]: row for row in fork.table("deployment_tiers").to_pylist()}
        return self._tiers[candidate.deployment_id]

    @property
    def sure(self) -> set[str]:
        """The scenarios of deployments whose rates were searched in full."""
        return self._sure

    def _give_ranges(self) -> None:
        """Give each rate that was not searched in full its range."""
        for sized in self.ranked():
            if sized.found.low is None:
                self._size(sized.prospect, sized.prospect.search.run(ROUGH_WITH_ENDS, sized.found.rate))

    def _may_be_cheaper(self, sized: Sized, best: Sized) -> bool:
        """Whether a full search may show that a deployment is cheaper than the best, its rate being rough."""
        instances = max(math.ceil(self._rate / (sized.found.rate * DOUBT)), 1)
        return not self.is_sure(sized) and round(instances * sized.candidate.weight, 9) < round(best.weight, 9)

    def _is_no_cheaper(self, sized: Sized, best: Sized) -> bool:
        """Whether a deployment fails at the rate from which it is cheaper than the best."""
        return not sized.prospect.search.keeps(self._needed_to_beat(sized.candidate, best))

    def _nothing_fits(self) -> InvalidInput:
        """Build the error for a search in which no deployment can run."""
        reasons = list(dict.fromkeys(left.reason for left in self.left_out.values()))
        short = [left for left in self.left_out.values() if "GiB" in left.reason]
        if not short:
            return InvalidInput(f"no deployment can run: {'; '.join(reasons[:3])}.")
        parts = []
        for gpu in dict.fromkeys(left.flags["gpu"] for left in short):
            largest = max(
                (left for left in short if left.flags["gpu"] == gpu),
                # of equally many GPUs, replicas of attention hold the most weights
                key=lambda left: (
                    left.flags.get("tensor_parallel_size", 1) * left.flags.get("data_parallel_size", 1),
                    left.flags.get("tensor_parallel_size", 1),
                ),
            )
            row = next(
                row
                for plan in self.plans
                for flags, scenario in zip(plan.flags, plan.scenarios, strict=True)
                if flags is largest.flags
                for row in [plan.deployments[scenario["deployment_id"]]]
            )
            parts.append(f"{largest.reason.rstrip(' ;')}; {what_fits(self.forks[0], row)}")
        return InvalidInput(f"no GPU of the search holds the model: {'; '.join(parts)}.")


def _miss(found: Found) -> float | None:
    """Return how many times its largest value the nearest latency is; None where requests are rejected."""
    if found.capacity.misses:
        objective, value = found.capacity.misses
        return value / objective.most_ms
    return found.tried.verdict.pressure if found.tried else None


def _without(rows: Sequence[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]
