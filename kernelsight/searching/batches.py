"""The batch of a round of the selective policy: mostly by the main forecaster's expected gain, some by other views.

Other GPUs can mislead: a search that only believes their mean may never look where they are all slow. So every second
round belongs to a search that learns from no other GPU, and a share of every batch to other views of the same
measurements: each other GPU alone, and none of them.
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

OTHER_SHARE = 0.2
# from which measurement on, and how evenly views are drawn: 1 by their evidence alone
OTHER_FROM = 5
EVENLY = 0.5
SWITCH = 3.0
TURNS = 2
PROBES = 2
# measurements among which random draws are twice as frequent: forecasts are to be right early
EARLY = 20
ALL, MAKER, FORECASTS, NONE = "all", "maker", "forecasts", "none"
# rounds of which one belongs to a search without other GPUs, and measurements before the first of these
ALONE, ALONE_FROM = 2, 10
RANDOM_DRAW, VIEW_DRAW = 4, 5


def views(target: Target, inputs: gp.Inputs) -> dict[str, gp.Inputs]:
    """Return the views of a target, by name: all sources, those of the same maker, each of these alone, and none.

    Forecasts by other means that stand beside other GPUs are a view of their own: all of these, and the forecasts.
    """
    every = range(inputs.sources.shape[1])
    believed = [place for place in every if target.weights[place] > 0]
    by_name = {ALL: inputs if len(believed) == len(every) else _seen(inputs, believed)}
    near = [place for place in believed if target.weights[place] >= target.weights.max()]
    if 0 < len(near) < len(believed):
        by_name[MAKER] = _seen(inputs, near)
    if len(near) > 1:
        by_name |= {f"source {target.sources[place]}": _seen(inputs, [place]) for place in near}
    if believed:
        by_name[NONE] = inputs._replace(sources=inputs.sources[:, :0], mean=np.zeros(len(inputs.mean)))
    if len(believed) < len(every):
        by_name[FORECASTS] = inputs
    return by_name


def _seen(inputs: gp.Inputs, places: list[int]) -> gp.Inputs:
    sources = inputs.sources[:, places]
    return inputs._replace(sources=sources, mean=sources.mean(1))


def explained(known: Mapping[str, gp.Inputs], history: History, settings: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return how well each view explains what was measured: log density, the best one at 0."""
    places = history.fitted
    data = (history.rows[places], history.logs[places], history.noise[places])
    densities = {name: gp.evidence(view, *data, settings.get(name, gp.start(view))) for name, view in known.items()}
    best = max(densities.values())
    return {name: value - best for name, value in densities.items()}


def main_view(evidence: Mapping[str, float], number: int) -> str:
    """Return the view that a round believes: all sources, unless another one explains the measurements far better.

    Where sources of the same maker are some of all, the rounds take turns between these and all.
    """
    best = max(evidence, key=lambda name: evidence[name])
    usual = MAKER if MAKER in evidence and number % TURNS == 0 else ALL
    return best if evidence[best] - evidence[usual] > SWITCH else usual


def drawn_view(evidence: Mapping[str, float], main: str, draw: np.random.Generator) -> str | None:
    """Return another view than the main one, drawn by how well it explains the measurements, or None.

    One that explains them far worse than no other GPU does is not drawn.
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
    known: Mapping[str, gp.Inputs],
    settings: dict[str, np.ndarray],
    count: int,
) -> decide.Decisions:
    """Return the candidates of one round; ``settings`` of views are brought up to date."""
    parts = [_random(target, scenario, number, main_forecast, history, count)]
    remaining = count - len(parts[0].rows)
    others = _share(OTHER_SHARE, len(history.rows), count) if len(history.rows) >= OTHER_FROM else 0
    draw = decide.generator(scenario, number, VIEW_DRAW)
    for _ in range(min(others, remaining - 1)):
        probe = _probe(target, main_forecast, history, _rows(parts), known[MAKER if MAKER in known else ALL].mean)
        if probe is not None:
            parts.append(probe)
            continue
        name = drawn_view(evidence, main_forecast.forecaster, draw)
        if name is None:
            break
        parts.append(_of_view(name, target, main_forecast, history, known, settings, 1, _rows(parts)))
    remaining = count - len(_rows(parts))
    if number % ALONE == 0 and NONE in known and main_forecast.forecaster != NONE and len(history.rows) >= ALONE_FROM:
        parts.append(_of_view(NONE, target, main_forecast, history, known, settings, remaining, _rows(parts)))
        remaining = count - len(_rows(parts))
    main = decide.by_gain(main_forecast, inputs, history, best, remaining, taken=_rows(parts))
    again = decide.repeats(main_forecast, inputs, history, best)
    if len(main.rows) and again.gains[0] > main.gains[-1]:
        chosen_rows = decide.Decisions(main.rows[:-1], main.reasons[:-1], main.gains[:-1])
        main = decide.joined(chosen_rows, again)
    parts.append(main)
    missing = count - len(_rows(parts))
    if missing > 0:  # nothing else is expected to gain: the fastest of the rest
        parts.append(decide.by_mean(main_forecast, np.union1d(history.rows, _rows(parts)), missing, best.log))
    whole = parts[-1]
    for part in reversed(parts[:-1]):
        whole = decide.joined(whole, part)
    return whole


def _of_view(
    name: str,
    target: Target,
    main: Forecast,
    history: History,
    known: Mapping[str, gp.Inputs],
    settings: dict[str, np.ndarray],
    count: int,
    taken: np.ndarray,
) -> decide.Decisions:
    """Return the candidates that another view than the main one would measure."""
    view = known[name]
    theirs = forecast(name, target, view, history, main.rows, settings.get(name, gp.start(view)), beside=main)
    assert theirs.fit is not None
    settings[name] = theirs.fit.settings
    best = decide.best_of(theirs, view, history)
    assert best is not None
    picked = decide.by_gain(theirs, view, history, best, count, taken=taken)
    return picked._replace(reasons=["other view"] * len(picked.rows))


def _rows(parts: list[decide.Decisions]) -> np.ndarray:
    return np.concatenate([part.rows for part in parts]).astype(np.int64)


def _share(share: float, before: int, count: int) -> int:
    """Return how many of the next ``count`` measurements belong to a share of all."""
    return int(np.floor(share * (before + count) + 1e-9) - np.floor(share * before + 1e-9))


def _probe(
    target: Target, main: Forecast, history: History, taken: np.ndarray, expected: np.ndarray
) -> decide.Decisions | None:
    """Return the most promising candidate of the regime that was measured least, until each was measured twice."""
    regimes = np.unique(target.regimes)
    measured = np.array([(target.regimes[history.rows] == each).sum() for each in regimes])
    if measured.min() >= PROBES:
        return None
    inside = np.isin(target.regimes[main.rows], regimes[measured == measured.min()])
    free = inside & ~np.isin(main.rows, np.concatenate([history.rows, taken]))
    if not free.any():
        return None
    cost = np.where(free, expected[main.rows] - np.log(main.works + 1e-3), np.inf)
    return decide.Decisions(main.rows[[int(np.argmin(cost))]], ["regime"], np.array([np.nan]))


def _random(
    target: Target, scenario: Mapping[str, Any], number: int, main: Forecast, history: History, count: int
) -> decide.Decisions:
    """Return the candidates of a round that are drawn at random, each unmeasured one with the same chance."""
    new = np.setdiff1d(main.rows, history.rows)
    share, before = float(scenario["random_share"]), len(history.rows)
    wanted = _share(share, before, count) + _share(share, min(before, EARLY), min(count, max(EARLY - before, 0)))
    wanted = min(wanted, count - 1, len(new))
    rows = decide.generator(scenario, number, RANDOM_DRAW).choice(new, max(wanted, 0), replace=False)
    return decide.Decisions(rows, ["random"] * len(rows), np.full(len(rows), np.nan))
