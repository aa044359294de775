"""Results of vllm bench serve: chunks, failures, the client's queue, runs in one file, files without requests."""

from __future__ import annotations

import json

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows, settings, statistics
from tests.logs.written import DATA, save

FILE = DATA / "vllm_bench.json"
FIRST = json.loads(FILE.read_text().splitlines()[0])


def test_values_are_those_of_the_file():
    found = [row for row in rows(read_logs(FILE)) if row["log_id"] == "vllm_bench#1"]
    order = sorted(range(10), key=FIRST["start_times"].__getitem__)
    for row, place in zip(found, order, strict=True):
        assert row["prompt_tokens"] == FIRST["input_lens"][place]
        if FIRST["errors"][place]:
            assert (row["status"], row["error"]) == ("error", "HTTP 500") and "ttft_ms" not in row
            continue
        assert row["ttft_ms"] == 1e3 * FIRST["ttfts"][place]
        assert row["e2e_ms"] == 1e3 * FIRST["latencies"][place]
        assert row["ttft_clock"] == "client_send" and row["tokens_from"] == "server"
        assert row["chunk_gaps_ms"] == pytest.approx([1e3 * gap for gap in FIRST["itls"][place]])
        # 12 tokens in chunks of 4: TPOT divides by tokens, not by gaps
        assert row["tokens_per_chunk"] == 4.0
        assert row["tpot_ms"] == pytest.approx((row["e2e_ms"] - row["ttft_ms"]) / 11)
        # the server's own TTFT starts when the request is scheduled
        assert (row["queue_ms"], row["server_ttft_ms"], row["server_ttft_clock"]) == (2.0, 25.0, "server_scheduled")


def test_the_clients_queue_is_its_delay():
    found = [row for row in rows(read_logs(FILE)) if row["log_id"] == "vllm_bench#1"]
    order = sorted(range(10), key=FIRST["start_times"].__getitem__)
    delays = [row["sent_s"] - row["arrival_s"] for row in found]
    assert delays == pytest.approx([FIRST["queue_times"][place] for place in order])
    assert found[0]["arrival_s"] == 0.0 or found[1]["arrival_s"] == 0.0


def test_faults_and_settings_of_a_run():
    tables = read_logs(FILE)
    # failed by their errors, never by their value 0.0
    assert faults(tables)["failed"] == sum(map(bool, FIRST["errors"])) == 2
    assert faults(tables)["chunked"] == 8
    assert settings(tables) == {"model": "demo", "tensor_parallel_size": "2", "gpu": "h100_sxm"}
    assert statistics(tables)["run", "ttft_ms", "p99"] == json.loads(FILE.read_text().splitlines()[1])["p99_ttft_ms"]


def test_older_files_have_no_times_of_sending_which_are_drawn(tmp_path):
    older = {name: value for name, value in FIRST.items() if name not in ("start_times", "latencies", "queue_times")}
    tables = read_logs(save(tmp_path / "older.json", older))
    row = next(row for row in rows(tables) if row["status"] == "ok")
    assert row["sent_from"] == "drawn" and faults(tables)["sent_drawn"] == 10
    # E2E ends with the last chunk
    assert row["e2e_ms"] == pytest.approx(1e3 * (FIRST["ttfts"][0] + sum(FIRST["itls"][0])))


def test_requested_and_achieved_rate(tmp_path):
    slow = FIRST | {"start_times": [place / 5 for place in range(10)], "queue_times": [0.0] * 10, "burstiness": 100.0}
    tables = read_logs(save(tmp_path / "slow.json", slow))
    assert rows(tables, "production_logs")[0]["achieved_rate"] == pytest.approx(5.0)
    [said] = [row for row in tables["log_faults"].to_pylist() if row["rule"] == "rate_not_reached"]
    assert said["explanation"].endswith("(5 instead of 20 per second)")
    as_asked = FIRST | {"start_times": [place / 20 for place in range(10)]}
    assert "rate_not_reached" not in faults(read_logs(save(tmp_path / "fast.json", as_asked)))
