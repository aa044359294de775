"""The network in blocks of rows against the same network written for any array library, one row after the other."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from kernelsight.dataflow import blas
from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.kernels.network import FADE_OCTAVES, MOST, NETWORK_ROWS, Network, correction

FEATURES, HIDDEN, NODES = 9, 16, 3


def network(dtype: type = float) -> Network:
    random = np.random.default_rng(5)
    drawn = Network(
        low=np.full(FEATURES, 2.0), high=np.full(FEATURES, 12.0), matter=np.arange(FEATURES) % 3 > 0,
        centre=random.normal(7.0, 2.0, FEATURES), scale=random.uniform(1.0, 4.0, FEATURES),
        first=random.normal(0.0, 1.0, (FEATURES, HIDDEN)), first_bias=random.normal(0.0, 1.0, (NODES, HIDDEN)),
        second=random.normal(0.0, 0.5, (HIDDEN, HIDDEN)), second_bias=random.normal(0.0, 1.0, HIDDEN),
        last=random.normal(0.0, 0.6, HIDDEN), last_bias=random.normal(0.0, 1.0, NODES),
        strength=np.array([1.0, 0.5, 0.7]),
    )  # fmt: skip
    return Network(*(np.asarray(part, dtype) for part in drawn))


def one_row(seen: np.ndarray, node: int, net: Network) -> float:
    held = np.minimum(np.maximum(seen, net.low), net.high)
    away = max(abs(seen - held) * net.matter)
    hidden = np.tanh(((held - net.centre) / net.scale) @ net.first + net.first_bias[node])
    answer = np.tanh(hidden @ net.second + net.second_bias) @ net.last + net.last_bias[node]
    answer = min(max(answer, -MOST), MOST)
    return 0.0 if node < 0 else net.strength[node] * answer / (1.0 + (away / FADE_OCTAVES) ** 2)


@pytest.mark.parametrize("rows", [0, 1, NETWORK_ROWS, 2 * NETWORK_ROWS + 77])
@pytest.mark.parametrize("mixed", [False, True])
def test_blocks_answer_as_single_rows_do(rows: int, mixed: bool):
    random = np.random.default_rng(rows)
    seen = random.uniform(0.0, 15.0, (rows, FEATURES))
    node = random.integers(-1, NODES, rows) if mixed else np.full(rows, 1)
    found = correction(np, seen, node, network())
    assert found.shape == (rows,)
    for row in range(0, rows, 97):
        assert found[row] == pytest.approx(one_row(seen[row], node[row], network()), rel=1e-12, abs=1e-14)
    if mixed and rows > 100:
        assert (found[node < 0] == 0.0).all() and (found[node >= 0] != 0.0).any()


def test_one_node_for_all_rows_and_single_precision():
    seen = np.random.default_rng(0).uniform(0.0, 15.0, (300, FEATURES))
    exact = correction(np, seen, 2, network())
    assert (exact == correction(np, seen, np.full(300, 2), network())).all()
    single = correction(np, seen.astype(np.float32), 2, network(np.float32))
    assert single.dtype == np.float32
    assert single == pytest.approx(exact, abs=2e-5)


def blas_threads() -> set[int]:
    libraries = blas._controller("scipy.linalg" in sys.modules).info()
    return {library["num_threads"] for library in libraries if library["user_api"] == "blas"}


def test_blas_has_one_thread_inside_and_what_it_had_outside():
    with threadpool_limits(limits=2, user_api="blas"):
        assert blas_threads() == {2}
        with one_blas_thread():
            assert blas_threads() == {1}
            with one_blas_thread():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == {2}
