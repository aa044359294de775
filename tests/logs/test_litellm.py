"""The gateway LiteLLM: its own cache, calls that are no generation, what was not streamed, retries, secrets."""

from __future__ import annotations

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows
from tests.logs.written import PROMPT, START, lines, litellm, save


def test_neither_texts_nor_keys_are_in_a_table(tmp_path):
    tables = read_logs(save(tmp_path / "a.jsonl", lines([litellm(0)])))
    everything = str([table.to_pylist() for table in tables.values()])
    assert PROMPT not in everything and "secret" not in everything
    assert rows(tables)[0]["replica"] == "replica-1:8000"


def test_what_no_engine_saw_is_dropped(tmp_path):
    entries = [litellm(0), litellm(1, cache_hit=True), litellm(2, call_type="aembedding")]
    tables = read_logs(save(tmp_path / "a.jsonl", lines(entries)))
    assert faults(tables) == {"gateway_cache_hit": 1, "other_call": 1}
    assert [row["external_id"] for row in rows(tables)] == ["chat-0"]


def test_what_was_not_streamed_has_no_ttft(tmp_path):
    # the gateway sets the first token's time to the end
    whole = litellm(1, stream=False, completionStartTime=START + 1.18)
    unsaid = litellm(2, stream=True, completionStartTime=START + 2.18)
    tables = read_logs(save(tmp_path / "a.jsonl", lines([litellm(0), whole, unsaid])))
    assert faults(tables) == {"not_streamed": 2}
    assert ["ttft_ms" in row for row in rows(tables)] == [True, False, False]
    assert rows(tables)[1]["e2e_ms"] == pytest.approx(180.0, abs=1e-3)


def test_failures_and_retries(tmp_path):
    error = {"error_class": "Timeout", "error_code": "408", "error_message": PROMPT}
    failed = litellm(1, status="failure", error_information=error)
    again = litellm(2, trace_id="trace-1")
    tables = read_logs(save(tmp_path / "a.jsonl", lines([litellm(0), failed, again])))
    assert faults(tables) == {"failed": 1, "retried": 1}
    assert rows(tables)[1]["error"] == "Timeout"


def test_a_file_written_twice_counts_once(tmp_path):
    entries = [litellm(n) for n in range(3)]
    tables = read_logs(save(tmp_path / "a.jsonl", lines(entries + entries[:2])))
    assert faults(tables) == {"duplicate_id": 2, "retried": 2}
    assert tables["production_requests"].num_rows == 3
