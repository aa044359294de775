"""Strategies of Kernel Tuner as search policies: each runs its own code on a measured space, in simulation mode.

They learn from the searched GPU alone and measure one candidate at a time, with the same cost and noise as other
replays; so does Optuna's TPE sampler, as ``tuner:optuna_tpe``. Needs the extra ``tuner``, or Optuna; written against
Kernel Tuner 1.5 and Optuna 5.0.
"""

from __future__ import annotations

import itertools
import json
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np

from kernelsight.errors import InvalidInput, RunFailed, extra_missing, unknown
from kernelsight.searching.arrays import COMPILE_FAILED, OK, Measured, SpaceArrays
from kernelsight.searching.replays import replay

PREFIX = "tuner:"
# strategies that the policy ``tuner`` stands for
USUAL = (
    *("random_sample", "genetic_algorithm", "diff_evo", "bayes_opt", "simulated_annealing", "greedy_ils"),
    *("greedy_mls", "hybrid_vndx", "adaptive_tabu_greywolf"),
)
# Optuna's sampler, and its proposals a measurement: most are configurations that the space does not hold
OPTUNA, MOST_PROPOSALS = "optuna_tpe", 30
# these enumerate the space, need other packages, or several objectives
NOT_SEARCHES = ("brute_force", "skopt", "pyatf_strategies", "nsga2", "nsga3")


def is_tuner(policy: str) -> bool:
    """Whether a policy is a strategy of Kernel Tuner.

    >>> is_tuner("tuner:bayes_opt"), is_tuner("order")
    (True, False)
    """
    return policy.startswith(PREFIX)


def expanded(policies: Sequence[str]) -> list[str]:
    """Return policies with ``tuner`` replaced by the USUAL strategies of Kernel Tuner.

    >>> expanded(["order", "tuner"])[:2]
    ['order', 'tuner:random_sample']
    """
    by_policy = [[PREFIX + name for name in USUAL] if policy == "tuner" else [policy] for policy in policies]
    return list(dict.fromkeys(itertools.chain.from_iterable(by_policy)))


def check_strategy(policy: str) -> None:
    """Check that a strategy exists. InvalidInput: Kernel Tuner is not installed; UnknownName: it has no such one."""
    if policy == PREFIX + OPTUNA:
        if find_spec("optuna") is None:
            raise InvalidInput(f"policy {policy!r} needs Optuna, which is not installed; pip install optuna.")
        return
    try:
        from kernel_tuner.interface import strategy_map
    except ImportError:
        raise extra_missing(f"policy {policy!r}", "Kernel Tuner", "tuner") from None
    strategies = sorted(set(strategy_map) - set(NOT_SEARCHES))
    name = policy.removeprefix(PREFIX)
    if name not in strategies:
        raise unknown("strategy of Kernel Tuner", name, strategies, f"Known: {', '.join(strategies)}.")


def best_rows(policy: str, arrays: SpaceArrays, truth: Measured, ids: np.ndarray, seed: int, budget: int) -> np.ndarray:
    """Return the row of the fastest candidate so far after each measurement of a strategy; -1: none worked yet.

    ``ids``: candidates of ``truth``. RunFailed: the strategy itself failed on this space.
    """
    name = policy.removeprefix(PREFIX)
    parameters = [json.loads(text) for text in arrays.parameters[np.searchsorted(arrays.ids, ids)]]
    try:
        order = optuna_order if name == OPTUNA else partial(measured_order, name)
        rows, latency_us = order(parameters, truth, ids, seed, budget)
    except Exception as error:  # another package's code: whatever it raises
        raise RunFailed(f"strategy {name} of Kernel Tuner failed on space {arrays.space!r}: {error}") from error
    if not len(rows):
        raise RunFailed(f"strategy {name} of Kernel Tuner measured nothing on space {arrays.space!r}.")
    return best_so_far(rows, latency_us)


def measured_order(
    name: str,
    parameters: Sequence[Mapping[str, Any]],
    truth: Measured,
    ids: np.ndarray,
    seed: int,
    budget: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that a strategy measures, in order, and the latency in us of each (nan: it failed).

    ``parameters``, ``truth`` and ``ids``: of all candidates, in one order. A strategy may end before its budget.
    """
    import scipy.stats.qmc  # noqa: F401  draws when it is imported, so before the generators are seeded
    from kernel_tuner.interface import Options, strategy_map
    from kernel_tuner.runners.simulation import SimulationRunner
    from kernel_tuner.searchspace import Searchspace
    from kernel_tuner.util import CompilationFailedConfig, RuntimeFailedConfig, StopCriterionReached, TuningBudget

    rows = np.arange(len(ids))
    noisy = replay(truth, ids, seed)(rows, np.ones(len(ids), dtype=np.int64)).latency_us
    names = list(parameters[0])
    cache = _Journal()
    for row, values in enumerate(parameters):
        measurement = {key: values[key] for key in names}
        if truth.status[row] == OK:
            measurement["time"] = float(noisy[row])
        else:
            failed = CompilationFailedConfig if truth.status[row] == COMPILE_FAILED else RuntimeFailedConfig
            measurement["time"] = measurement["__error__"] = failed()
        cache[",".join(str(values[key]) for key in names)] = measurement
    parameter_values = {key: sorted({values[key] for values in parameters}) for key in names}
    options = {"max_fevals": budget}
    settings = Options(
        **{
            "tune_params": parameter_values,
            "restrictions": [],
            "restrictions_unmodified": [],
            "metrics": None,
            "verbose": False,
        },
        **{"objective": ["time"], "objective_higher_is_better": [False], "simulation_mode": True, "seed": seed},
        **{"strategy": name, "strategy_options": Options(options), "max_fevals": budget, "cache": cache},
        **{"budget": TuningBudget(None, budget), "time_limit": None},
    )
    runner = SimulationRunner(None, Options(kernel_name="space"), Options(quiet=True), 1, None)
    tune = strategy_map[name].tune
    # Kernel Tuner represents failures by the largest numbers, whose squares overflow
    with _seeded(seed), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        space = Searchspace(None, None, None, from_cache={"tune_params": parameter_values, "cache": dict(cache)})
        with suppress(StopCriterionReached):
            tune(space, runner, settings)
    row_of_key = {key: row for row, key in enumerate(cache)}
    order = np.array([row_of_key[key] for key in cache.read_order], dtype=np.int64)[:budget]
    return order, noisy[order]


def optuna_order(
    parameters: Sequence[Mapping[str, Any]], truth: Measured, ids: np.ndarray, seed: int, budget: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same of Optuna's TPE: what the space does not hold is told as failed, without a measurement."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    values = {name: sorted({row[name] for row in parameters}) for name in parameters[0]}
    place_of = {tuple(row[name] for name in values): place for place, row in enumerate(parameters)}
    measure, failed = replay(truth, ids, seed), optuna.trial.TrialState.FAIL
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    rows: list[int] = []
    times: list[float] = []
    for _ in range(MOST_PROPOSALS * budget):
        trial = study.ask()
        row = place_of.get(tuple(trial.suggest_categorical(name, each) for name, each in values.items()))
        if row is None:
            study.tell(trial, state=failed)
            continue
        times.append(float(measure(np.array([row]), np.array([rows.count(row) + 1])).latency_us[0]))
        rows.append(row)
        study.tell(trial, **({"values": times[-1]} if np.isfinite(times[-1]) else {"state": failed}))
        if len(rows) == budget:
            break
    return np.array(rows, dtype=np.int64), np.array(times)


class _Journal(dict):
    """Measurements by configuration, with the order in which they are first read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_order: dict[str, None] = {}

    def __getitem__(self, key: str) -> Any:
        self.read_order.setdefault(key)
        return super().__getitem__(key)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators of Python and numpy that strategies draw from, and restore them."""
    states = random.getstate(), np.random.get_state()
    original, numbers = np.random.default_rng, itertools.count()

    def default(seed_given: Any = None) -> np.random.Generator:
        return original([seed, next(numbers)] if seed_given is None else seed_given)

    random.seed(seed)
    np.random.seed(seed)
    try:
        with mock.patch.object(np.random, "default_rng", default):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def best_so_far(rows: np.ndarray, latency_us: np.ndarray) -> np.ndarray:
    """Return the row of the lowest latency so far after each measurement; -1: none worked yet.

    >>> best_so_far(np.array([4, 2, 7]), np.array([np.nan, 3.0, 5.0])).tolist()
    [-1, 2, 2]
    """
    best_so_far, best, lowest = [], -1, np.inf
    for row, latency in zip(rows.tolist(), latency_us.tolist(), strict=True):
        if latency < lowest:
            best, lowest = row, latency
        best_so_far.append(best)
    return np.array(best_so_far, dtype=np.int64)
