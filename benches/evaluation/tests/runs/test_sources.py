"""Runs of other campaigns: read by their header, what each measured, sick rows by flags and neighbours alone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.evaluation.runs.recipes import flags_of
from kernelsight.laboratory.runs.sources.http_stages import requests_of
from kernelsight.laboratory.runs.sources.mlenergy import BUNDLED, FALLING, OUTRUN, SLOWER, exclusion_reasons
from kernelsight.laboratory.runs.sources.sglang_cookbook import COMPILING

STAGE = {"shared_prompt_tokens": 100, "question_tokens": 47, "answer_tokens": 20}
STAGES = [STAGE | {"requests_per_s": 2.0, "seconds": 100}, STAGE | {"requests_per_s": 5.0, "seconds": 50}]
LOOP = {"model": "m", "task": "gpqa", "gpu": "H100", "gpus": 1, "expert_parallel": 1, "data_parallel": 1}
OLDER = "run_id,harness,model,gpu,tp,pp,dp,ep,engine,isl,osl,max_concurrency,workers,ttft_ms,tpot_ms,source"


def loop(users: int, itl_ms: float, **more: object) -> dict:
    """Return a row of a closed loop."""
    gaps = {"itl_p50_ms": itl_ms, "itl_p90_ms": 1.1 * itl_ms, "output_tokens_per_s": 1e3 * users / itl_ms}
    return {**LOOP, "max_num_seqs": users, "mean_running": users, "output_tokens_mean": 600.0, **gaps, **more}


def write_http(folder: Path) -> Path:
    """Write a run over HTTP and its workload."""
    flags = "max_num_seqs,max_num_batched_tokens,max_model_len,gpu_memory_utilization"
    measured = "e2e_mean,e2e_p90,e2e_p99,ttft_mean,ttft_p90,ttft_p99,itl_mean"
    path = folder / "mine.csv"
    path.write_text(
        f"run,engine,engine_version,model,gpu,tensor_parallel,weight_precision,{flags},workload,{measured}\n"
        "7,vllm,0.15.1,meta-llama/Llama-3.1-8B-Instruct,H100,1,bf16,128,2048,4096,0.9,chat,300,350,400,30,40,50,9\n"
    )
    (folder / "mine_workloads.csv").write_text(
        "workload,shared_prompt_tokens,question_tokens,answer_tokens,stage,requests_per_s,seconds\n"
        "chat,100,47,20,0,2,100\nchat,100,47,20,1,5,50\n"
    )
    return path


def test_a_client_of_stages_sends_as_many_requests_as_stated_and_cycles_through_its_prompts() -> None:
    sent = requests_of(STAGES).to_pydict()
    arrivals = np.array(sent["arrival_s"])
    assert (arrivals.size, arrivals[199], arrivals[-1]) == (450, pytest.approx(100.0), pytest.approx(150.0))
    assert (np.diff(arrivals) > 0).all()
    assert set(sent["prompt_tokens"]) == {147}
    hashes = sent["hash_ids"]
    assert hashes[0] == hashes[100] != hashes[10]
    # six full blocks of the group's shared prompt, then the prompt's own
    assert [hashes[0][:6] == hashes[other][:6] for other in (1, 10)] == [False, True]
    assert not set(hashes[0][6:]) & set(hashes[10][6:])
    assert len(hashes[0]) == 10


def test_a_run_of_stages_is_replayed_from_a_trace(tmp_path: Path) -> None:
    write_http(tmp_path)
    (run,) = read_runs(str(tmp_path)).table.to_pylist()  # the file of workloads beside it is no runs of its own
    assert (run["campaign"], run["request_rate"], run["e2e_p99_ms"], run["tpot_ms"]) == ("mine", 3.0, 400.0, None)
    flags, _ = flags_of(run, [])
    assert pq.read_table(flags["trace"]).num_rows == 450
    assert not {"input_len", "output_len", "request_rate", "num_prompts"} & set(flags)
    assert flags["max_num_batched_tokens"] == 2048
    # the client states no sampling, so that the checkpoint's own counts
    assert flags["sampling"] == ("top_p" if run["model"].startswith(("meta-llama/", "Qwen/")) else "random")


def test_a_run_of_stages_needs_its_workloads(tmp_path: Path) -> None:
    path = write_http(tmp_path)
    (tmp_path / "mine_workloads.csv").unlink()
    with pytest.raises(InvalidInput, match="mine_workloads.csv"):
        read_runs(str(path))


def test_sick_rows_are_those_that_neighbours_contradict() -> None:
    rows = [loop(8, 10.0), loop(64, 15.0), loop(256, 30.0)]
    assert exclusion_reasons(rows) == [None, None, None]
    # another task of the same deployment serves more users in less than two thirds of the time
    assert exclusion_reasons([*rows, loop(8, 46.0, task="lm-arena-chat")]) == [None, None, None, SLOWER]
    # but for one whose contexts are longer, or another model
    assert exclusion_reasons([*rows, loop(8, 46.0, task="lm-arena-chat", output_tokens_mean=6000.0)]) == [None] * 4
    assert exclusion_reasons([*rows, loop(8, 46.0, model="n", gpus=2)]) == [None] * 4
    assert exclusion_reasons([*rows, loop(512, 31.0, output_tokens_per_s=7000.0, itl_p90_ms=80.0)])[3] == FALLING


def test_a_faster_deployment_is_contradicted_by_a_slower_one() -> None:
    hopper, users = [loop(8, 10.0), loop(64, 15.0)], {"gpu": "B200"}
    assert exclusion_reasons([*hopper, loop(8, 11.0, **users), loop(64, 24.0, **users)]) == [None, None, None, OUTRUN]
    # of a task of which two rows are contradicted none is kept, and a slower deployment may be slower
    assert exclusion_reasons([*hopper, *(loop(number, 24.0, **users) for number in (8, 64, 128))])[2:] == [OUTRUN] * 3
    assert exclusion_reasons([loop(8, 46.0), loop(8, 10.0, **users)]) == [None, None]


def test_gaps_of_tokens_in_bundles_are_no_steps() -> None:
    steps, bundled = loop(256, 30.0), loop(512, 20.0, itl_p90_ms=39.0, output_tokens_per_s=12_800.0)
    assert exclusion_reasons([steps, bundled]) == [None, BUNDLED]
    assert exclusion_reasons([steps, bundled | {"itl_p90_ms": 41.0}]) == [None, None]


def test_what_is_here_of_other_campaigns_is_read() -> None:
    data = Path(__file__).parents[5] / "shared" / "data"
    if not (data / "servers").is_dir():
        pytest.skip("the folder of measured servers is not here")
    names = ("gpustack_lab", "mlenergy", "sglang_cookbook", "trtllm_throughput", "vllm_0_15_1")
    runs = read_runs(*(str(data / "servers" / f"{name}.csv") for name in names), str(data / "inference-perf-example"))
    rows = runs.table.to_pylist()
    counted = Counter(row["campaign"] for row in rows)
    known = {"trtllm_tables": 349, "mlenergy": 304, "vllm_0_15_1": 19, "inference_perf": 7}
    assert counted == known | {"gpustack_lab": 28, "sglang_cookbook": 17}
    completions = [row for row in rows if row["campaign"] == "mlenergy" and row["task"] == "sourcegraph-fim"]
    # 1,024 prompts, sent again where more are asked for
    again = [row["num_prompts"] for row in completions if "distinct_prompts" in json.loads(row["stated_flags"])]
    assert again and all(count % 1024 == 0 for count in again)
    assert runs.read == 704 + 236 + 28 + 18 and sum(count for _, count in runs.excluded) == 262
    saturated = [row for row in rows if row["campaign"] == "inference_perf" and row["output_throughput"]]
    assert [row["run_id"][-1] for row in saturated] == ["4", "5", "6"]
    assert all(json.loads(row["stated_flags"])["max_num_seqs"] == 192 for row in saturated)


def test_the_cookbook_s_loops_have_the_length_of_every_request(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    measured = "ttft_mean_ms,ttft_p50_ms,tpot_mean_ms,itl_mean_ms,output_tokens_per_s"
    path.write_text(
        "model,gpu,engine_version,flags,requests,users,input_len_max,output_len_max,total_output_tokens,"
        f"{measured}\n"
        "qwen3-30b-a3b,b200_sxm,0.5.6,-tp 2 --ep 2 --mem-fraction-static 0.8,10,1,1000,1000,4210,99,92,10,10,97"
        "\nqwen3-30b-a3b,b200_sxm,0.5.6,-tp 2,80,16,1000,1000,40805,900,92,10,10,97"
        "\nqwen3-30b-a3b,b200_sxm,0.5.6,-tp 2,10,1,1000,1000,4210,900,92,10,10,97\n"
    )
    runs = read_runs(str(path))
    first, second = runs.table.to_pylist()
    assert runs.excluded == [(COMPILING, 1)]  # of one user alone, who waits for no other
    assert (first["tp"], first["ep"], first["engine"], first["ttft_ms"], first["isl"]) == (2, 2, "sglang", 99.0, None)
    flags = flags_of(first, [])[0]
    assert (flags["max_concurrency"], flags["gpu_memory_utilization"]) == (1, 0.8)
    for run, cached, totals in ((first, 1, [6101, 4210]), (second, 10, [39668, 40805])):
        sent = pq.read_table(flags_of(run, [])[0]["trace"]).to_pylist()
        warmups, measured = sent[:cached], sent[cached:]
        assert [sum(row[name] for row in measured) for name in ("prompt_tokens", "output_tokens")] == totals
        # the run with fewer users before it had its first prompts: they are in the cache, and no others
        assert [row["hash_ids"] for row in warmups] == [row["hash_ids"] for row in measured[:cached]]
        assert {row["warmup"] for row in warmups} == {1} and {row["warmup"] for row in measured} == {0}
        assert len({row["hash_ids"][0] for row in measured}) == len(measured)


def test_prompts_sent_at_once_are_a_loop_of_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "document,gpu,launch,engine,engine_version,prompts,input_tokens,output_tokens,duration_s,ttft_mean_ms,"
        "tpot_mean_ms,total_tokens_per_s\n"
        "d,a100_sxm,vllm serve Qwen/Qwen3-14B --async-scheduling,vllm,,500,2000,100.0,96,40000,350,21000\n"
    )
    (run,) = read_runs(str(path)).table.to_pylist()
    flags = flags_of(run, [])[0]
    assert (flags["num_prompts"], flags["max_concurrency"], flags["async_scheduling"]) == (500, 500, True)
    assert (run["model"], run["isl"], run["osl"], run["output_throughput"]) == ("Qwen/Qwen3-14B", 2000, 100, 1000.0)


def test_an_older_file_names_its_campaign_harness(tmp_path: Path) -> None:
    path = tmp_path / "older.csv"
    path.write_text(f"{OLDER}\nr0,given,qwen3-0.6b,l4,1,1,1,1,vllm,256,32,2,1,40,8,mine\n")
    (run,) = read_runs(str(path)).table.to_pylist()
    assert (run["campaign"], run["ttft_ms"], run["itl_p50_ms"]) == ("given", 40.0, None)
    pq.write_table(read_runs(str(path)).table.rename_columns({"campaign": "harness"}), tmp_path / "older.parquet")
    assert read_runs(str(tmp_path / "older.parquet")).table.to_pylist() == [run]


def test_a_run_is_read_once(tmp_path: Path) -> None:
    path = write_http(tmp_path)
    with pytest.raises(InvalidInput, match="'mine/7' is in --runs twice"):
        read_runs(str(tmp_path), str(path))
