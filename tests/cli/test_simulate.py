"""`kernelsight simulate`: the promised keys and sums, loads of three kinds, files, and refusals by their words."""

from __future__ import annotations

import errno
import math

import duckdb
import numpy as np
import pytest

from kernelsight.present.pages.simulate import simulation_page
from kernelsight.present.show import lines_of

SIMULATE = ("simulate", "--model", "qwen3-0.6b", "--gpu", "l4")
LENGTHS = ("--num-prompts", 6, "--isl", 64, "--osl", 4)
OPEN = (*LENGTHS, "--request-rate", 20)
KEYS = """
    requests completed duration_s ttft_ms tpot_ms itl_ms e2e_ms request_throughput output_throughput steps
    preemptions prefix_cache_hit_rate kv_cache_tokens goodput
    """.split()


def test_json_keeps_its_promises(saved_run):
    answer = saved_run[1].json
    assert set(answer) >= set(KEYS)
    assert answer["requests"] == answer["completed"] == 12
    assert answer["kv_tiers"] == []
    for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert set(answer[metric]) == {"mean", "p50", "p90", "p99"}
        assert 0 < answer[metric]["p50"] <= answer[metric]["p90"] <= answer[metric]["p99"]
    assert answer["request_throughput"] == pytest.approx(12 / answer["duration_s"])
    assert sum(row["share"] for row in answer["breakdown"]) == pytest.approx(1.0)
    assert sum(row["total_us"] for row in answer["breakdown"]) / 1e6 == pytest.approx(answer["gpu_s"], rel=1e-3)


def test_percentiles_and_throughput_follow_from_the_requests(saved_run):
    path, answer = saved_run
    with duckdb.connect(path, read_only=True) as file:
        metrics = file.execute(
            "select ttft_ms, e2e_ms, front_end_ms, queue_ms, prefill_ms, decode_ms from request_metrics"
        ).fetchall()
        (tokens, last) = file.execute("select sum(output_tokens), max(arrival_s) from requests").fetchall()[0]
        (first,) = file.execute("select min(arrival_s) from requests").fetchall()[0]
    ttft, e2e, front_end, queue, prefill, decode = np.array(metrics, dtype=float).T
    assert front_end + queue + prefill == pytest.approx(ttft) and ttft + decode == pytest.approx(e2e)
    for part, values in (("front_end", front_end), ("queue", queue), ("prefill", prefill), ("decode", decode)):
        assert answer.json[f"{part}_share"] == pytest.approx(values.sum() / e2e.sum())
    for name, values in (("ttft_ms", ttft), ("e2e_ms", e2e), ("queue_ms", queue)):
        for share in (50, 90, 99):
            assert answer.json[name][f"p{share}"] == pytest.approx(np.percentile(values, share), rel=1e-6)
        assert answer.json[name]["mean"] == pytest.approx(np.mean(values), rel=1e-6)
    assert first == 0.0 and answer.json["duration_s"] > last
    assert answer.json["output_throughput"] == pytest.approx(float(tokens) / answer.json["duration_s"])


def test_a_saved_run_tells_its_cache_over_time(saved_run, saved_steps):
    for path, answer in (saved_run, saved_steps):
        with duckdb.connect(path, read_only=True) as file:
            windows = file.execute("""
                select sum(steps), max(end_s), sum(kv_share_mean * (end_s - start_s)) / sum(end_s - start_s),
                  bool_and(kv_share_mean between 0 and 1 and kv_blocks_free_min >= 0 and hit_rate is not distinct from
                    case when looked_up_tokens > 0 then cached_tokens / looked_up_tokens end)
                from cache_over_time
            """).fetchall()[0]
        assert windows[0] == answer.json["steps"] and windows[3]
        assert windows[1] == pytest.approx(answer.json["duration_s"], rel=1e-3)
        assert windows[2] == pytest.approx(answer.json["mean_kv_share"])
        assert 0 < answer.json["mean_kv_share"] < answer.json["peak_kv_share"]


@pytest.mark.parametrize("output", [(), ("-o", "requests.parquet")])
def test_steps_that_no_saved_run_holds_are_said(command, tmp_path, monkeypatch, output):
    monkeypatch.chdir(tmp_path)
    answer = command(*SIMULATE, *OPEN, "--keep", "steps", *output)
    assert answer.status == 0
    assert "--keep steps has no effect here" in answer.err and "-o FILE.duckdb" in answer.err


def test_each_figure_of_the_page_stands_behind_its_name(saved_run):
    counts = {"completed": 11, "requests": 12, "steps": 41, "preemptions": 3, "draft_tokens": 40}
    rates = {"duration_s": 1.5, "request_throughput": 7.25, "output_throughput": 31.5, "total_throughput": 95.5}
    shares = {"front_end": 0.05, "queue": 0.1, "prefill": 0.25, "decode": 0.6, "preempted": 0.15}
    others = {"goodput": 2.5, "prefix_cache_hit_rate": 0.375, "mean_kv_share": 0.125, "peak_kv_share": 0.5}
    others |= {"capacity": 9.5, "capacity_low": 8.25, "capacity_high": 11.0, "capacity_limit": "steps", "load": 0.75}
    times = {"gpu_s": 1.25, "host_exposed_s": 0.175, "idle_s": 0.075, "accepted_draft_tokens": 30}
    answer = saved_run[1].json | counts | rates | others | times
    answer["power_w"] = {"mean": 400.0, "low": 300.0, "high": 500.0, "host_per_gpu": None}
    answer["energy"] = {
        **{"j_per_output_token": 0.5, "j_per_output_token_low": 0.25, "j_per_output_token_high": 0.75},
        **dict.fromkeys(("carbon_g_per_million_tokens",)),
        **{"j_per_request": 8.0, "j_per_request_low": 4.0, "j_per_request_high": 12.0},
    }
    answer |= {f"{name}_share": share for name, share in shares.items()}
    answer["settings"] |= {"num_speculative_tokens": 4}
    page = lines_of(simulation_page(answer))
    first = page.index("") + 1
    lines = [line.partition("  ") for line in page[first : page.index("", first)]]
    assert {name: value.strip() for name, _, value in lines if value} == {
        "requests completed": "11 of 12",
        "duration (s)": "1.5",
        "request throughput (req/s)": "7.25",
        "output throughput (tok/s)": "31.5",
        "total throughput (tok/s)": "95.5",
        "goodput (req/s)": "2.5",
        "capacity (req/s), load": "9.5 (8.25 to 11; limit: steps), 75%",
        "engine steps": "41",
        "preemptions": "3",
        "prefix cache hit rate": "0.375",
        "draft tokens accepted": "30 of 40: 4 tokens per step",
        "KV cache in use, mean / peak": "12.5% / 50.0%",
        "request time front end / queued / prefill / decode": "5.0% / 10.0% / 25.0% / 60.0%",
        "of which preempted or recomputed": "15.0%",
        "GPU busy / waiting for host / idle (s)": "1.25 / 0.175 / 0.075",
        "power, mean (W)": "400 (90 % interval 300 to 500): GPUs alone",
        "energy per output token (J)": "0.5 (90 % interval 0.25 to 0.75)",
        "energy per request (J)": "8 (90 % interval 4 to 12)",
    }


def test_a_load_that_no_memory_holds(refusal):
    assert (
        refusal(*SIMULATE, *OPEN, "--num-prompts", 2**52, "--request-rate", 1e15, status=1)
        == "out of memory; request fewer rows at once."
    )


def test_a_file_that_cannot_be_written_loses_no_answer(command, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("kernelsight.dataflow.storage._write_database", full)
    answer = command(*SIMULATE, *OPEN, "-o", tmp_path / "run.duckdb", "--format", "json")
    assert answer.status == 1 and answer.json["completed"] == 6
    assert answer.err == f"kernelsight: {tmp_path}/run.duckdb could not be written: No space left on device.\n"


def test_requests_too_long_to_serve_are_counted_and_null(command):
    answer = command(*SIMULATE, *OPEN, "--isl", 10**6, "--format", "json").json
    assert (answer["requests"], answer["completed"], answer["status"]) == (6, 0, {"rejected_too_long": 6})
    assert answer["ttft_ms"] == dict.fromkeys(("mean", "p50", "p90", "p99"))
    assert not any(isinstance(value, float) and math.isnan(value) for value in answer.values())
    assert "rejected requests: 6 rejected_too_long" in command(*SIMULATE, *OPEN, "--isl", 10**6).out


def test_an_infinite_rate_sends_all_requests_at_once(command):
    lengths = ("--num-prompts", 12, "--isl", 200, "--osl", 8, "--format", "json")
    endless = command(*SIMULATE, "--request-rate", "inf", *lengths).json
    assert endless == command(*SIMULATE, "--max-concurrency", 12, *lengths).json
    limited = command(*SIMULATE, "--request-rate", "inf", "--max-concurrency", 3, *lengths).json
    assert limited == command(*SIMULATE, "--max-concurrency", 3, *lengths).json


def test_a_launch_line_stands_for_the_flags(command):
    line = "vllm serve Qwen/Qwen3-0.6B --max-num-seqs 4 --max-model-len 2k --trust-remote-code"
    load = ("--max-concurrency", 4, "--num-prompts", 8, "--isl", "1k", "--osl", 8, "--format", "json")
    pasted = command("simulate", "--launch", line, "--gpu", "NVIDIA L4", *load)
    flags = ("--max-num-seqs", 4, "--max-model-len", 2000)
    stated = command(*SIMULATE, *flags, *load).json
    stated["assumed"] = ["NVIDIA L4 is read as l4", *stated["assumed"]]
    said = pasted.json.pop("launch")
    assert {name: value for name, value in pasted.json.items() if name != "launch"} == stated
    assert [word["effect"] for word in said["words"]] == ["used", "used", "used", "none"]
    assert "launch line, ignored because it does not change times: --trust-remote-code" in pasted.err
    beside = command("simulate", "--launch", line, "--gpu", "l4", "--max-num-seqs", 8, *load)
    assert beside.json["settings"]["max_num_seqs"] == 8
    assert "launch line, overridden: --max-num-seqs 4 (max_num_seqs 8 is stated beside the line)" in beside.err


def test_an_engine_that_is_a_plugin_is_said_in_the_headline(command):
    load = ("--max-concurrency", 1, "--num-prompts", 1, "--isl", 64, "--osl", 2)
    answer = command("simulate", "--model", "qwen3-0.6b", "--gpu", "gaudi2", *load)
    sentence = "vLLM itself has no backend for gaudi2: Intel's plugin vllm-gaudi serves there"
    assert sentence in answer.out.splitlines()[1]
    said = command("simulate", "--model", "qwen3-0.6b", "--gpu", "gaudi2", *load, "--format", "json").json["assumed"]
    assert any(each.startswith(sentence) for each in said)


def test_a_scenario_of_which_no_request_is_served_ends_with_status_2(command):
    """Prompts longer than a step, which are not split: the page is printed, and the command fails as others do."""
    load = ("--max-concurrency", 2, "--num-prompts", 3, "--isl", 12_000, "--osl", 4)
    limits = ("--no-enable-chunked-prefill", "--max-num-batched-tokens", 8192)
    answer = command("simulate", "--model", "phi-4", "--gpu", "rtx_pro_6000_server", *limits, *load)
    assert answer.status == 2
    assert "requests completed                                  0 of 3" in answer.out
    assert "too long: prompt and output may have 16,384 tokens (--max-model-len), the prompt 8,192" in answer.out
    sentence = "no request was served: each is longer than the model, the KV cache or a step of the engine allows"
    assert f"kernelsight: {sentence}: the KV cache of a replica has" in answer.err
