"""AIPerf's export of requests: warm-ups, failures, units, and the rate from its export of statistics."""

from __future__ import annotations

import json

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows, settings, statistics
from tests.logs.written import DATA, lines, save

FILE, EXPORT = DATA / "profile_export.jsonl", DATA / "profile_export_aiperf.json"
ENTRIES = [json.loads(line) for line in FILE.read_text().splitlines()]


def test_values_are_those_of_the_file():
    found = {row["external_id"]: row for row in rows(read_logs(FILE))}
    measured = [entry for entry in ENTRIES if "error" not in entry]
    assert len(measured) == 12
    for entry in measured:
        row, metrics, metadata = found[entry["metadata"]["x_request_id"]], entry["metrics"], entry["metadata"]
        assert row["ttft_ms"] == metrics["time_to_first_token"]["value"]
        assert row["e2e_ms"] == metrics["request_latency"]["value"]
        assert row["tpot_ms"] == pytest.approx(metrics["inter_token_latency"]["value"])
        assert (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"]) == (96, 12, 48)
        assert row["chunk_gaps_ms"] == pytest.approx(metrics["inter_chunk_latency"]["value"])
        delay = (metadata["request_start_ns"] - metadata["credit_issued_ns"]) / 1e9
        assert row["sent_s"] - row["arrival_s"] == pytest.approx(delay, abs=1e-6)
        assert row["status"] == ("warmup" if metadata["benchmark_phase"] == "warmup" else "ok")
        assert row["tokens_from"] == "server" and row["ttft_clock"] == "client_send"


def test_faults():
    counted = faults(read_logs(FILE))
    # the lengths of failed requests are not exported: no replay can hold them
    assert counted == {"failed_without_length": 3, "warmup": 3, "chunked": 12}


def test_the_other_export_adds_rate_and_settings():
    tables = read_logs([FILE, EXPORT])
    [log] = rows(tables, "production_logs")
    assert (log["requested_rate"], log["max_concurrency"], log["tool_version"]) == (8.0, 4, "0.13.0")
    assert settings(tables) == {"client.arrival_pattern": "poisson"}
    stated = json.loads(EXPORT.read_text())
    assert statistics(tables)["run", "ttft_ms", "p99"] == stated["time_to_first_token"]["p99"]
    assert faults(read_logs(EXPORT)) == {"statistics_only": 1}


def test_units_are_read_and_others_are_not_guessed(tmp_path):
    entry = json.loads(json.dumps(ENTRIES[-2]))
    entry["metrics"]["time_to_first_token"] = {"value": 0.25, "unit": "s"}
    entry["metrics"]["request_latency"] = {"value": 3.0, "unit": "fortnights"}
    [row] = rows(read_logs(save(tmp_path / "a.jsonl", lines([entry]))))
    assert row["ttft_ms"] == 250.0 and "e2e_ms" not in row


def test_cancelled_and_failed(tmp_path):
    first, *rest = [json.loads(json.dumps(e)) for e in ENTRIES if "error" not in e]
    first["metadata"]["was_cancelled"] = True
    failed = rest[0] | {"error": {"code": 503, "type": "Service Unavailable", "message": "prompt"}}
    tables = read_logs(save(tmp_path / "a.jsonl", lines([first, failed, *rest[1:]])))
    assert faults(tables)["cancelled"] == 1 and faults(tables)["failed"] == 1
    assert [row["error"] for row in rows(tables) if row["status"] == "error"] == ["HTTP 503"]
