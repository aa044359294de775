"""BLIS's TraceV2: clocks, deadlines, warm-ups of its header."""

from __future__ import annotations

from kernelsight.logs import read_logs
from tests.logs.asked import faults
from tests.logs.written import BLIS_HEADER, blis, save


def test_its_header_labels_warmups(tmp_path):
    files = [save(tmp_path / "trace.csv.gz", blis()), save(tmp_path / "trace.yaml", BLIS_HEADER)]
    assert faults(read_logs(files)) == {"cancelled": 1, "warmup": 1}


def test_a_row_that_is_cut_off_is_counted(tmp_path):
    tables = read_logs(save(tmp_path / "a.csv", blis()[:-40]))
    assert faults(tables) == {"unreadable_line": 1, "cancelled": 1}
    assert tables["production_requests"].num_rows == 3
