"""Best-first search of the cheapest deployment: bounds leave out what cannot be cheaper, simulations decide."""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.progress import Done, Report
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flags import ALIASES
from kernelsight.scenario.prices import read_prices
from kernelsight.scenario.refusals import decisive
from kernelsight.scenario.scenario_rows import normalise, resolve_gpu
from kernelsight.sizing.candidates import FIRST_RATE, FIRST_USERS, planned_candidates, rows_of
from kernelsight.sizing.decision import DOUBT, Option, option_of
from kernelsight.sizing.evidence import UNKNOWN, evidence_of, may_hold
from kernelsight.sizing.prospects import (
    DEARER,
    NO_BOUND,
    NOT_REACHED,
    LeftOut,
    Prospect,
    Sized,
    is_less,
    miss_of,
    nothing_fits,
    rate_below,
)
from kernelsight.sizing.variants import MOST_VARIANTS, TOO_MANY, family_of, split_of, variants
from kernelsight.sweeps.find_rate import open_trials, status_of
from kernelsight.sweeps.rate_intervals import RATES
from kernelsight.sweeps.rate_search import FULL, ROUGH, HighestRate, RateSearch, TriedRate
from kernelsight.sweeps.steady import LEAST_REQUESTS
from kernelsight.sweeps.trial_cache import trial_cache
from kernelsight.sweeps.work_budget import SearchEnded, Work

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.scenario.plan import Plan
    from kernelsight.sizing.question import Question

MEASURED = ("target-measured", "log-corrected", "points-measured")
# effort of the rate of the chosen deployment: as FULL, the ends of its range from the rates tried
SURE = FULL._replace(ends=0, tolerance=0.02, confirms=2)
# shares of its rate at which one that is dearer at any confidence is simulated for its probability
FEW_RATES = RATES[::2]
# share of the cost of the best below which another is clearly cheaper
SAME = 0.97
# GPUs that cost more than this many times the best are excluded without their exact rate
FAR = 3.0
# most requests simulated for GPUs and parallel sizes, for other settings of them, and for the exact rate of the best;
# measured: 10 us of a core each
ALLOWANCES = (2_000_000, 3_000_000, 3_000_000)


class SizeSearch:
    """A search of the cheapest deployment for a question; its forked sessions stay open until ``close``.

    ``rows``: flags of the deployments that are searched first; ``prospects``, ``options`` and ``left_out``: what can
    run, and results, by scenario; ``ended``: why it ended early; ``is_stopped``: for good; ``unsupported``: sentences
    on engines that do not support GPUs. InvalidInput: there is no such deployment.
    """

    def __init__(self, session: Session, question: Question, report: Report | None = None) -> None:
        self._session, self._report = session, report or (lambda text: None)
        self.question, self.demand, self._objectives = question, question.demand, question.objectives
        self._allowances = [allowance << (question.effort - 1) for allowance in ALLOWANCES]
        self._work = Work(self._allowances[0], question.time_limit_s)
        self._most_gpus = min(question.max_gpus, question.total_gpus or question.max_gpus)
        self._compared = [ALIASES.get(name, name) for name in question.search]
        loop = {"request_rate": FIRST_RATE} if question.users is None else {"max_concurrency": FIRST_USERS}
        self._load = {"num_prompts": LEAST_REQUESTS, **normalise(question.load), **loop}
        self._prices = read_prices(session, question.prices or None)
        gpus = list(dict.fromkeys(resolve_gpu(session, name) for name in question.gpus))
        self.rows = rows_of(session, question.deployment, gpus, self._most_gpus, question.search)
        self.forks: list[Session] = []
        self.plans: list[Plan] = []
        self.prospects: dict[str, Prospect] = {}
        self._sure: set[str] = set()
        self._not_reached: dict[str, float] = {}  # rates that rough searches may have missed, and long runs refute
        self._varied_below = math.inf  # cost up to which other settings of deployments are among the prospects
        self.is_stopped = False
        self.ended: str | None = None
        self.options: dict[str, Option] = {}
        self.left_out: dict[str, LeftOut] = {}
        self.unsupported: dict[str, None] = {}

    def close(self) -> None:
        """Free the tables of all deployments."""
        for fork in self.forks:
            fork.close()

    def run(self) -> list[Option]:
        """Return deployments with a rate, the best first; see ``left_out`` for the others.

        InvalidInput: no deployment can run.
        """
        prospects = self._open(self.rows)
        if not prospects:
            raise nothing_fits(list(self.left_out.values()), self.plans, self.forks[0])
        self._within(0, lambda: self._search_groups(prospects))
        if self.question.tune:
            self._within(1, self._search_variants)
        self._within(2, self._make_sure)
        return self.ranked()

    @property
    def not_tried(self) -> list[Prospect]:
        """The deployments that can run and that the search did not reach before its end."""
        finished = {*self.options, *self.left_out}
        return [prospect for name, prospect in self.prospects.items() if name not in finished]

    @property
    def is_complete(self) -> bool:
        """Whether the best is searched in full, and no other deployment, by a bound or a search, can cost less."""
        ranked, is_open = self.ranked(), self.not_tried or self.still_open() or self.cheaper_if_exact()
        is_open = is_open or self.is_stopped or self.ended == TOO_MANY or self._varied_below < self._lowest_cost()
        return not is_open and (not ranked or self.is_sure(ranked[0].sized))

    def least_cost(self, prospect: Prospect) -> float:
        """Return the least that a deployment can cost, by its bound: one instance without a bound."""
        return self.demand.least_cost(prospect.candidate, min(prospect.bound, NO_BOUND))

    def ranked(self) -> list[Option]:
        """Return the deployments with a rate, the best first: of equal costs one whose rate was searched in full."""

        def order(option: Option) -> tuple:
            holds, cost, *others = option.order
            return holds, cost, not self.is_sure(option.sized), *others

        return sorted(self.options.values(), key=order)

    def is_sure(self, sized: Sized) -> bool:
        """Return whether a rate was searched in full; a rough one only shows that a deployment is dearer."""
        return sized.candidate.scenario_id in self._sure

    def still_open(self) -> list[Prospect]:
        """Return deployments left out that no bound keeps from a lower cost than the best, the least cost first."""
        most = self._lowest_cost()
        passed = [(one.prospect, one.most_rate) for one in self.left_out.values() if one.prospect]
        costs = [(self.demand.least_cost(prospect.candidate, rate), prospect) for prospect, rate in passed]
        near = [(cost, prospect.candidate.scenario_id, prospect) for cost, prospect in costs if is_less(cost, most)]
        return [prospect for *_, prospect in sorted(near, key=lambda item: item[:2])]

    def note_interrupt(self) -> None:
        """Record that a Ctrl-C ended the search, whose results so far are the answer."""
        self.ended, self.is_stopped = "it was interrupted", True

    def _within(self, phase: int, search: Callable[[], None]) -> None:
        """Run a phase until its allowance and what others left, or the time, is spent, or it is interrupted."""
        if self.is_stopped:
            return
        self._work.most = sum(self._allowances[: phase + 1])
        try:
            search()
        except SearchEnded as ended:
            self.ended = str(ended)
            self.is_stopped = ended.for_good
        except KeyboardInterrupt:
            self.note_interrupt()

    def _lowest_cost(self, options: Sequence[Option] | None = None) -> float:
        """Return the lowest cost with the confidence, of all options or of some; infinite where none has it."""
        known = self.options.values() if options is None else options
        return min((option.cost for option in known if option.holds), default=math.inf)

    def _search_groups(self, prospects: Sequence[Prospect]) -> None:
        """Search the cheapest deployment of each GPU and each compared value, unless far dearer than the best."""
        groups: dict[tuple, list[Prospect]] = {}
        for prospect in prospects:
            groups.setdefault(self._group(prospect), []).append(prospect)
        one = {group: min(each.candidate.weight for each in members) for group, members in groups.items()}

        def most(prospect: Prospect) -> float:
            far = max(FAR * self._lowest_cost(), one[self._group(prospect)] * (1.0 + 1e-6))
            return min(self._lowest_cost(self._own_options(prospect)), far)

        self._search(prospects, most)

    def _own_options(self, prospect: Prospect) -> list[Option]:
        """Return the options of a deployment's group."""
        group = self._group(prospect)
        return [option for option in self.options.values() if self._group(option.sized.prospect) == group]

    def _group(self, prospect: Prospect) -> tuple:
        """Return what deployments share that are compared among themselves first: their GPUs, and compared values."""
        return (*prospect.candidate.gpus, *(prospect.candidate.flags.get(name) for name in self._compared))

    def _search_variants(self) -> None:
        """Search step sizes, CUDA graphs and disaggregation of deployments that may be cheaper with them."""
        most = self._lowest_cost()
        self._varied_below = math.inf if self.demand.total_gpus else most
        own = [one for one in self.prospects.values() if one.root is None]
        # what no engine of these GPUs accepts, no other setting of it accepts
        roots = [one for one in own if not (one.is_known and one.search.capacity.alone.lost)]
        roots.sort(key=self.least_cost)
        rows = variants(roots, self._load, lambda root: min(root.candidate.affordable_gpus(most), self._most_gpus))
        if len(rows) > MOST_VARIANTS:
            self.ended = TOO_MANY
        if rows:
            self._report(f"{len(rows[:MOST_VARIANTS]):,} deployments with other step sizes, CUDA graphs, disaggregated")
            self._search(self._open(rows[:MOST_VARIANTS], roots), lambda _: self._lowest_cost())

    def _open(self, rows: Sequence[Mapping[str, Any]], roots: Sequence[Prospect] = ()) -> list[Prospect]:
        """Plan rows of flags in a new fork, and return those that can run, with the searches of their rates.

        ``roots``: deployments of which the rows are variants.
        """
        fork = self._session.fork()
        self.forks.append(fork)
        plan, candidates = planned_candidates(fork, rows, self._load, self._prices, self.demand.total_gpus)
        known = {*self.left_out, *self.prospects}
        candidates = [candidate for candidate in candidates if candidate.scenario_id not in known]
        self.plans.append(plan)
        for row, fault in zip(rows, plan.faults, strict=True):
            if fault and candidates:  # such as an unknown value among those to search
                self.left_out[f"row {len(self.left_out)}"] = LeftOut(row, fault)
        if not candidates:
            if known:
                return []
            raise InvalidInput(next(fault for fault in plan.faults if fault))
        trials, earlier = open_trials(fork, plan, self._work), trial_cache(fork)
        self._report(
            f"{sum(one.scenario_id in trials.able for one in candidates):,} of {len(candidates):,} deployments fit"
        )
        faults: dict[str, list[dict[str, Any]]] = {}
        for fault in fork.table("deployment_faults").to_pylist():
            faults.setdefault(fault["deployment_id"], []).append(fault)
        root_of, kin = {family_of(root.candidate): root for root in roots}, dict[tuple, list[Prospect]]()
        prospects = []
        for candidate in candidates:
            if candidate.scenario_id in trials.able:
                search = RateSearch(trials, candidate.scenario_id, self._objectives, earlier)
                root, split = root_of.get(family_of(candidate)), split_of(candidate)
                relatives = kin.setdefault(split, []) if split else []
                prospects.append(Prospect(candidate, fork, plan, trials, search, root, relatives))
                self.prospects[candidate.scenario_id] = prospects[-1]
            else:
                faults_of_row = decisive(faults.get(candidate.deployment_id, []))
                self.unsupported |= {fault["sentence"]: None for fault in faults_of_row if fault["fault"] == "engine"}
                sentences = [fault["sentence"] for fault in faults_of_row] or ["its prefill replicas cannot run"]
                self.left_out[candidate.scenario_id] = LeftOut(candidate.flags, "; ".join(sentences))
        return prospects

    def _search(self, prospects: Sequence[Prospect], most: Callable[[Prospect], float]) -> None:
        """Search deployments, the most promising first, while they may cost less than ``most``.

        What others reach decides only when a deployment's turn comes. It is left out by a bound on its own rate, or by
        simulations at the rate from which it is cheaper than the best.
        """

        def turn_of(prospect: Prospect) -> tuple[float, str, Prospect]:
            cost = self.demand.least_cost(prospect.candidate, min(prospect.guess, NO_BOUND))
            return cost, prospect.candidate.scenario_id, prospect

        queue = [turn_of(prospect) for prospect in prospects]
        heapq.heapify(queue)
        try:
            while queue:
                cost, _, prospect = item = heapq.heappop(queue)
                if prospect.is_known and prospect.search.capacity.most <= 0.0:
                    self._size(prospect, prospect.search.run(ROUGH))
                elif not is_less(self.least_cost(prospect), most(prospect)):
                    self._pass_over(prospect, DEARER, prospect.bound)
                elif prospect.is_known:
                    self._examine(prospect, most(prospect))
                else:
                    if not is_less(cost, turn_of(prospect)[0]):  # else relatives put others before it
                        dearer = rate_below(self.demand.least_cost, prospect.candidate, most(prospect))
                        prospect.compute_capacity(dearer * (1.0 - 1e-6))
                    heapq.heappush(queue, turn_of(prospect))
        except SearchEnded:
            for _, name, prospect in [item, *queue]:
                if name not in self.options and not is_less(self.least_cost(prospect), self._lowest_cost()):
                    self._pass_over(prospect, DEARER, prospect.bound)
            raise

    def _examine(self, prospect: Prospect, most: float) -> None:
        """Search the rough rate of a deployment, unless short runs show that it does not cost less than ``most``."""
        needed = 0.0 if math.isinf(most) else rate_below(self.demand.least_cost, prospect.candidate, most)
        if needed > 1e-6 and not self._may_be_cheaper(prospect, needed / DOUBT, most):
            self._pass_over(prospect, NOT_REACHED, needed)
            return
        try:
            is_near = needed / DOUBT > 0.5 * prospect.search.capacity.most
            self._size(prospect, prospect.search.run(ROUGH, needed / DOUBT if is_near else None))
        except (SearchEnded, KeyboardInterrupt):
            if found := prospect.search.so_far(ROUGH):
                self._size(prospect, found)
            raise

    def _may_be_cheaper(self, prospect: Prospect, rate: float, most: float) -> bool:
        """Return whether a deployment may have a rate, and the confidence at what is served of it, by short runs.

        The first of a group that costs more than others is shown, and needs no confidence to be.
        """
        confidence, served = self.demand.confidence, rate * (1.0 - self.demand.margin)
        is_shown = is_less(self._lowest_cost(), most) and math.isinf(self._lowest_cost(self._own_options(prospect)))
        if not prospect.search.may_reach(rate):
            return False
        is_sure = is_shown or confidence <= 0.5 or may_hold(prospect, served, self._objectives, confidence)
        return is_sure and prospect.search.may_keep(rate)

    def _size(self, prospect: Prospect, rate: HighestRate) -> None:
        """Record a deployment's rate with the instances that have the confidence, or why it has no rate."""
        name = prospect.candidate.scenario_id
        if rate.rate is None:
            self.options.pop(name, None)
            reason = status_of(rate, prospect.candidate.unit)
            self.left_out[name] = LeftOut(prospect.candidate.flags, reason, miss_of(rate))
            self._report_share()
            return
        sized, before = Sized(prospect, rate), min(self.options.values(), key=lambda one: one.order, default=None)
        try:
            is_dearer = not is_less(self.demand.least_cost(prospect.candidate, rate.rate), self._lowest_cost())
            shares = FEW_RATES if is_dearer else RATES
            evidence = evidence_of(prospect.session, prospect.plan, sized, self._objectives, shares)
        except KeyboardInterrupt:
            self.note_interrupt()
            evidence = UNKNOWN
        option = option_of(sized, evidence, self.demand)
        self.left_out.pop(name, None)
        self.options[name] = option
        self._report_share()
        if before is None or (option.order < before.order and before.sized.candidate != prospect.candidate):
            self._report(f"best so far: {option}")
        if self.is_stopped:
            raise KeyboardInterrupt

    def _pass_over(self, prospect: Prospect, reason: str, most_rate: float) -> None:
        """Leave a deployment out for its cost, with the bound that this rests on: the rate that it does not exceed."""
        # below it, so that what would be cheaper at that very rate is not open for ever
        below = most_rate * (1.0 - 1e-6)
        name = prospect.candidate.scenario_id
        self.left_out[name] = LeftOut(prospect.candidate.flags, reason, None, prospect, below)
        self._report_share()

    def _report_share(self) -> None:
        """Report of how many deployments is known what they serve, or that they are not the answer."""
        known = self.options.keys() | (self.left_out.keys() & self.prospects.keys())
        self._report(Done(len(known), len(self.prospects), "deployments"))

    def check_hours(self, option: Option) -> dict[int, TriedRate]:
        """Simulate the load of one instance in the cheapest and in the dearest hour of a day; return it by hour."""
        self._work.most = self._work.spent + self._allowances[2]
        hours, checked = sorted(option.hours, key=lambda hour: (hour.instances, hour.amount)), {}
        round_up = math.ceil if option.sized.candidate.unit == "users" else float
        with contextlib.suppress(SearchEnded, KeyboardInterrupt):
            for hour in [one for one in (hours[0], hours[-1]) if one.amount] if hours else ():
                load = round_up(hour.amount / hour.instances)
                checked[hour.hour] = option.sized.prospect.search.tried_at(load, SURE)
        return checked

    def _make_sure(self) -> None:
        """Search the best in full; then whatever its cost with that rate no longer leaves out."""
        while self.options:
            best = self.ranked()[0]
            if not self.is_sure(best.sized):
                self._search_in_full(best)
            elif best.holds and (reopened := self.still_open()):
                self._search(reopened, lambda _: self._lowest_cost())
            elif self._varied_below < self._lowest_cost() < math.inf:
                self._search_variants()
            elif nearly := self.cheaper_if_exact():
                self._search_if_cheaper(nearly[0])
            elif self.not_tried:
                self._search(self.not_tried, lambda _: self._lowest_cost())
            else:
                return

    def _search_in_full(self, option: Option) -> None:
        """Search the rate of a deployment in full, beside its rough rate."""
        self._report(f"searching the rate of {option.sized.candidate.flags['gpu']} in full")
        rate = option.sized.prospect.search.run(SURE, option.sized.highest.rate)
        self._sure.add(option.sized.candidate.scenario_id)
        self._size(option.sized.prospect, rate)

    def _search_if_cheaper(self, option: Option) -> None:
        """Search a rate in full, unless one long run shows that it does not reach that from which it is cheaper."""
        candidate, search = option.sized.candidate, option.sized.prospect.search
        most = self._lowest_cost() * SAME
        needed = rate_below(self.demand.least_cost, candidate, most) / option.most_share(self.demand)
        if needed <= option.sized.highest.rate or search.tried_at(needed, SURE).verdict.keeps:
            self._search_in_full(option)
        else:
            self._not_reached[candidate.scenario_id] = needed * (1.0 - 1e-6)

    def cheaper_if_exact(self) -> list[Option]:
        """Return deployments whose rough rate may be so much too low that they cost clearly less than the best."""
        most = self._lowest_cost() * SAME
        found = []
        for option in self.options.values():
            if option.holds and option.evidence.chances and not self.is_sure(option.sized):
                not_reached = self._not_reached.get(option.sized.candidate.scenario_id, math.inf)
                rate = min(DOUBT * option.sized.highest.rate, not_reached) * option.most_share(self.demand)
                found.append((self.demand.least_cost(option.sized.candidate, rate), option.order, option))
        return [option for cost, _, option in sorted(found, key=lambda item: item[:2]) if is_less(cost, most)]
