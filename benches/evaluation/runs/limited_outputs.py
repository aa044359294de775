"""Output lengths under a client's limit: lognormal, censored at the limit, with a given mean and deviation."""

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

# requests of a file of lengths: one per quantile of the distribution
SHARES = 256
HALVINGS = 30
# bounds of the bisections: of the standard deviation of logarithms, and of their mean
SPREADS = 1e-3, 12.0
BELOW, ABOVE = -40.0, 40.0


def limited_lengths(mean: float, sd: float, limit: int) -> np.ndarray:
    """Return ``SHARES`` ascending lengths, tokens: min(limit, lognormal) with this mean and standard deviation.

    A mean or deviation that no such lengths have gives the nearest possible.

    >>> lengths = limited_lengths(250.0, 385.0, 1024)
    >>> round(lengths.mean() / 10), round(lengths.std() / 10), round(float(np.mean(lengths == 1024)), 1)
    (25, 38, 0.2)
    """
    quantiles = _quantiles()
    narrow, wide = SPREADS
    for _ in range(HALVINGS):
        spread = (narrow + wide) / 2.0
        if _scaled_to_mean(mean, spread * quantiles, limit).std() < sd:
            narrow = spread
        else:
            wide = spread
    return np.maximum(np.rint(_scaled_to_mean(mean, wide * quantiles, limit)), 1).astype(np.int64)


def _scaled_to_mean(mean: float, logarithms: np.ndarray, limit: int) -> np.ndarray:
    """Return exp(logarithms), scaled so that the mean after limiting is ``mean``, and limited."""
    low, high = BELOW, ABOVE
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if np.minimum(np.exp(middle + logarithms), limit).mean() < mean:
            low = middle
        else:
            high = middle
    return np.minimum(np.exp(high + logarithms), limit)


@cache
def _quantiles() -> np.ndarray:
    """Return SHARES quantiles of the standard normal distribution."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((share + 0.5) / SHARES) for share in range(SHARES)])


def with_limited_outputs(flags: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return flags in which lognormal output lengths are replaced by a file of lengths of at most ``limit`` tokens."""
    replaced = ("input_len", "output_len", "output_len_cv", "length_distribution", "range_ratio")
    kept = {name: value for name, value in flags.items() if name not in replaced}
    path = _lengths_file(flags["input_len"], flags["output_len"], flags["output_len_cv"], limit)
    return kept | {"length_distribution": "empirical", "lengths_from": path}


@cache
def _lengths_file(prompt: int, mean: int, variation: float, limit: int) -> str:
    """Write a trace of ``prompt`` tokens each with limited outputs, and return its path; ``variation``: sd / mean."""
    outputs = limited_lengths(mean, variation * mean, limit)
    path = Path(_folder().name) / f"{prompt}-{mean}-{variation}-{limit}.parquet"
    columns = {"arrival_s": np.arange(float(SHARES)), "prompt_tokens": np.full(SHARES, prompt)}
    pq.write_table(pa.table(columns | {"output_tokens": outputs}), path)
    return str(path)


@cache
def _folder() -> TemporaryDirectory:
    """Return a temporary folder for files of lengths, removed when the process ends."""
    return TemporaryDirectory(prefix="kernelsight-lengths-")
