"""Plans of shapes to measure for a choice: which come first, by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.choices.inputs import choice_of
from kernelsight.choices.shapes_to_measure import _greedy, plan
from tests.fitting.measured import gemm, write


def test_the_first_of_each_kind_of_shape_come_before_others(tmp_path: Path) -> None:
    """Two number formats are two kinds: of the rare one, both shapes are among the first four of 32."""
    rows = [
        gemm(gpu, m, 1024, 1024, float(m), engine=engine, dtype=dtype)
        for gpu in ("a100_sxm", "h100_sxm")
        for engine in ("vllm", "sglang")
        for dtype, ms in (("bf16", range(1, 31)), ("fp8", (8, 16)))
        for m in ms
    ]
    choice = choice_of([write(tmp_path / "sweep.parquet", rows)], "gemm", "l40s", facts("gpus"))
    _, first_rows = np.unique(choice.candidates.site, return_index=True)
    assert first_rows.size == 32
    planned = plan(choice, 4) - choice.candidates.site.min()
    kinds = choice.rows[first_rows[planned]]["dtype"].to_list()
    assert sorted(kinds) == ["bf16", "bf16", "fp8", "fp8"]


@pytest.mark.parametrize(("left", "second"), [(0.70, 1), (0.75, 2)])
def test_a_shape_takes_the_share_of_regret_that_it_explains(left: float, second: int) -> None:
    """At distance 1 the correlation is (1 + sqrt 5 + 5/3) exp(-sqrt 5) = 0.524; 1 - 0.524^2 = 0.725 is left."""
    correlation = (1.0 + math.sqrt(5.0) + 5.0 / 3.0) * math.exp(-math.sqrt(5.0))
    assert 0.70 < 1.0 - correlation**2 < 0.75
    positions, weight = np.array([[0.0], [1.0], [100.0]]), np.array([1.0, 0.999, left])
    assert _greedy(weight, positions, np.array([], dtype=int), 2).tolist() == [0, second]


def test_shapes_that_are_to_be_measured_by_chance_lower_the_regret_near_them() -> None:
    positions, weight = np.array([[0.0], [0.0], [100.0]]), np.array([-1.0, 0.9, 0.1])
    assert _greedy(weight, positions, np.array([0]), 1).tolist() == [2]
    assert _greedy(weight, positions, np.array([], dtype=int), 1).tolist() == [1]
