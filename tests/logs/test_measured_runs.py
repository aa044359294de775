"""Rows of ``measured_runs`` as a log: their figures keep the contract, or are refused by file, row and column."""

from __future__ import annotations

import pytest

from kernelsight.logs import read_logs
from tests.asked import refusals
from tests.logs.asked import refusal, statistics
from tests.logs.written import save

HEAD = "run_id,model,gpu,tp,engine,isl,osl,max_concurrency,ttft_ms,tpot_ms,note\n"


def test_a_row_becomes_statistics_of_its_run(tmp_path):
    path = save(tmp_path / "runs.csv", HEAD + "a,m,l4,1,vllm,100,11,4,50,5,\nb,m,l4,1,vllm,100,11,4,,5,\n")
    found = statistics(read_logs(path))
    assert found["a", "e2e_ms", "mean"] == 100.0 and found["a", "achieved_rate", "mean"] == 40.0
    assert {part for part, *_ in found} == {"a"}


@pytest.mark.parametrize(
    ("row", "sentence"),
    refusals("logs/test_measured_runs::test_an_impossible_figure_is_refused"),
)
def test_an_impossible_figure_is_refused(row, sentence, tmp_path):
    path = save(tmp_path / "runs.csv", f"{HEAD}a,m,l4,1,vllm,100,11,4,50,5,\n{row}\n")
    found = refusal(path)
    assert found.startswith(f"table 'measured_runs' (from {path}) violates its contract: {sentence}")
    assert "row 2" in found
