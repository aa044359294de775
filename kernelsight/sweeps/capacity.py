"""Upper bound of a scenario's rate, before a search: from single requests, and closed loops of rising concurrency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernelsight.dataflow.python_nodes import inside, takes
from kernelsight.scenario.objectives import Objective
from kernelsight.sweeps.steady import LEAST_REQUESTS
from kernelsight.sweeps.trials import Trial, Trials, gap_mean, gap_percentile

# requests of a closed loop per request in flight
TURNOVER = 6
# requests served one at a time
ALONE = 24
# factor between concurrency levels, and bisections between the last two
LEVELS, HALVINGS = 4, 3
# safety factor on a bound from a single load
CAUTION = 1.1
# a closed loop without pauses, all of whose requests are in flight
NO_PAUSES = dict.fromkeys(("think_time_s", "think_time_cv", "think_time_limit_s", "concurrency_ramp_s"))
# metrics whose objectives bound how long users wait, and those that a closed loop of as many in flight does not exceed
WAITS, IN_FLIGHT = ("ttft", "e2e", "queue"), ("tpot", "itl", "e2e")


class Capacity(NamedTuple):
    """The upper bound of a scenario's rate.

    ``alone``: the trial of requests served one at a time; ``most``: no higher rate can keep the objectives, requests/s
    (or users); ``misses``: the objective that even such requests miss, and its value in ms; ``throughput``: the highest
    of the closed loops, requests/s.
    """

    alone: Trial
    most: float
    misses: tuple[Objective, float] | None
    throughput: float = 0.0


@inside("size_answers", "size_bounds")
@takes("deployments", "scenarios")
def capacity_of(
    trials: Trials, scenario_id: str, objectives: Sequence[Objective], enough: float = math.inf
) -> Capacity:
    """Return the upper bound of the rate, from single requests and closed loops of rising concurrency.

    Where as many requests are always in flight, throughput is the highest that they allow: no higher rate keeps the
    objectives than the throughput of a closed loop without pauses that misses one on TPOT, ITL or E2E latency, and no
    more requests in flight than its concurrency. A bound of at most ``enough`` is not refined: it begins with the
    concurrency that this rate takes where requests are served as fast as alone.
    """
    scenario = trials.scenario(scenario_id)
    requests = max(ALONE, scenario["num_turns"] or 1)  # a whole conversation, whose last prompts are the longest
    (alone,) = trials.serve(scenario_id, requests, [0], request_rate=None, max_concurrency=1, **NO_PAUSES)
    fails = missed(alone, [objective for objective in objectives if objective.metric != "itl"])
    if fails or alone.lost:
        return Capacity(alone, 0.0, fails)
    in_flight = [objective for objective in objectives if objective.metric in IN_FLIGHT]
    settings = trials.settings(scenario_id)
    seats = settings["max_num_seqs"] * settings["dp"] * (scenario["decode_replicas"] or scenario["replicas"] or 1)
    best, level, below = 0.0, 1, 1  # highest throughput, concurrency, and the level before it

    def bound() -> Capacity:
        highest = CAUTION * max(best, throughput)
        if scenario["request_rate"]:  # of conversations, whose turns are requests
            return Capacity(alone, highest / (scenario["num_turns"] or 1), None, max(best, throughput))
        most = CAUTION * level
        if level >= seats:
            held = trials.requests_in_cache(scenario_id, sum(trial.tokens) / (scenario["num_turns"] or 1))
            most = _most_in_flight(seats, best, objectives, held, bool(scenario["decode_replicas"]))
            waits_ms = [objective.most_ms for objective in objectives if objective.metric == "ttft"]
            if waits_ms:  # by Little's law: behind the first token none stays longer than where all seats are taken
                decode_ms = float(np.nanmean(trial.latencies["e2e"] - trial.latencies["ttft"]))
                most = min(most, max(highest * (decode_ms + 2.0 * min(waits_ms)) / 1e3, 1.0))
        return Capacity(alone, most + highest * pause_s(scenario), None, max(best, throughput))

    turns, alone_s = scenario["num_turns"] or 1, float(np.nanmean(alone.latencies["e2e"])) / 1e3
    rate = enough * turns if scenario["request_rate"] else enough / (alone_s + pause_s(scenario))
    if 2.0 <= (first := rate * alone_s / CAUTION) < seats:
        level = math.floor(first)
        throughput, trial = _closed_loop(trials, scenario_id, level)
        fails = missed(trial, in_flight)
        if fails and bound().most <= enough:
            return bound()
        level = 1 if fails else LEVELS ** math.floor(math.log(level, LEVELS))
    while True:
        level, below = min(level * LEVELS, seats), level
        throughput, trial = _closed_loop(trials, scenario_id, level)
        grows = throughput > best * 1.02
        if missed(trial, in_flight):
            break
        best = max(best, throughput)
        if level >= seats or not grows:
            level = seats
            return bound()
    # between these two levels an objective breaks
    for _ in range(HALVINGS):
        middle = round(math.sqrt(below * level))
        if not below < middle < level:
            break
        reached, trial = _closed_loop(trials, scenario_id, middle)
        if missed(trial, in_flight):
            level, throughput = middle, reached
        else:
            below, best = middle, max(best, reached)
    return bound()


def _most_in_flight(seats: int, throughput: float, objectives: Sequence[Objective], held: float, split: bool) -> float:
    """Return the most requests in flight that can keep the objectives, where decode steps are fast enough at any batch.

    Beyond ``seats``, the most running requests, they wait until others finish, ``throughput`` a second. Without an
    objective on waiting nobody is to wait: there are then at most as many as the KV cache holds, ``held``. ``split``:
    behind prefill replicas the wait for a decode replica follows the first token; TTFT does not show it.
    """
    waits_s = [objective.most_ms / 1e3 for objective in objectives if objective.metric in WAITS]
    seen = WAITS if not split else ("e2e", "tpot")
    if not any(objective.metric in seen for objective in objectives):
        seats = min(float(seats), held)
    return max(seats + 2.0 * throughput * min(waits_s, default=0.0), 1.0)


def pause_s(scenario: Mapping[str, Any]) -> float:
    """Return the mean pause before a request in s; the first one of a conversation has none.

    By Little's law users who pause are that many more than requests in flight, times the throughput.
    """
    turns, think_s = scenario["num_turns"] or 1, scenario["think_time_s"] or 0.0
    limit_s = scenario["think_time_limit_s"]
    return (turns - 1) / turns * (think_s if limit_s is None else min(think_s, limit_s))


def _closed_loop(trials: Trials, scenario_id: str, level: int) -> tuple[float, Trial]:
    """Simulate a closed loop of concurrency ``level`` without pauses; return its throughput in requests/s, and it."""
    requests = min(level * TURNOVER, 2 * level + LEAST_REQUESTS)
    (trial,) = trials.serve(scenario_id, requests, [0], request_rate=None, max_concurrency=level, **NO_PAUSES)
    return _throughput(trial, requests, level), trial


def missed(trial: Trial, objectives: Sequence[Objective]) -> tuple[Objective, float] | None:
    """Return the first objective that requests miss on average, and its value in ms; None: they miss none.

    Few requests have no tail: the median is taken for higher percentiles too.
    """
    for objective in objectives:
        percent = objective.percent and min(objective.percent, 50.0)
        if objective.metric == "itl":
            value = gap_mean(trial.gaps) if percent is None else gap_percentile(trial.gaps, percent)
        else:
            values = trial.latencies[objective.metric]
            values = values[~np.isnan(values)]
            if not values.size:
                continue
            value = float(values.mean() if percent is None else np.percentile(values, percent))
        if value > objective.most_ms:
            return objective, value
    return None


def _throughput(trial: Trial, requests: int, level: int) -> float:
    """Return the requests/s of a closed loop at full concurrency, without its end, where it empties."""
    return requests / max(trial.duration_s * (1.0 - 0.5 * level / requests), 1e-9)
