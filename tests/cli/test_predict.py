"""`kernelsight predict`: the promised keys, sums that add up, shapes, and refusals by their words."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pyarrow as pa
import pytest

from kernelsight.forward.forward_step import step_kernels
from kernelsight.number_format import number

STEP = ("predict", "--model", "qwen3-0.6b", "--gpu", "l4", "--context-len", "100")
KEYS = {
    "family",
    "name",
    "count",
    "shape",
    "flops",
    "bytes",
    "roofline_us",
    "bound",
    "eta",
    "latency_us",
    "share",
    "tier",
}
FAMILIES = set(
    "gemm batched_gemm prefill_attention decode_attention mla_prefill mla_decode moe linear_attention "
    "sparse_attention encoder_attention norm "
    "activation rope kv_write quantize embedding sampling all_reduce all_gather reduce_scatter all_to_all p2p "
    "host overlap".split()
)
SHAPES = {
    "gemm": {"m", "n", "k"},
    "prefill_attention": {"batch", "new_tokens", "cached_tokens", "heads", "kv_heads", "head_dim", "window"},
    "decode_attention": {"batch", "context", "heads", "kv_heads", "head_dim", "window"},
    "moe": {"tokens", "hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep"},
    "all_reduce": {"bytes", "gpus"},
    "all_gather": {"bytes", "gpus"},
    "norm": {"rows", "columns"},
    "activation": {"rows", "columns"},
    "rope": {"rows", "columns"},
    "kv_write": {"rows", "columns"},
    "embedding": {"rows", "columns"},
    "sampling": {"rows", "columns"},
    "host": set(),
}
PHASES = {
    "prefill": ("--phase", "prefill", "--batch-size", 2, "--isl", 300, "--context-len", 64),
    "decode": ("--phase", "decode", "--batch-size", 7, "--context-len", 900),
    "mixed": ("--phase", "mixed", "--batch-size", 7, "--input-len", 300, "--context-len", 900),
}
DEPLOYMENTS = {
    "qwen3-0.6b": ("--model", "qwen3-0.6b", "--gpu", "h100_sxm"),
    "qwen3-30b-a3b": ("--model", "Qwen/Qwen3-30B-A3B", "--gpu", "h100_sxm", "-tp", 2),
    "deepseek-v3": ("--model", "deepseek-v3", "--gpu", "h200_sxm", "-tp", 8, "--enable-expert-parallel"),
}


def test_a_kernel_of_several_kinds_of_layers_is_one_row() -> None:
    of_calls = {name: pa.nulls(3).to_pylist() for name in ("math", "format")}
    calls = {"deployment_id": ["d"] * 3, "family": ["gemm", "norm", "gemm"], "name": ["o_proj", "norm", "o_proj"]}
    calls |= {"call": ["b.o", "a.norm", "a.o"], "count": [2, 10, 3], "shape": [{"m": 1}, {"m": 2}, {"m": 1}]}
    calls |= {"flops": [4.0] * 3, "bytes": [8.0] * 3} | of_calls
    latencies = {"call": calls["call"], "bound": ["memory"] * 3, "tier": ["auto"] * 3, "evidence": ["x", "y", "x"]}
    latencies |= {"implementation": ["a", "b", "a"], "measured_version": [None] * 3}
    times = ("roofline_us", "eta", "latency_us", "latency_p05_us", "latency_p95_us", "energy_j")
    latencies |= {name: [3.0, 1.0, 3.0] for name in times}
    kernels, evidence = step_kernels(pa.table(calls), pa.table(latencies))
    assert [(row["call"], row["count"], row["latency_us"]) for row in kernels] == [("a.o", 5, 3.0), ("a.norm", 10, 1.0)]
    assert [(row["family"], row["evidence"], row["gpu_us"]) for row in evidence] == [
        ("gemm", "x", 15.0),
        ("norm", "y", 10.0),
    ]


@pytest.mark.parametrize(
    ("model", "phase"),
    # a mixed step has the kernels of both phases
    [*(("qwen3-0.6b", phase) for phase in PHASES), ("qwen3-30b-a3b", "mixed"), ("deepseek-v3", "mixed")],
)
def test_json_keeps_its_promises(model, phase, command):
    step = command("predict", *DEPLOYMENTS[model], *PHASES[phase], "--format", "json").json
    assert step["model"] == model
    assert 0 < step["p05_us"] <= step["total_us"] <= step["p95_us"]
    assert all(isinstance(sentence, str) and sentence for sentence in step["assumed"])
    for kernel in step["kernels"]:
        assert set(kernel) >= KEYS and kernel["family"] in FAMILIES
        assert all(type(size) is int for size in kernel["shape"].values())
        assert kernel["share"] == pytest.approx(kernel["count"] * kernel["latency_us"] / step["total_us"])
        wanted = SHAPES.get(kernel["family"])
        assert wanted is None or set(kernel["shape"]) == wanted, kernel
    spent = sum(kernel["count"] * kernel["latency_us"] for kernel in step["kernels"])
    assert spent == pytest.approx(step["total_us"], rel=1e-6)
    assert sum(kernel["share"] for kernel in step["kernels"]) == pytest.approx(1.0)
    assert [kernel["family"] for kernel in step["kernels"]].count("host") == 1


def test_a_step_beyond_the_limits_of_the_engine_is_called_so(command):
    limits = ("--max-num-seqs", 8, "--max-num-batched-tokens", 64, "--format", "json")

    def beyond(*sizes):
        said = command(*STEP[:-2], *limits, *sizes).json["assumed"]
        return [sentence for sentence in said if "the step has" in sentence]

    assert beyond("--context-len", 100, "--batch-size", 8) == beyond("--phase", "prefill", "--input-len", 64) == []
    seats = "the step has 9 sequences, more than max_num_seqs 8: the engine would take several"
    assert beyond("--context-len", 100, "--batch-size", 9) == [seats]
    tokens = "the step has 65 new tokens, more than max_num_batched_tokens 64: the engine would take several"
    assert beyond("--phase", "prefill", "--input-len", 65) == [tokens]


@pytest.mark.parametrize(
    ("gpu", "model", "tier", "line"),
    [
        ("h200_sxm", "llama-3.1-8b", "target-measured", "kernel latencies: target-measured ("),
        # norms and other analytic terms take more than a fifth of the time
        ("h200_sxm", "qwen3-0.6b", "gpu-measured", "kernel latencies: gpu-measured (measured: 7"),
        ("a40", "qwen3-0.6b", "cross-generation", "kernel latencies: cross-generation; not measured: kernels on a40; "),
        ("gaudi3", "qwen3-0.6b", "unmeasured-vendor", "kernel latencies: unmeasured-vendor; not measured: "),
    ],
)
def test_the_page_says_whether_the_gpu_was_measured(gpu, model, tier, line, command):
    flags = ("predict", "--model", model, "--gpu", gpu, "--context-len", "100")
    assert command(*flags).out.splitlines()[3].startswith(line)
    step = command(*flags, "--format", "json").json
    assert step["tier"] == tier and (tier == "target-measured") == (step["measured_share"] >= 0.8)


def test_csv_and_files_hold_the_same_kernels(command, tmp_path):
    import duckdb
    import pyarrow.parquet as pq

    step = command(*STEP, "--format", "json", "-o", tmp_path / "step.duckdb").json
    printed = command(*STEP, "--format", "csv", "-o", tmp_path / "step.csv").out
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["name"] for row in rows] == [kernel["name"] for kernel in step["kernels"]]
    assert json.loads(rows[0]["shape"]) == step["kernels"][0]["shape"]
    written = list(csv.DictReader(io.StringIO((tmp_path / "step.csv").read_text(encoding="utf-8"))))
    assert written == rows
    for ending in (".parquet", ".json"):
        assert command(*STEP, "-o", tmp_path / f"step{ending}").status == 0
    in_json = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))
    assert in_json == [{name: kernel[name] for name in rows[0]} for kernel in step["kernels"]]
    assert pq.read_table(tmp_path / "step.parquet")["latency_us"].to_pylist() == [
        kernel["latency_us"] for kernel in step["kernels"]
    ]
    with duckdb.connect(tmp_path / "step.duckdb", read_only=True) as file:
        assert file.execute("select total_us from step_totals").fetchall() == [(step["total_us"],)]


def test_a_vendor_without_measurements_is_said(command):
    words = ("predict", "--model", "qwen3-0.6b", "--context-len", "100", "--format", "json", "--gpu")
    said = command(*words, "gaudi3").json["assumed"]
    assert (
        "on no INTEL GPU was any kernel measured: general constants stand in on gaudi3, and may be off by a factor of 4"
    ) in said
    partly = next(sentence for sentence in command(*words, "mi300x").json["assumed"] if "on no AMD GPU" in sentence)
    assert "were these kernels (activation, decode_attention, embedding" in partly and "gemm" not in partly
    assert not any("stand in" in sentence for sentence in command(*words, "l4").json["assumed"])


def test_a_step_above_the_largest_cuda_graph_says_what_a_larger_one_brings(command: Any) -> None:
    step = ("predict", "--model", "qwen3-0.6b", "--gpu", "h100_sxm", "--phase", "decode", "--context-len", "64")
    found = command(*step, "--batch-size", "40", "--max-cudagraph-capture-size", "32", "--format", "json").json
    after = command(*step, "--batch-size", "40", "--max-cudagraph-capture-size", "64", "--format", "json").json
    assert after["cliff"] is None
    assert found["cliff"] == (
        "CUDA graphs end at a batch of 32, which 40 sequences exceed: --max-cudagraph-capture-size 64 makes this step "
        f"{number(found['total_us'] / after['total_us'], 2)} times as fast"
    )
    assert found["cliff"] in command(*step, "--batch-size", "40", "--max-cudagraph-capture-size", "32").out
