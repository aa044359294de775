"""Spans: vLLM's names, the join of client and server by trace, stages."""

from __future__ import annotations

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows
from tests.logs.written import START, client_span, lines, otlp, save, span, vllm_span

SERVER = otlp([vllm_span("a", START), vllm_span("b", START + 1)], service_name="vllm", service_instance_id="pod-0")


def test_values_of_server_spans(tmp_path):
    tables = read_logs(save(tmp_path / "spans.json", SERVER))
    row = rows(tables)[1]
    assert row["external_id"] == "cmpl-b" and row["arrival_s"] == 1.0 and row["replica"] == "pod-0"
    measured = [row[name] for name in ("ttft_ms", "e2e_ms", "queue_ms", "prefill_ms", "decode_ms", "tpot_ms")]
    assert measured == pytest.approx([50.0, 150.0, 5.0, 40.0, 100.0, 10.0])
    assert row["front_end_ms"] == pytest.approx(5.0)  # what TTFT has besides queue and prefill
    assert (row["ttft_clock"], row["prompt_tokens"], row["output_tokens"]) == ("server_arrival", 300, 11)
    assert rows(tables, "production_logs")[0]["clock"] == "unix" and faults(tables) == {}


def test_client_spans_join_by_trace(tmp_path):
    clients = otlp([client_span("a", START - 0.01), client_span("c", START + 2)])
    tables = read_logs([save(tmp_path / "server.json", SERVER), save(tmp_path / "client.jsonl", lines([clients]))])
    a, b, c = rows(tables)
    assert (a["client_e2e_ms"], a["e2e_ms"]) == (pytest.approx(170.0, abs=1e-3), pytest.approx(150.0))
    assert a["sent_s"] == 0.0  # the client's own time of sending
    assert "client_e2e_ms" not in b
    assert (c["ttft_clock"], c["e2e_ms"]) == ("client_send", pytest.approx(170.0, abs=1e-3)) and "ttft_ms" not in c
    assert faults(tables) == {"no_client_times": 1, "no_server_times": 1}


def test_without_a_time_in_the_queue_prefill_is_unset(tmp_path):
    # SGLang's spans begin the prefill at the dispatch: it includes the queue
    seconds = {"gen_ai.latency.time_to_first_token": 0.05, "gen_ai.latency.time_in_model_prefill": 0.045}
    made = span("a", 2, START, 0.2, seconds | {"gen_ai.usage.prompt_tokens": 10, "gen_ai.usage.completion_tokens": 2})
    [row] = rows(read_logs(save(tmp_path / "a.json", otlp([made]))))
    assert "prefill_ms" not in row and row["ttft_ms"] == 50.0 and row["e2e_ms"] == pytest.approx(200.0)
