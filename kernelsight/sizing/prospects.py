"""Deployments in a sizing's search: prospects that can run, those with a rate, and those excluded with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelsight.errors import InvalidInput
from kernelsight.scenario.plan import Plan
from kernelsight.scenario.refusals import what_fits
from kernelsight.sizing.candidates import Candidate
from kernelsight.sweeps.capacity import pause_s
from kernelsight.sweeps.rate_search import HighestRate, RateSearch
from kernelsight.sweeps.steady import counted_values
from kernelsight.sweeps.trials import Trials

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# cost of all instances of a candidate by the rate of one instance, in the unit of its weight
CostOf = Callable[[Candidate, float], float]
# safety factor on a bound from the capacity of other numbers of replicas
CAUTION = 1.1
# a rate that no instance reaches
NO_BOUND = 1e12
DEARER = "bounds on its rate make it dearer than another"
NOT_REACHED = "it does not reach the rate, with the confidence, at which it would be cheaper than another"
REPLICAS, BUDGET = ("prefill_replicas", "decode_replicas"), "max_num_batched_tokens"


class Prospect(NamedTuple):
    """A candidate that can run, in its session with its plan, its trials, and the search of its highest rate.

    ``root``: the deployment that it is a variant of; ``known``: other numbers of its prefill and decode replicas, as
    far as their capacity is known.
    """

    candidate: Candidate
    session: Session
    plan: Plan
    trials: Trials
    search: RateSearch
    root: Prospect | None
    known: list[Prospect]

    @property
    def is_known(self) -> bool:
        """Whether its own capacity is known."""
        return "capacity" in vars(self.search)

    def compute_capacity(self, enough: float = math.inf) -> None:
        """Compute its own capacity, which bounds its rate and those of other numbers of its replicas.

        ``enough``: a bound that is low enough, as the deployment is dearer than another at this rate.
        """
        self.search.enough = enough
        _ = self.search.capacity
        self.known.append(self)

    @property
    def bound(self) -> float:
        """The rate that it does not exceed: by its own capacity, or by those of other numbers of its replicas.

        Replicas of both phases serve no more than the prefill replicas do beside as many decode replicas as can be, nor
        than the decode replicas beside as many prefill replicas: where capacities of both are known, the ratio of the
        replicas follows from the two rates.
        """
        if self.is_known:
            return self.search.capacity.most
        ratios = (
            max(self.candidate.flags[name] / one.candidate.flags[name] for name in REPLICAS) for one in self.known
        )
        most = (CAUTION * ratio * one.search.capacity.most for ratio, one in zip(ratios, self.known, strict=False))
        return min(most, default=math.inf)

    @property
    def guess(self) -> float:
        """The bound, or the rate that its GPUs reach as the deployment that it is a variant of: what to try first."""
        root = self.root
        if self.is_known or root is None or not root.is_known:
            return self.bound
        return min(self.bound, self.candidate.gpu_count / root.candidate.gpu_count * root.search.capacity.most)


class Sized(NamedTuple):
    """A prospect with its highest rate."""

    prospect: Prospect
    highest: HighestRate

    @property
    def candidate(self) -> Candidate:
        """The deployment."""
        return self.prospect.candidate

    @property
    def request_rate(self) -> float:
        """The requests/s that one instance completes at its highest rate; with users by Little's law."""
        if self.candidate.unit != "users":
            return self.highest.rate
        e2e_ms = [counted_values(trial.latencies["e2e"]).mean() for trial in self.highest.tried.trials]
        pauses_s = pause_s(self.prospect.trials.scenario(self.candidate.scenario_id))
        return self.highest.rate / max(float(np.mean(e2e_ms)) / 1e3 + pauses_s, 1e-9)

    @property
    def tokens(self) -> tuple[float, float]:
        """The mean prompt and output tokens of what ``request_rate`` counts: a user's request, or a conversation."""
        turns = self.prospect.trials.scenario(self.candidate.scenario_id)["num_turns"] or 1
        parts = turns if self.candidate.unit == "users" else 1
        prompt, output = np.mean([trial.tokens for trial in self.highest.tried.trials], axis=0) / parts
        return float(prompt), float(output)


class LeftOut(NamedTuple):
    """A deployment that was excluded or has no rate, and why.

    ``miss``: its nearest latency over the allowed one, above 1; None: it misses none, or was not tried. ``prospect``,
    ``most_rate``: of one that was excluded by its cost, and the rate of one instance that it does not exceed.
    """

    flags: Mapping[str, Any]
    reason: str
    miss: float | None = None
    prospect: Prospect | None = None
    most_rate: float = math.inf


def miss_of(rate: HighestRate) -> float | None:
    """Return the nearest latency over its objective, above 1; None where requests are rejected, or latencies grow."""
    if rate.capacity.misses:
        objective, value = rate.capacity.misses
        return value / objective.most_ms
    pressure = rate.tried.verdict.pressure if rate.tried else math.inf
    return pressure if 1.0 < pressure < math.inf else None


def nothing_fits(left_out: Sequence[LeftOut], plans: Sequence[Plan], session: Session) -> InvalidInput:
    """Return the error for a search in which no deployment can run: for each GPU, what would fit."""
    reasons = list(dict.fromkeys(failed.reason for failed in left_out))
    out_of_memory = [failed for failed in left_out if "GiB" in failed.reason]
    if not out_of_memory:
        return InvalidInput(f"no deployment can run: {'; '.join(reasons[:3])}.")
    sentences = []
    for gpu in dict.fromkeys(failed.flags["gpu"] for failed in out_of_memory):
        largest = max(
            (failed for failed in out_of_memory if failed.flags["gpu"] == gpu),
            # of equally many GPUs, replicas of attention hold the most weights
            key=lambda failed: (
                failed.flags.get("tensor_parallel_size", 1) * failed.flags.get("data_parallel_size", 1),
                failed.flags.get("tensor_parallel_size", 1),
            ),
        )
        row = next(
            row
            for plan in plans
            for flags, scenario in zip(plan.flags, plan.scenarios, strict=True)
            if flags is largest.flags
            for row in [plan.deployments[scenario["deployment_id"]]]
        )
        sentences.append(f"{largest.reason.rstrip(' ;')}; {what_fits(session, row)}")
    return InvalidInput(f"no GPU of the search holds the model: {'; '.join(sentences)}.")


def is_less(cost: float, most: float) -> bool:
    """Return whether a cost is below another beyond rounding."""
    return cost < most * (1.0 - 1e-9)


def rate_below(cost_of: CostOf, candidate: Candidate, most: float) -> float:
    """Return the least rate of one instance at which a candidate costs less than ``most``; infinite: at none."""
    low, high = 1e-9, NO_BOUND
    if cost_of(candidate, high) >= most:
        return math.inf
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost_of(candidate, middle) < most * (1.0 - 1e-9) else (middle, high)
    return high
