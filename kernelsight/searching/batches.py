"""Chooses the batch of a round of the selective policy: mostly by expected improvement, some by other models.

A view is a set of sources (other GPUs, forecasts) that a Gaussian process learns from. Other GPUs can mislead: a search
that only trusts their mean may never look where they are all slow. So every second round belongs to the view without
other GPUs, and a share of every batch to other views of the same measurements: each other GPU alone, and none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelsight.searching import decisions as decide
from kernelsight.searching import gaussian_process as gp
from kernelsight.searching.forecasts import Forecast, forecast
from kernelsight.searching.history import History
from kernelsight.searching.targets import Target

# share of measurements for other views than the main one, and measurements before the first of them
OTHER_SHARE = 0.2
OTHER_FROM = 5
# share of the chance to be drawn that all other views have evenly; the rest goes by their evidence
EVENLY = 0.5
# log evidence by which another view must exceed the usual one to replace it
SWITCH = 3.0
# of as many rounds, one believes the sources of the same maker
TURNS = 2
# least measurements of each regime
PROBES = 2
# measurements among which random draws are twice as frequent, so that forecasts are calibrated early
EARLY = 20
ALL, MAKER, FORECASTS, NONE = "all", "maker", "forecasts", "none"
# one of as many rounds belongs to the view without other GPUs, after this many measurements
ALONE, ALONE_FROM = 2, 10
RANDOM_DRAW, VIEW_DRAW = 4, 5


def views(target: Target, inputs: gp.Inputs) -> dict[str, gp.Inputs]:
    """Return the views of a target by name: all GPUs, those of the same maker, each of these alone, and none.

    Forecasts by other means are in one further view, with all GPUs.
    """
    all_sources = range(inputs.sources.shape[1])
    believed_sources = [source for source in all_sources if target.weights[source] > 0]
    by_name = {ALL: inputs if len(believed_sources) == len(all_sources) else _with_sources(inputs, believed_sources)}
    of_maker = [source for source in believed_sources if target.weights[source] >= target.weights.max()]
    if 0 < len(of_maker) < len(believed_sources):
        by_name[MAKER] = _with_sources(inputs, of_maker)
    if len(of_maker) > 1:
        by_name |= {f"source {target.sources[source]}": _with_sources(inputs, [source]) for source in of_maker}
    if believed_sources:
        by_name[NONE] = inputs._replace(sources=inputs.sources[:, :0], mean=np.zeros(len(inputs.mean)))
    if len(believed_sources) < len(all_sources):
        by_name[FORECASTS] = inputs
    return by_name


def _with_sources(inputs: gp.Inputs, columns: list[int]) -> gp.Inputs:
    sources = inputs.sources[:, columns]
    return inputs._replace(sources=sources, mean=sources.mean(1))


def evidence_by_view(
    views_by_name: Mapping[str, gp.Inputs], history: History, settings: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Return the log evidence (marginal likelihood) of the measurements by view, relative to the best."""
    fitted = history.fitted
    data = (history.rows[fitted], history.logs[fitted], history.noise[fitted])
    densities = {
        name: gp.evidence(view, *data, settings.get(name, gp.start(view))) for name, view in views_by_name.items()
    }
    best = max(densities.values())
    return {name: value - best for name, value in densities.items()}


def main_view(evidence: Mapping[str, float], number: int) -> str:
    """Return the main view of a round: all sources, unless another view has far more evidence.

    Where only some sources are of the same maker, the rounds alternate between these and all.
    """
    best = max(evidence, key=lambda name: evidence[name])
    usual = MAKER if MAKER in evidence and number % TURNS == 0 else ALL
    return best if evidence[best] - evidence[usual] > SWITCH else usual


def drawn_view(evidence: Mapping[str, float], main: str, draw: np.random.Generator) -> str | None:
    """Draw another view than the main one at random, by its evidence; None where there is none.

    A view with far less evidence than that without other GPUs is not drawn.
    """
    least = evidence.get(NONE, -np.inf) - SWITCH
    names = [name for name in evidence if name != main and evidence[name] >= least]
    if not names:
        return None
    values = np.array([evidence[name] for name in names])
    weight = np.exp(values - values.max())
    weight = EVENLY / len(names) + (1.0 - EVENLY) * weight / weight.sum()
    return names[int(draw.choice(len(names), p=weight / weight.sum()))]


def batch(
    target: Target,
    scenario: Mapping[str, Any],
    number: int,
    inputs: gp.Inputs,
    main_forecast: Forecast,
    history: History,
    best: decide.Best,
    evidence: Mapping[str, float],
    views_by_name: Mapping[str, gp.Inputs],
    settings: dict[str, np.ndarray],
    count: int,
) -> decide.Decisions:
    """Return the candidates of one round, ``count`` of them; fitted ``settings`` of views are updated."""
    batches = [_random(target, scenario, number, main_forecast, history, count)]
    remaining = count - len(batches[0].rows)
    other_count = _count_of_share(OTHER_SHARE, len(history.rows), count) if len(history.rows) >= OTHER_FROM else 0
    draw = decide.generator(scenario, number, VIEW_DRAW)
    for _ in range(min(other_count, remaining - 1)):
        expected = views_by_name[MAKER if MAKER in views_by_name else ALL].mean
        probe = _probe(target, main_forecast, history, _rows(batches), expected)
        if probe is not None:
            batches.append(probe)
            continue
        name = drawn_view(evidence, main_forecast.forecaster, draw)
        if name is None:
            break
        batches.append(_of_view(name, target, main_forecast, history, views_by_name, settings, 1, _rows(batches)))
    remaining = count - len(_rows(batches))
    if (
        number % ALONE == 0
        and NONE in views_by_name
        and main_forecast.forecaster != NONE
        and len(history.rows) >= ALONE_FROM
    ):
        batches.append(
            _of_view(NONE, target, main_forecast, history, views_by_name, settings, remaining, _rows(batches))
        )
        remaining = count - len(_rows(batches))
    by_main = decide.by_gain(main_forecast, inputs, history, best, remaining, taken_rows=_rows(batches))
    repeat = decide.repeats(main_forecast, inputs, history, best)
    if len(by_main.rows) and repeat.gains[0] > by_main.gains[-1]:
        chosen_rows = decide.Decisions(by_main.rows[:-1], by_main.reasons[:-1], by_main.gains[:-1])
        by_main = decide.joined(chosen_rows, repeat)
    batches.append(by_main)
    missing = count - len(_rows(batches))
    if missing > 0:  # no other candidate is expected to gain: the fastest of the rest
        batches.append(decide.by_mean(main_forecast, np.union1d(history.rows, _rows(batches)), missing, best.log))
    joined_batch = batches[-1]
    for decisions in reversed(batches[:-1]):
        joined_batch = decide.joined(joined_batch, decisions)
    return joined_batch


def _of_view(
    name: str,
    target: Target,
    main: Forecast,
    history: History,
    views_by_name: Mapping[str, gp.Inputs],
    settings: dict[str, np.ndarray],
    count: int,
    taken_rows: np.ndarray,
) -> decide.Decisions:
    """Return the candidates of largest expected gain by another view than the main one."""
    view = views_by_name[name]
    by_view = forecast(name, target, view, history, main.rows, settings.get(name, gp.start(view)), beside=main)
    assert by_view.fit is not None
    settings[name] = by_view.fit.settings
    best = decide.best_of(by_view, view, history)
    assert best is not None
    chosen = decide.by_gain(by_view, view, history, best, count, taken_rows=taken_rows)
    return chosen._replace(reasons=["other view"] * len(chosen.rows))


def _rows(batches: list[decide.Decisions]) -> np.ndarray:
    return np.concatenate([decisions.rows for decisions in batches]).astype(np.int64)


def _count_of_share(share: float, before: int, count: int) -> int:
    """Return the number of the next ``count`` measurements that keep a share of all, ``before`` having been made."""
    return int(np.floor(share * (before + count) + 1e-9) - np.floor(share * before + 1e-9))


def _probe(
    target: Target, main: Forecast, history: History, taken_rows: np.ndarray, expected: np.ndarray
) -> decide.Decisions | None:
    """Return the most promising candidate of the least measured regime; None once each was measured PROBES times."""
    regimes = np.unique(target.regimes)
    measured = np.array([(target.regimes[history.rows] == regime).sum() for regime in regimes])
    if measured.min() >= PROBES:
        return None
    in_regime = np.isin(target.regimes[main.rows], regimes[measured == measured.min()])
    free = in_regime & ~np.isin(main.rows, np.concatenate([history.rows, taken_rows]))
    if not free.any():
        return None
    cost = np.where(free, expected[main.rows] - np.log(main.works + 1e-3), np.inf)
    return decide.Decisions(main.rows[[int(np.argmin(cost))]], ["regime"], np.array([np.nan]))


def _random(
    target: Target, scenario: Mapping[str, Any], number: int, main: Forecast, history: History, count: int
) -> decide.Decisions:
    """Draw the random candidates of a round, uniformly from the unmeasured ones."""
    new = np.setdiff1d(main.rows, history.rows)
    share, before = float(scenario["random_share"]), len(history.rows)
    random_count = _count_of_share(share, before, count) + _count_of_share(
        share, min(before, EARLY), min(count, max(EARLY - before, 0))
    )
    random_count = min(random_count, count - 1, len(new))
    rows = decide.generator(scenario, number, RANDOM_DRAW).choice(new, max(random_count, 0), replace=False)
    return decide.Decisions(rows, ["random"] * len(rows), np.full(len(rows), np.nan))
