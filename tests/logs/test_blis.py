"""BLIS's TraceV2: clocks, deadlines, warm-ups of its header."""

from __future__ import annotations

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows
from tests.logs.written import BLIS_HEADER, blis, save


def test_values(tmp_path):
    tables = read_logs(save(tmp_path / "trace.csv", blis()))
    row = rows(tables)[1]
    assert (row["arrival_s"], row["sent_s"], row["prompt_tokens"]) == (1.0, pytest.approx(1.002), 100)
    assert [row[name] for name in ("ttft_ms", "e2e_ms", "tpot_ms")] == [60.0, 160.0, 10.0]
    assert (row["tokens_from"], row["tokens_per_chunk"], row["turn"]) == ("server", 1.0, 0)
    assert faults(tables) == {"cancelled": 1} and rows(tables)[2]["error"] == "timeout"
    assert rows(tables, "production_logs")[0]["clock"] == "monotonic"


def test_its_header_labels_warmups(tmp_path):
    files = [save(tmp_path / "trace.csv.gz", blis()), save(tmp_path / "trace.yaml", BLIS_HEADER)]
    assert faults(read_logs(files)) == {"cancelled": 1, "warmup": 1}


def test_a_row_that_is_cut_off_is_counted(tmp_path):
    tables = read_logs(save(tmp_path / "a.csv", blis()[:-40]))
    assert faults(tables) == {"unreadable_line": 1, "cancelled": 1}
    assert tables["production_requests"].num_rows == 3


def test_a_row_with_a_value_that_is_no_number_is_counted(tmp_path):
    tables = read_logs(save(tmp_path / "a.csv", blis().replace(",11,", ",eleven,", 1)))
    assert faults(tables) == {"unreadable_line": 1, "cancelled": 1}
