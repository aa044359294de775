"""Pasted launch lines: every word is used or listed as ignored, in every form that people paste."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flags import FLAGS
from kernelsight.scenario.launch.deployments import read_launch_line, with_launch_line
from kernelsight.scenario.launch.engine_options import find_option
from kernelsight.scenario.launch.rules import RULES

LINES = yaml.safe_load((Path(__file__).parent / "lines.yaml").read_text(encoding="utf-8"))
MANIFEST = """
apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 2
  template:
    spec:
      nodeSelector:
        nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
      containers:
        - name: server
          image: vllm/vllm-openai:v0.11.0
          command: ["/bin/sh", "-c"]
          args:
            - vllm serve $MODEL --tensor-parallel-size 4 --max-num-seqs=64 --port 8000
          env:
            - {name: MODEL, value: Qwen/Qwen3-32B}
            - {name: VLLM_USE_V1, value: "1"}
            - {name: HF_TOKEN, value: secret}
          resources:
            limits: {nvidia.com/gpu: 4}
        - name: proxy
          image: nginx
"""


def flags_of(text: str) -> dict:
    return {name: value for name, value in read_launch_line(text).flags.items() if name != "engine"}


def effects(text: str) -> dict[str, str]:
    return {word.words: word.effect for word in read_launch_line(text).words}


def test_every_recognised_option_sets_a_flag_that_exists_by_a_rule_that_exists():
    rows = facts("engine_flags").to_pylist()
    used = [row for row in rows if row["flag"]]
    assert {row["engine"] for row in used} == {"vllm", "sglang", "trtllm", "any"} and len(used) > 90
    assert [row["flag"] for row in used if row["flag"] not in FLAGS] == []
    assert {row["rule"] for row in rows if row["rule"]} == set(RULES)
    for row in used:
        words = {part.partition("=")[2] for part in (row["value"] or "").split() if "=" in part} - {""}
        choices = FLAGS[row["flag"]].choices
        assert not choices or row["flag"] in ("dtype", "kv_cache_dtype") or words <= set(choices), row


def test_every_ignored_option_has_its_reason():
    rows = facts("engine_flags").to_pylist()
    assert [row["option"] for row in rows if row["effect"] and not row["reason"]] == []
    assert [row["option"] for row in rows if row["effect"] and row["flag"]] == []
    assert all(row["flag"] or row["effect"] or row["takes"] in ("json", "file") for row in rows)


def test_spellings_of_an_engine_name_one_option():
    rows = [row for row in facts("engine_flags").to_pylist() if row["engine"] != "any"]
    for row in rows:
        for name in [row["option"], *(row["spellings"] or "").split()]:
            assert find_option(row["engine"], name).option == row["option"], name


@pytest.mark.parametrize("case", [case for case in LINES if "flags" in case], ids=lambda case: case["line"])
def test_options(case):
    assert flags_of(case["line"]) == case["flags"]


@pytest.mark.parametrize("case", [case for case in LINES if "refused" in case], ids=lambda case: case["line"])
def test_refusals(case):
    with pytest.raises(InvalidInput, match=re.escape(case["refused"])) as error:
        read_launch_line(case["line"])
    assert len(str(error.value)) <= 200


def test_a_variable_names_a_kernel_unless_an_option_does():
    serve = "vllm serve Qwen/Qwen3-30B-A3B"
    assert flags_of(f"VLLM_ROCM_USE_AITER=1 {serve}")["moe_backend"] == "aiter_fused_moe"
    assert "moe_backend" not in flags_of(f"VLLM_ROCM_USE_AITER=0 {serve}")
    line = read_launch_line(f"VLLM_ATTENTION_BACKEND=TRITON_ATTN {serve} --attention-backend ROCM_ATTN")
    assert line.flags["attention_backend"] == "rocm_attention"
    assert {word.words: word.effect for word in line.words}["VLLM_ATTENTION_BACKEND=TRITON_ATTN"] == "overridden"
    assert flags_of("SGLANG_USE_AITER=0 python3 -m sglang.launch_server --model-path a/b")["moe_backend"] == (
        "fused_moe_triton"
    )


def test_options_of_trtllm_serve_and_of_its_yaml_file(tmp_path):
    (tmp_path / "extra.yaml").write_text(
        "kv_cache_config:\n  dtype: fp8\n  enable_block_reuse: false\n  free_gpu_memory_fraction: 0.8\n"
        "cuda_graph_config: null\nenable_attention_dp: true\nprint_iter_log: true\nmoe_config: {backend: TRTLLM}\n"
        "speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 2}\ndisable_overlap_scheduler: true\n"
        "attention_dp_config:\n  enable_balance: true\n  timeout_iters: 60\n  batching_wait_iters: 0\n"
    )
    (tmp_path / "start.sh").write_text(
        "#!/bin/bash\nset -e\nTP=8  # GPUs\n"
        "mpirun -n 8 trtllm-llmapi-launch trtllm-serve serve nvidia/DeepSeek-R1-FP4 \\\n"
        "  --tp_size $TP --ep_size 8 --max_batch_size=64 --max_num_tokens 2k --extra_llm_api_options extra.yaml\n"
    )
    line = read_launch_line(f"@{tmp_path}/start.sh", read_files=True)
    assert line.flags == {
        "engine": "trtllm",
        "model": "nvidia/DeepSeek-R1-FP4",
        "tensor_parallel_size": 1,
        "data_parallel_size": 8,
        "expert_parallel_size": 8,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2000,
        "kv_cache_dtype": "fp8",
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.8,
        "enforce_eager": True,
        "async_scheduling": False,
        "moe_backend": "trtllm_gen_moe",
        "speculative_method": "mtp",
        "num_speculative_tokens": 2,
        "attention_dp_balance": True,
        "attention_dp_timeout_iters": 60,
        "attention_dp_batching_wait_iters": 0,
    }
    said = {word.words: word.effect for word in line.words}
    assert said["extra.yaml: --print_iter_log"] == said["mpirun -n 8 trtllm-llmapi-launch"] == "none"


def test_words_that_are_ignored_say_whether_they_matter():
    found = effects(
        "CUDA_VISIBLE_DEVICES=0 VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve m --trust-remote-code --port 80 "
        "--config gone.yaml --lora-dtype auto --kv-cache-dtype nvfp4 --middleware a b --no-such 3 --also-none -tp 2 "
        "2>&1 | tee log"
    )
    assert found == {
        "m": "used",
        "--trust-remote-code": "none",
        "--port 80": "none",
        "--config gone.yaml": "not_modelled",
        "--lora-dtype auto": "not_modelled",
        "--kv-cache-dtype nvfp4": "not_modelled",
        "--middleware a b": "none",
        "--no-such 3": "unknown",
        "--also-none": "unknown",
        "-tp 2": "used",
        "CUDA_VISIBLE_DEVICES=0": "none",
        "VLLM_ATTENTION_BACKEND=FLASHINFER": "not_modelled",
    }


def test_docker_run_tells_the_version_of_the_engine():
    text = (
        "docker run --runtime nvidia --gpus all -v ~/.cache:/root/.cache --env HF_TOKEN=abc -p 8000:8000 --ipc=host "
        "vllm/vllm-openai:v0.11.0 --model mistralai/Mistral-7B-v0.1 -tp 2"
    )
    expected = {"model": "mistralai/Mistral-7B-v0.1", "tensor_parallel_size": 2, "engine_version": "0.11.0"}
    assert flags_of(text) == expected
    assert effects(text)["HF_TOKEN=<redacted>"] == effects(text)["--gpus all"] == "none"
    other = "docker run --gpus all lmsysorg/sglang:v0.5.5.post1-cu129 bash -c 'sglang serve --model-path m --tp 2'"
    assert flags_of(other) == {"model": "m", "tensor_parallel_size": 2, "engine_version": "0.5.5.post1"}


def test_a_kubernetes_manifest_tells_the_gpu_too(tmp_path):
    path = tmp_path / "pod.yaml"
    path.write_text(MANIFEST)
    line = read_launch_line(f"@{path}")
    assert line.flags == {
        "engine": "vllm",
        "model": "Qwen/Qwen3-32B",
        "tensor_parallel_size": 4,
        "max_num_seqs": 64,
        "engine_version": "0.11.0",
        "gpu": "h100_sxm",
        "replicas": 2,
    }
    assert {"HF_TOKEN=<redacted>", "VLLM_USE_V1=1", "nvidia.com/gpu: 4"} <= {word.words for word in line.words}


def test_flags_beside_the_line_have_precedence():
    line = "vllm serve Qwen/Qwen3-8B -tp 2"
    found = with_launch_line({"launch": line, "tensor_parallel_size": 4, "gpu": "l4", "seed": None})
    assert found == {"engine": "vllm", "model": "Qwen/Qwen3-8B", "tensor_parallel_size": 4, "gpu": "l4"}
    marked = read_launch_line(line).overridden_by({"tensor_parallel_size": 4})
    assert [word.effect for word in marked.words] == ["used", "overridden"]
    assert "overridden: -tp 2 (tensor_parallel_size 4 is stated beside the line)" in "\n".join(marked.notes())


COMPOSE = """
services:
  llm:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-8B
    {}
"""


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        (MANIFEST, {"replicas": 2}, "requests go to them in turn"),
        (MANIFEST.replace("replicas: 2", "replicas: 1"), {"replicas": 1}, "requests go to them in turn"),
        (MANIFEST.replace("replicas: 2", "replicas: 0"), {}, "one is predicted; state --replicas"),
        (MANIFEST.replace("replicas: 2", 'replicas: "${N}"'), {}, "one is predicted; state --replicas"),
        (
            MANIFEST.replace("replicas: 2", "replicas: 4").replace("--port", "--nnodes 2 --port"),
            {"replicas": 2},
            "each server has 2 of them as its nodes",
        ),
        (MANIFEST.replace("--port", "--nnodes=3 --port"), {}, "one is predicted; state --replicas"),
        (COMPOSE.format("deploy: {replicas: 3}"), {"replicas": 3}, "requests go to them in turn"),
        (COMPOSE.format("scale: 3"), {"replicas": 3}, "requests go to them in turn"),
    ],
)
def test_replicas_of_a_manifest_count_or_are_named(text, flags, said):
    line = read_launch_line(text)
    assert {name: value for name, value in line.flags.items() if name == "replicas"} == flags
    (word,) = (word for word in line.words if word.words.startswith("replicas: "))
    assert said in word.reason and word.effect == ("used" if flags else "not_modelled")
    if flags.get("replicas", 1) > 1:
        beside = read_launch_line(text).overridden_by({"replicas": 7})
        assert [word.effect for word in beside.words if word.words.startswith("replicas: ")] == ["overridden"]


def test_more_replicas_than_there_can_be_are_refused():
    with pytest.raises(InvalidInput, match="replicas: 9999 of the launch line: replicas is 9999; give a whole number"):
        read_launch_line(MANIFEST.replace("replicas: 2", "replicas: 9999"))


def test_replicas_of_prefill_and_decode_are_those_of_their_manifests():
    options = "--disaggregation-mode prefill --model-path m"
    prefill = COMPOSE.format("scale: 3").replace("vllm/vllm-openai", "lmsysorg/sglang").replace(
        "--model Qwen/Qwen3-8B", f"python -m sglang.launch_server {options}"
    )  # fmt: skip
    decode = prefill.replace("services:\n", "").replace("llm:", "other:").replace("prefill", "decode")
    line = read_launch_line(prefill + decode.replace("scale: 3", "scale: 2"))
    assert (line.flags["prefill_replicas"], line.flags["decode_replicas"]) == (3, 2)
    assert {"prefill: replicas: 3", "decode: replicas: 2"} <= {word.words for word in line.words}


@pytest.mark.parametrize(
    ("line", "effect"),
    [
        ("vllm serve Qwen/Qwen3-8B --quantization awq", "not_modelled"),
        ("vllm serve me/Qwen3-8B-AWQ --quantization awq", "used"),
        ("vllm serve nobody/knows-it --quantization awq", "used"),
        ("vllm serve Qwen/Qwen3-8B --quantization fp8", "used"),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --quantization unquant", "used"),
    ],
)
def test_formats_of_a_checkpoint_that_has_none_are_said(line: str, effect: str) -> None:
    assert {words: found for words, found in effects(line).items() if "quant" in words} == {
        " ".join(line.split()[-2:]): effect
    }
