"""Reports of GuideLLM: JSON and YAML, its TPOT, the client's delay, the server's own times."""

from __future__ import annotations

import json

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows, settings
from tests.logs.written import DATA, save

FILE = DATA / "guidellm.json"
REPORT = json.loads(FILE.read_text())
BENCHMARK = REPORT["benchmarks"][0]


def test_values_are_those_of_the_file():
    found = {row["external_id"]: row for row in rows(read_logs(FILE))}
    for entry in BENCHMARK["requests"]["successful"]:
        row, times = found[entry["request_id"]], entry["info"]["timings"]
        assert row["ttft_ms"] == pytest.approx(entry["time_to_first_token_ms"])
        assert (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"]) == (96, 12, 48)
        assert row["sent_s"] - row["arrival_s"] == pytest.approx(entry["request_dispatch_delay"], abs=1e-6)
        # the report's time_per_output_token includes the first token; ours is that of every other tool
        assert row["tpot_ms"] == pytest.approx(entry["inter_token_latency_ms"])
        assert row["tpot_ms"] < 0.3 * entry["time_per_output_token_ms"]
        last = times["last_token_iteration"] - times["request_start"]
        assert row["e2e_ms"] == pytest.approx(1e3 * last)
        assert row["tokens_per_chunk"] == 4.0
        assert (row["queue_ms"], row["prefill_ms"], row["decode_ms"]) == (2.0, 25.0, 55.0)
        assert (row["server_ttft_ms"], row["server_ttft_clock"]) == (25.0, "server_scheduled")


def test_log_and_faults():
    tables = read_logs(FILE)
    [log] = rows(tables, "production_logs")
    assert (log["format"], log["tool_version"], log["clock"], log["requested_rate"]) == ("guidellm", "0.8.1", "unix", 8)
    assert log["start_unix_s"] == pytest.approx(min(r["info"]["timings"]["targeted_start"] for r in every_request()))
    assert faults(tables)["failed"] == 2 and faults(tables)["sampled"] == 6  # four of eight successes are in the file
    assert settings(tables) == {"client.strategy": "poisson", "model": "demo"}
    assert {row["error"] for row in rows(tables) if row["status"] == "error"} == {"HTTPStatusError"}


def every_request():
    return BENCHMARK["requests"]["successful"] + BENCHMARK["requests"]["errored"]


def test_yaml_holds_the_same():
    ignored = ("log_id", "path")
    json_rows = [{k: v for k, v in row.items() if k not in ignored} for row in rows(read_logs(FILE))]
    yaml_rows = [
        {k: v for k, v in row.items() if k not in ignored} for row in rows(read_logs(DATA / "guidellm.yaml.gz"))
    ]
    assert json_rows == yaml_rows


def test_a_closed_loop_has_no_intended_times(tmp_path):
    config = BENCHMARK["config"] | {"strategy": {"type_": "concurrent", "streams": 4}}
    report = REPORT | {"benchmarks": [BENCHMARK | {"config": config}]}
    tables = read_logs(save(tmp_path / "a.json", report))
    assert all(row["sent_s"] == row["arrival_s"] for row in rows(tables))
    assert rows(tables, "production_logs")[0]["max_concurrency"] == 4


def test_reports_of_the_first_versions(tmp_path):
    """Fields as in guidellm 0.2.1 (benchmark/benchmark.py, scheduler/result.py), which state no version."""
    at = 1_750_000_000.0

    def entry(number, **other):
        begin = at + number
        times = {"start_time": begin, "first_token_time": begin + 0.05, "last_token_time": begin + 0.25}
        info = {"targeted_start_time": begin - 0.01, "request_start": begin}
        sizes = {"prompt_tokens": 100, "output_tokens": 11}
        return {"request_id": f"r{number}", "scheduler_info": info, **sizes, **times, "end_time": begin + 0.26, **other}

    failed = entry(9, error="httpx.ReadTimeout: secret", output_tokens=0)
    benchmark = {
        "type_": "generative_benchmark",
        "args": {"strategy": {"type_": "poisson", "rate": 1.0}, "strategy_index": 0},
        "run_stats": {"start_time": at, "requests_made": {"successful": 3, "errored": 1, "incomplete": 0, "total": 4}},
        "worker": {"type_": "generative_requests_worker", "backend_model": "demo", "backend_target": "http://a"},
        "requests": {
            "successful": [entry(0), entry(1), entry(2)],
            "errored": [failed],
            "incomplete": [],
            "total": None,
        },
    }
    tables = read_logs(save(tmp_path / "benchmarks.json", {"benchmarks": [benchmark]}))
    found = rows(tables)
    assert [(row["status"], row.get("error")) for row in found] == [("ok", None)] * 3 + [("error", "ReadTimeout")]
    assert [row["ttft_ms"] for row in found[:3]] == pytest.approx([50.0] * 3)
    assert found[0]["e2e_ms"] == pytest.approx(250.0) and found[0]["tpot_ms"] == pytest.approx(20.0)
    assert found[1]["sent_s"] - found[1]["arrival_s"] == pytest.approx(0.01, abs=1e-6)
    assert settings(tables) == {"client.strategy": "poisson", "model": "demo"}
    assert rows(tables, "production_logs")[0]["requested_rate"] == 1.0 and "sampled" not in faults(tables)
