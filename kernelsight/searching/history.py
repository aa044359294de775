"""The history of a search: its measurements so far, as arrays that grow round by round."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# standard deviation of a log latency whose spread is not known, and the least one of any
UNKNOWN_NOISE, LEAST_NOISE = 0.02, 0.002
# samples of a measurement where their number is not known
SAMPLES = 8
# most measurements that a Gaussian process is fitted to: its time grows with the third power of their number
MOST_FITTED = 400


class History(NamedTuple):
    """Measurements in order, arrays of shape (measurements,); ``rows``: candidates of the target; failed: log nan."""

    rows: np.ndarray
    logs: np.ndarray
    noise: np.ndarray  # variance of each log
    rounds: np.ndarray
    runs: np.ndarray
    random: np.ndarray  # drawn at random by a known rule
    cost_s: np.ndarray
    forecast: np.ndarray  # mean log latency that was expected of it; nan: it was measured without a forecast
    surprise: np.ndarray  # (measured - forecast) / standard deviation before widening; nan where either is not known

    @property
    def worked(self) -> np.ndarray:
        """Indices of the measurements that worked."""
        return np.flatnonzero(~np.isnan(self.logs))

    @property
    def fitted(self) -> np.ndarray:
        """Indices of the measurements to fit: all that worked, or of many the fastest half and an even sample."""
        indices = self.worked
        if len(indices) <= MOST_FITTED:
            return indices
        order = indices[np.argsort(self.logs[indices], kind="stable")]
        fastest, slower = order[: MOST_FITTED // 2], order[MOST_FITTED // 2 :]
        return np.sort(np.concatenate([fastest, slower[np.linspace(0, len(slower) - 1, MOST_FITTED // 2).astype(int)]]))

    @property
    def failed(self) -> np.ndarray:
        """Indices of the measurements that failed."""
        return np.flatnonzero(np.isnan(self.logs))

    def until(self, count: int) -> History:
        """Return the first ``count`` measurements."""
        return History(*(column[:count] for column in self))


def empty_history() -> History:
    """Return the history of a search before its first round."""
    no_rows, no_values = np.zeros(0, dtype=np.int64), np.zeros(0)
    return History(
        no_rows, no_values, no_values, no_rows, no_rows, np.zeros(0, dtype=bool), no_values, no_values, no_values
    )


class Outcome(NamedTuple):
    """The measurements of one round's candidates, in their order."""

    status: np.ndarray  # codes of ``arrays.STATUS``
    latency_us: np.ndarray
    cv: np.ndarray
    samples: np.ndarray
    compile_s: np.ndarray
    benchmark_s: np.ndarray


def with_round(
    history: History,
    number: int,
    rows: np.ndarray,
    random: np.ndarray,
    outcome: Outcome,
    expected: tuple[np.ndarray, np.ndarray],
) -> History:
    """Append a round to the history; ``expected``: forecast mean and standard deviation of each log latency."""
    from kernelsight.searching.arrays import OK

    worked = outcome.status == OK
    logs = np.full(len(rows), np.nan)
    logs[worked] = np.log(outcome.latency_us[worked])
    samples = np.where(np.isnan(outcome.samples), SAMPLES, outcome.samples)
    spread = np.where(np.isnan(outcome.cv), UNKNOWN_NOISE, outcome.cv / np.sqrt(samples))
    cost = np.nan_to_num(outcome.compile_s) + np.nan_to_num(outcome.benchmark_s)
    runs = np.array([(history.rows == row).sum() + (rows[:index] == row).sum() + 1 for index, row in enumerate(rows)])
    noise = np.maximum(spread, LEAST_NOISE) ** 2
    surprise = np.where(runs == 1, (logs - expected[0]) / np.sqrt(expected[1] ** 2 + noise), np.nan)
    new = (rows, logs, noise, np.full(len(rows), number), runs, random, cost, expected[0], surprise)
    return History(*(np.concatenate([column, added]) for column, added in zip(history, new, strict=True)))


def weighted_means(history: History) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows that worked, with the inverse-variance weighted mean of each one's logs, and its variance."""
    indices = history.worked
    rows, index = np.unique(history.rows[indices], return_inverse=True)
    weight = np.bincount(index, 1.0 / history.noise[indices], minlength=len(rows))
    mean = np.bincount(index, history.logs[indices] / history.noise[indices], minlength=len(rows)) / weight
    return rows, mean, 1.0 / weight


def finite_or_none(value: float) -> float | None:
    """Return a number as a plain float; None where it is not finite."""
    return float(value) if np.isfinite(value) else None
