"""Metrics of servers: differences between scrapes, resets, snapshots, names of three generations."""

from __future__ import annotations

import pytest

from kernelsight.logs import read_logs
from tests.logs.asked import faults, rows
from tests.logs.written import DATA, START, matrix, save

BEFORE, AFTER = DATA / "metrics_before.txt", DATA / "metrics_after.txt"


def test_two_texts_are_one_interval():
    tables = read_logs(metrics=[BEFORE, AFTER])
    [row] = rows(tables, "production_windows")
    assert (row["running"], row["waiting"], row["kv_share"]) == (4.0, 0.5, pytest.approx(0.2))
    assert (row["prompt_tokens"], row["output_tokens"], row["engine_steps"]) == (1000, 200, 200)
    assert (row["looked_up_tokens"], row["cached_tokens"], row["finished"]) == (1000, 250, 10)
    # an ITL of 8 ms is below the smallest bucket of 10 ms: only the difference of sums is exact
    means = [row[name] for name in ("ttft_mean_ms", "itl_mean_ms", "e2e_mean_ms", "queue_mean_ms")]
    assert means == pytest.approx([50.0, 8.0, 400.0, 4.0])
    assert "end_s" not in row and rows(tables, "production_logs")[0]["clock"] == "none"


def test_answers_of_the_api(tmp_path):
    series = {
        ("vllm:prompt_tokens_total", "a"): [100, 300, 600],
        ("vllm:prompt_tokens_total", "b"): [0, 10, 20],
        ("vllm:num_requests_running", "a"): [2, 4, 8],
        ("vllm:time_to_first_token_seconds_sum", "a"): [1.0, 1.5, 1.5],
        ("vllm:time_to_first_token_seconds_count", "a"): [10, 20, 20],
    }
    tables = read_logs(metrics=save(tmp_path / "range.json", matrix(series)))
    first, second, other, _ = rows(tables, "production_windows")
    assert (first["replica"], first["start_s"], first["end_s"]) == ("a", 0.0, 15.0)
    assert (first["prompt_tokens"], second["prompt_tokens"], other["prompt_tokens"]) == (200, 300, 10)
    assert (first["running"], second["running"]) == (3.0, 6.0)
    assert (first["ttft_mean_ms"], first["first_tokens"]) == (50.0, 10)
    assert "ttft_mean_ms" not in second and second["first_tokens"] == 0
    assert rows(tables, "production_logs")[0]["start_unix_s"] == START


def test_series_of_one_server_are_added_but_its_share_of_the_cache_is_a_mean(tmp_path):
    series = {
        (name, rank): [n, 2 * n] for name in ("token_usage", "num_running_reqs") for rank, n in (("0", 0.2), ("1", 0.4))
    }
    answer = matrix({("sglang:" + name, rank): values for (name, rank), values in series.items()})
    for one in answer["data"]["result"]:
        one["metric"] |= {"instance": "a", "tp_rank": one["metric"]["instance"]}
    [row] = rows(read_logs(metrics=save(tmp_path / "a.json", answer)), "production_windows")
    assert (row["kv_share"], row["running"]) == (pytest.approx(0.45), pytest.approx(0.9))


def test_stamps_of_texts_are_milliseconds(tmp_path):
    texts = [
        save(
            tmp_path / f"{place}.txt",
            "# TYPE vllm:generation_tokens_total counter\n"
            f'vllm:generation_tokens_total{{model_name="demo"}} {tokens} {1e3 * (START + 15 * place):.0f}\n',
        )
        for place, tokens in enumerate((100, 160, 400))
    ]
    tables = read_logs(metrics=texts)
    windows = [(row["start_s"], row["end_s"], row["output_tokens"]) for row in rows(tables, "production_windows")]
    assert windows == [(0.0, 15.0, 60), (15.0, 30.0, 240)]
    [log] = rows(tables, "production_logs")
    assert (log["clock"], log["start_unix_s"]) == ("unix", START)


def test_a_counter_that_falls_drops_its_interval(tmp_path):
    series = {("vllm:generation_tokens_total", "a"): [500, 700, 40, 90], ("vllm:num_requests_running", "a"): [1] * 4}
    tables = read_logs(metrics=save(tmp_path / "a.json", matrix(series)))
    assert [row["output_tokens"] for row in rows(tables, "production_windows")] == [200, 50]
    assert faults(tables) == {"counter_reset": 1}


@pytest.mark.parametrize(
    "metric, column",
    [
        ("vllm:gpu_cache_usage_perc", "kv_share"),
        ("sglang:token_usage", "kv_share"),
        ("sglang:num_running_reqs", "running"),
        ("vllm:num_preemptions", "preemptions"),
    ],
)
def test_older_names_and_sglangs(tmp_path, metric, column):
    tables = read_logs(metrics=save(tmp_path / "a.json", matrix({(metric, "a"): [0.0, 1.0]})))
    [row] = rows(tables, "production_windows")
    assert row[column] == (1 if column == "preemptions" else 0.5)


@pytest.mark.parametrize("last", [-1, 1])
def test_the_newer_name_wins_where_both_are_exposed(last, tmp_path):
    series = {}
    for name, seconds in (("inter_token_latency", 0.008), ("time_per_output_token", 0.5))[::last]:
        series["vllm:" + name + "_seconds_sum", "a"] = [0.0, 10 * seconds]
        series["vllm:" + name + "_seconds_count", "a"] = [0, 10]
    [row] = rows(read_logs(metrics=save(tmp_path / "a.json", matrix(series))), "production_windows")
    assert row["itl_mean_ms"] == pytest.approx(8.0)


def power_of(metric: str, values: dict[tuple[str, str], list[float]]) -> list[dict]:
    """Series of an exporter by (Hostname, gpu)."""
    answer = matrix({(metric, f"{host}/{gpu}"): found for (host, gpu), found in values.items()})
    for one in answer["data"]["result"]:
        host, gpu = one["metric"].pop("instance").split("/")
        one["metric"] |= {"Hostname": host, "gpu": gpu, "modelName": "NVIDIA H100 80GB HBM3"}
    return answer["data"]["result"]


def test_power_of_gpus_adds_up_by_machine_and_energy_counters_come_first(tmp_path):
    answer = matrix({("vllm:num_requests_running", "a"): [2, 4, 4]})
    watts = {("n1", "0"): [100.0, 300.0, 300.0], ("n1", "1"): [100.0, 100.0, 100.0], ("n2", "0"): [50.0, 50.0, 50.0]}
    joules = {("n2", "0"): [0.0, 1.5e6, 4.5e6]}
    answer["data"]["result"] += power_of("DCGM_FI_DEV_POWER_USAGE", watts)
    answer["data"]["result"] += power_of("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", joules)
    found = rows(read_logs(metrics=save(tmp_path / "a.json", answer)), "production_windows")
    drawn = [(row["replica"], row["power_w"], row["power_gpus"]) for row in found if "power_w" in row]
    assert drawn == [
        ("GPUs of n1", 300.0, 2),
        ("GPUs of n1", 400.0, 2),
        ("GPUs of n2", 100.0, 1),
        ("GPUs of n2", 200.0, 1),
    ]
    assert [row["running"] for row in found if row["replica"] == "a"] == [3.0, 4.0]


def test_series_that_are_not_used_are_told_from_series_without_a_name(tmp_path):
    query = matrix({("vllm:num_requests_running", "a"): [2, 4], ("vllm:request_success_total", "a"): [1, 2]})
    query["data"]["result"].append({"metric": {"pod": "a"}, "values": [[0, "1"]]})
    assert faults(read_logs(metrics=save(tmp_path / "range.json", query))) == {"unused_series": 1, "unnamed_series": 1}
