"""Host constants of engines, fitted over campaigns of equal weight, of which one can be left out (cross-validation).

Every run is simulated with each constant moved alone over a short grid; the effect of several is taken as the product
of their single effects. Constants minimise the mean over campaigns of the mean absolute log error, with a penalty on
the distance from their a-priori values, which no campaign determined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelsight.evaluation.runs.backtests import planned_runs, scored_row
from kernelsight.evaluation.runs.campaigns import METRICS, campaign_scores, compared, scored_of_campaigns
from kernelsight.evaluation.runs.recipes import is_prose
from kernelsight.evaluation.runs.run_scores import is_scored_separately
from kernelsight.evaluation.runs.simulate_runs import Planned, serve_runs
from kernelsight.laboratory.runs.host_constants import priors
from kernelsight.laboratory.runs.run_classes import spread_runs
from kernelsight.laboratory.runs.unknown_lengths import served_with_lengths

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# runs of a campaign that are fitted on, spread evenly over its engines, models and GPUs
MOST_RUNS = 48
# log errors are clipped here: larger ones have other causes than host time
LARGEST_LOG_ERROR = 0.7
# penalty for moving a constant over its whole grid
PULL = 0.01
ROUNDS = 6
# campaigns that have to improve before a constant moves
AGREEING = 2


class Constant(NamedTuple):
    """A column of ``host_settings`` for one engine's loop, us: its a-priori value, and the grid it is chosen from."""

    loop: str
    column: str
    prior: float
    grid: tuple[float, ...]


# column of the launch time of a kernel outside CUDA graphs
LAUNCHES = "per_eager_launch_us"
# vLLM's loop with asynchronous scheduling by default
AHEAD = "vllm from 0.14"
# host time per running request: of vLLM's CPU, exposed without asynchronous scheduling (its sampler counts as kernels);
# of other engines, whose source was not read, as exposed time
PER_REQUEST = {
    loop: ("per_request_us", 20.0, (6.0, 12.0, 20.0, 30.0))
    if loop.startswith("vllm")
    else ("exposed_per_request_us", 15.0, (0.0, 5.0, 10.0, 15.0, 25.0, 40.0))
    for loop in ("vllm", AHEAD, "sglang", "trtllm")
}
CONSTANTS = tuple(
    Constant(loop, column, prior, grid)
    for loop, per_request in PER_REQUEST.items()
    for column, prior, grid in (
        per_request,
        ("request_us", priors()["request_us"], (3_000.0, priors()["request_us"], 10_000.0, 20_000.0)),
        (LAUNCHES, priors()[LAUNCHES], (15.0, priors()[LAUNCHES], 60.0)),
    )
)


def loop_of(engine: str, from_version: str | None) -> str:
    """Return the loop of a row of ``host_overheads``: its engine, or AHEAD for vLLM from 0.14.

    ``from_version``: None for a run that cannot be simulated.

    >>> loop_of("vllm", "0.10"), loop_of("vllm", "0.14"), loop_of("sglang", "0.5.6")
    ('vllm', 'vllm from 0.14', 'sglang')
    """
    numbers = [int(number) for number in (from_version or "0").split(".")]
    return AHEAD if engine == "vllm" and numbers >= [0, 14] else engine


class EngineHost(NamedTuple):
    """Host constants by (loop, column), us, which replace the catalogue's."""

    values: Mapping[tuple[str, str], float]
    pace: float = 1.0

    def host(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the replaced columns of a row of ``host_settings``, us.

        A stated delay is left out: recipes fit it on their campaign.
        """
        engine_loop = loop_of(row["engine"], row["from_version"])
        return {column: value for (loop, column), value in self.values.items() if loop == engine_loop}


PRIOR = {(constant.loop, constant.column): constant.prior for constant in CONSTANTS}


def log_errors(
    session: Session, runs: Sequence[Mapping[str, Any]], planned: Sequence[Planned], prose: Sequence[bool]
) -> tuple[np.ndarray, dict[tuple[str, str, float], np.ndarray]]:
    """Return log(predicted / measured) at a-priori constants, shape [runs, METRICS], and the effect of each grid value.

    Effects are differences of these, same shape, by (loop, column, value). ``prose``: whether each run's prompts are
    natural text. NaN: the run did not measure the metric, or cannot be simulated.
    """
    prior_errors = np.full((len(runs), len(METRICS)), math.nan)
    effects = {}
    loops = [loop_of(run["engine"], run["host_version"]) for run in runs]
    for loop in dict.fromkeys(loops):
        numbers = [number for number, name in enumerate(loops) if name == loop]
        variants = [(constant, value) for constant in CONSTANTS if constant.loop == loop for value in constant.grid]
        variants = [(constant, value) for constant, value in variants if value != constant.prior]
        candidates = [PRIOR, *(PRIOR | {(loop, constant.column): value} for constant, value in variants)]
        loop_runs = [planned[number] for number in numbers]
        served = serve_runs(
            session,
            loop_runs,
            [[EngineHost(values)] * len(numbers) for values in candidates],
            [prose[i] for i in numbers],
            parts=False,
        )
        errors_at = [np.array([_errors(runs[i], row) for i, row in zip(numbers, rows, strict=True)]) for rows in served]
        prior_errors[numbers] = errors_at[0]
        for (constant, value), errors in zip(variants, errors_at[1:], strict=True):
            added = np.zeros_like(prior_errors)
            added[numbers] = np.nan_to_num(errors - errors_at[0])
            effects[loop, constant.column, value] = added
    return prior_errors, effects


def _errors(run: Mapping[str, Any], row: Mapping[str, Any]) -> list[float]:
    if row["status"] != "served" or row.get("tpot_mean_ms") is None:
        return [math.nan] * len(METRICS)
    metrics = compared(run, row)
    return [math.log1p(metrics[name]["error"]) if name in metrics else math.nan for name in METRICS]


def fit_over_campaigns(
    runs: Sequence[Mapping[str, Any]],
    prior_errors: np.ndarray,
    effects: Mapping[tuple[str, str, float], np.ndarray],
    without: str | None = None,
) -> dict[tuple[str, str], float]:
    """Return the constants of least loss, by (loop, column), us; ``without``: the campaign to leave out, None: none.

    ``prior_errors``, ``effects``: as of ``log_errors``. A constant moves only to values that improve at least AGREEING
    campaigns: one of a loop that fewer campaigns ran keeps its a-priori value. Coordinate descent of ROUNDS rounds.
    """
    campaigns = np.array([run["campaign"] for run in runs])
    names = [name for name in dict.fromkeys(campaigns.tolist()) if name != without]
    in_campaign = [campaigns == name for name in names]

    def errors(values: Mapping[tuple[str, str], float]) -> np.ndarray:
        """Return the mean absolute log error of each campaign, clipped."""
        shifted = prior_errors.copy()
        for constant in CONSTANTS:
            if (value := values[constant.loop, constant.column]) != constant.prior:
                # 0 if no run has the loop
                shifted = shifted + effects.get((constant.loop, constant.column, value), 0.0)
        clipped = np.minimum(np.abs(shifted), LARGEST_LOG_ERROR)
        means = [np.nanmean(clipped[rows]) for rows in in_campaign if np.isfinite(clipped[rows]).any()]
        return np.array(means or [0.0])

    def penalty(values: Mapping[tuple[str, str], float]) -> float:
        """Return the penalty on the distance from the a-priori values."""
        steps = [
            abs(constant.grid.index(values[constant.loop, constant.column]) - constant.grid.index(constant.prior))
            / len(constant.grid)
            for constant in CONSTANTS
        ]
        return PULL * sum(steps)

    best = dict(PRIOR)
    for _ in range(ROUNDS):
        before = dict(best)
        for constant in CONSTANTS:
            key = constant.loop, constant.column
            at_prior = errors({**best, key: constant.prior})
            candidates = [
                {**best, key: value}
                for value in constant.grid
                if value == constant.prior or (errors({**best, key: value}) < at_prior).sum() >= AGREEING
            ]
            best = min(candidates, key=lambda values: float(errors(values).mean()) + penalty(values))
        if best == before:
            break
    return best


def replay_left_out(
    session: Session, runs: Sequence[Mapping[str, Any]], tier: str | None = None
) -> tuple[list[dict[str, Any]], dict[str, dict[tuple[str, str], float]]]:
    """Return the runs simulated with host constants of the other campaigns, and these constants by left-out campaign.

    Runs that are scored separately are neither simulated nor fitted on.
    """
    scorable = [run for run in runs if not is_scored_separately(run)]
    replayed, planned = planned_runs(session, scorable, tier)
    prose = [is_prose(run) for run in replayed]
    chosen = spread_runs(replayed, MOST_RUNS)
    fitting = [replayed[i] for i in chosen]
    errors = log_errors(session, fitting, [planned[i] for i in chosen], [prose[i] for i in chosen])
    rows, constants = [], {}
    for campaign in sorted({run["campaign"] for run in replayed}):
        constants[campaign] = fit_over_campaigns(fitting, *errors, without=campaign)
        indices = [index for index, run in enumerate(replayed) if run["campaign"] == campaign]
        hosts = [[EngineHost(constants[campaign])] * len(indices)]
        campaign_runs, plans = [replayed[i] for i in indices], [planned[i] for i in indices]
        (served,) = served_with_lengths(session, campaign_runs, plans, hosts, [prose[i] for i in indices])
        rows += [scored_row(replayed[i], row) for i, row in zip(indices, served, strict=True)]
    return rows, constants


def left_out_report(session: Session, runs: Sequence[Mapping[str, Any]], tier: str | None) -> dict[str, Any]:
    """Return ``campaigns``, scores of each campaign with constants of the others, and ``left_out_constants``."""
    rows, constants = replay_left_out(session, runs, tier)
    return {"campaigns": campaign_scores(scored_of_campaigns(rows)), "left_out_constants": left_out_rows(constants)}


def left_out_rows(constants: Mapping[str, Mapping[tuple[str, str], float]]) -> list[dict[str, Any]]:
    """Return one row per left-out campaign and loop: the constants fitted without the campaign, us.

    >>> left_out_rows({"mine": {("vllm", "request_us"): 6000.0}})
    [{'campaign': 'mine', 'engine': 'vllm', 'request_us': 6000.0}]
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for campaign, values in constants.items():
        for (loop, column), value in values.items():
            rows.setdefault((campaign, loop), {"campaign": campaign, "engine": loop})[column] = value
    return list(rows.values())
