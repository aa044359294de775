"""Outputs that a client limits: their mean and spread, how many reach the limit, and the flags that replay them."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from kernelsight.evaluation.runs.recipes import flags_of
from kernelsight.laboratory.runs.limited_outputs import SHARES, limited_lengths

RUN = {"model": "m", "gpu": "g", "engine": "e", "campaign": "c", "isl": 1500, "osl": 250, "max_concurrency": 8}
RUN |= dict.fromkeys(("tp", "pp", "dp", "ep", "workers"), 1)
RUN |= dict.fromkeys(("engine_version", "request_rate", "measured_on", "quantization", "speculative"))


@pytest.mark.parametrize(("mean", "sd", "most"), [(250, 385, 1024), (646, 700, 4096), (8000, 6000, 32768)])
def test_limited_lengths_have_the_mean_and_the_spread_that_are_asked_for(mean: int, sd: int, most: int) -> None:
    lengths = limited_lengths(mean, sd, most)
    assert lengths.size == SHARES and lengths.min() >= 1 and lengths.max() <= most
    assert (lengths.mean(), lengths.std()) == pytest.approx((mean, sd), rel=0.01)
    assert np.all(np.diff(lengths) >= 0)


def test_a_wide_spread_below_a_low_limit_ends_there() -> None:
    assert np.mean(limited_lengths(250, 385, 1024) == 1024) == pytest.approx(0.165, abs=0.01)
    assert not np.any(limited_lengths(250, 50, 1024) == 1024)


def test_a_run_with_a_limit_is_replayed_with_a_file_of_lengths() -> None:
    stated = '{"length_distribution": "lognormal", "output_len_cv": 1.54, "output_len_limit": 1024}'
    flags, _ = flags_of(RUN | {"stated_flags": stated}, [])
    assert not {"output_len_limit", "output_len_cv", "input_len", "output_len"} & set(flags)
    lengths = pq.read_table(flags["lengths_from"])
    assert set(lengths["prompt_tokens"].to_pylist()) == {1500}
    assert np.mean(lengths["output_tokens"]) == pytest.approx(250, rel=0.01)
    plain, _ = flags_of(RUN | {"stated_flags": stated.replace(', "output_len_limit": 1024', "")}, [])
    assert (plain["output_len_cv"], plain["output_len"], "lengths_from" in plain) == (1.54, 250, False)
