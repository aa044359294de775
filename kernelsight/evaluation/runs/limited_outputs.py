"""Lengths of outputs that a client limits: lognormal up to the limit, which the longest of them reach together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import NormalDist
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# requests of a file of lengths: one for each of as many equal shares of the distribution
SHARES = 256
HALVINGS = 30
# bounds of the spread of the logarithms, and of their mean about that of the limit
SPREADS = 1e-3, 12.0
BELOW, ABOVE = -40.0, 40.0


def limited_lengths(mean: float, sd: float, most: int) -> np.ndarray:
    """Return ``SHARES`` lengths, shortest first: the smaller of ``most`` and a lognormal, of this mean and sd.

    A mean or a spread that no such lengths have gives those that come nearest.

    >>> lengths = limited_lengths(250.0, 385.0, 1024)
    >>> round(lengths.mean() / 10), round(lengths.std() / 10), round(float(np.mean(lengths == 1024)), 1)
    (25, 38, 0.2)
    """
    quantiles = _quantiles()
    narrow, wide = SPREADS
    for _ in range(HALVINGS):
        spread = (narrow + wide) / 2.0
        if _of_mean(mean, spread * quantiles, most).std() < sd:
            narrow = spread
        else:
            wide = spread
    return np.maximum(np.rint(_of_mean(mean, wide * quantiles, most)), 1).astype(np.int64)


def _of_mean(mean: float, logarithms: np.ndarray, most: int) -> np.ndarray:
    """Return exp(logarithms) times the factor that gives the lengths up to ``most`` this mean."""
    low, high = BELOW, ABOVE
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if np.minimum(np.exp(middle + logarithms), most).mean() < mean:
            low = middle
        else:
            high = middle
    return np.minimum(np.exp(high + logarithms), most)


@cache
def _quantiles() -> np.ndarray:
    normal = NormalDist()
    return np.array([normal.inv_cdf((share + 0.5) / SHARES) for share in range(SHARES)])


def with_limited_outputs(flags: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return flags of lognormal outputs with a file of lengths up to ``most`` tokens instead, of their mean and sd."""
    replaced = ("input_len", "output_len", "output_len_cv", "length_distribution", "range_ratio")
    kept = {name: value for name, value in flags.items() if name not in replaced}
    path = _written(flags["input_len"], flags["output_len"], flags["output_len_cv"], most)
    return kept | {"length_distribution": "empirical", "lengths_from": path}


@cache
def _written(prompt: int, mean: int, spread: float, most: int) -> str:
    outputs = limited_lengths(mean, spread * mean, most)
    path = Path(_folder().name) / f"{prompt}-{mean}-{spread}-{most}.parquet"
    columns = {"arrival_s": np.arange(float(SHARES)), "prompt_tokens": np.full(SHARES, prompt)}
    pq.write_table(pa.table(columns | {"output_tokens": outputs}), path)
    return str(path)


@cache
def _folder() -> TemporaryDirectory:
    """Return a folder for files of lengths, which goes with the process."""
    return TemporaryDirectory(prefix="kernelsight-lengths-")
