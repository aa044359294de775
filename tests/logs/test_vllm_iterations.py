"""Steps in vLLM's text log: idle ranks, settings, times that a runtime wrote before each line."""

from __future__ import annotations

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows, settings
from tests.logs.written import DATA, save

FILE = DATA / "vllm_iterations.log"
LINES = FILE.read_text().splitlines()


def test_values():
    tables = read_logs(steps=FILE)
    found = rows(tables, "production_steps")
    assert [row["step"] for row in found] == [1234, 1235, 1237]
    assert [row["wall_us"] for row in found] == pytest.approx([14_200.0, 9_150.0, 31_000.0])
    first, last = found[0], found[-1]
    assert (first["prefill_requests"], first["prefill_tokens"], first["decode_requests"]) == (2, 812, 64)
    assert (last["decode_requests"], last["decode_tokens"]) == (66, 132)  # two tokens each: drafts
    assert first["kv_share"] == pytest.approx(0.315) and first["clock"] == "iteration"
    # vLLM's own time has whole seconds and no year: it gives neither times nor periods
    assert "at_s" not in first and "period_us" not in last
    assert faults(tables) == {"dummy_step": 1}


def test_settings_of_the_command_line():
    found = settings(read_logs(steps=FILE))
    assert found["tensor_parallel_size"] == "2" and found["max_num_seqs"] == "64" and found["model"] == "demo"


def test_times_of_a_container_give_periods(tmp_path):
    stamps = ["10:00:00.000", "10:00:01.500", "10:00:01.512", "10:00:01.520", "10:00:01.600"]
    text = "\n".join(f"2026-11-22T{stamp}Z {line}" for stamp, line in zip(stamps, LINES, strict=True))
    tables = read_logs(steps=save(tmp_path / "pod.log.gz", text))
    found = rows(tables, "production_steps")
    assert found[1]["period_us"] == pytest.approx(12_000.0, rel=1e-4)
    assert "period_us" not in found[0] and "period_us" not in found[2]  # the step before is not in the log
    assert found[0]["at_s"] == 0.0 and found[2]["at_s"] == pytest.approx(0.1, abs=1e-6)
    assert rows(tables, "production_logs")[0]["clock"] == "unix"
