"""Reports of inference-perf: requests in both layouts, tokens counted twice, statistics of stages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, refusal, rows, statistics
from tests.logs.written import PROMPT, inference_perf_request, older_inference_perf_request, save

EXAMPLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "inference-perf-example"
example = pytest.mark.skipif(not EXAMPLE.is_dir(), reason=f"needs the example run of inference-perf in {EXAMPLE}")


@pytest.mark.parametrize("written", [inference_perf_request, older_inference_perf_request])
def test_values_in_both_layouts(tmp_path, written):
    tables = read_logs(save(tmp_path / "per_request_lifecycle_metrics.json", [written(n) for n in range(3)]))
    found = rows(tables)
    assert [row["prompt_tokens"] for row in found] == [100, 101, 102]
    assert [row["sent_s"] for row in found] == [0.0, 1.0, 2.0]
    assert found[0]["ttft_ms"] == pytest.approx(50.0) and found[0]["e2e_ms"] == pytest.approx(80.0, abs=0.01)
    assert found[0]["tpot_ms"] == pytest.approx(10.0, abs=0.01)
    assert rows(tables, "production_logs")[0]["clock"] == "monotonic"


def test_two_times_per_token_do_not_halve_tpot(tmp_path):
    twice = save(tmp_path / "a.json", [inference_perf_request(n, times_per_token=2) for n in range(3)])
    tables = read_logs(twice)
    assert faults(tables)["counted_twice"] == 3
    assert rows(tables)[0]["tpot_ms"] == pytest.approx(10.0, abs=0.01)
    assert rows(tables)[0]["tokens_per_chunk"] == 0.5
    once = save(tmp_path / "b.json", [inference_perf_request(n) for n in range(3)])
    assert "counted_twice" not in faults(read_logs(once))


def test_the_servers_usage_counts_where_it_is_there(tmp_path):
    request = inference_perf_request(0)
    usage = {"prompt_tokens": 120, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 16}}
    request["info"]["response_metrics"]["server_usage"] = usage
    first, second = rows(read_logs(save(tmp_path / "a.json", [request, inference_perf_request(1)])))
    assert (first["prompt_tokens"], first["output_tokens"], first["cached_tokens"]) == (120, 5, 16)
    assert (first["tokens_from"], second["tokens_from"]) == ("server", "retokenised")


def test_failures_and_retries(tmp_path):
    failed = inference_perf_request(1, error={"error_type": "ClientOSError", "error_msg": PROMPT})
    again = inference_perf_request(2)
    again["info"]["retries_attempted"] = 1
    tables = read_logs(save(tmp_path / "a.json", [inference_perf_request(0), failed, again]))
    assert faults(tables) == {"failed": 1, "retried": 1}
    assert rows(tables)[1]["error"] == "ClientOSError"
    assert PROMPT not in str([table.to_pylist() for table in tables.values()])


def test_an_empty_report_is_refused(tmp_path):
    assert "has no request" in refusal(save(tmp_path / "a.json", [1, 2]), format="inference-perf")


@pytest.mark.parametrize("entries_per_token, tpot_s", [(1, 0.010), (2, 0.010 * 9 / 19)])
def test_statistics_that_count_two_entries_per_token_are_put_right(tmp_path, entries_per_token, tpot_s):
    # ten tokens: TTFT 50 ms, 10 ms between tokens; two entries per token make 19 gaps of the same time
    latency = {
        "request_latency": {"mean": 0.14, "median": 0.14},
        "time_to_first_token": {"mean": 0.05},
        "time_per_output_token": {"mean": tpot_s, "p99": tpot_s},
        "inter_token_latency": {"mean": tpot_s},
    }
    load = {"requested_rate": 2.0, "achieved_rate": 1.9, "schedule_delay": {"mean": 0.002}}
    good = {"count": 7, "latency": latency, "output_len": {"mean": 10.0}}
    report = {"load_summary": load, "successes": good, "failures": {"count": 1}}
    tables = read_logs(save(tmp_path / "stage_3_lifecycle_metrics.json", report))
    found = statistics(tables)
    assert found["stage 3", "tpot_ms", "mean"] == pytest.approx(10.0)
    assert found["stage 3", "tpot_ms", "p99"] == pytest.approx(10.0)
    assert (("stage 3", "itl_ms", "mean") in found) == (entries_per_token == 1)
    assert faults(tables).get("counted_twice") == (None if entries_per_token == 1 else 7)
    assert (found["stage 3", "client_delay_ms", "mean"], found["stage 3", "failed", "total"]) == (2.0, 1)
    assert "has no statistics of successes" in refusal(save(tmp_path / "b.json", report | {"successes": {}}))


@example
def test_stages_of_the_example():
    tables = read_logs(sorted(EXAMPLE.glob("*_lifecycle_metrics.json")))
    logs = {row["log_id"]: row for row in rows(tables, "production_logs")}
    assert len(logs) == 8 and logs["stage_1_lifecycle_metrics"]["requested_rate"] == 37.97
    stated = json.loads((EXAMPLE / "stage_0_lifecycle_metrics.json").read_text())["successes"]
    found = statistics(tables)
    assert found["stage 0", "ttft_ms", "mean"] == 1e3 * stated["latency"]["time_to_first_token"]["mean"]
    assert found["stage 0", "requests", "total"] == 60
    # its client counts two entries a token: the true TPOT is that of the other figures
    tokens, latency = stated["output_len"]["mean"], stated["latency"]
    true = (latency["request_latency"]["mean"] - latency["time_to_first_token"]["mean"]) / (tokens - 1)
    assert found["stage 0", "tpot_ms", "mean"] == pytest.approx(1e3 * true, rel=0.06)
    assert ("stage 0", "itl_ms", "mean") not in found
    assert faults(tables)["counted_twice"] > 0


@example
def test_statistics_of_the_server_are_a_part_of_their_own():
    found = statistics(read_logs(EXAMPLE / "stage_0_prometheus_metrics.json"))
    assert found["server stage 0", "e2e_ms", "mean"] == 2574.876
