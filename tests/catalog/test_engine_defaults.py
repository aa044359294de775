"""Engine defaults by version, GPU memory and tensor-parallel size: both sides of each boundary of their sources.

Expected figures are read from the engines' own code (the ``source`` of each row), not from the catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from kernelsight.catalog.tables import facts
from kernelsight.session import Session, connect
from tests.cli.conftest import predict_all

MIB, GIB = 2**20, 2**30
BEYOND = 1e-6  # of a GiB: what is just below a boundary

# SGLang: (version, MiB, tensor-parallel size): chunk, decode batch that graphs hold
SGLANG = {
    # gpu_mem < 25_000
    **{("0.4.0", 24_999, tp): (2048, 8) for tp in (1, 4, 8)},
    **{("0.4.0", 25_000, tp): (8192, 160) for tp in (1, 8)},
    ("0.4.0.post1", 24_999, 3): (2048, 8),
    ("0.4.1", 24_999, 4): (2048, 80),
    ("0.4.5.post3", 25_000, 1): (8192, 160),
    ("0.4.5", 196_608, 8): (8192, 160),
    # graphs: gpu_mem > 81920, then > 96 * 1024
    ("0.4.6", 81_920, 1): (8192, 160),
    ("0.4.6.post1", 81_921, 1): (8192, 256),
    ("0.4.6.post2", 98_304, 1): (8192, 160),
    ("0.4.6.post5", 98_305, 1): (8192, 256),
    **{(version, 24_999, 3): (2048, 8) for version in ("0.4.6", "0.4.6.post2", "0.4.7")},
    **{(version, 24_999, 4): (2048, 80) for version in ("0.4.6", "0.4.6.post2", "0.4.7")},
    ("0.4.7", 98_304, 1): (8192, 160),
    ("0.4.7", 98_305, 1): (8192, 256),
    # gpu_mem > 180_000
    ("0.4.7", 180_000, 8): (8192, 256),
    ("0.4.7.post1", 180_001, 8): (16384, 512),
    # gpu_mem < 35 * 1024, < 160 * 1024; graphs > 90 * 1024, > 160 * 1000
    ("0.4.8", 35_839, 1): (2048, 8),
    ("0.4.8", 35_839, 4): (2048, 80),
    ("0.4.8", 35_840, 4): (8192, 160),
    ("0.4.10.post2", 92_160, 4): (8192, 160),
    ("0.5.0rc1", 92_161, 4): (8192, 256),
    ("0.5.1", 160_000, 4): (8192, 256),
    ("0.5.2", 160_001, 4): (8192, 512),
    ("0.5.2", 163_839, 4): (8192, 512),
    ("0.5.3rc0", 163_840, 4): (16384, 512),
    # gpu_mem < 20, 35, 60, 90, 160 * 1024, each at tp_size < 4 and from 4 on
    **{(version, 20_479, tp): (2048, 8) for version in ("0.5.3rc2", "0.5.9", "0.5.23") for tp in (3, 4)},
    ("0.5.4.post3", 20_480, 3): (2048, 16),
    ("0.5.4.post3", 20_480, 4): (2048, 80),
    ("0.5.5", 20_480, 3): (2048, 24),
    ("0.5.19", 35_839, 4): (2048, 80),
    ("0.5.20", 20_480, 3): (4096, 48),
    ("0.5.23", 35_839, 4): (4096, 160),
    **{(version, 35_840, 3): (4096, 32) for version in ("0.5.3", "0.5.9", "0.5.23")},
    **{(version, 61_439, 4): (4096, 160) for version in ("0.5.3", "0.5.9", "0.5.23")},
    **{
        (version, mib, tp): (8192, graphs)
        for version in ("0.5.3rc2", "0.5.9", "0.5.23")
        for mib in (61_440, 92_159, 92_160, 163_839)
        for tp, graphs in ((3, 256), (4, 512))
    },
    **{(version, 163_840, tp): (16384, 512) for version in ("0.5.3rc2", "0.5.9", "0.5.23") for tp in (1, 4)},
}
# vLLM: (version, GiB, name of the GPU): tokens of a step, seats, tokens that graphs hold
VLLM = {
    ("0.7.3", 80.0, "NVIDIA H100"): (2048, 256, 256),
    # by the device's name
    ("0.8.3", 80.0, "NVIDIA H100 80GB"): (8192, 1024, 512),
    ("0.8.0", 180.0, "NVIDIA B200"): (2048, 1024, 512),
    ("0.8.4", 180.0, "NVIDIA B200"): (2048, 256, 512),
    ("0.8.4", 141.0, "NVIDIA H200"): (8192, 1024, 512),
    # by its memory, A100 or not
    ("0.8.5", 70.0 - BEYOND, "NVIDIA H100"): (2048, 256, 512),
    ("0.8.5.post1", 70.0, "NVIDIA A100"): (8192, 1024, 512),
    ("0.9.0", 80.0, "NVIDIA A100"): (2048, 256, 512),
    ("0.9.2", 70.0, "NVIDIA H100"): (8192, 1024, 512),
    **{
        (version, gib, "NVIDIA H100"): sizes
        for version in ("0.10.0", "0.27.1", "0.28.0", "0.33.0")
        for gib, sizes in ((70.0 - BEYOND, (2048, 256, 512)), (70.0, (8192, 1024, 512)))
    },
    ("0.27.0", 160.0, "NVIDIA B200"): (8192, 1024, 512),
    ("0.28.0", 160.0 - BEYOND, "NVIDIA B200"): (8192, 1024, 512),
    ("0.28.0", 160.0, "NVIDIA B200"): (16384, 1024, 1024),
    **{(version, 192.0, "AMD Instinct MI300X"): (16384, 1024, 512) for version in ("0.28.0", "0.33.0")},
    ("0.33.0", 192.0, "NVIDIA B200"): (16384, 1024, 1024),
    ("0.32.0", 128.0, "NVIDIA GB10"): (8192, 1024, 512),
    ("0.33.0", 128.0, "NVIDIA GB10"): (2048, 256, 512),
}  # fmt: skip
CAPABILITIES = {"NVIDIA B200": "10.0", "NVIDIA GB10": "12.1", "AMD Instinct MI300X": "gfx942"}
# SGLang 0.5.9's class of every NVIDIA GPU: the MiB that it begins with, by what nvidia-smi shows (memory.total, MiB)
CLASSES = {
    **dict.fromkeys(("p100_sxm", "t4"), (0, 15360)),
    **dict.fromkeys(("v100_sxm", "v100_pcie"), (20480, 32768)),
    **dict.fromkeys(("a10g", "a10", "l4"), (20480, 23028)),
    **dict.fromkeys(("a30", "rtx_3090", "rtx_4090"), (20480, 24576)),
    "rtx_5090": (20_480, 32_607),
    "a100_sxm_40gb": (35_840, 40_960),
    **dict.fromkeys(("a40", "l20", "l40", "l40s"), (35840, 46068)),
    **dict.fromkeys(("a6000", "rtx_6000_ada"), (35840, 49140)),
    **dict.fromkeys(("a100_sxm", "a100_pcie", "a800_sxm"), (61440, 81920)),
    **dict.fromkeys(("h100_sxm", "h100_pcie", "h800_sxm"), (61440, 81559)),
    "h100_nvl": (92_160, 95_830),
    **dict.fromkeys(("h20", "gh200", "rtx_pro_6000_server", "rtx_pro_6000_workstation"), (92160, 97871)),
    "gb10": (92_160, 122_572),
    **dict.fromkeys(("h200_sxm", "h200_nvl", "gh200_144gb"), (92160, 143771)),
    "b200_sxm": (163_840, 183_359),
    "gb200": (163_840, 189_471),
    "b300_sxm": (163_840, 275_040),
    "gb300": (163_840, 284_208),
}
# SGLang, by hand: what is left of the memory, in MiB, over the memory (version, MiB, flags: reserved MiB)
FRACTIONS = [
    ("0.4.9", 20_000, {}, 2.9 * 1024),
    ("0.4.9", 81_920, {"tp": 8}, 13.5 * 1024),
    ("0.4.9", 97_871, {"tp": 8}, 16 * 1024),
    ("0.4.9", 183_359, {"tp": 8}, 32 * 1024),
    ("0.4.9", 183_359, {"tp": 1, "dp": 8, "model": "qwen3-30b-a3b"}, 36 * 1024),
    # 512 + 1.5 x 8192 + 2 x 256 + 128
    ("0.5.9", 143_771, {}, 13_440),
    ("0.5.9", 143_771, {"tp": 4}, 512 + 12_288 + 1024 + 512),
    ("0.5.9", 143_771, {"pp": 4}, 512 + 12_288 + 512 + 512),
    ("0.5.9", 143_771, {"max_num_batched_tokens": 1024}, 10_240),
    ("0.5.9", 61_440, {"max_num_batched_tokens": 1024}, 512 + 3072 + 512 + 128),
    ("0.5.9", 143_771, {"max_cudagraph_capture_size": 100}, 512 + 12_288 + 200 + 128),
    # ranks: 16 GPUs, the default of 16384 tokens before they divide it, 512 requests x 16 x 4.5
    ("0.5.9", 183_359, {"dp": 16, "model": "qwen3-30b-a3b"}, 512 + 24_576 + 1024 + 2048 + 36_864),
    # graphs of prompts: 58 sizes x 8, or 1.5 GiB with latent attention
    ("0.5.10", 143_771, {}, 13_440 + 464),
    ("0.5.15", 143_771, {"model": "deepseek-v3"}, 13_440 + 1536),
    ("0.5.15", 143_771, {"pp": 4}, 13_824),
    ("0.5.20", 24_576, {}, 512 + 6144 + 96 + 128 + 400),
]  # fmt: skip


def deployment(**changed: Any) -> dict[str, Any]:
    """A row of ``deployments``; what is not changed is the engine's default."""
    sizes = {"tp": 1, "pp": 1, "dp": 1, "ep": 1}
    return {"model": "qwen3-0.6b", "gpu": "h100_sxm", "engine": "vllm", **sizes, **changed}


@pytest.fixture(scope="module")
def settings(session: Session) -> Callable[..., list[dict[str, Any]]]:
    """Rows of ``deployment_settings`` in the order of rows of ``deployments``, each with a GPU of its own, in bytes."""
    like = next(row for row in session.table("gpus").to_pylist() if row["gpu"] == "h100_sxm")

    def ask(
        rows: list[tuple[dict[str, Any], dict[str, Any]]], table: str = "deployment_settings"
    ) -> list[dict[str, Any]]:
        with session.fork() as fork:
            gpus = [{**like, **gpu, "gpu": f"own_{place}"} for place, (gpu, _) in enumerate(rows)]
            fork.extend("gpus", gpus)
            given = [
                deployment(**changed, gpu=f"own_{place}", deployment_id=f"d{place}")
                for place, (_, changed) in enumerate(rows)
            ]
            fork.give("deployments", given)
            found = {row["deployment_id"]: row for row in fork.table(table).to_pylist()}
        return [found[f"d{place}"] for place in range(len(rows))]

    return ask


def sglang_cases() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [
        ({"memory_bytes": mib * MIB}, {"engine": "sglang", "engine_version": version, "tp": tp})
        for version, mib, tp in SGLANG
    ]


def vllm_cases() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [
        (
            {"memory_bytes": int(gib * GIB), "name": name, "compute_capability": CAPABILITIES.get(name, "9.0")},
            {"engine_version": version},
        )
        for version, gib, name in VLLM
    ]


def test_sglang_has_its_chunk_and_graphs_on_both_sides_of_each_boundary(settings) -> None:
    found = [(row["max_num_batched_tokens"], row["graph_max_tokens"]) for row in settings(sglang_cases())]
    assert dict(zip(SGLANG, found, strict=True)) == SGLANG


def test_vllm_has_its_sizes_on_both_sides_of_each_boundary(settings) -> None:
    columns = ("max_num_batched_tokens", "max_num_seqs", "graph_max_tokens")
    found = [tuple(row[column] for column in columns) for row in settings(vllm_cases())]
    assert dict(zip(VLLM, found, strict=True)) == VLLM


def test_every_row_of_sizes_has_a_case_here(settings) -> None:
    for engine, cases in (("sglang", sglang_cases()), ("vllm", vllm_cases())):
        rows = {row["sizes_row"] for row in settings(cases, "deployment_presets")}
        assert len(rows) == sum(row["engine"] == engine for row in facts("engine_sizes").to_pylist()), sorted(rows)


def test_the_memory_of_every_nvidia_gpu_is_in_the_class_of_what_nvidia_smi_shows(session: Session) -> None:
    gpus = {
        row["gpu"]: row["memory_bytes"] / MIB for row in session.table("gpus").to_pylist() if row["vendor"] == "nvidia"
    }
    assert gpus.keys() == CLASSES.keys()
    bounds = {
        (row["memory_operator"], row["min_memory"] * (1 if row["memory_unit"] == "MiB" else 1024))
        for table in ("engine_sizes", "engine_memory")
        for row in facts(table).to_pylist()
    }

    def holds(mib: float, operator: str, bound: float) -> bool:
        return mib > bound if operator == ">" else mib >= bound

    wrong = [
        (gpu, bound)
        for gpu, mib in gpus.items()
        for bound in bounds
        if holds(mib, *bound) != holds(CLASSES[gpu][1], *bound)
    ]
    assert wrong == []
    with session.fork() as fork:
        rows = [deployment(gpu=gpu, engine="sglang", engine_version="0.5.9", deployment_id=gpu) for gpu in gpus]
        fork.give("deployments", rows)
        found = dict(
            zip(
                *(fork.table("deployment_presets")[name].to_pylist() for name in ("deployment_id", "sizes_row")),
                strict=True,
            )
        )
    expected = {
        gpu: "from 0.5.5" + (f", GPUs of at least {least:,} MiB" if least else "")
        for gpu, (least, _) in CLASSES.items()
    }
    assert found == expected  # fmt: skip


def test_sglang_leaves_memory_by_its_own_rule(settings) -> None:
    found = settings(
        [
            ({"memory_bytes": mib * MIB}, {"engine": "sglang", "engine_version": version, **changed})
            for version, mib, changed, _ in FRACTIONS
        ]
    )
    for row, (version, mib, changed, reserved) in zip(found, FRACTIONS, strict=True):
        assert row["gpu_memory_utilization"] == round((mib - reserved) / mib, 3), (version, mib, changed)


def test_one_figure_of_memory_by_version_and_parallel_size(settings) -> None:
    cases = {
        ("vllm", "0.19.1", 80, 1): 0.9,
        ("vllm", "0.20.0", 80, 1): 0.92,
        ("trtllm", "0.20.0", 80, 1): 0.9,
        ("sglang", "0.4.0", 80, 1): 0.88,
        ("sglang", "0.4.5", 192, 2): 0.87,
        ("sglang", "0.4.5", 80, 4): 0.85,
        ("sglang", "0.4.6", 80, 8): 0.81,
        ("sglang", "0.4.6.post2", 80, 16): 0.79,
        ("sglang", "0.4.6.post2", 96, 16): 0.88,
        ("sglang", "0.4.7", 180, 1): 0.79,
    }
    rows = [
        ({"memory_bytes": gib * GIB}, {"engine": engine, "engine_version": version, "tp": tp})
        for engine, version, gib, tp in cases
    ]
    found = [row["gpu_memory_utilization"] for row in settings(rows)]
    assert dict(zip(cases, found, strict=True)) == cases


def test_policies_by_version(settings) -> None:
    columns = ("async_scheduling", "enable_prefix_caching", "capacity_policy", "prompt_graphs", "graph_max_tokens")
    cases = {
        ("vllm", "0.7.3"): (False, False, "prompt_fits", "none", 256),
        ("vllm", "0.8.0"): (False, True, "max_utilization", "piecewise", 512),
        ("vllm", "0.13.0"): (False, True, "max_utilization", "piecewise", 512),
        ("vllm", "0.14.0"): (True, True, "max_utilization", "piecewise", 512),
        ("vllm", "0.18.1"): (True, True, "max_utilization", "piecewise", 512),
        ("vllm", "0.19.0"): (True, True, "prompt_fits", "piecewise", 512),
        ("trtllm", "0.16.0"): (False, False, "guaranteed_no_evict", "none", 0),
        ("trtllm", "0.17.0"): (False, True, "guaranteed_no_evict", "none", 0),
        ("trtllm", "0.19.0"): (False, True, "guaranteed_no_evict", "none", 0),
        ("trtllm", "0.20.0"): (True, True, "guaranteed_no_evict", "none", 0),
        ("trtllm", "0.21.0"): (True, True, "guaranteed_no_evict", "none", 0),
        ("trtllm", "1.0.0rc3"): (True, True, "guaranteed_no_evict", "none", 128),
    }
    rows = [({}, {"engine": engine, "engine_version": version}) for engine, version in cases]
    found = [tuple(row[column] for column in columns) for row in settings(rows)]
    assert dict(zip(cases, found, strict=True)) == cases


def test_sglang_captures_prompts_of_plain_attention_from_0_5_10_on(settings) -> None:
    cases = (
        ({"engine_version": "0.5.9"}, "none"),
        ({"engine_version": "0.5.10"}, "chunk"),
        ({"engine_version": "0.5.20"}, "chunk"),
        ({"engine_version": "0.5.20", "pp": 2}, "none"),
        ({"engine_version": "0.5.20", "model": "deepseek-v3"}, "none"),
        ({"engine_version": "0.5.20", "num_speculative_tokens": 3, "draft_acceptance_rate": 0.5}, "none"),
        ({"engine_version": "0.5.20", "kv_tier": "host:1GiB"}, "none"),
        ({"engine_version": "0.5.20", "prompt_graphs": "none"}, "none"),
        ({"engine_version": "0.5.9", "prompt_graphs": "chunk"}, "chunk"),
    )
    found = settings([({}, {"engine": "sglang", **stated}) for stated, _ in cases])
    assert [row["prompt_graphs"] for row in found] == [expected for _, expected in cases]


def test_drafts_stages_and_ranks_change_defaults(settings) -> None:
    drafts = {"num_speculative_tokens": 3, "draft_acceptance_rate": 0.5}
    ranks = {"model": "qwen3-30b-a3b", "dp": 4}
    rows = [
        {"engine": "sglang", "engine_version": "0.4.4.post1", **drafts},
        {"engine": "sglang", "engine_version": "0.4.5", **drafts},
        {"engine": "sglang", "engine_version": "0.5.10", **drafts},
        {"engine": "sglang", "engine_version": "0.5.11", **drafts},
        {"engine": "sglang", "engine_version": "0.5.9", **ranks},
        {"engine": "vllm", **ranks},
        {"engine": "trtllm", "pp": 2},
        {"engine": "trtllm", **drafts},
        {"engine": "vllm", "max_num_seqs": 10},
        {"engine": "vllm", "max_num_seqs": 10, **drafts},
    ]
    columns = (
        "max_num_seqs",
        "max_num_batched_tokens",
        "graph_max_tokens",
        "async_scheduling",
        "schedule_conservativeness",
    )
    found = [tuple(row[column] for column in columns) for row in settings([({}, row) for row in rows])]
    assert found == [
        (4096, 8192, 640, False, 1.0),
        (48, 8192, 640, False, 1.0),
        (48, 8192, 1024, False, 1.0),
        (48, 8192, 1024, True, 1.0),
        # four ranks: as many graphs as at a tensor-parallel size of 4, a fourth of the chunk
        (4096, 2048, 512, True, pytest.approx(0.3)),
        (1024, 8192, 512, True, 1.0),
        (4096, 8192, 128, True, 1.0),
        (2048, 8192, 512, True, 1.0),
        (10, 8192, 20, True, 1.0),
        (10, 8192, 80, True, 1.0),
    ]  # fmt: skip


# 24 layers of gpt-oss-20b, every other one with a window of 128 tokens; 8 heads of 64 numbers in 16 bit: tokens kept
WINDOWED = [
    ({"engine": "vllm", "engine_version": "0.16"}, 12),
    ({"engine": "vllm", "engine_version": "0.16", "windows_freed": False}, 24),
    ({"engine": "trtllm", "engine_version": "1.0.0"}, 24),
    ({"engine": "trtllm", "engine_version": "1.3.0rc20"}, 24),
    # a pool of their own with 0.8 as many tokens, but where the attention of SM 10.0 or drafts do not read it
    ({"engine": "sglang", "engine_version": "0.5.7"}, 24),
    ({"engine": "sglang", "engine_version": "0.5.8"}, 12 + 0.8 * 12),
    (
        {"engine": "sglang", "engine_version": "0.5.8", "num_speculative_tokens": 2, "speculative_method": "ngram"},
        24,
    ),
    (
        {"engine": "sglang", "engine_version": "0.5.9", "num_speculative_tokens": 2, "speculative_method": "ngram"},
        21.6,
    ),
    ({"engine": "sglang", "engine_version": "0.5.9", "gpu": "b200_sxm"}, 24),
    ({"engine": "sglang", "engine_version": "0.5.10", "gpu": "b200_sxm"}, 21.6),
    ({"engine": "sglang", "swa_full_tokens_ratio": 0.25}, 15),
    ({"engine": "sglang", "swa_full_tokens_ratio": 0.25, "windows_freed": False}, 24),
    ({"engine": "sglang", "engine_version": "0.5.7", "swa_full_tokens_ratio": 0.25}, 24),
]


def memory_plans(session: Session, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the memory plan of each deployment, in the order of the rows."""
    with session.fork() as fork:
        fork.give("deployments", [deployment(**row, deployment_id=f"d{place}") for place, row in enumerate(rows)])
        found = {row["deployment_id"]: row for row in fork.table("memory_plan").to_pylist()}
    return [found[f"d{place}"] for place in range(len(rows))]


def test_layers_with_a_window_keep_what_their_engine_keeps(session: Session) -> None:
    plans = memory_plans(session, [{"model": "gpt-oss-20b", **stated} for stated, _ in WINDOWED])
    for plan, (stated, tokens_kept) in zip(plans, WINDOWED, strict=True):
        expected = pytest.approx(plan["kv_bytes"] / (tokens_kept * 2 * 8 * 64 * 2), rel=0.01)
        assert plan["kv_cache_tokens"] == expected, stated


def test_sglang_frees_no_windows_of_models_that_it_does_not_list(session: Session) -> None:
    models = ("gemma-3-27b", "gemma-2-9b", "mistral-7b-v0.1")
    plans = memory_plans(session, [{"model": model, "engine": "sglang"} for model in models])
    assert [(plan["window_units"], plan["windows_apart"]) for plan in plans] == [(0, False)] * len(models)


def test_a_pool_of_windows_binds_where_contexts_are_shorter_than_it_holds(session: Session) -> None:
    """Llama 4, chunks of 8,192 tokens, three layers of four: short contexts fill the pool of 0.8 as many tokens."""
    row = {"tp": 8, "gpu": "h200_sxm", "engine": "sglang", "engine_version": "0.5.10", "model": "llama-4-scout-17b-16e"}
    short, long = memory_plans(session, [{**row, "max_model_len": length} for length in (4096, 65536)])
    assert short["kv_cache_tokens"] == pytest.approx(0.8 * long["kv_cache_tokens"], rel=0.01)


def test_rows_are_in_the_order_of_their_versions_and_name_their_sources() -> None:
    for table in ("engine_presets", "engine_sizes", "engine_memory"):
        rows = facts(table).to_pylist()
        for engine in ("vllm", "sglang", "trtllm"):
            versions = [row["from_version"] for row in rows if row["engine"] == engine]
            assert versions == sorted(versions, key=_numbers), (table, engine)
        assert all(re.search(r"\.py|release-notes", row["source"]) for row in rows), table


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", version.replace("rc", ".-1."))] + [0]


@pytest.mark.parametrize(
    ("gpu", "stated", "said"),
    [
        ("b200_sxm", {"engine_version": "0.27.1", "quantization": "fp8_static"}, True),
        ("b200_sxm", {"quantization": "fp8_static"}, True),
        ("b200_sxm", {"engine_version": "0.24.0", "quantization": "fp8_static"}, False),
        ("b200_sxm", {"quantization": "fp8"}, False),
        ("b200_sxm", {"engine": "trtllm", "quantization": "fp8_static"}, False),
        ("h200_sxm", {"quantization": "fp8_static"}, False),
    ],
)
def test_kernels_of_fp8_products_that_run_but_were_not_swept_are_said(gpu: str, stated: dict[str, Any], said: bool):
    """vLLM pull request 53400: FlashInfer's products with one scale a tensor, on compute capability 10 alone."""
    with connect() as session:
        predict_all(session, {"asked": ({"model": "llama-3.1-8b", "gpu": gpu, **stated}, "decode", {"context_len": 9})})
        sentences = session.table("assumptions")["sentence"].to_pylist()
    assert any("bmm_fp8" in sentence for sentence in sentences) == said
