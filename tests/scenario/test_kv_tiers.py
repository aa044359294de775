"""KV tiers as people write them, and as the engines' launch lines do."""

from __future__ import annotations

import argparse

import pytest

from kernelsight.cli.command_line import add_flags
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flag_values import typed_value
from kernelsight.scenario.flags import FLAGS
from kernelsight.scenario.kv_tiers import parse_tiers, tiers_text
from kernelsight.scenario.launch.commands import launch_command
from kernelsight.scenario.launch.deployments import read_launch_line
from kernelsight.scenario.scenario_rows import normalise
from tests.asked import refusals


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("host:200GiB", "host:200GiB"),
        ("host:204800MiB:read=50GB/s:latency=0.01ms", "host:200GiB:read=50:latency=10"),
        ("store:unlimited:shared+disk:2TiB+host:0", "host:0+disk:2TiB+store:unlimited:shared"),
        ("host:2x:write=0.5", "host:2x:write=0.5"),
        ("host:1e9", "host:1000000000"),
        ("none", None),
    ],
)
def test_one_spelling_of_the_same_tiers(text: str, same: str | None) -> None:
    assert typed_value("kv_tier", text) == same
    assert same is None or tiers_text(parse_tiers(same)) == same


@pytest.mark.parametrize(
    ("text", "message"),
    refusals("scenario/test_kv_tiers::test_refused_in_one_sentence"),
)
def test_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        typed_value("kv_tier", text)


def test_a_list_is_no_tier_of_one_scenario() -> None:
    with pytest.raises(InvalidInput, match="one scenario takes one value"):
        typed_value("kv_tier", ["host:1GiB"])


def test_the_option_may_be_given_several_times() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, (FLAGS["kv_tier"], FLAGS["max_concurrency"]))
    words = ["--kv-tier", "host:1GiB", "--kv-tier", "disk:1TiB", "--sessions", "4"]
    assert vars(parser.parse_args(words)) == {"kv_tier": "host:1GiB+disk:1TiB", "max_concurrency": 4}


CONNECTOR = (
    """--kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": """
    """{"cpu_bytes_to_use": 8589934592}}'"""
)


@pytest.mark.parametrize(
    ("line", "tiers"),
    [
        ("vllm serve Qwen/Qwen3-8B -tp 2 --kv-offloading-size 8", "host:8GiB"),
        (f"vllm serve Qwen/Qwen3-8B {CONNECTOR}", "host:8GiB"),
        ("vllm serve Qwen/Qwen3-8B", None),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-hierarchical-cache", "host:2x"),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --enable-hierarchical-cache "
            "--hicache-size 30 --hicache-storage-backend file",
            "host:60000000000+disk:unlimited",
        ),
        (
            "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --hicache-ratio 3 --enable-hierarchical-cache",
            "host:3x",
        ),
        (
            "DYN_KVBM_CPU_CACHE_GB=4 DYN_KVBM_DISK_CACHE_GB=8 vllm serve Qwen/Qwen3-8B --kv-transfer-config "
            """'{"kv_connector": "DynamoConnector", "kv_role": "kv_both"}'""",
            "host:4000000000+disk:8000000000",
        ),
        ("LMCACHE_MAX_LOCAL_CPU_SIZE=5 vllm serve Qwen/Qwen3-8B", "host:5GiB"),
        (
            "trtllm-serve Qwen/Qwen3-8B --tp_size 2 --kv_cache_config.host_cache_size 1073741824",
            "host:2GiB",
        ),
    ],
)
def test_words_of_launch_lines(line: str, tiers: str | None) -> None:
    assert normalise(read_launch_line(line).flags).get("kv_tier") == tiers


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_tiers_are_written_into_a_command(engine: str) -> None:
    stated = {"model": "qwen3-8b", "engine": engine, "tp": 2, "kv_tier": "host:8GiB"}
    command = launch_command(stated)
    assert not command.unsaid
    if engine != "trtllm":
        assert normalise(read_launch_line(command.line).flags)["kv_tier"] == "host:8GiB"
    beyond = launch_command({**stated, "kv_tier": "host:8GiB:read=50+disk:1TiB"})
    assert beyond.unsaid == {"kv_tier": "host:8GiB:read=50+disk:1TiB"}


def test_a_write_policy_of_a_launch_line() -> None:
    start = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-hierarchical-cache"
    assert read_launch_line(f"{start} --hicache-write-policy write_back").flags["kv_write_policy"] == "back"
    refused = read_launch_line(f"{start} --hicache-write-policy write_through_selective")
    assert "kv_write_policy" not in refused.flags
    with pytest.raises(InvalidInput, match="needs a number of at least 0, and has 'much'"):
        read_launch_line("vllm serve Qwen/Qwen3-8B --kv-offloading-size much")
