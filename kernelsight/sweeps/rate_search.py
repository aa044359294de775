"""Searches the highest steady rate of one scenario: bracketed, then bisected to where its objectives just hold.

For a closed loop it is the highest number of users, each of whom has one request in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from kernelsight.scenario.objectives import Objective
from kernelsight.serving.load.arrivals import ramp_s_of
from kernelsight.sweeps.capacity import Capacity, capacity_of
from kernelsight.sweeps.steady import COUNTED, LEAST_REQUESTS, LONGER_RUN, STAYS, counted_values, judge
from kernelsight.sweeps.trial_cache import Judged, TrialCache
from kernelsight.sweeps.trials import Trial, Trials

LOWEST_RATE, HIGHEST_RATE = 1e-4, 1e5
# requests above the highest percentile, over all seeds: with fewer, tails are noise
TAIL = 400
MOST_REQUESTS = 100_000
SEEDS, LEAST_SEEDS = 8, 4
# requests over all seeds from which fewer seeds are enough
MANY_REQUESTS = 40_000
# factor between numbers of requests, so that loads are reused
GRAIN = 1.1
LONGEST_LOOK = 3_200
# seeds of a first look, a short run that decides only rates FAR times above the objectives
FIRST_SEEDS = 2
FAR = 2.0
# factor by which a first look may be wrong
LENIENT = 1.15
# share of the upper bound below which no rate is searched
HOPELESS = 1e-3
# factor by which latencies at less than half a rate are lower where any lower rate may still help
SETTLED = 1.005
MOST_CONFIRMED = 8
MOST_RUNS = 4
# least length of a closed loop, in mean stays: the first ones, in which all users begin at once, are warm-up
FIRST_STAYS = 8


class Effort(NamedTuple):
    """The effort of a search: how much is simulated for one rate, and the relative tolerance of the result."""

    seeds: int = SEEDS
    tail: int = TAIL
    tolerance: float = 0.01
    ends: int = 8  # most rates tried for each end of the range; 0: it is interpolated from the tried ones
    confirms: int = 4  # length factor of the run that confirms the rate; 0: none does
    horizon: float = COUNTED  # counted time of a run, in mean stays


ROUGH = Effort(2, 40, 0.04, 0, 0, 8.0)
FULL = Effort()


class TriedRate:
    """One tried rate: the requests of each seed, the number of seeds, and the verdict on its trials.

    ``trials``: simulated again, when needed, where the verdict came from the cache.
    """

    def __init__(
        self,
        rate: float,
        requests: int,
        seeds: int,
        judged: Judged,
        serve: Callable[[Iterable[int]], list[Trial]],
        trials: list[Trial] | None = None,
    ) -> None:
        self.rate, self.requests, self.seeds = rate, requests, seeds
        self.verdict, self.stay_ms, self.lost = judged
        self._serve, self._trials = serve, trials

    @property
    def trials(self) -> list[Trial]:
        """The trial of each seed."""
        if self._trials is None:
            self._trials = self._serve(range(self.seeds))
        return self._trials


class HighestRate(NamedTuple):
    """The highest steady rate of a scenario, requests/s (or users); None where none keeps the objectives.

    ``low``, ``high``: the 90 % range in which a single run of ``requests`` requests would find it. ``tried``: that
    rate, or the one nearest to the objectives; ``broken``: a higher rate, at which an objective breaks first.
    """

    rate: float | None
    low: float | None
    high: float | None
    steady: bool
    requests: int
    tried: TriedRate | None
    broken: TriedRate | None
    capacity: Capacity


def seeds_for(requests: int, effort: Effort) -> int:
    """Return the number of seeds for a run of ``requests``: longer runs, with more independent parts, need fewer."""
    return min(effort.seeds, max(math.ceil(MANY_REQUESTS / requests), LEAST_SEEDS))


class RateSearch:
    """The search of one scenario's highest rate; every rate is tried once for each effort.

    ``earlier``: the cache of verdicts of earlier processes. ``served``: all simulated loads; ``enough``: a
    bound of the rate that is low enough, if it is set before the capacity is asked for.
    """

    def __init__(
        self, trials: Trials, scenario_id: str, objectives: Sequence[Objective], earlier: TrialCache | None = None
    ) -> None:
        self._trials, self._id, self._objectives = trials, scenario_id, list(objectives)
        self._cache = earlier or TrialCache(None)
        self._tried: dict[tuple[float, Effort], TriedRate] = {}
        self._last: TriedRate | None = None
        self.served: dict[tuple[float, int], TriedRate] = {}
        self.enough = math.inf
        row = trials.scenario(scenario_id)
        self._closed = row["request_rate"] is None
        self._turns, self._think_ms = row["num_turns"] or 1, (row["think_time_s"] or 0.0) * 1e3
        self._ramp_ms = ramp_s_of(row) * 1e3 if self._closed else 0.0
        # users whose starts are spread are at every turn at any time: their stays are requests, not conversations
        self._turns_of_stay = 1 if self._ramp_ms else self._turns
        self._least = max(LEAST_REQUESTS, row["num_prompts"] or 0)
        self._longer = max(LONGER_RUN * (row["num_prompts"] or LEAST_REQUESTS), LONGER_RUN * LEAST_REQUESTS / 2)

    @cached_property
    def capacity(self) -> Capacity:
        """The upper bound of the rate, from single requests and closed loops."""
        return capacity_of(self._trials, self._id, self._objectives, self.enough)

    def run(self, effort: Effort = FULL, guess: float | None = None) -> HighestRate:
        """Search the highest steady rate; ``guess``: a rate expected to be near it."""
        if self.capacity.most <= 0.0 or (self._closed and self.capacity.most < 1.0):
            return self._answer(None, None, effort)
        holds, broken = self._narrowed(effort, guess)
        if holds and effort.confirms:
            holds, broken = self._confirmed(holds, broken, effort)
        return self._answer(holds, broken, effort)

    def so_far(self, effort: Effort) -> HighestRate | None:
        """Return what a search that ended early has found: the highest tried rate that keeps the objectives, if any."""
        tried = sorted((one for one in self._tried.values()), key=lambda one: one.rate)
        holds = max((one for one in tried if one.verdict.keeps), key=lambda one: one.rate, default=None)
        if holds is None:
            return None
        broken = next((one for one in tried if one.rate > holds.rate), None)
        return self._answer(holds, broken, effort._replace(ends=0))

    def _confirmed(
        self, holds: TriedRate, broken: TriedRate | None, effort: Effort
    ) -> tuple[TriedRate | None, TriedRate | None]:
        """Return the highest rate, at most ``holds``, that a longer run keeps too: a queue's slow swings need time."""
        requests, step = min(effort.confirms * holds.requests, MOST_REQUESTS), 0.985
        for _ in range(MOST_CONFIRMED):
            longer = self._serve(holds.rate, requests, seeds_for(requests, effort))
            if longer.verdict.keeps:
                return holds, broken
            broken, rate = longer, self._moved(holds.rate, step)
            holds, step = self._try(rate, effort, look=False), step**1.6
        return (holds if holds.verdict.keeps else None), broken

    def _narrowed(self, effort: Effort, guess: float | None) -> tuple[TriedRate | None, TriedRate | None]:
        """Bisect to the highest rate that keeps the objectives, and one within the tolerance above it that does not."""
        holds, broken = self._bracket(effort, guess)
        while holds and broken and broken.rate > holds.rate * (1.0 + effort.tolerance):
            if self._closed and broken.rate <= holds.rate + 1.0:
                break
            middle = self._try(self._between(holds, broken), effort)
            holds, broken = (middle, broken) if middle.verdict.keeps else (holds, middle)
        return holds, broken

    def may_reach(self, rate: float) -> bool:
        """Return whether a rate may keep the objectives: by the bound, and a first look."""
        rate = self._allowed(rate)
        if rate > self.capacity.most:
            return False
        look = self._serve(rate, min(self._least_requests(ROUGH), LONGEST_LOOK), FIRST_SEEDS)
        return look.verdict.level <= LENIENT

    def may_keep(self, rate: float) -> bool:
        """Return whether a rate may keep the objectives: by the bound, a first look, and then a short steady run."""
        return self.may_reach(rate) and self._try(self._allowed(rate), ROUGH).verdict.keeps

    def tried_at(self, rate: float, effort: Effort = FULL) -> TriedRate:
        """Return a rate tried as in a search."""
        return self._try(self._allowed(rate), effort, look=False)

    def _answer(self, holds: TriedRate | None, broken: TriedRate | None, effort: Effort) -> HighestRate:
        if holds is None:
            drifts = broken is not None and broken.verdict.pressure <= 1.0
            return HighestRate(None, None, None, not drifts, 0, broken, broken, self.capacity)
        low, high = (self._end(holds, effort, side) if effort.ends else self._near_end(holds, side) for side in (-1, 1))
        low, high = min(low, holds.rate), max(min(high, self._highest, self.capacity.most), holds.rate)
        steady = holds.verdict.stays >= 0.95 * COUNTED
        return HighestRate(holds.rate, low, high, steady, holds.requests, holds, broken, self.capacity)

    def _bracket(self, effort: Effort, guess: float | None) -> tuple[TriedRate | None, TriedRate | None]:
        """Return a rate that keeps the objectives and a higher one that does not; None where there is no such rate."""
        holds = broken = None
        factor = 1.05 if guess else 1.6
        rate = self._allowed(min(max(guess or 0.5 * self.capacity.most, LOWEST_RATE), HIGHEST_RATE))
        while True:
            tried = self._try(rate, effort)
            if tried.verdict.keeps:
                holds = tried
                if broken or rate >= min(self._highest, HIGHEST_RATE):
                    return holds, broken
                rate = min(self._moved(rate, factor), HIGHEST_RATE)
            else:
                before, broken = broken, tried
                hopeless = 1.0 if self._closed else self.capacity.most * HOPELESS
                # at less than half the rate latencies are the same: they are those of requests alone
                slowed = before and before.rate > 2.0 * rate and before.verdict.level < SETTLED * tried.verdict.level
                alone = slowed and 1.0 < tried.verdict.level <= FAR
                if holds or rate <= hopeless or tried.lost or alone:
                    return holds, broken
                rate = self._moved(rate, 1.0 / factor)
            factor **= 1.5

    def _try(self, rate: float, effort: Effort, look: bool = True) -> TriedRate:
        """Try a rate: by a first look, and where that does not decide, by runs that are long enough for a verdict.

        A rate that is far above the objectives is decided by the first look; without ``look`` it is not.
        """
        earlier = self._tried.get((rate, effort))
        if earlier and (look or earlier.seeds > FIRST_SEEDS):
            return earlier
        requests = self._least_requests(effort)
        tried = self._serve(rate, min(requests, LONGEST_LOOK), FIRST_SEEDS)
        if not look or tried.verdict.level <= FAR:
            tried = self._serve_long(tried, requests, effort)
        self._tried[rate, effort] = tried
        return tried

    def _serve_long(self, look: TriedRate, requests: int, effort: Effort) -> TriedRate:
        """Simulate longer and longer runs at a rate until one is long enough and steady, or none will ever be."""
        tried, rate, before = look, look.rate, 0.0
        for _ in range(MOST_RUNS):
            if tried.verdict.level <= FAR:
                requests = max(requests, self._needed(tried, effort))
            tried = self._serve(rate, requests, seeds_for(requests, effort))
            verdict = tried.verdict
            long_enough = verdict.stays >= effort.horizon or requests >= MOST_REQUESTS
            if verdict.pressure > 1.0 or (long_enough and not verdict.drifts):
                break
            # where latencies grow with the length of the run, there is no steady state
            if verdict.drifts and (requests >= MOST_REQUESTS or 0.0 < verdict.stays < 1.2 * before):
                break
            before = verdict.stays
            if long_enough:  # it drifts, or seems to: twice as long decides
                requests = min(2 * requests, MOST_REQUESTS)
        return tried

    def _least_requests(self, effort: Effort) -> int:
        """Return the requests of one seed that are enough for the objectives' percentiles."""
        tail_share = min((objective.share for objective in self._objectives if objective.share), default=1.0)
        least = max(self._least, effort.tail / tail_share / effort.seeds)
        return _rounded(least * STAYS / COUNTED)

    def _needed(self, tried: TriedRate, effort: Effort) -> int:
        """Return the requests of one seed that fill the horizon at a rate."""
        stays = 1.05 * effort.horizon * STAYS / COUNTED
        sessions = tried.rate if self._closed else tried.rate * tried.stay_ms / 1e3
        return _rounded(stays * sessions * self._turns_of_stay + self._joining(tried.rate))

    def _joining(self, users: float) -> float:
        """Return the most requests that are sent while users join, when half of them are there on average."""
        if not self._ramp_ms:
            return 0.0
        alone_ms = float(np.mean(self.capacity.alone.latencies["e2e"]))
        conversation_ms = self._turns * alone_ms + (self._turns - 1) * self._think_ms
        return 0.5 * users * self._turns * self._ramp_ms / conversation_ms

    def _stay_ms(self, trials: Sequence[Trial]) -> float:
        """Return the mean time in ms that a request, or a conversation, stays in the system, with its pauses."""
        e2e = [counted_values(trial.latencies["e2e"]) for trial in trials]
        mean = float(np.mean([values.mean() for values in e2e if values.size] or [0.0]))
        return (mean * self._turns + self._think_ms * (self._turns - 1)) * self._turns_of_stay / self._turns

    def _serve(self, rate: float, requests: int, seeds: int) -> TriedRate:
        """Simulate a rate with several seeds, beyond those of the last call, or take the verdict from the cache."""
        if self._closed:  # users that begin at once stay synchronised for some stays
            least = FIRST_STAYS * rate * self._turns_of_stay + self._joining(rate)
            requests = min(max(requests, _rounded(least)), MOST_REQUESTS)
        before = self._last if self._last and (self._last.rate, self._last.requests) == (rate, requests) else None
        done = before.seeds if before else 0
        seeds = max(seeds, done)
        load = {"max_concurrency": round(rate)} if self._closed else {"request_rate": rate}
        serve = partial(self._trials.serve_again, self._id, requests, **load)
        # length of the run in which the rate must hold, in runs of one seed
        longer = self._longer / (requests * COUNTED / STAYS)
        key = self._id, self._objectives, rate, requests, seeds, longer
        judged = self._cache.get(*key)
        if seeds > done:
            self._trials.count(self._id, requests, seeds - done)
        trials = None
        if judged is None:
            trials = [*(before.trials if before else []), *(serve(range(done, seeds)) if seeds > done else [])]
            stay_ms = self._stay_ms(trials)
            verdict = judge(trials, self._objectives, stay_ms, longer)
            judged = Judged(verdict, stay_ms, any(trial.lost for trial in trials))
            self._cache.put(*key, judged)
        self._last = TriedRate(rate, requests, seeds, judged, serve, trials)
        self.served[rate, requests] = TriedRate(rate, requests, seeds, judged, serve)  # without its many latencies
        return self._last

    def _end(self, holds: TriedRate, effort: Effort, side: int) -> float:
        """Return the lowest (``side`` -1) or highest (1) rate that a single run would find: where its bound is one."""
        rate, step = holds.rate, 1.05
        below = (holds.rate, _bound(holds, side))
        if side < 0 and below[1] <= 1.0:
            return holds.rate
        for _ in range(effort.ends):
            if self._moved(rate, step**side) == rate:
                break
            rate = self._moved(rate, step**side)
            tried = self._try(rate, effort, look=False)
            reached = (rate, _bound(tried, side))
            if (reached[1] <= 1.0) == (side < 0):
                return _crossing(*sorted((below, reached)))
            below, step = reached, step * 1.05
        return rate

    def _near_end(self, holds: TriedRate, side: int) -> float:
        """Estimate an end of the range, as ``_end``, between the simulated rates on its two sides.

        By their levels, and the margin that one run has at ``holds``: margins of short runs, of two seeds, are wide.
        """
        bound = _bound(holds, side)
        margin = bound / max(holds.verdict.level, 1e-9)
        levels = {one.rate: margin * one.verdict.level for one in self.served.values()} | {holds.rate: bound}
        points = sorted(point for point in levels.items() if side * (point[0] - holds.rate) >= 0.0)
        broken = [point for point in points if point[1] > 1.0]
        if side < 0:
            below = max((point for point in points if point[1] <= 1.0), default=(LOWEST_RATE, 0.0))
            return _crossing(below, min((point for point in broken if point > below), default=below))
        above = min(broken, default=None)
        return _crossing(max((one for one in points if one < above), default=above), above) if above else points[-1][0]

    def _allowed(self, rate: float) -> float:
        """Return the nearest rate that can be simulated: users are a whole number, at least one, within the bound."""
        if self._closed:
            return min(max(float(round(rate)), 1.0), self._highest)
        return min(max(rate, LOWEST_RATE), HIGHEST_RATE)

    @property
    def _highest(self) -> float:
        """The highest rate to try; of users the upper bound."""
        return max(math.floor(self.capacity.most), 1.0) if self._closed else HIGHEST_RATE

    def _moved(self, rate: float, factor: float) -> float:
        """Return a rate times a factor; of users at least one more or fewer, and never none."""
        if not self._closed:
            return rate * factor
        moved = self._allowed(rate * factor)
        return self._allowed(rate + math.copysign(1.0, factor - 1.0)) if moved == rate else moved

    def _between(self, holds: TriedRate, broken: TriedRate) -> float:
        """Return a rate strictly between two."""
        middle = _between(holds, broken)
        return min(max(self._allowed(middle), holds.rate + 1.0), broken.rate - 1.0) if self._closed else middle


def _rounded(requests: float) -> int:
    """Round requests up to one of few numbers, so that loads are drawn once for many rates."""
    steps = math.ceil(math.log(max(requests, 1.0) / LEAST_REQUESTS / STAYS * COUNTED, GRAIN) - 1e-9)
    return min(round(LEAST_REQUESTS * STAYS / COUNTED * GRAIN ** max(steps, 0)), MOST_REQUESTS)


def _bound(tried: TriedRate, side: int) -> float:
    """Return the pressure in the worst run of one seed (``side`` -1), or in the best (1); infinite with a drift."""
    bound = tried.verdict.worst if side < 0 else tried.verdict.best
    return math.inf if tried.verdict.drifts else bound


def _between(holds: TriedRate, broken: TriedRate) -> float:
    """Return the rate between two at which the pressure should be one, on logarithms, and not too near either."""
    fraction, (below, above) = 0.5, (holds.verdict.pressure, broken.verdict.pressure)
    if 1.0 / FAR < below < 1.0 < above < FAR:  # outside, latencies are too steep to interpolate
        low, high = -math.log(below), math.log(above)
        fraction = min(max(low / (low + high), 0.2), 0.8)
    return holds.rate * (broken.rate / holds.rate) ** fraction


def _crossing(below: tuple[float, float], above: tuple[float, float]) -> float:
    """Return the rate between two points (rate, ratio) at which the ratio is one, on logarithms."""
    low, high = math.log(max(below[1], 1e-9)), math.log(min(above[1], 1e9))
    fraction = -low / (high - low) if high > low else 0.5
    return below[0] * (above[0] / below[0]) ** fraction
