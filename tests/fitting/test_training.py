"""Work of measured rows against that of lowered calls: two definitions, held together over whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.fitting.training import call_rows, once_a_key, training_rows
from kernelsight.kernels.families import FAMILIES, MEASURED
from kernelsight.measure.rows import sweep_schema
from kernelsight.session import Session, connect
from tests.fitting.measured import gemm, point, write

DEPLOYMENTS = [
    {"model": "llama-3.1-8b", "tp": 2, "quantization": "fp8"},
    {"model": "qwen3-32b", "quantization": "nvfp4", "kv_cache_dtype": "fp8"},
    {"model": "mixtral-8x7b-v0.1", "tp": 2, "quantization": "int4_wo"},
    # windows, and experts in mxfp4
    {"model": "gpt-oss-120b", "tp": 2, "kv_cache_dtype": "fp8"},
    {"model": "deepseek-v3", "tp": 8, "ep": 8},
    {"model": "deepseek-v3.2", "tp": 8, "ep": 8, "kv_cache_dtype": "fp8"},
    {"model": "qwen3-next-80b-a3b", "tp": 4},
]
SIZES = {"decode_requests": 7, "decode_context": 4321, "prefill_requests": 3, "prefill_tokens": 777}
CACHED = (0, 100, 5000)
# of an indexer: four bytes for each of the keys that it selects, which a sweep measures as a kernel of its own
SELECTED_BYTES = 4.0 * 2048
ACTIVATIONS = {"deepseek-v3": "fp8_block", "deepseek-v3.2": "fp8_block", "qwen3-32b": "nvfp4", "llama-3.1-8b": "fp8"}
CACHES = {row["model"]: row["kv_cache_dtype"] for row in DEPLOYMENTS if "kv_cache_dtype" in row}
# lowered for none of these deployments
ELSEWHERE = ("encoder_attention", "p2p", "all_to_all", "reduce_scatter", "hyper_connection")
LOWERED = [family for family in MEASURED if family not in ELSEWHERE]


@pytest.fixture(scope="module")
def lowered() -> Session:
    """Every deployment's calls in steps of decodes and prompts, fresh, short of a window and past it."""
    session = connect()
    engine = {"gpu": "b200_sxm", "tp": 1, "pp": 1, "dp": 1, "ep": 1, "engine": "vllm"}
    names = dict.fromkeys(name for row in DEPLOYMENTS for name in (*engine, *row))
    rows = [{"deployment_id": row["model"], **engine, **row} for row in DEPLOYMENTS]
    columns = {name: [row.get(name) for row in rows] for name in ("deployment_id", *names)}
    session.give("deployments", pa.table(columns))
    steps = [
        {
            "deployment_id": row["model"], "step_shape_id": number, "part": "whole", "x": 0.0, "y": 0.0,
            "tokens": 7 + 3 * 777, "sampled": 10, **SIZES, "prefill_cached": cached,
            "decode_window_context": min(4321, 2048 if row["model"] == "deepseek-v3.2" else 128),
        }
        for row in DEPLOYMENTS
        for number, cached in enumerate(CACHED)
    ]  # fmt: skip
    session.give("step_shapes", pa.Table.from_pylist(steps))
    return session


def as_measured(call: dict[str, Any], models: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what a sweep states of a lowered call: its shape, its format, and what the shape of a call leaves out."""
    shape = {name: size for name, size in call["shape"].items() if size is not None}
    model, family = models[call["deployment_id"]], call["family"]
    stated: dict[str, Any] = {"format": call["format"], "math": call["math"]}
    if family == "moe":
        shape["expert_matrices"] = 3 if model["ffn_gated"] else 2
    if family == "quantize":
        stated["format"] = ACTIVATIONS[call["deployment_id"]]
    if family == "norm":
        fused = call["name"] in ("residual_norm", "final_norm")
        stated["implementation"] = "fused_add_rms_norm" if fused else "rms_norm"
    if family == "kv_write":
        stated["format"] = CACHES.get(call["deployment_id"], "bf16")
    if family == "linear_attention":
        shape |= {"heads": model["linear_value_heads"] // 4, "kv_heads": model["linear_key_heads"] // 4}
        shape |= {"head_dim": model["linear_key_head_dim"], "v_head_dim": model["linear_value_head_dim"]}
        shape["width"] = model["linear_conv_kernel"] if call["name"] == "causal_conv" else 0
    if family == "sparse_attention":
        decodes = call["call"].endswith("decode")
        context = 4321 if call["name"] == "indexer" else 2048
        shape["batch"] = SIZES["decode_requests" if decodes else "prefill_requests"]
        shape["new_tokens"] = 1 if decodes else SIZES["prefill_tokens"]
        shape["cached_tokens"] = context if decodes else CACHED[call["step_shape_id"]]
    return {"shape": shape, **stated}


@pytest.mark.parametrize("family", LOWERED)
def test_measured_rows_and_lowered_calls_count_the_same_work(family: str, lowered: Session, tmp_path: Path) -> None:
    models = {row["model"]: row for row in lowered.table("models").to_pylist()}
    calls = [row for row in lowered.table("kernel_calls").to_pylist() if row["family"] == family]
    if family == "activation":  # a sweep measures gated ones; kernels inside other nodes move one tensor less
        calls = [row for row in calls if row["name"].endswith(("activation", "gate"))]
    assert calls
    own = {
        (row["deployment_id"], row["step_shape_id"], row["call"]): row
        for row in lowered.table(f"{family}_calls").to_pylist()
    }
    rows = [
        point(family, "b200_sxm", 1.0, **{**as_measured(call, models), "engine_version": str(number)})
        for number, call in enumerate(calls)
    ]
    found = training_rows([write(tmp_path / "sweep.parquet", rows)], family)
    assert found.num_rows == len(calls)
    shared = set(found.column_names) & set(lowered.table(f"{family}_calls").column_names) & {*FAMILIES[family].columns}
    assert shared >= {"flops", "bytes"} | (set(FAMILIES[family].latency_model.reads) & set(FAMILIES[family].columns))
    if FAMILIES[family].wire_share:
        # the sums of a collective are counted in lowering alone: nothing reads them
        shared -= {"flops"}
    for row in found.to_pylist():
        call = calls[int(row["engine_version"])]
        expected = own[call["deployment_id"], call["step_shape_id"], call["call"]]
        counted = dict(row)
        if call["name"] == "indexer":
            counted["bytes"] += SELECTED_BYTES * expected["queries"]
        if family == "moe":
            # a collector draws experts alike, serving prefers some: of each that is reached the weights are read
            sizes = call["shape"]
            moved = 4.0 * sizes["tokens"] * min(1.0, sizes["top_k"] / sizes["moe_ep"]) * sizes["hidden"]
            expert_bytes = (row["bytes"] - moved) / row["active_experts"]
            counted["active_experts"] = expected["active_experts"]
            counted["bytes"] = moved + expert_bytes * expected["active_experts"]
        for name in shared:
            assert counted[name] == pytest.approx(expected[name], rel=1e-12), (call["call"], name)


def test_every_family_that_serving_reads_is_defined_for_sweeps_too() -> None:
    """What the expressions read beside work is a column of measured rows."""
    for name in MEASURED:
        assert set(FAMILIES[name].latency_model.reads) | {"flops", "bytes"} <= set(FAMILIES[name].columns), name


def test_an_encoder_sees_every_pair(tmp_path: Path) -> None:
    shape = {"batch": 2, "new_tokens": 100, "heads": 16, "head_dim": 64}
    path = write(tmp_path / "sweep.parquet", [point("encoder_attention", "h100_sxm", 9.0, shape=shape)])
    [row] = training_rows([path], "encoder_attention").to_pylist()
    assert (row["visible_pairs"], row["flops"]) == (2 * 100 * 100, 4 * 2 * 100 * 100 * 16 * 64)
    # queries, keys, values and outputs in 16 bit, once
    assert row["bytes"] == 2 * 4 * 2 * 100 * 16 * 64


def test_rows_come_in_the_order_of_their_keys_without_those_that_are_not_fitted(tmp_path: Path) -> None:
    def row(m: int, gpu: str, **stated: Any) -> dict[str, Any]:
        return point("gemm", gpu, 5.0, shape={"m": m, "n": 64, "k": 64}, **stated)

    rows = [row(m, gpu) for m in (32, 8, 16) for gpu in ("l40s", "a100_sxm")]
    rows += [row(64, "l40s", not_fitted="faster than its bound"), row(8, "gb200")]
    first, second = write(tmp_path / "a.parquet", rows[:3]), write(tmp_path / "b.parquet", rows[3:])
    wanted = ["a100_sxm", "l40s"]
    found = training_rows([first, second], "gemm", wanted)
    assert list(zip(found["gpu"].to_pylist(), found["m"].to_pylist(), strict=True)) == [
        (gpu, m) for gpu in wanted for m in (8.0, 16.0, 32.0)
    ]
    assert training_rows([second, first], "gemm", wanted).equals(found)
    assert training_rows([first], "gemm", ["b200_sxm"]).num_rows == 0


@pytest.mark.parametrize(
    ("name", "exponent"), [("power_law_1.2", 1.2), ("balanced", 0.0), (None, 0.0), ("uniform", 0.0)]
)
def test_how_a_collector_drew_experts_is_read_from_its_name(name: str | None, exponent: float, tmp_path: Path) -> None:
    shape = {"tokens": 16, "hidden": 64, "intermediate": 32, "experts": 8, "top_k": 2, "moe_tp": 1, "moe_ep": 2}
    rows = [point("moe", "h100_sxm", 9.0, shape={**shape, "expert_matrices": 3}, distribution=name)]
    [row] = training_rows([write(tmp_path / "sweep.parquet", rows)], "moe").to_pylist()
    assert row["load_exponent"] == exponent
    # eight of the sixteen experts are here; each token takes two of all
    assert row["active_experts"] == pytest.approx(8 * (1 - (1 - 2 / 16) ** 16))
    assert np.isclose(row["flops"], 2 * 16 * 2 / 2 * 3 * 32 * 64)


def test_points_to_measure_count_as_measured_rows_in_their_own_order(tmp_path: Path) -> None:
    rows = [gemm("h100_sxm", m, n, 4096, 10.0) for m, n in ((64, 512), (1, 8192), (4096, 64), (17, 512))]
    measured = training_rows([write(tmp_path / "sweep.parquet", rows)], "gemm")
    planned = call_rows(pa.Table.from_pylist(rows, sweep_schema()), "gemm")
    assert planned.column_names == measured.column_names
    assert planned["m"].to_pylist() == [64.0, 1.0, 4096.0, 17.0]
    assert planned.sort_by([("m", "ascending")]).equals(measured.sort_by([("m", "ascending")]))


def test_what_several_versions_measured_counts_once(tmp_path: Path) -> None:
    rows = [
        gemm("h100_sxm", 16, 4096, 4096, us, engine_version=version) for us, version in ((4.0, "0.24"), (9.0, "0.25"))
    ]
    rows += [gemm("h100_sxm", 16, 4096, 4096, 5.0, engine="sglang"), gemm("h100_sxm", 32, 4096, 4096, 7.0)]
    found = once_a_key(training_rows([write(tmp_path / "sweep.parquet", rows)], "gemm"))
    read = {(row["engine"], row["m"]): row["latency_us"] for row in found.to_pylist()}
    assert read == pytest.approx({("vllm", 16.0): 6.0, ("sglang", 16.0): 5.0, ("vllm", 32.0): 7.0})
    assert found.schema == training_rows([tmp_path / "sweep.parquet"], "gemm").schema
