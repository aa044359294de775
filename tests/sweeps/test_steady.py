"""Steady rates against a queue whose tail is known in closed form; drift; noise of requests that wait together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernelsight.scenario.objectives import Objective, objectives_of
from kernelsight.serving.engine.records import ITL_BINS
from kernelsight.sweeps.capacity import Capacity, capacity_of
from kernelsight.sweeps.rate_search import FULL, LOWEST_RATE, RateSearch, _rounded, seeds_for
from kernelsight.sweeps.steady import COUNTED, STAYS, judge, noise_of, student
from kernelsight.sweeps.trial_cache import TrialCache
from kernelsight.sweeps.trials import Trial, bin_centres

MOST_MS = 200.0
SERVICE_S = 0.02
P99 = Objective("ttft", 99.0, MOST_MS)


class OneServer:
    """Trials of a server with exponential times: a request stays longer than t with probability exp(-(mu - rate) t)."""

    def __init__(self, seed: int = 0, grows: float = 0.0) -> None:
        self.seed, self.grows = seed, grows
        self.counted = self.served = 0

    def scenario(self, _: str) -> dict[str, Any]:
        load = {"num_turns": None, "think_time_s": None, "num_prompts": 1000, "request_rate": 1.0}
        return load | {"replicas": 1, "decode_replicas": None}

    def settings(self, _: str) -> dict[str, Any]:
        return {"max_num_seqs": 16, "dp": 1}

    def count(self, _: str, requests: int, seeds: int) -> None:
        self.counted += requests * seeds

    def serve(self, name: str, requests: int, seeds: Iterable[int], **load: Any) -> list[Trial]:
        return self.serve_again(name, requests, seeds, **load)

    def serve_again(self, _: str, requests: int, seeds: Iterable[int], **load: Any) -> list[Trial]:
        rate, numbers = load["request_rate"], list(seeds)
        self.served += requests * len(numbers) if rate else 0
        return [self.one(requests, rate, seed) for seed in numbers]

    def one(self, requests: int, rate: float | None, seed: int) -> Trial:
        random = np.random.default_rng((self.seed, seed))
        gaps, services = random.exponential(1.0, requests), random.exponential(SERVICE_S, requests)
        if rate is None:  # a closed loop: a request meets nobody, or all seats are taken all the time
            stays, duration = services, float(services.sum())
        else:
            arrivals = np.cumsum(gaps) * (requests / rate / gaps.sum())
            steps = np.concatenate([[0.0], services[:-1] - np.diff(arrivals)])
            ahead = np.cumsum(steps)
            stays = ahead - np.minimum.accumulate(ahead) + services
            stays = stays * (1.0 + self.grows * np.arange(requests) / requests)
            duration = float(arrivals[-1] - arrivals[0])
        ms = stays * 1e3
        latencies = {"ttft": ms, "e2e": ms, "queue": ms, "tpot": np.full(requests, np.nan)}
        return Trial(latencies, np.zeros(ITL_BINS, np.int64), False, (1.0, 1.0), duration)


def true_rate(share: float) -> float:
    """Return the rate at which that share of requests stays longer than the objective."""
    return 1.0 / SERVICE_S + math.log(share) / (MOST_MS / 1e3)


def test_found_rates_lie_a_little_below_the_true_one():
    found = [RateSearch(OneServer(seed), "s", [P99]).run(FULL) for seed in range(12)]
    true = true_rate(0.01)
    rates = np.array([one.rate for one in found])
    # so that a longer run keeps the objective with confidence, and not by so much that GPUs are wasted
    assert (rates <= true).mean() >= 0.9 and rates.min() >= 0.75 * true and rates.mean() >= 0.8 * true
    assert all(one.low <= one.rate <= one.high and one.steady for one in found)
    assert np.mean([one.low <= true <= one.high for one in found]) >= 0.9


def test_a_search_that_is_asked_again_reads_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELSIGHT_CACHE", str(tmp_path))
    first, again, other = OneServer(3), OneServer(3), OneServer(3)
    key = "5" * 64
    found = RateSearch(first, "s", [P99], TrialCache(key)).run(FULL)
    assert first.counted == first.served > 0
    read = RateSearch(again, "s", [P99], TrialCache(key)).run(FULL)
    # it counts as the same work, so that it takes the same way, and nothing is served
    assert again.served == 0 and again.counted == first.counted
    assert (read.rate, read.low, read.high, read.steady) == (found.rate, found.low, found.high, found.steady)
    assert read.tried.verdict == found.tried.verdict and read.broken.verdict == found.broken.verdict
    # what somebody asks of the trials themselves is served again
    assert [one.duration_s for one in read.tried.trials] == [one.duration_s for one in found.tried.trials]
    tighter = Objective("ttft", 99.0, 0.9 * MOST_MS)
    assert RateSearch(other, "s", [tighter], TrialCache(key)).run(FULL).rate < found.rate and other.served > 0


def test_longer_runs_of_other_seeds_keep_them():
    found = RateSearch(OneServer(3), "s", [P99]).run(FULL)
    checks = [OneServer(99).one(10 * found.requests, found.rate, seed) for seed in range(20)]
    kept = [np.percentile(trial.latencies["ttft"], 99) <= MOST_MS for trial in checks]
    assert np.mean(kept) >= 0.9


def test_a_latency_that_grows_is_a_drift():
    def drifts(grows: float, seed: int) -> bool:
        trials = OneServer(seed, grows).serve("s", 3000, range(8), request_rate=20.0)
        return judge(trials, [P99], 33.0, 4.0).drifts

    assert all(drifts(2.0, seed) for seed in range(10))
    assert sum(drifts(0.0, seed) for seed in range(60)) <= 3


def test_answers_that_fall_behind_are_a_drift_whatever_the_objective_is_on():
    trials = OneServer(5).serve("s", 3000, range(8), request_rate=20.0)
    behind = [
        trial._replace(latencies=trial.latencies | {"e2e": trial.latencies["e2e"] + np.arange(3000.0)})
        for trial in trials
    ]
    assert judge(behind, [P99], 33.0, 4.0).drifts and not judge(trials, [P99], 33.0, 4.0).drifts


def test_trials_without_a_completed_request_keep_nothing():
    (trial,) = OneServer(5).serve("s", 3000, [0], request_rate=20.0)
    nothing = trial._replace(latencies={name: np.zeros(0) for name in trial.latencies})
    assert not judge([trial, nothing], [P99], 33.0, 4.0).keeps


def test_a_seed_without_any_latency_does_not_hide_the_others():
    trials = OneServer(5).serve("s", 3000, range(2), request_rate=20.0)
    quiet = trials[0]._replace(latencies=trials[0].latencies | {"queue": np.zeros(3000)})
    assert judge([quiet, trials[1]], [Objective("queue", None, 1e-3)], 33.0, 4.0).level > 1.0


def test_an_overloaded_server_has_no_steady_rate():
    search = RateSearch(OneServer(1), "s", [Objective("ttft", 50.0, 1e9)])
    found = search.run(FULL)
    # no objective is in the way: what ends the search is that the queue grows
    assert 0.7 / SERVICE_S < found.rate < 1.02 / SERVICE_S
    assert found.high <= 1.3 / SERVICE_S


def test_no_look_is_at_less_than_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    users: list[float] = []

    def serve(search: RateSearch, rate: float, *_: int) -> SimpleNamespace:
        users.append(rate)
        return SimpleNamespace(verdict=SimpleNamespace(level=2.0))

    monkeypatch.setattr(RateSearch, "_serve", serve)
    search = RateSearch(OneServer(1), "s", [P99])
    search._closed, search.__dict__["capacity"] = True, Capacity(None, 7.9, None)
    for asked in (0.0446, 0.0, 3.4, 99.0):
        search.may_keep(asked)
    assert users == [1.0, 1.0, 3.0, 7.0]
    search._closed = False
    search.may_keep(1e-9)
    assert users[-1] == LOWEST_RATE


def test_noise_is_that_of_bursts_not_of_requests():
    random = np.random.default_rng(4)
    runs = [np.repeat(random.normal(0.0, 1.0, 40), 100) for _ in range(8)]
    noise = noise_of(runs)
    # 320 bursts of 100 equal requests each: 32,000 requests would say a tenth of the error
    assert noise.error == pytest.approx(1 / math.sqrt(320), rel=0.5)
    assert noise.margin(1.0) > noise.margin(10.0) > noise.error


def test_a_mean_is_an_objective_too():
    trials = OneServer(2).serve("s", 3000, range(8), request_rate=25.0)
    counted_ms = np.mean([np.mean(trial.latencies["e2e"][375:2875]) for trial in trials])
    for most in (0.9, 1.2):
        verdict = judge(trials, [Objective("e2e", None, most * counted_ms)], 40.0, 4.0)
        assert verdict.level == pytest.approx(1 / most, rel=1e-6)
        assert (verdict.pressure > 1.0) is (most < 1.0)
        assert verdict.best < verdict.level < verdict.pressure < verdict.worst


def test_sizes_of_runs():
    assert [round(student(0.95, freedom), 1) for freedom in (4, 7, 31, 10**6)] == [2.1, 1.9, 1.7, 1.6]
    assert _rounded(1) == 1200 and all(n <= _rounded(n) <= 1.11 * n for n in range(1200, 90_000, 997))
    assert [seeds_for(n, FULL) for n in (1200, 8000, 50_000)] == [8, 5, 4]
    assert STAYS > COUNTED >= 20


class ClosedLoop(OneServer):
    """Trials of an engine that takes 10 ms a decode step and half a millisecond a request in it; 10 steps a request."""

    def __init__(self, rate: float | None) -> None:
        super().__init__()
        self.rate, self.levels, self.held = rate, [], math.inf

    def scenario(self, _: str) -> dict[str, Any]:
        return super().scenario(_) | {"request_rate": self.rate, "decode_replicas": 2, "think_time_limit_s": None}

    def requests_in_cache(self, _: str, tokens: float) -> float:
        return self.held

    def settings(self, _: str) -> dict[str, Any]:
        return {"max_num_seqs": 16, "dp": 4}

    def serve(self, _: str, requests: int, seeds: Iterable[int], **load: Any) -> list[Trial]:
        level = load["max_concurrency"]
        self.levels.append(level)
        gaps = np.zeros(ITL_BINS, np.int64)
        gaps[np.abs(bin_centres() - gap_ms(level)).argmin()] = 10 * requests
        # the last of them run beside fewer and fewer: half of that time is lost
        lasts_s = requests / served_per_s(level) / (1.0 - 0.5 * level / requests)
        times_ms = {"ttft": 10.0, "queue": 10.0, "tpot": gap_ms(level), "e2e": 10 * gap_ms(level)}
        latencies = {name: np.full(requests, value) for name, value in times_ms.items()}
        return [Trial(latencies, gaps, False, (1, 1), lasts_s)]


def gap_ms(level: int) -> float:
    return 10.0 + level / 2.0


def served_per_s(level: int) -> float:
    return level / (10 * gap_ms(level) / 1e3)


@pytest.mark.parametrize(
    "asked", [{"tpot_p99_ms": 60.0, "tpot_p50_ms": 30.0}, {"itl_mean_ms": 30.0}, {"e2e_p90_ms": 300.0}]
)
def test_no_rate_is_higher_than_that_of_the_longest_step(asked: dict[str, float]) -> None:
    """A step of 40 requests takes 30 ms, and ten of them 300 ms: with more requests in flight no objective holds."""
    slo = objectives_of(asked)
    assert served_per_s(40) <= capacity_of(ClosedLoop(5.0), "s", slo).most <= 1.1 * served_per_s(46)
    assert 40 <= capacity_of(ClosedLoop(None), "s", slo).most <= 1.1 * 46


@pytest.mark.parametrize("rate", [5.0, None])
def test_a_bound_that_is_low_enough_takes_one_closed_loop(rate: float | None) -> None:
    slo = objectives_of({"tpot_p99_ms": 60.0, "tpot_p50_ms": 30.0})
    whole = ClosedLoop(rate)
    most = capacity_of(whole, "s", slo).most
    for factor in (0.1, 0.3, 0.5, 0.8, 0.9):  # rates that it may serve are never called too high
        assert capacity_of(ClosedLoop(rate), "s", slo, factor * most).most == pytest.approx(most, rel=0.1)
    for factor in (4.0, 5.0) if rate else (1.5, 2.5):
        quick = ClosedLoop(rate)
        assert most <= capacity_of(quick, "s", slo, factor * most).most <= factor * most
        assert len(quick.levels) == 2 < len(whole.levels)


def test_users_find_a_seat_on_every_rank_and_replica() -> None:
    """16 x 4 x 2 seats; who waits a second longer needs twice what is served in it."""
    trials = ClosedLoop(None)
    assert capacity_of(trials, "s", [Objective("itl", 99.0, 100.0)]).most == 128 == max(trials.levels)
    waiting = [Objective("ttft", 99.0, 1000.0), Objective("queue", 50.0, 500.0)]
    assert capacity_of(ClosedLoop(None), "s", waiting).most == pytest.approx(128 + 2 * 0.5 * served_per_s(128))
    assert capacity_of(ClosedLoop(5.0), "s", waiting).most == pytest.approx(1.1 * served_per_s(128))


def test_users_whom_nothing_lets_wait_are_at_most_what_the_cache_holds() -> None:
    trials, itl = ClosedLoop(None), Objective("itl", 99.0, 100.0)
    trials.held = 5.0
    assert capacity_of(trials, "s", [itl]).most == 5.0
    # an objective on waiting bounds them instead
    assert capacity_of(trials, "s", [itl, Objective("ttft", 99.0, 1000.0)]).most > 128


@pytest.mark.parametrize(("percent", "most_ms", "misses"), [(99.0, 20.0, False), (99.0, 9.0, True), (None, 9.0, True)])
def test_requests_alone_are_held_to_their_middle(percent: float | None, most_ms: float, misses: bool) -> None:
    trials = ClosedLoop(5.0)
    one = trials.serve("s", 24, [0], max_concurrency=1)[0]
    one.latencies["ttft"][-1] = 30.0  # of 24 requests one says nothing of a tail
    trials.serve = lambda *_, **load: [one] if load["max_concurrency"] == 1 else ClosedLoop.serve(trials, *_, **load)
    found = capacity_of(trials, "s", [Objective("ttft", percent, most_ms)])
    assert (found.misses is not None, found.most == 0.0) == (misses, misses)
