"""Branch-and-bound search of the cheapest deployment at a rate: only those that may beat the best are simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.kernels.labels import GPU_MEASURED
from kernelsight.scenario.objectives import Objective
from kernelsight.scenario.refusals import decisive
from kernelsight.sizing.candidates import MOST_GPUS, Candidate, planned_candidates
from kernelsight.sizing.opened_deployments import OpenedDeployments
from kernelsight.sizing.prospects import CostOf, LeftOut, Prospect, Sized, miss_of, nothing_fits, rate_below
from kernelsight.sizing.tuning import changed_rows, changes_nothing
from kernelsight.sweeps.advice import wider_graphs
from kernelsight.sweeps.find_rate import open_trials, status_of
from kernelsight.sweeps.rate_search import FULL, LENIENT, ROUGH, HighestRate, RateSearch
from kernelsight.sweeps.trial_cache import trial_cache
from kernelsight.sweeps.work_budget import SearchEnded, Work

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

MEASURED = ("target-measured", "log-corrected", "points-measured")
# factor by which a rough rate may be wrong: deployments within it of the best are searched in full
DOUBT = 1.08
# most by which other step sizes raise a rate
MOST_GAIN = 1.4
# most by which the bound on a rate rises where CUDA graphs end below the batch size
GRAPHS_GAIN = 2.0
# GPUs that cost more than this many times the best are excluded without a search of their exact rate
FAR = 20.0
FAR_DEARER = f"it costs more than {FAR:g} times the best"
NO_CHEAPER = "it is no cheaper than with the engine's own sizes"
NO_BETTER = "it keeps no lower latencies than with the engine's own sizes"
NOT_REACHED = "it does not reach the rate at which it would be cheaper than another"
# most requests simulated to find the cheapest, and then for its exact rate; measured: 10 us of a core each
MOST_EXPLORED, MOST_CONFIRMED = 3_000_000, 2_500_000
# most deployments, left out by their cost, that are looked at again at a time
MOST_AGAIN = 4


class SizeSearch(OpenedDeployments):
    """A search of the cheapest deployment at a rate; its forked sessions stay open until ``close``.

    ``rate``: requests/s or users, to sustain; ``compared``: flags of which each value is searched separately;
    ``total_gpus``, ``most_gpus``: GPUs in all, and of one instance; ``time_limit``: seconds; ``effort``: each step
    doubles the allowances of requests. ``sized`` and ``left_out``: results by scenario; ``ended``: why it ended early;
    ``unsupported``: sentences on engines that do not support GPUs of the search.
    """

    def __init__(
        self,
        session: Session,
        rate: float,
        objectives: Sequence[Objective],
        load: Mapping[str, Any],
        prices: Mapping[str, float],
        report: Callable[[str], None] | None = None,
        time_limit: float | None = None,
        total_gpus: int | None = None,
        most_gpus: int = MOST_GPUS,
        compared: Sequence[str] = (),
        effort: int = 1,
    ) -> None:
        self._total_gpus, self._most_gpus, self._compared = total_gpus, most_gpus, compared
        self._allowances = [allowance << (effort - 1) for allowance in (MOST_EXPLORED, MOST_CONFIRMED, MOST_CONFIRMED)]
        super().__init__()
        self._work = Work(self._allowances[0], time_limit)
        self.ended: str | None = None
        self._stopped = False
        self._runnable: list[Candidate] = []
        self._session, self._rate, self._objectives = session, rate, list(objectives)
        self._load, self._prices = load, prices
        self._report = report or (lambda text: None)
        self.sized: dict[str, Sized] = {}
        self.left_out: dict[str, LeftOut] = {}
        self.unsupported: dict[str, None] = {}
        self._sure: set[str] = set()
        self._tunable: Sequence[Prospect] = []
        self._tuned_to, self._decided_by = 0.0, 0

    def run(self, rows: Sequence[Mapping[str, Any]], tune: bool = True) -> list[Sized]:
        """Search rows of flags; return deployments with a rate, the cheapest first; see ``left_out`` for the others.

        ``tune``: try the best with other step sizes. InvalidInput: no deployment can run.
        """
        prospects = self._open(rows)
        if not prospects:
            raise nothing_fits(list(self.left_out.values()), self.plans, self.forks[0])
        self._tunable = prospects if tune else []
        self._within(self._allowances[0], lambda: self._explore(prospects))
        if not self._stopped:
            self._within(self._allowances[1], self._confirm)
        # the third allowance is for what a decision at a confidence looks at again
        self._decided_by = self._work.spent + self._allowances[2]
        return self.ranked()

    @property
    def not_tried(self) -> list[Candidate]:
        """The candidates that can run and that the search did not reach before its end."""
        finished = {*self.sized, *self.left_out}
        return [candidate for candidate in self._runnable if candidate.scenario_id not in finished]

    @property
    def is_stopped(self) -> bool:
        """Whether time is over, or the search was interrupted."""
        return self._stopped

    def _within(self, allowance: int, search: Callable[[], None]) -> None:
        """Run one phase of the search until its allowance of requests or the time is spent, or it is interrupted."""
        self._work.most = self._work.spent + allowance
        try:
            search()
        except SearchEnded as ended:
            self.ended = str(ended)
            self._stopped = ended.for_good
        except KeyboardInterrupt:
            self.note_interrupt()

    def note_interrupt(self) -> None:
        """Record that a Ctrl-C ended the search, whose results so far are the answer."""
        self.ended, self._stopped = "it was interrupted", True

    def _explore(self, prospects: Sequence[Prospect]) -> None:
        """Search the cheapest deployment of each GPU and each compared value, by rough rates."""
        groups: dict[tuple, list[Prospect]] = {}
        for prospect in prospects:
            values = (prospect.candidate.flags.get(name) for name in self._compared)
            groups.setdefault((*prospect.candidate.gpus, *values), []).append(prospect)
        end = self._work.most
        for number, group in enumerate(groups.values()):
            # each group has an equal share of the remaining allowance
            self._work.most = self._work.spent + (end - self._work.spent) // (len(groups) - number)
            best = min(self.sized.values(), key=lambda sized: sized.order, default=None)
            try:
                self._search(group, best)
            except SearchEnded as ended:
                if ended.for_good:
                    raise
                self.ended = str(ended)

    def _confirm(self) -> None:
        """Search the rate of the best in full, and try other step sizes on the deployments nearest to it."""
        self._make_sure()
        if self._tunable and self.sized:
            best = self._measured()[0]
            self._tuned_to = best.weight
            self._tune(lambda candidate: self._needed_to_beat(candidate, best))
            self._make_sure()

    def ranked(self) -> list[Sized]:
        """Return the deployments with a rate, the cheapest first."""
        return sorted(self.sized.values(), key=lambda sized: sized.order)

    def _open(self, rows: Sequence[Mapping[str, Any]]) -> list[Prospect]:
        """Plan rows of flags in a new fork, and return those that can run, with the searches of their rates."""
        fork = self._session.fork()
        self.forks.append(fork)
        plan, candidates = planned_candidates(fork, rows, self._load, self._prices, self._total_gpus)
        known = {*self.left_out, *(candidate.scenario_id for candidate in self._runnable)}
        candidates = [candidate for candidate in candidates if candidate.scenario_id not in known]
        self.plans.append(plan)
        for row, fault in zip(rows, plan.faults, strict=True):
            if fault and candidates:  # such as an unknown value among those to search
                self.left_out[f"row {len(self.left_out)}"] = LeftOut(row, fault)
        if not candidates and not known:
            raise InvalidInput(next(fault for fault in plan.faults if fault))
        trials = open_trials(fork, plan, self._work)
        earlier_trials = trial_cache(fork)
        self._report(f"{len(trials.able):,} of {len(candidates):,} deployments fit")
        faults: dict[str, list[dict[str, Any]]] = {}
        for fault in fork.table("deployment_faults").to_pylist():
            faults.setdefault(fault["deployment_id"], []).append(fault)
        prospects = []
        for candidate in candidates:
            if candidate.scenario_id in trials.able:
                search = RateSearch(trials, candidate.scenario_id, self._objectives, earlier_trials)
                prospects.append(Prospect(candidate, trials, search))
                self._runnable.append(candidate)
            else:
                faults_of_row = decisive(faults.get(candidate.deployment_id, []))
                self.unsupported |= {fault["sentence"]: None for fault in faults_of_row if fault["fault"] == "engine"}
                sentences = [fault["sentence"] for fault in faults_of_row] or ["its prefill replicas cannot run"]
                self.left_out[candidate.scenario_id] = LeftOut(candidate.flags, "; ".join(sentences))
        return prospects

    def _search(self, prospects: Iterable[Prospect], elsewhere: Sized | None) -> Sized | None:
        """Search the prospects of a GPU in the order of their least possible cost; return the cheapest.

        ``elsewhere``: the best on other GPUs so far.
        """
        best = None
        for prospect in sorted(prospects, key=self._least_cost):
            capacity = prospect.search.capacity
            if capacity.most <= 0.0:
                self._size(prospect, prospect.search.run(ROUGH))
                continue
            if not self._is_near(prospect, elsewhere):
                self._pass_over(prospect, FAR_DEARER, capacity.most)
                continue
            rate_needed = self._needed(prospect.candidate, best)
            if rate_needed > capacity.most:
                self._pass_over(prospect, "bounds on its rate make it dearer than another", capacity.most)
                continue
            if rate_needed > 0.0 and not prospect.search.may_keep(rate_needed / DOUBT):
                self._pass_over(prospect, NOT_REACHED, rate_needed)
                continue
            sized = self._size_roughly(prospect, rate_needed / DOUBT or None)
            if sized and (best is None or sized.order < best.order):
                best = sized
        return best

    def _is_near(self, prospect: Prospect, best: Sized | None) -> bool:
        """Return whether a prospect may cost less than ``FAR`` times the best."""
        if best is None:
            return True
        rate_needed = self._rate / max(math.floor(FAR * best.weight / prospect.candidate.weight), 1)
        return rate_needed <= prospect.search.capacity.most

    def _size(self, prospect: Prospect, rate: HighestRate) -> Sized | None:
        """Record a prospect's rate with its instances, or why it has none."""
        if rate.rate is None:
            self._exclude(prospect, status_of(rate, prospect.candidate.unit), miss_of(rate))
            return None
        sized = Sized(prospect, rate, max(math.ceil(self._rate / rate.rate * (1.0 - 1e-9)), 1))
        best_before = min(self.sized.values(), key=lambda earlier: earlier.order, default=None)
        self.left_out.pop(prospect.candidate.scenario_id, None)
        self.sized[prospect.candidate.scenario_id] = sized
        if best_before is None or (sized.order < best_before.order and best_before.candidate != sized.candidate):
            self._report(f"best so far: {sized}")
        return sized

    def _size_roughly(self, prospect: Prospect, guess: float | None) -> Sized | None:
        """Search the rough rate of a prospect, and record it; where the search ends early, what it has found."""
        try:
            return self._size(prospect, prospect.search.run(ROUGH, guess))
        except (SearchEnded, KeyboardInterrupt):
            if found := prospect.search.so_far(ROUGH):
                self._size(prospect, found)
            raise

    def _exclude(self, prospect: Prospect, reason: str, miss: float | None = None) -> None:
        self.sized.pop(prospect.candidate.scenario_id, None)
        self.left_out[prospect.candidate.scenario_id] = LeftOut(prospect.candidate.flags, reason, miss)

    def _pass_over(self, prospect: Prospect, reason: str, most_rate: float) -> None:
        """Leave a prospect out for its cost, with the bound that this rests on: the rate that it does not exceed."""
        self.sized.pop(prospect.candidate.scenario_id, None)
        flags = prospect.candidate.flags
        # below it, so that what would be cheaper at that very rate is not open for ever
        below = most_rate * (1.0 - 1e-6)
        self.left_out[prospect.candidate.scenario_id] = LeftOut(flags, reason, None, prospect, below)

    def _least_cost(self, prospect: Prospect) -> tuple[float, str]:
        """Return the least possible cost of a prospect, by the bound on its rate; ties by scenario."""
        candidate, most = prospect.candidate, prospect.search.capacity.most
        instances = max(math.ceil(self._rate / most), 1) if most > 0.0 else math.inf
        return instances * candidate.weight, candidate.scenario_id

    def _needed(self, candidate: Candidate, best: Sized | None) -> float:
        """Return the rate of one instance, in the unit of the rate, from which a candidate is worth its search; 0: any.

        From it on a candidate is cheaper than the best, or serves as much per cost: of two that cost the same, it is
        then the more probable one to hold.
        """
        if best is None:
            return 0.0
        rate_at_equal_cost = best.highest.rate * candidate.weight / best.candidate.weight
        # the rate of the best is rough, too
        weight = math.ceil(self._rate / best.highest.rate * DOUBT) * best.candidate.weight
        instances = math.floor(weight / candidate.weight - 1e-9)
        return min(rate_at_equal_cost, self._rate / instances if instances else math.inf)

    def _needed_to_beat(self, candidate: Candidate, best: Sized) -> float:
        """Return the rate of one instance, in the unit of the rate, from which a candidate is cheaper than the best."""
        instances = math.ceil(best.weight / candidate.weight - 1e-9) - 1
        return self._rate / instances if instances else math.inf

    def _tune(self, needed: Callable[[Candidate], float]) -> None:
        """Try the deployments nearest to the best with other step and CUDA graph sizes, and disaggregated.

        ``needed``: the rate of one instance from which a candidate is cheaper than the best. Only such are kept: the
        engine's default size is one setting less.
        """
        near = []
        for prospect in self._tunable:
            rate_needed = needed(prospect.candidate)
            settings = prospect.trials.settings(prospect.candidate.scenario_id)
            gain = GRAPHS_GAIN if wider_graphs(settings) else 1.0
            if rate_needed <= prospect.search.capacity.most * gain:
                level = prospect.search.look(rate_needed / MOST_GAIN)
                near += [(level, prospect.candidate.scenario_id, prospect)] if level <= LENIENT else []
        rows, levels = changed_rows(near, self._load, self._most_gpus)
        if not rows:
            return
        self._report(f"trying {len(rows)} deployments with other sizes of a step and of CUDA graphs, or disaggregated")
        for prospect in self._open(rows):
            rate_needed = needed(prospect.candidate)
            if math.isinf(rate_needed):
                self._pass_over(prospect, NO_CHEAPER, math.inf)
                continue
            if changes_nothing(prospect, rate_needed / MOST_GAIN, levels):
                self._exclude(prospect, NO_BETTER)
                continue
            if not prospect.search.may_keep(rate_needed / DOUBT):
                self._pass_over(prospect, NO_CHEAPER, rate_needed)
                continue
            sized = self._size_roughly(prospect, rate_needed / DOUBT)
            if sized and sized.highest.rate * DOUBT < rate_needed:
                self._pass_over(prospect, NO_CHEAPER, sized.highest.rate * DOUBT)

    def look_again(self, cost_of: CostOf, most: float) -> bool:
        """Look again at deployments that were left out by their cost, now that the best costs ``most``.

        At a confidence the best may need more instances than at its highest rate. Return whether there were any.
        """
        before = self.open_at(cost_of, most)

        def again() -> None:
            if self._tunable and self.sized and most > self._tuned_to * (1.0 + 1e-9):
                self._tuned_to = most
                self._tune(lambda candidate: rate_below(cost_of, candidate, most))
            for prospect in self.open_at(cost_of, most)[:MOST_AGAIN]:
                rate_needed = rate_below(cost_of, prospect.candidate, most)
                if rate_needed / DOUBT > 1e-9 and not prospect.search.may_keep(rate_needed / DOUBT):
                    self._pass_over(prospect, NOT_REACHED, rate_needed)
                    continue
                self._size_roughly(prospect, rate_needed / DOUBT or None)

        tuned, ended = self._tuned_to, self.ended
        if not self._stopped:
            self._within(max(self._decided_by - self._work.spent, 0), again)
        if self.ended != ended:
            return False
        return bool(before) or self._tuned_to > tuned

    def open_at(self, cost_of: CostOf, most: float) -> list[Prospect]:
        """Return the deployments left out that no bound keeps from a cost below ``most``, the least cost first."""
        passed = [one for one in self.left_out.values() if one.prospect]
        costs = [(cost_of(one.prospect.candidate, one.most_rate), one.prospect) for one in passed]
        near = [(cost, prospect) for cost, prospect in costs if cost < most * (1.0 - 1e-9)]
        return [prospect for _, prospect in sorted(near, key=lambda pair: (pair[0], pair[1].candidate.scenario_id))]

    def _make_sure(self) -> None:
        """Search the best in full, and then each deployment that may be cheaper and holds the rate that it needs."""
        while ranked := self._measured():
            next_sized = ranked[0]
            if self.is_sure(next_sized):
                best = next_sized
                near = (sized for sized in ranked if self._may_be_cheaper(sized, best))
                next_sized = next((sized for sized in near if not self._is_no_cheaper(sized, best)), None)
            if next_sized is None:
                return
            self._search_in_full(next_sized)

    def _search_in_full(self, sized: Sized) -> Sized | None:
        """Search a rate in full; return the deployment with it, None where no rate holds."""
        self._report(f"searching the rate of {sized.candidate.flags['gpu']} in full")
        rate = sized.prospect.search.run(FULL, sized.highest.rate)
        self._sure.add(sized.candidate.scenario_id)
        return self._size(sized.prospect, rate)

    def confirm(self, sized: Sized) -> bool:
        """Search the rate of a chosen deployment in full; return whether the allowance and the time sufficed."""
        if not self._stopped:
            self._within(max(self._decided_by - self._work.spent, 0), lambda: self._search_in_full(sized))
        return self.is_sure(sized)

    def is_sure(self, sized: Sized) -> bool:
        """Return whether a rate was searched in full; a rough one only shows that a deployment is dearer."""
        return sized.candidate.scenario_id in self._sure

    def _measured(self) -> list[Sized]:
        """Return the deployments on measured GPUs, the cheapest first; all of them where there is none.

        Others rarely hold with the confidence: they are searched in full only once they are known to.
        """
        ranked = self.ranked()
        return [
            sized for sized in ranked if self.tier_of(sized.candidate)["tier"] in (*MEASURED, GPU_MEASURED)
        ] or ranked

    def _may_be_cheaper(self, sized: Sized, best: Sized) -> bool:
        """Return whether a full search may show that a deployment with a rough rate is cheaper than the best."""
        instances = max(math.ceil(self._rate / (sized.highest.rate * DOUBT)), 1)
        return not self.is_sure(sized) and round(instances * sized.candidate.weight, 9) < round(best.weight, 9)

    def _is_no_cheaper(self, sized: Sized, best: Sized) -> bool:
        """Return whether a deployment fails at the rate from which it would be cheaper than the best."""
        return not sized.prospect.search.keeps(self._needed_to_beat(sized.candidate, best))
