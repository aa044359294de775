"""90 % intervals of a sweep: those of each scenario by itself, and none where nothing is served."""

from __future__ import annotations

import pytest

from kernelsight.scenario.objectives import interval_columns
from kernelsight.session import connect
from kernelsight.sweeps.partitions import WITH_INTERVALS

LOAD = {"num_prompts": 40, "input_len": 64, "output_len": 8}
ROWS = [
    {"model": "qwen3-0.6b", "gpu": "l4", "max_concurrency": 4, **LOAD},
    {"model": "qwen3-0.6b", "gpu": "l4", "max_concurrency": 8, **LOAD},
    {"model": "llama-3.1-70b", "gpu": "l4", "max_concurrency": 8, **LOAD},
]


def test_each_row_has_the_interval_of_its_own_simulation():
    with connect() as session:
        rows = session.sweep(ROWS, intervals=True).summary.to_pylist()
        assert len(rows) == 3
        for row in rows:
            if row["status"] != "served":
                assert all(row[name] is None for figure in WITH_INTERVALS for name in interval_columns(figure))
                continue
            flags = next(each for each in ROWS if each["max_concurrency"] == row["max_concurrency"])
            alone = session.simulate(**flags).summary["interval_90"]
            for figure in WITH_INTERVALS:
                low, high = interval_columns(figure)
                assert [row[low], row[high]] == pytest.approx(alone[figure])
                assert row[low] < row[figure] < row[high]
        assert "ttft_mean_low_ms" not in session.what_if(ROWS[:1]).summary.column_names
