"""Host constants of engines, fitted over campaigns: every campaign counts alike, and one can be left out.

Each constant is moved alone over a short grid, and every run is simulated there. What the figures do when several are
moved is the product of what each does alone. Constants are chosen by the mean over campaigns of the mean absolute log
error, pulled towards figures that no campaign was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelsight.evaluation.runs.campaigns import METRICS, compared
from kernelsight.evaluation.runs.host_constants import priors
from kernelsight.evaluation.runs.simulate_runs import Planned, serve_runs

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# runs of a campaign that are fitted on, spread evenly over its engines, models and GPUs
MOST_RUNS = 48
# error beyond which a run says nothing of host time
LARGEST_LOG_ERROR = 0.7
# loss that moving a constant from its figure a priori to the far end of its grid costs
PULL = 0.01
ROUNDS = 6
# campaigns that a constant has to make better
AGREEING = 2


class Constant(NamedTuple):
    """A column of ``host_settings`` for one engine's loop: its figure a priori, and the grid that it is chosen from."""

    loop: str
    column: str
    prior: float
    grid: tuple[float, ...]


# column of what a kernel outside CUDA graphs takes
LAUNCHES = "per_eager_launch_us"
# vLLM's loop that schedules ahead by default
AHEAD = "vllm from 0.14"
# what running requests cost: vLLM's CPU, which shows where steps are not scheduled ahead (its sampler is counted as
# kernels); of other engines it was not read
OF_RUNNING = {
    loop: ("per_request_us", 20.0, (6.0, 12.0, 20.0, 30.0))
    if loop.startswith("vllm")
    else ("exposed_per_request_us", 15.0, (0.0, 5.0, 10.0, 15.0, 25.0, 40.0))
    for loop in ("vllm", AHEAD, "sglang", "trtllm")
}
CONSTANTS = tuple(
    Constant(loop, column, prior, grid)
    for loop, of_running in OF_RUNNING.items()
    for column, prior, grid in (
        of_running,
        ("request_us", priors()["request_us"], (3_000.0, priors()["request_us"], 10_000.0, 20_000.0)),
        (LAUNCHES, priors()[LAUNCHES], (15.0, priors()[LAUNCHES], 60.0)),
    )
)


def loop_of(engine: str, from_version: str | None) -> str:
    """Return the loop of a row of ``host_overheads``: its engine, or vLLM's that schedules ahead by default.

    ``from_version``: None for a run that cannot be simulated.

    >>> loop_of("vllm", "0.10"), loop_of("vllm", "0.14"), loop_of("sglang", "0.5.6")
    ('vllm', 'vllm from 0.14', 'sglang')
    """
    numbers = [int(number) for number in (from_version or "0").split(".")]
    return AHEAD if engine == "vllm" and numbers >= [0, 14] else engine


class EngineHost(NamedTuple):
    """Host constants by loop and column, in the place of the catalogue's."""

    values: Mapping[tuple[str, str], float]
    pace: float = 1.0

    def host(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return columns of a row of ``host_settings``; what latent attention adds to launches is a priori."""
        engine_loop = loop_of(row["engine"], row["from_version"])
        own = {column: value for (loop, column), value in self.values.items() if loop == engine_loop}
        if row["latent_attention"] and LAUNCHES in own:
            own[LAUNCHES] += priors()["latent_launch_us"]
        return own


PRIOR = {(constant.loop, constant.column): constant.prior for constant in CONSTANTS}


def log_errors(
    session: Session, runs: Sequence[Mapping[str, Any]], planned: Sequence[Planned], prose: Sequence[bool]
) -> tuple[np.ndarray, dict[tuple[str, str, float], np.ndarray]]:
    """Return log(predicted / measured) a priori, shape [runs, metrics], and what each value of a constant adds.

    NaN: the run did not measure the metric, or cannot be simulated.
    """
    start = np.full((len(runs), len(METRICS)), math.nan)
    moves = {}
    loops = [loop_of(run["engine"], run["host_version"]) for run in runs]
    for loop in dict.fromkeys(loops):
        numbers = [number for number, name in enumerate(loops) if name == loop]
        variants = [(each, value) for each in CONSTANTS if each.loop == loop for value in each.grid]
        variants = [(each, value) for each, value in variants if value != each.prior]
        at = [PRIOR, *(PRIOR | {(loop, each.column): value} for each, value in variants)]
        mine = [planned[number] for number in numbers]
        served = serve_runs(
            session,
            mine,
            [[EngineHost(values)] * len(numbers) for values in at],
            [prose[i] for i in numbers],
            parts=False,
        )
        errors_at = [np.array([_errors(runs[i], row) for i, row in zip(numbers, rows, strict=True)]) for rows in served]
        start[numbers] = errors_at[0]
        for (each, value), errors in zip(variants, errors_at[1:], strict=True):
            added = np.zeros_like(start)
            added[numbers] = np.nan_to_num(errors - errors_at[0])
            moves[loop, each.column, value] = added
    return start, moves


def _errors(run: Mapping[str, Any], row: Mapping[str, Any]) -> list[float]:
    if row["status"] != "served" or row.get("tpot_mean_ms") is None:
        return [math.nan] * len(METRICS)
    each = compared(run, row)
    return [math.log1p(each[name]["error"]) if name in each else math.nan for name in METRICS]


def fit_over_campaigns(
    runs: Sequence[Mapping[str, Any]],
    start: np.ndarray,
    moves: Mapping[tuple[str, str, float], np.ndarray],
    without: str | None = None,
) -> dict[tuple[str, str], float]:
    """Return the constants of least loss, by loop and column, without the runs of a campaign.

    One campaign decides nothing alone: a constant moves where at least ``AGREEING`` campaigns get better by it. One of
    a loop that fewer other campaigns ran stays as it is a priori.
    """
    campaigns = np.array([run["campaign"] for run in runs])
    names = [name for name in dict.fromkeys(campaigns.tolist()) if name != without]
    members = [campaigns == name for name in names]

    def errors(at: Mapping[tuple[str, str], float]) -> np.ndarray:
        """Return the mean error of each campaign."""
        moved = start.copy()
        for each in CONSTANTS:
            if (value := at[each.loop, each.column]) != each.prior:
                moved = moved + moves.get((each.loop, each.column, value), 0.0)  # no run of the loop: nothing
        clipped = np.minimum(np.abs(moved), LARGEST_LOG_ERROR)
        means = [np.nanmean(clipped[rows]) for rows in members if np.isfinite(clipped[rows]).any()]
        return np.array(means or [0.0])

    def pulled(at: Mapping[tuple[str, str], float]) -> float:
        """Return what the distance from the figures a priori costs."""
        steps = [
            abs(each.grid.index(at[each.loop, each.column]) - each.grid.index(each.prior)) / len(each.grid)
            for each in CONSTANTS
        ]
        return PULL * sum(steps)

    best = dict(PRIOR)
    for _ in range(ROUNDS):
        before = dict(best)
        for each in CONSTANTS:
            key = each.loop, each.column
            still = errors({**best, key: each.prior})
            tried = [
                {**best, key: value}
                for value in each.grid
                if value == each.prior or (errors({**best, key: value}) < still).sum() >= AGREEING
            ]
            best = min(tried, key=lambda at: float(errors(at).mean()) + pulled(at))
        if best == before:
            break
    return best


def left_out_rows(constants: Mapping[str, Mapping[tuple[str, str], float]]) -> list[dict[str, Any]]:
    """Return a row for each campaign left out and loop: the constants fitted without it.

    >>> left_out_rows({"mine": {("vllm", "request_us"): 6000.0}})
    [{'campaign': 'mine', 'engine': 'vllm', 'request_us': 6000.0}]
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for campaign, values in constants.items():
        for (loop, column), value in values.items():
            rows.setdefault((campaign, loop), {"campaign": campaign, "engine": loop})[column] = value
    return list(rows.values())
