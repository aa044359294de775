"""Judges whether a rate is steady and keeps its objectives beyond noise, by batch means over seeds and parts of runs.

Each objective is a mean over requests: of the latency, or of whether it exceeds the largest value (a percentile is kept
where at most that share of requests exceeds it). Latencies of requests near in time are correlated, so the standard
error of a mean comes from means over long parts of a run (batches) and over whole seeds, never from single requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from kernelsight.dataflow.python_nodes import inside, takes
from kernelsight.scenario.objectives import Objective
from kernelsight.sweeps.trials import Trial, gap_mean, gap_percentile, gap_share_above

# parts of a run, in mean stays of a request: dropped at its beginning, counted, and dropped at its end
WARM_UP, COUNTED, COOL_DOWN = 3.0, 20.0, 1.0
STAYS = WARM_UP + COUNTED + COOL_DOWN
LEAST_REQUESTS = 1_000
# length of the run in which a rate must hold, in requests of one seed
LONGER_RUN = 10.0
BATCHES = 4  # of each seed
CONFIDENCE = 0.95
DRIFT_CONFIDENCE = 0.995
# a drift below this share of the objective, or of a mean stay if that is shorter, is ignored
SMALL_DRIFT = 0.02


class Noise(NamedTuple):
    """A mean over all trials, its standard error, the degrees of freedom of that, and the requests of one seed."""

    mean: float
    error: float
    freedom: int
    seeds: int

    def margin(self, runs: float) -> float:
        """Return the one-sided prediction margin, at CONFIDENCE, of the mean of a run as long as ``runs`` seeds."""
        return student(CONFIDENCE, self.freedom) * self.error * math.sqrt(1.0 + self.seeds / runs)


class Verdict(NamedTuple):
    """The verdict on the trials of one rate: ratios of latencies to their largest values, of the worst objective.

    ``pressure``: with the margin for a run ten times as long, so that at 1 or below the rate keeps the objectives with
    95 % confidence; ``level``: without a margin; ``best``, ``worst``: the ends of the 90 % range of one seed's run.
    ``drifts``: latencies or queue of the second half are above those of the first beyond noise. ``stays``: the counted
    time in mean end-to-end times.
    """

    pressure: float
    level: float
    best: float
    worst: float
    drifts: bool
    stays: float
    tightest: Objective

    @property
    def keeps(self) -> bool:
        """Whether the rate keeps the objectives, without a drift."""
        return self.pressure <= 1.0 and not self.drifts


@cache
def student(share: float, freedom: int) -> float:
    """Return a quantile of Student's t distribution (expansion around the normal one, within 1 % from 4 on)."""
    z, n = NormalDist().inv_cdf(share), max(freedom, 1)
    term_1, term_2 = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    term_3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + term_1 / n + term_2 / n**2 + term_3 / n**3


def counted_values(values: np.ndarray) -> np.ndarray:
    """Return the values between warm-up and cool-down of a run."""
    return values[math.ceil(values.size * WARM_UP / STAYS) : math.floor(values.size * (1.0 - COOL_DOWN / STAYS))]


@inside("size_answers", "size_simulations")
@takes("scenarios", "size_bounds")
def judge(trials: Sequence[Trial], objectives: Sequence[Objective], stay_ms: float, longer: float) -> Verdict:
    """Judge the trials of one rate, one per seed.

    ``stay_ms``: mean time that a request, or a conversation, stays; ``longer``: length of the run in which the rate
    must hold, in runs of one seed.
    """
    if any(trial.lost or not trial.latencies["e2e"].size for trial in trials):
        return Verdict(*[math.inf] * 4, False, 0.0, objectives[0])
    ratios = [(*_ratios(trials, objective, longer), objective) for objective in objectives]
    worst_ratios = (float(max(ratio[column] for ratio in ratios)) for column in range(4))
    spans_ms = [trial.duration_s * 1e3 * COUNTED / STAYS for trial in trials]
    return Verdict(
        *worst_ratios, _drifts(trials, objectives), min(spans_ms) / max(stay_ms, 1e-9),
        max(ratios, key=lambda ratio: ratio[0])[-1],
    )  # fmt: skip


def _ratios(trials: Sequence[Trial], objective: Objective, longer: float) -> list[float]:
    """Return an objective's statistic over its largest value, with the margins of ``Verdict``'s first four fields."""
    most, of_gaps = objective.most_ms, objective.metric == "itl"
    runs = (
        [trial.gaps for trial in trials]
        if of_gaps
        else [_counted_latencies(trial, objective.metric) for trial in trials]
    )
    runs = [run for run in runs if run.size]
    if not any(run.any() for run in runs):
        return [0.0] * 4  # outputs of one token have no TPOT and no gaps, so they keep any objective on these
    mean = objective.percent is None
    if of_gaps:  # counted over whole runs
        noise = noise_of([np.array([gap_mean(gaps) if mean else gap_share_above(gaps, most)]) for gaps in runs])
    else:
        noise = noise_of(runs if mean else [run > most for run in runs])
    margins = noise.margin(longer), 0.0, -noise.margin(1.0), noise.margin(1.0)
    if mean:
        return [(noise.mean + margin) / most for margin in margins]
    percents = [100.0 * (1.0 - min(max(objective.share - margin, 0.0), 1.0)) for margin in margins]
    if of_gaps:
        return [gap_percentile(sum(runs), percent) / most for percent in percents]
    return (np.percentile(np.concatenate(runs), percents) / most).tolist()


def _counted_latencies(trial: Trial, metric: str) -> np.ndarray:
    """Return the counted latencies of a trial in ms, without requests that have none."""
    values = counted_values(trial.latencies[metric])
    return values[~np.isnan(values)] if metric == "tpot" else values


def noise_of(runs: Sequence[np.ndarray]) -> Noise:
    """Return the mean over runs (one per seed) and its standard error, from means of batches and of seeds."""
    batches = np.array([[batch.mean() for batch in np.array_split(run, min(BATCHES, run.size))] for run in runs])
    seeds = batches.mean(axis=1)
    mean = float(np.mean([run.mean() for run in runs]))
    of_batches = batches.var(ddof=1) / batches.size if batches.size > 1 else 0.0
    of_seeds = seeds.var(ddof=1) / seeds.size if seeds.size > 1 else 0.0
    if batches.shape[1] == 1 or of_seeds <= of_batches:
        return Noise(mean, math.sqrt(of_batches), batches.size - 1, seeds.size)
    # a larger variance between seeds may be chance or slow swings: the mean of both estimates is taken
    return Noise(mean, math.sqrt((of_batches + of_seeds) / 2), (batches.size + seeds.size) // 2 - 1, seeds.size)


def _drifts(trials: Sequence[Trial], objectives: Sequence[Objective]) -> bool:
    """Return whether second halves of runs are worse than first ones beyond noise: queue, E2E latency or an objective.

    E2E latency counts without an objective too: behind prefill replicas the decode replicas may fall ever further
    behind, which neither TTFT nor a percentile of ITL shows.
    """
    if len(trials) < 2:
        return False
    metrics = {objective.metric: objective.most_ms for objective in objectives if objective.metric != "itl"}
    least = min(objective.most_ms for objective in objectives)
    stay_ms = float(np.mean([_counted_latencies(trial, "e2e").mean() for trial in trials]))
    for metric, most in {"queue": least, "e2e": math.inf, **metrics}.items():
        runs = [_counted_latencies(trial, metric) for trial in trials]
        if any(run.size < 2 for run in runs):
            continue
        changes = np.array([run[run.size // 2 :].mean() - run[: run.size // 2].mean() for run in runs])
        error = changes.std(ddof=1) / math.sqrt(changes.size)
        least_drift_ms = SMALL_DRIFT * min(most, stay_ms)
        if changes.mean() > max(student(DRIFT_CONFIDENCE, changes.size - 1) * error, least_drift_ms):
            return True
    return False
