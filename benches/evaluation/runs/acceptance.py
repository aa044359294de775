"""Acceptance rates of speculative decoding in measured runs: one per engine and model, fitted on the fitting fifth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelsight.evaluation.runs.run_scores import group_of
from kernelsight.evaluation.runs.simulate_runs import HostConstants, Planned, plan_runs, serve_runs
from kernelsight.laboratory.runs.run_classes import repeats

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# rates at which runs are simulated; TPOT is interpolated in between
GRID = (0.3, 0.45, 0.6, 0.7, 0.8, 0.9)
FINE = np.linspace(GRID[0], GRID[-1], 121)
FLAG = "draft_acceptance_rate"


def needs_acceptance_rate(run: Mapping[str, Any]) -> bool:
    """Whether a run uses speculative decoding with an unknown acceptance rate."""
    return bool(run["flags"].get("num_speculative_tokens")) and FLAG not in run["flags"]


def with_acceptance_rate(flags: Mapping[str, Any], rate: float | None) -> dict[str, Any]:
    """Return a run's flags with an acceptance rate if they need one; ``rate`` None: with the first of ``GRID``."""
    if not flags.get("num_speculative_tokens") or FLAG in flags:
        return dict(flags)
    return {**flags, FLAG: GRID[0] if rate is None else rate}


def proposer_of(run: Mapping[str, Any]) -> tuple[str, str]:
    """Return the engine and the model of a run: runs with the same pair share an acceptance rate."""
    return run["engine"], run["model"]


def fit_acceptance(
    session: Session, runs: Sequence[Mapping[str, Any]], constants: Mapping[tuple, HostConstants]
) -> dict[tuple[str, str], float]:
    """Return the acceptance rate by (engine, model) at which simulated TPOT is closest to measured in fitting runs.

    Least mean absolute log error. A pair without fitting runs takes the rate of its engine's runs, else of all; empty
    if there are no fitting runs. ``constants``: host constants by group of runs.
    """
    fitting = [run for run in runs if run["fitting"] and needs_acceptance_rate(run)]
    if not fitting:
        return {}
    host = [constants.get(group_of(run)) for run in fitting]
    log_errors = []
    for rate in GRID:
        planned = plan_runs(session, [with_acceptance_rate(run["flags"], rate) for run in fitting])
        [rows] = serve_runs(session, planned, [host])
        rates = [row.get("tpot_mean_ms") or np.nan for row in rows]
        log_errors.append(np.log(rates) - np.log([run["tpot_ms"] for run in fitting]))
    interpolated = np.array([np.interp(FINE, GRID, miss) for miss in np.array(log_errors).T])
    proposers = [proposer_of(run) for run in fitting]

    def nearest(chosen: np.ndarray) -> float:
        means = np.nanmean(np.abs(chosen), axis=0)
        return float(FINE[np.nanargmin(means)])

    served = ~np.isnan(interpolated).any(axis=1)
    needed = dict.fromkeys(proposer_of(run) for run in runs if needs_acceptance_rate(run))
    rates = {}
    for proposer in needed if served.any() else ():
        is_proposer = served & np.array([other == proposer for other in proposers])
        is_engine = served & np.array([other[0] == proposer[0] for other in proposers])
        chosen = next(rows for rows in (is_proposer, is_engine, served) if rows.any())
        rates[proposer] = round(nearest(interpolated[chosen]), 3)
    return rates


def fill_acceptance_rates(
    session: Session, runs: Sequence[dict[str, Any]], planned: list[Planned], constants: Mapping[tuple, HostConstants]
) -> None:
    """Set unknown acceptance rates in the flags of runs with speculative decoding, in place, and plan these again.

    Rates are fitted on the fitting fifth; a run without one gets a fault instead of a plan.
    """
    if not any(map(needs_acceptance_rate, runs)):
        return
    repeated_runs = repeats(runs)
    rates = fit_acceptance(session, [run for run in runs if run["run_id"] not in repeated_runs], constants)
    for number, run in enumerate(runs):
        if needs_acceptance_rate(run) and proposer_of(run) in rates:
            run["flags"] = with_acceptance_rate(run["flags"], rates[proposer_of(run)])
            [planned[number]] = plan_runs(session, [run["flags"]])
        elif needs_acceptance_rate(run):
            fault = "the acceptance rate of draft tokens is unknown: the fitting fifth has no run to fit it on"
            planned[number] = Planned([], None, fault)
