"""A sweep of which no row keeps the objectives, or none runs, has an empty front, and its rows all the same."""

from __future__ import annotations

import pytest

from kernelsight.session import connect

LOAD = {"max_concurrency": 2, "num_prompts": 4, "input_len": 8, "output_len": 2}


@pytest.mark.parametrize(
    ("row", "slo"),
    [({"model": "qwen3-0.6b", "gpu": "l4"}, {"ttft_p99_ms": 0.001}), ({"model": "deepseek-r1", "gpu": "l4"}, None)],
)
@pytest.mark.whole
def test_an_empty_front(row, slo, tmp_path):
    with connect() as session:
        found = session.sweep([row | LOAD], slo=slo)
        assert found.pareto_front.num_rows == 0
        found.save(tmp_path / "sweep.duckdb")
        assert found.summary.num_rows == 1
