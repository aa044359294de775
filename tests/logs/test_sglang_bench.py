"""Results of SGLang's client: arrivals drawn, the server's arguments, cached tokens."""

from __future__ import annotations

import json

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows, settings
from tests.logs.written import DATA, save

FILE = DATA / "sglang_bench.jsonl"
FIRST = json.loads(FILE.read_text().splitlines()[0])


def test_values_are_those_of_the_file():
    tables = read_logs(FILE)
    found = rows(tables)
    assert len(found) == 10 and faults(tables)["failed"] == 2
    for row, first, gaps, error in zip(found, FIRST["ttfts"], FIRST["itls"], FIRST["errors"], strict=True):
        assert row["prompt_tokens"] == 32
        if error:
            assert row["error"] == "HTTP 500" and "e2e_ms" not in row
        else:
            assert row["ttft_ms"] == 1e3 * first
            assert row["e2e_ms"] == pytest.approx(1e3 * (first + sum(gaps)))
            assert row["tpot_ms"] == pytest.approx(1e3 * sum(gaps) / 5)  # six tokens in two chunks
            assert row["tokens_per_chunk"] == 3.0


def test_the_servers_arguments_are_settings_without_its_secrets(tmp_path):
    info = FIRST["server_info"] | {"api_key": "secret", "version": "0.5.23", "internal_states": [{"load": 1}]}
    tables = read_logs(save(tmp_path / "a.jsonl", FIRST | {"server_info": info}))
    found = settings(tables)
    assert found["tp_size"] == "2" and found["disable_radix_cache"] == "false"
    assert "secret" not in found.values() and "internal_states" not in found
    assert rows(tables, "production_logs")[0]["tool_version"] == "0.5.23"


def test_who_counts_the_tokens_depends_on_the_interface(tmp_path):
    native = save(tmp_path / "a.jsonl", FIRST | {"backend": "sglang", "cached_tokens": [16] * 10})
    assert {(row["tokens_from"], row["cached_tokens"]) for row in rows(read_logs(native))} == {("server", 16)}
    assert {row["tokens_from"] for row in rows(read_logs(FILE))} == {"client"}


def test_a_success_without_text_has_no_ttft(tmp_path):
    silent = FIRST | {"errors": [""] * 10, "output_lens": [6] * 10}
    tables = read_logs(save(tmp_path / "a.jsonl", silent))
    # both failed rows of the file are successes with TTFT 0.0 now
    assert faults(tables)["no_first_chunk"] == faults(tables)["no_latency"] == 2
    assert "ttft_ms" not in rows(tables)[4] and rows(tables)[4]["status"] == "ok"
