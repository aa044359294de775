"""A measurer that replays recorded measurements: each candidate's latency, with noise of the recorded spread."""

from __future__ import annotations

import zlib

import numpy as np

from kernelsight.searching.arrays import OK, Measured
from kernelsight.searching.history import SAMPLES, Outcome
from kernelsight.searching.rounds import Measure


def replay(truth: Measured, ids: np.ndarray, seed: int) -> Measure:
    """Return a measurer that draws the mean of eight samples of each candidate's recorded latency and spread.

    A draw depends on seed, candidate and run alone, so that a resumed search measures the same.
    """

    def measure(rows: np.ndarray, runs: np.ndarray) -> Outcome:
        spread = np.nan_to_num(truth.cv[rows]) / np.sqrt(SAMPLES)
        drawn = np.array([_draw(seed, str(ids[row]), int(run)) for row, run in zip(rows, runs, strict=True)])
        latency = np.where(truth.status[rows] == OK, truth.latency_us[rows] * np.exp(spread * drawn), np.nan)
        samples = np.full(len(rows), float(SAMPLES))
        return Outcome(
            *(truth.status[rows], latency, truth.cv[rows], samples, truth.compile_s[rows], truth.benchmark_s[rows])
        )

    return measure


def _draw(seed: int, candidate: str, run: int) -> float:
    return float(np.random.default_rng([seed, zlib.crc32(candidate.encode()), run]).standard_normal())
