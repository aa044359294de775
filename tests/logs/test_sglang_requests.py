"""What SGLang's server exports of each request: stages, retractions, speculation; prompts stay where they are."""

from __future__ import annotations

import gzip

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, refusal, rows
from tests.logs.written import DATA, save

FILE = DATA / "sglang_requests.log"


def test_values_and_stages():
    found = rows(read_logs(FILE))
    assert [row["prompt_tokens"] for row in found] == [800, 801, 802, 803, 804, 805]
    assert [row["arrival_s"] for row in found] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25]
    row = found[1]
    assert (row["ttft_ms"], row["e2e_ms"], row["queue_ms"]) == (51.0, 201.0, 4.0)
    assert (row["ttft_clock"], row["tokens_from"], row["cached_tokens"]) == ("server_arrival", "server", 640)
    assert row["tpot_ms"] == pytest.approx(10.0)
    stages = [row[name] for name in ("front_end_ms", "prefill_ms", "decode_ms")]
    assert stages == pytest.approx([2.0, 40.0, 150.0], abs=1e-3)  # unix times have a quarter of a microsecond
    assert [row["replica"] for row in found[:3]] == ["0", "1", "0"]
    assert found[2]["preemptions"] == 1
    assert (found[3]["accepted_tokens"], found[3]["decode_steps"]) == (8, 8)


def test_compressed_and_cut_off(tmp_path):
    text = FILE.read_text()
    whole = save(tmp_path / "a.log.gz", text)
    assert rows(read_logs(whole), "production_requests")[0]["prompt_tokens"] == 800
    cut = read_logs(save(tmp_path / "b.log", text[:-300]))
    assert faults(cut)["unreadable_line"] == 1 and cut["production_requests"].num_rows == 5
    damaged = tmp_path / "c.log.gz"
    damaged.write_bytes(gzip.compress(text.encode())[:-30])
    assert "is damaged or cut off" in refusal(damaged) or "cannot be read" in refusal(damaged)


def test_prompts_are_in_no_table():
    tables = read_logs(FILE)
    assert "must stay in the file" in FILE.read_text()
    assert not [name for name, table in tables.items() if "must stay" in str(table.to_pylist())]
