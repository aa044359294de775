"""Requests whose records are filled and given back block by block, against the same requests at once."""

from __future__ import annotations

import mmap
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given

from kernelsight.serving.engine import request_blocks
from kernelsight.serving.engine.served import Served
from kernelsight.serving.engine.statistics import SAMPLES
from kernelsight.serving.runs import statistics_tables
from tests.conftest import random_worlds
from tests.serving.engine.worlds import World, caching_worlds, constant_world, policy_worlds, run_loop, worlds


def in_blocks(world: World, block: int) -> Served:
    """Serve a world with records in blocks of so many requests."""
    with patch.object(request_blocks, "BLOCK", block), patch.object(request_blocks, "LARGE_PAGE", mmap.PAGESIZE):
        return run_loop(world, windows_from_us=world.load.arrival_us[0])


def check(found: Served, expected: Served) -> None:
    """Hold the outcome, totals, windows and uses of two runs against each other, bit for bit."""
    assert found.totals == expected.totals
    for one, other in ((found.out, expected.out), (found.windows, expected.windows), (found.uses, expected.uses)):
        for values, others in zip(one, other, strict=True):
            assert np.array_equal(values, others)
    assert np.array_equal(found.histogram, expected.histogram)


@random_worlds(60)
@given(world=worlds() | policy_worlds() | caching_worlds())
def test_blocks_change_no_result(world: World) -> None:
    check(in_blocks(world, 2), in_blocks(world, world.load.arrival_us.size + 1))


@pytest.mark.parametrize("apart_us", [0.0, 400.0])
def test_records_given_back_are_not_needed_again(apart_us: float) -> None:
    count, random = 4_000, np.random.default_rng(1)
    lengths = random.integers(1, 30, (count, 2)).tolist()
    world = constant_world([(apart_us * number, *each) for number, each in enumerate(lengths)])
    world = world._replace(load=world.load._replace(warmups=7))
    given_back, read = [], request_blocks.RequestBlocks._read

    def noted(blocks: request_blocks.RequestBlocks, stop: int) -> None:
        given_back.append(stop)
        read(blocks, stop)

    with patch.object(request_blocks.RequestBlocks, "_read", noted):
        found = in_blocks(world, 64)
    # while all wait, no block has ended
    assert len(given_back) > 20 and given_back[-1] == count if apart_us else not given_back
    check(found, in_blocks(world, count))


def test_quantiles_of_many_samples_are_those_of_few() -> None:
    size = statistics_tables.LONG + 1
    samples = np.random.default_rng(3).gamma(2.0, 30.0, (1, len(SAMPLES), size))
    counts = np.full((1, 15), size)
    found = statistics_tables.quantiles_of(counts, samples.copy())
    expected = np.moveaxis(np.quantile(samples, list(statistics_tables.QUANTILES.values()), axis=-1), 0, -1)
    assert found == pytest.approx(expected, rel=1e-12)
