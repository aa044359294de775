"""Forward-pass metrics: the envelope of Dynamo, bare records, idle engines, versions."""

from __future__ import annotations

import gzip
import json

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows
from tests.logs.written import DATA, lines, save

FILE = DATA / "fpm.jsonl.gz"
RECORDS = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]


def test_values():
    tables = read_logs(steps=FILE)
    found = rows(tables, "production_steps")
    assert [row["step"] for row in found] == [41, 42, 43, 45] and {row["replica"] for row in found} == {"4192/0"}
    row = found[1]
    assert row["wall_us"] == pytest.approx(26_000.0) and row["at_s"] == pytest.approx(0.03, abs=1e-6)
    counts = {name: value for name, value in row.items() if isinstance(value, int)}
    assert counts == {
        **{"step": 42, "prefill_requests": 2, "prefill_tokens": 256, "prefill_cached_tokens": 64},
        **{"decode_requests": 3, "decode_context_tokens": 1025, "queued_requests": 1},
    }
    # the file does not say what wall_time spans: that of vLLM is assumed, and said
    assert row["clock"] == "schedule_to_update"
    assert faults(tables) == {"idle_heartbeat": 1, "clock_of_steps": 4}


def test_samples_and_repeats_are_counted(tmp_path):
    sampled = json.loads(json.dumps(RECORDS).replace('"full"', '"sampled"'))
    assert faults(read_logs(steps=save(tmp_path / "a.jsonl", lines(sampled))))["sampled"] == 4
    assert faults(read_logs(steps=save(tmp_path / "b.jsonl", lines(RECORDS + RECORDS[:2]))))["duplicate_step"] == 2


def test_a_negative_count_costs_its_step(tmp_path):
    records = [record["event"]["fpm"] for record in RECORDS]
    first = records[0]["scheduled_requests"]
    records[0] = records[0] | {"scheduled_requests": first | {"sum_prefill_kv_tokens": -14}}
    path = tmp_path / "steps.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    found = read_logs([], steps=[path])
    whole = read_logs([], steps=[FILE])["production_steps"].num_rows
    assert found["production_steps"].num_rows == whole - 1
    faults = {row["rule"]: row["n"] for row in found["log_faults"].to_pylist()}
    assert faults["negative_count"] == 1
