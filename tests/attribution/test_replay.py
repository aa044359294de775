"""Repeats of a replay: which requests share a step differs between them, and their mean is steadier."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.attribution.replay import (
    KEPT,
    LOAD,
    SHIFT_S,
    Replayed,
    Variant,
    conformed,
    mean_of,
    repeated,
    replay,
)
from kernelsight.session import connect

FLAGS = {"model": "llama-3.1-8b", "gpu": "h100_sxm"}
N = 120


def load(rate: float = 8.0):
    dice = np.random.default_rng(5)
    arrival = np.cumsum(dice.exponential(1.0 / rate, N))
    columns = {"load_id": [LOAD] * N, "request_id": np.arange(N), "arrival_s": arrival - arrival[0]}
    return conformed({**columns, "prompt_tokens": dice.integers(50, 900, N), "output_tokens": dice.integers(5, 90, N)})


def test_repeats_differ_in_times_of_sending_alone_and_keep_their_order() -> None:
    one = load()
    several = repeated(one, 3)
    assert several.slice(0, N).equals(one)
    for place in (1, 2):
        own = several.slice(place * N, N)
        moved = own["arrival_s"].to_numpy() - one["arrival_s"].to_numpy()
        assert 0.0 < np.abs(moved).max() <= SHIFT_S and np.all(np.diff(own["arrival_s"].to_numpy()) >= 0.0)
        assert own.drop_columns(["arrival_s", "load_id"]).equals(one.drop_columns(["arrival_s", "load_id"]))


def test_the_mean_of_repeats_is_near_each_of_them_and_one_variant_does_not_hear_of_another() -> None:
    variants = [Variant(FLAGS), Variant(FLAGS, {"decode_gemm": 1.3})]
    with connect() as session:
        once = replay(session, load(), variants)
        mean = replay(session, load(), variants, repeats=4)
        (alone,) = replay(session, load(), variants[1:], repeats=4)
    assert not np.array_equal(once[0].finish_ns, mean[0].finish_ns)
    assert mean[1].finish_ns.tolist() == alone.finish_ns.tolist()
    for one, other in zip(once, mean, strict=True):
        assert np.nanmean(other.e2e_ms) == pytest.approx(np.nanmean(one.e2e_ms), rel=0.01)
        assert other.part("decode_gemm").sum() == pytest.approx(one.part("decode_gemm").sum(), rel=0.02)


def test_what_one_repeat_rejects_is_rejected() -> None:
    moments = np.array([[5, 5]] * 4)
    one = Replayed(*moments, np.array([9, 9]), (), np.zeros((2, 0)))
    other = one._replace(finish_ns=np.array([-1, 11]))
    assert mean_of([one, other]).served.tolist() == [False, True]
    assert mean_of([one, other]).finish_ns.tolist() == [-1, 10]


def test_parts_that_are_not_wanted_take_no_memory() -> None:
    parts = [np.full((2, 3), place) for place in range(len(KEPT))]
    served = Replayed(*np.ones((5, 3), np.int64), parts, np.ones((2, 3)))
    kept = served.only(["moe", "host"])
    assert sum(values.size for values in kept.parts_ns) == 6
    assert kept.part("moe").tolist() == served.part("moe").tolist() and kept.steps.sum() == 6
    assert served.only([]).steps.size == 0
