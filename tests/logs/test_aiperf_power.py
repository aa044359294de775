"""Power of GPUs as AIPerf exports it: names before and since 0.12, several GPUs, values that are missing."""

from __future__ import annotations

import json

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows
from tests.logs.written import START, save


def record(second: float, gpu: int, **power: float | None) -> str:
    """One line of the export."""
    at = {"timestamp_ns": int((START + second) * 1e9), "gpu_index": gpu, "gpu_uuid": f"GPU-{gpu}", "hostname": "node1"}
    url = {"telemetry_source_url": "http://node1:9401/metrics", "gpu_model_name": "NVIDIA H100 80GB HBM3"}
    return json.dumps({**at, **url, "telemetry_data": {**power, "nvidia_temperature": 40.0}})


def test_power_of_all_gpus_of_a_machine_is_one_row_between_two_samples(tmp_path):
    lines = [record(at, gpu, nvidia_power_usage=100.0 * (1 + gpu) + at) for at in (0.0, 2.0, 4.0) for gpu in (0, 1)]
    tables = read_logs(metrics=save(tmp_path / "gpu_telemetry_export.jsonl", "\n".join(lines)))
    first, second = rows(tables, "production_windows")
    assert (first["start_s"], first["end_s"], first["power_w"], first["power_gpus"]) == (0.0, 2.0, 302.0, 2)
    assert (second["start_s"], second["power_w"], second["replica"]) == (2.0, 306.0, "node1")
    assert rows(tables, "production_logs")[0]["start_unix_s"] == START


def test_names_before_0_12_and_those_of_amd(tmp_path):
    for name in ("gpu_power_usage", "amd_power"):
        lines = [record(at, 0, **{name: 500.0}) for at in (0.0, 1.0)]
        tables = read_logs(metrics=save(tmp_path / f"{name}.jsonl", "\n".join(lines)))
        assert [row["power_w"] for row in rows(tables, "production_windows")] == [500.0]


def test_samples_without_power_are_counted(tmp_path):
    lines = [record(0.0, 0, nvidia_power_usage=1.0), record(1.0, 0, nvidia_power_usage=None)]
    lines += [record(2.0, 0, nvidia_power_usage=3.0)]
    tables = read_logs(metrics=save(tmp_path / "power.jsonl", "\n".join(lines)))
    assert [row["power_w"] for row in rows(tables, "production_windows")] == [2.0]
    assert faults(tables) == {"unreadable_value": 1}
