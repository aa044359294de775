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


class Constant(NamedTuple):
    """A column of ``host_settings`` for one engine: its figure a priori, and the grid that it is chosen from."""

    engine: str
    column: str
    prior: float
    grid: tuple[float, ...]


CONSTANTS = tuple(
    Constant(engine, column, prior, grid)
    for engine in ("vllm", "sglang", "trtllm")
    for column, prior, grid in (
        ("exposed_per_request_us", 15.0, (0.0, 8.0, 15.0, 25.0, 40.0)),
        ("request_us", 6_000.0, (3_000.0, 6_000.0, 10_000.0, 20_000.0)),
        ("per_eager_launch_us", 25.0, (10.0, 25.0, 40.0)),
    )
)


class EngineHost(NamedTuple):
    """Host constants by engine and column, in the place of the catalogue's."""

    values: Mapping[tuple[str, str], float]
    pace: float = 1.0

    def host(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return columns of a row of ``host_settings``."""
        return {column: value for (engine, column), value in self.values.items() if engine == row["engine"]}


PRIOR = {(constant.engine, constant.column): constant.prior for constant in CONSTANTS}


def log_errors(
    session: Session, runs: Sequence[Mapping[str, Any]], planned: Sequence[Planned], prose: Sequence[bool]
) -> tuple[np.ndarray, dict[tuple[str, str, float], np.ndarray]]:
    """Return log(predicted / measured) a priori, shape [runs, metrics], and what each value of a constant adds.

    NaN: the run did not measure the metric, or cannot be simulated.
    """
    start = np.full((len(runs), len(METRICS)), math.nan)
    moves = {}
    for engine in dict.fromkeys(run["engine"] for run in runs):
        own = [number for number, run in enumerate(runs) if run["engine"] == engine]
        variants = [(each, value) for each in CONSTANTS if each.engine == engine for value in each.grid]
        variants = [(each, value) for each, value in variants if value != each.prior]
        at = [PRIOR, *(PRIOR | {(engine, each.column): value} for each, value in variants)]
        mine = [planned[number] for number in own]
        served = serve_runs(
            session, mine, [[EngineHost(values)] * len(own) for values in at], [prose[i] for i in own], parts=False
        )
        found = [np.array([_errors(runs[i], row) for i, row in zip(own, rows, strict=True)]) for rows in served]
        start[own] = found[0]
        for (each, value), errors in zip(variants, found[1:], strict=True):
            added = np.zeros_like(start)
            added[own] = np.nan_to_num(errors - found[0])
            moves[engine, each.column, value] = added
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
    """Return the constants of least loss, by engine and column, without the runs of a campaign.

    A constant of an engine that no other campaign ran stays as it is a priori.
    """
    campaigns = np.array([run["campaign"] for run in runs])
    names = [name for name in dict.fromkeys(campaigns.tolist()) if name != without]
    members = [campaigns == name for name in names]

    def loss(at: Mapping[tuple[str, str], float]) -> float:
        errors = start.copy()
        pulled = 0.0
        for each in CONSTANTS:
            value = at[each.engine, each.column]
            if value != each.prior:
                errors = errors + moves.get((each.engine, each.column, value), 0.0)  # no run of the engine: nothing
                places = [each.grid.index(number) for number in (value, each.prior)]
                pulled += PULL * abs(places[0] - places[1]) / len(each.grid)
        clipped = np.minimum(np.abs(errors), LARGEST_LOG_ERROR)
        means = [np.nanmean(clipped[rows]) for rows in members if np.isfinite(clipped[rows]).any()]
        return float(np.mean(means or [0.0])) + pulled

    best = dict(PRIOR)
    for _ in range(ROUNDS):
        before = dict(best)
        for each in CONSTANTS:
            key = each.engine, each.column
            best = min(({**best, key: value} for value in (best[key], *each.grid)), key=loss)
        if best == before:
            break
    return best


def left_out_rows(constants: Mapping[str, Mapping[tuple[str, str], float]]) -> list[dict[str, Any]]:
    """Return a row for each campaign left out and engine: the constants fitted without it.

    >>> left_out_rows({"mine": {("vllm", "request_us"): 6000.0}})
    [{'campaign': 'mine', 'engine': 'vllm', 'request_us': 6000.0}]
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for campaign, values in constants.items():
        for (engine, column), value in values.items():
            rows.setdefault((campaign, engine), {"campaign": campaign, "engine": engine})[column] = value
    return list(rows.values())
