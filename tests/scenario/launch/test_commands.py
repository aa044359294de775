"""Launch commands of deployments: what is written is read again as the same deployment."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernelsight.scenario.launch.commands import OPTIONS_FILE, LaunchCommand, launch_command
from kernelsight.scenario.launch.deployments import read_launch_line
from kernelsight.scenario.scenario_rows import deployment_row, normalise
from tests.conftest import random_worlds

MOE = {"huggingface_id": "deepseek-ai/DeepSeek-V3", "experts": 256}


def read_again(command: LaunchCommand, folder: Path) -> dict:
    (folder / "start.sh").write_text(command.line)
    if command.options_file is not None:
        (folder / OPTIONS_FILE).write_text(command.options_file)
    line = read_launch_line(f"@{folder}/start.sh", read_files=True)
    assert [word for word in line.words if word.effect != "used"] == []
    flags = normalise(line.flags | {"gpu": "h200_sxm"} | _acceptance(line.flags))
    return {name: value for name, value in deployment_row(flags).items() if name != "deployment_id"}


def _acceptance(flags: dict) -> dict:
    return {"draft_acceptance_rate": 0.8} if "num_speculative_tokens" in flags else {}


ROWS = st.fixed_dictionaries(
    {"engine": st.sampled_from(("vllm", "sglang", "trtllm")), "tp": st.sampled_from((1, 2, 8))},
    optional={
        "pp": st.sampled_from((1, 2)),
        "dp": st.sampled_from((1, 4)),
        "ep": st.just("all"),
        "dtype": st.sampled_from(("bf16", "fp16")),
        "kv_cache_dtype": st.just("fp8"),
        "max_model_len": st.integers(1000, 9000),
        "max_num_seqs": st.integers(1, 4095),
        "max_num_batched_tokens": st.integers(5000, 8000),
        "gpu_memory_utilization": st.sampled_from((0.5, 0.75)),
        "kv_cache_tokens": st.sampled_from((3200, 6400)),
        "enforce_eager": st.just(True),
        "max_cudagraph_capture_size": st.integers(1, 999),
        "prompt_graphs": st.just("none"),
        "enable_prefix_caching": st.just(False),
        "async_scheduling": st.just(False),
        "num_speculative_tokens": st.integers(1, 8),
    },
)


@random_worlds(120)
@given(ROWS)
@example({"engine": "vllm", "tp": 2, "dp": 4, "ep": "all"})
@example({"engine": "sglang", "tp": 2, "dp": 4, "ep": "all"})
@example({"engine": "trtllm", "tp": 8, "ep": "all"})
def test_what_is_written_is_read_again(tmp_path_factory, stated):
    if stated["engine"] == "trtllm" and stated.get("dp", 1) > 1:
        stated["tp"] = 1  # attention replicas of one GPU each
    row = {"model": "deepseek-v3", "gpu": "h200_sxm", "pp": 1, "dp": 1, **stated}
    row["ep"] = row["tp"] * row["dp"] if "ep" in stated else 1
    if "num_speculative_tokens" in stated:
        row |= {"draft_acceptance_rate": 0.8, "speculative_method": "mtp"}
    if row["engine"] == "trtllm" and row.get("enforce_eager"):
        row.pop("max_cudagraph_capture_size", None)  # one field says both
    if row["engine"] == "trtllm":
        row.pop("prompt_graphs", None)  # no option says it
    if row["engine"] == "trtllm" and "max_num_seqs" in row:
        row["max_num_seqs"] *= row["pp"]  # each stage has as many
    command = launch_command(row, MOE)
    assert command.unsaid == {}
    again = read_again(command, tmp_path_factory.mktemp("launch"))
    assert again == row | {"model": "deepseek-ai/DeepSeek-V3"}


def test_replicas_of_a_dense_model_of_sglang_keep_their_own_gpus():
    dense = launch_command({"model": "m", "engine": "sglang", "tp": 2, "dp": 4, "max_num_seqs": 8})
    assert dense.line.endswith("--tp-size 2 --dp-size 4 --max-running-requests 8")
    experts = launch_command({"model": "m", "engine": "sglang", "tp": 2, "dp": 4, "max_num_seqs": 8}, MOE)
    assert experts.line.endswith("--tp-size 8 --dp-size 4 --enable-dp-attention --max-running-requests 32")
    # as many as the default of one engine, but over all replicas
    group = launch_command({"model": "m", "engine": "sglang", "tp": 1, "dp": 4, "max_num_seqs": 1024}, MOE)
    assert group.line.endswith("--max-running-requests 4096")


def test_defaults_are_left_out_and_what_no_option_says_is_listed():
    row = {"model": "/m", "tp": 1, "enable_prefix_caching": True, "capacity_policy": "new_token_ratio"}
    assert launch_command(row) == ("vllm serve /m", None, {"capacity_policy": "new_token_ratio"})
    chunks = {"model": "o/m", "engine": "sglang", "enable_chunked_prefill": False, "max_num_batched_tokens": 4096}
    assert launch_command(chunks).line.endswith("--model-path o/m --chunked-prefill-size -1")


def test_options_of_a_file_are_shown_before_the_line():
    text = str(launch_command({"model": "o/m", "engine": "trtllm", "kv_cache_dtype": "fp8"}))
    assert text == (
        "cat > options.yaml <<'EOF'\nkv_cache_config:\n  dtype: fp8\nEOF\ntrtllm-serve o/m --config options.yaml"
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_draft_model_is_named(engine):
    row = {"model": "m", "engine": engine, "num_speculative_tokens": 2, "speculative_method": "draft_model"}
    flags = read_launch_line(launch_command(row, speculative_model="o/d").line).flags
    assert (flags["speculative_model"], flags["num_speculative_tokens"]) == ("o/d", 2)


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("RedHatAI/Qwen3-32B-FP8-dynamic", "RedHatAI/Qwen3-32B-FP8-dynamic"),
        ("/models/mine/config.json", "/models/mine"),
        ("/models/mine", "/models/mine"),
        ("unheard-of", "REPOSITORY_OWNER/unheard-of"),
        ("llama-3.3-70b-fp8", "REPOSITORY_OWNER/llama-3.3-70b-fp8"),
        ("qwen3-32b-fp8", "Qwen/Qwen3-32B-FP8"),
    ],
)
def test_the_model_that_a_user_names_is_served(asked, served):
    assert launch_command({"model": asked}).line == f"vllm serve {served}"
    # a row of deployments has the name of the catalogue, whatever was asked
    row = {"model": "llama-3.1-8b", "engine": "sglang"}
    assert launch_command(row, asked=asked).line.endswith(f"--model-path {served}")
    assert served in launch_command({"model": asked}, speculative_model=asked).line.split()
