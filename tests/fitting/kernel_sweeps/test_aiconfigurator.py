"""Tables of aiconfigurator-core: fields, units, names, and every trap with the reason it is counted under."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.fitting.kernel_sweeps import aiconfigurator

GEMM = {"op_name": "gemm", "kernel_source": "torch.nn.functional.linear", "gemm_dtype": "bfloat16", "m": 16}
GEMM |= {"n": 4096, "k": 4096, "latency": 0.02}
HEADS = {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "window_size": 0, "batch_size": 4, "beam_width": 1}
ATTENTION = HEADS | {"kernel_source": "torch_flow", "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
DECODE = ATTENTION | {"isl": 1, "step": 1023, "latency": 0.05}
MOE = {"kernel_source": "vllm_fused_moe", "moe_dtype": "bfloat16", "num_tokens": 64, "hidden_size": 2048}
MOE |= {
    "inter_size": 768,
    "topk": 8,
    "num_experts": 128,
    "moe_tp_size": 2,
    "moe_ep_size": 4,
    "distribution": "balanced",
}
MOE |= {"latency": 0.3}


def test_a_gemm_becomes_a_point_in_microseconds(put, import_from) -> None:
    found = import_from("aiconfigurator", put("h100_sxm/gemm/vllm", "gemm_perf", GEMM))
    (point,) = found.points
    assert point["shape"] == {"m": 16, "n": 4096, "k": 4096}
    assert (point["gpu"], point["family"], point["engine"], point["engine_version"]) == (
        "h100_sxm",
        "gemm",
        "vllm",
        "0.24.0",
    )
    assert (point["implementation"], point["dtype"], point["format"], point["math"]) == (
        "cublas",
        "bf16",
        "bf16",
        "bf16",
    )
    assert (point["latency_us"], point["samples"], point["cv"], point["not_fitted"]) == (20.0, 1, None, None)
    assert point["source"] == "aiconfigurator-core/h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet"


def test_repeats_of_a_whole_key_are_merged_by_their_median(put, import_from) -> None:
    rows = [GEMM | {"latency": ms} for ms in (0.020, 0.021, 0.040)]
    (point,) = import_from("aiconfigurator", put("h100_sxm/gemm/vllm", "gemm_perf", *rows)).points
    assert (point["latency_us"], point["samples"]) == (21.0, 3)
    assert point["cv"] == pytest.approx(11.2694 / 27.0, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"m": 0}, "empty_shape"),
        ({"latency": 0.0}, "no_latency"),
        ({"latency": float("nan")}, "no_latency"),
        ({"device": "NVIDIA H200"}, "device_not_of_folder"),
        ({"framework": "SGLang"}, "copy_of_another_engine"),
        ({"kernel_source": "DeepGemmFp8BlockScaledMMKernel", "gemm_dtype": "fp8_block", "latency": 0.06}, "host_bound"),
        # 137 GFLOP at 989 TFLOP/s take 139 us
        ({"m": 4096, "latency": 0.120}, "faster_than_peak"),
        # 537 MB less 52 MB of L2 at 3.35 TB/s take 145 us
        ({"m": 1, "n": 16384, "k": 16384, "latency": 0.130}, "faster_than_memory"),
    ],
)
def test_an_unsound_row_is_counted_by_reason(put, import_from, change, reason) -> None:
    found = import_from("aiconfigurator", put("h100_sxm/gemm/vllm", "gemm_perf", GEMM, GEMM | change))
    assert found.reasons == {reason: 1}
    assert len(found.points) == 1
    (line,) = (line for line in found.summary if line["family"] == "gemm")
    assert line["read"] == line["kept"] + line["rejected"] == 2


def test_decode_rows_count_the_cache_before_the_call(put, import_from) -> None:
    root = put("h100_sxm/attention/trtllm", "generation_attention_perf", DECODE)
    (point,) = import_from("aiconfigurator", root).points
    assert point["shape"] == {"batch": 4, "context": 1023, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}
    assert (point["family"], point["dtype"], point["latency_us"]) == ("decode_attention", "bf16/bf16", 50.0)


def test_a_missing_window_is_no_window(put, import_from) -> None:
    row = {name: value for name, value in DECODE.items() if name != "window_size"}
    (point,) = import_from("aiconfigurator", put("h100_sxm/attention/trtllm", "generation_attention_perf", row)).points
    assert point["shape"]["window"] == 0


@pytest.mark.parametrize(
    ("gpu", "cache", "implementation", "math", "number_format"),
    [
        ("a100_sxm", "bfloat16", "xqa", "bf16", "bf16"),
        ("l40s", "fp8", "xqa_unsplit", "bf16", "fp8"),
        ("h100_sxm", "bfloat16", "xqa", "bf16", "bf16"),
        ("h100_sxm", "fp8", "xqa_wgmma", "fp8", "fp8"),
    ],
)
def test_a_router_is_another_kernel_on_each_generation(
    put, import_from, gpu, cache, implementation, math, number_format
) -> None:
    root = put(f"{gpu}/attention/trtllm", "generation_attention_perf", DECODE | {"kv_cache_dtype": cache})
    (point,) = import_from("aiconfigurator", root).points
    assert (point["implementation"], point["math"], point["format"]) == (implementation, math, number_format)


def test_grouped_decodes_of_the_old_a100_sweep_are_left_out_whole(put, import_from) -> None:
    many = DECODE | {"num_key_value_heads": 32}
    root = put("a100_sxm/attention/trtllm", "generation_attention_perf", DECODE, many, version="1.0.0")
    found = import_from("aiconfigurator", root)
    assert found.reasons == {"kin_faster_than_memory": 1}
    assert [point["shape"]["kv_heads"] for point in found.points] == [32]


def test_a_label_that_did_not_run_is_left_out(put, import_from) -> None:
    row = {"kernel_source": "default", "mla_dtype": "bfloat16", "num_heads": 16, "batch_size": 4, "tp_size": 8}
    row |= {"isl": 1, "step": 1023, "latency": 0.05}
    rows = [row | {"kv_cache_dtype": cache} for cache in ("bfloat16", "fp8")]
    put("l40s/mla/trtllm", "generation_mla_perf", *rows)
    found = import_from("aiconfigurator", put("l40s/mla/trtllm", "generation_mla_perf", *rows, version="1.0.0"))
    assert found.reasons == {"cache_ran_in_bf16": 1}
    assert {(p["engine_version"], p["dtype"]) for p in found.points} == {
        ("1.0.0", "bf16/bf16"),
        ("1.3.0rc20", "bf16/bf16"),
        ("1.3.0rc20", "bf16/fp8"),
    }


def test_experts_are_those_of_one_gpu(put, import_from) -> None:
    (point,) = import_from("aiconfigurator", put("h100_sxm/moe/vllm", "moe_perf", MOE, version="0.19.0")).points
    assert point["shape"] == {
        "tokens": 64, "hidden": 2048, "intermediate": 384, "experts": 32, "top_k": 8, "moe_tp": 2, "moe_ep": 4,
        "expert_matrices": 3,
    }  # fmt: skip
    assert (point["implementation"], point["distribution"]) == ("fused_moe_triton", "balanced")


@pytest.mark.parametrize(
    ("engine", "version", "kernel_source", "matrices"),
    [
        ("trtllm", "1.3.0rc20", "moe_torch_flow_nongated", 2),
        ("trtllm", "1.3.0rc20", "moe_torch_flow_cutlass", 3),
        ("vllm", "0.24.0", "vllm_unquantizedfusedmoe_triton_tritonexperts", 2),
        ("vllm", "0.19.0", "vllm_fused_moe", 3),
    ],
)
def test_experts_without_a_gate_have_two_matrices(put, import_from, engine, version, kernel_source, matrices) -> None:
    nemotron = MOE | {"topk": 22, "num_experts": 512, "kernel_source": kernel_source}
    (point,) = import_from(
        "aiconfigurator", put(f"h100_sxm/moe/{engine}", "moe_perf", nemotron, version=version)
    ).points
    assert point["shape"]["expert_matrices"] == matrices


@pytest.mark.parametrize(("latency_us", "reasons"), [(25.0, {"faster_than_memory": 1}), (35.0, {})])
def test_the_fewest_experts_bound_a_moe_never_the_expected_number(put, import_from, latency_us, reasons) -> None:
    # 64 tokens may all reach the same 8 experts: 151 MB less 52 MB of L2 take 29 us; all 128 would take 706 us
    row = MOE | {"inter_size": 1536, "moe_tp_size": 1, "moe_ep_size": 1, "latency": latency_us / 1e3}
    assert import_from("aiconfigurator", put("h100_sxm/moe/vllm", "moe_perf", row)).reasons == reasons


NCCL = {"op_name": "all_gather", "kernel_source": "NCCL", "nccl_dtype": "half", "num_gpus": 8, "message_size": 4096}


def test_a_message_counts_elements_not_bytes(put, import_from) -> None:
    rows = [NCCL | {"latency": 0.02}, NCCL | {"nccl_dtype": "int8", "op_name": "alltoall", "latency": 0.02}]
    found = import_from("aiconfigurator", put("h100_sxm/comm/nccl", "nccl_perf", *rows))
    assert [(point["family"], point["shape"], point["dtype"]) for point in found.points] == [
        ("all_gather", {"bytes": 8192, "gpus": 8}, "fp16"),
        ("all_to_all", {"bytes": 4096, "gpus": 8}, "int8"),
    ]
    assert {point["engine"] for point in found.points} == {"nccl"}


def test_eager_launches_and_slow_links_are_kept_but_not_fitted(put, import_from) -> None:
    row = {"op_name": "all_reduce", "allreduce_dtype": "bfloat16", "message_size": 4096, "latency": 0.02, "num_gpus": 2}
    rows = [row | {"kernel_source": f"vLLM_custom_{how}"} for how in ("graph", "eager")]
    rows.append(rows[0] | {"num_gpus": 4})
    found = import_from("aiconfigurator", put("l40s/comm/vllm", "custom_allreduce_perf", *rows))
    assert {(point["implementation"], point["shape"]["gpus"]): point["not_fitted"] for point in found.points} == {
        ("vllm_custom_all_reduce", 2): None,
        ("vllm_custom_all_reduce", 4): "far_below_link",
        ("vllm_custom_all_reduce_eager", 2): "launched_eagerly",
    }


def test_a_sweep_of_a_throttled_gpu_is_kept_but_its_lasting_products_are_not_fitted(put, import_from) -> None:
    """One lasting product in ten takes 1.6 times as long as in two other sweeps; short ones are as fast."""
    products = [GEMM | {"m": 8192, "n": 8192, "k": 8192 + 256 * step, "latency": 2.0} for step in range(20)]
    slow = [row | {"latency": 3.2} if step % 10 == 0 else row for step, row in enumerate(products)]
    short = GEMM | {"m": 1024, "n": 8192, "k": 8192, "latency": 0.2}
    put("h100_sxm/gemm/sglang", "gemm_perf", *products, short)
    put("h100_sxm/gemm/trtllm", "gemm_perf", *products, short)
    found = import_from("aiconfigurator", put("h100_sxm/gemm/vllm", "gemm_perf", *slow, short))
    reasons = {(point["engine"], point["shape"]["m"]): point["not_fitted"] for point in found.points}
    assert {key for key, reason in reasons.items() if reason == "throttled"} == {("vllm", 8192)}
    assert len(reasons) == 6


def test_experts_that_take_as_long_however_they_are_spread_are_kept_but_not_fitted(put, import_from) -> None:
    """0.19 took as long with 16 of 128 experts on each GPU as with all of them; 0.24 takes a fifth."""
    sizes = [MOE | {"moe_tp_size": 1, "num_tokens": tokens} for tokens in (1024, 4096)]
    for version, eighth_ms in (("0.19.0", 0.99), ("0.24.0", 0.2)):
        rows = [row | {"moe_ep_size": 1, "latency": 1.0} for row in sizes]
        rows += [row | {"moe_ep_size": 8, "latency": eighth_ms} for row in sizes]
        folder = put("h100_sxm/moe/vllm", "moe_perf", *rows, version=version)
    found = import_from("aiconfigurator", folder)
    reasons = {(row["engine_version"], row["shape"]["moe_ep"], row["not_fitted"]) for row in found.points}
    assert reasons == {
        ("0.19.0", 1, None),
        ("0.19.0", 8, "experts_not_spread"),
        ("0.24.0", 1, None),
        ("0.24.0", 8, None),
    }


def test_a_sweep_over_a_link_half_as_fast_is_kept_but_not_fitted(put, import_from) -> None:
    row = {"op_name": "all_reduce", "allreduce_dtype": "bfloat16", "num_gpus": 2, "kernel_source": "vLLM_custom_graph"}
    for version, ms in (("0.24.0", 0.95), ("0.23.0", 1.0), ("0.19.0", 2.4)):
        sizes = [row | {"message_size": 2**size, "latency": ms * 2.0 ** (size - 24)} for size in (12, 24, 26)]
        folder = put("h100_sxm/comm/vllm", "custom_allreduce_perf", *sizes, version=version)
    found = import_from("aiconfigurator", folder)
    reasons = {(point["engine_version"], point["not_fitted"]) for point in found.points}
    assert reasons == {("0.24.0", None), ("0.23.0", None), ("0.19.0", "slow_link")}


def test_prompts_of_absorbed_keys_are_kept_but_not_fitted(put, import_from) -> None:
    row = {"mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "num_heads": 16, "batch_size": 4, "isl": 512}
    row |= {"tp_size": 8, "step": 0, "latency": 0.2}
    sources = ("flash_attention", "triton", "trtllm_mla")
    rows = [row | {"kernel_source": name} for name in sources]
    found = import_from("aiconfigurator", put("h100_sxm/mla/sglang", "context_mla_perf", *rows))
    assert {point["implementation"]: point["not_fitted"] for point in found.points} == {
        "flash_attention_3_absorbed": "absorbed_kernel",
        "triton_attention_absorbed": "absorbed_kernel",
        "trtllm_gen_mla": None,
    }


def test_a_row_of_two_measurements_counts_once(put, import_from) -> None:
    row = {"kernel_source": "deepep", "op_name": "ll", "node_num": 1, "hidden_size": 7168, "num_token": 8}
    row |= {"num_topk": 8, "num_experts": 256, "combine_avg_t_us": 12.5, "dispatch_avg_t_us": 16.25}
    found = import_from("aiconfigurator", put("h100_sxm/comm/sglang", "wideep_deepep_ll_perf", row))
    assert {point["implementation"]: point["latency_us"] for point in found.points} == {
        "deepep_low_latency_combine": 12.5,
        "deepep_low_latency_dispatch": 16.25,
    }
    assert found.summary[0]["read"] == found.summary[0]["kept"] == 1


def test_a_difference_that_is_mostly_clipped_is_noise(put, import_from) -> None:
    rows = [
        {"op_name": "compute_scale", "kernel_source": "sglang", "quant_dtype": "fp8", "m": m, "k": 4096, "latency": ms}
        for m, ms in ((1, 0.0), (2, 0.0), (3, 0.001))
    ]
    found = import_from("aiconfigurator", put("h100_sxm/quantize/sglang", "computescale_perf", *rows))
    assert found.reasons == {"clipped_difference": 2, "mostly_clipped": 1}


def test_what_was_taken_off_the_dynamic_kernel_is_put_back(put, import_from) -> None:
    shared = {"quant_dtype": "fp8", "k": 4096}
    less = "dynamic_per_token_scaled_fp8_quant_minus_static_scaled_fp8_quant"
    dynamic = shared | {"op_name": "compute_scale", "kernel_source": less}
    static = shared | {"op_name": "scale_matrix", "kernel_source": "static_scaled_fp8_quant"}
    put("h100_sxm/quantize/vllm", "scale_matrix_perf", static | {"m": 8, "latency": 0.002})
    rows = [dynamic | {"m": m, "latency": ms} for m, ms in ((8, 0.0005), (16, 0.0005), (32, 0.0))]
    found = import_from("aiconfigurator", put("h100_sxm/quantize/vllm", "computescale_perf", *rows))
    assert {point["implementation"]: point["latency_us"] for point in found.points} == {
        "static_quant_fp8": 2.0,
        "dynamic_quant_per_token": 2.5,
    }
    assert found.reasons == {"no_static_row": 1, "clipped_difference": 1}


def test_kernels_for_prompts_on_single_tokens_stand_apart(put, import_from) -> None:
    row = {"op_name": "gdn", "kernel_source": "causal_conv1d_fn", "phase": "context", "d_conv": 4, "num_k_heads": 4}
    row |= {"head_k_dim": 128, "num_v_heads": 8, "head_v_dim": 128, "latency": 0.01, "batch_size": 2}
    rows = [row | {"num_tokens": 2}, row | {"num_tokens": 64}]
    found = import_from("aiconfigurator", put("h100_sxm/linear_attention/vllm", "gdn_perf", *rows))
    names = {point["shape"]["rows"]: (point["implementation"], point["not_fitted"]) for point in found.points}
    assert names == {
        2: ("causal_conv1d_fn_single_tokens", "prompt_kernel_on_single_tokens"),
        64: ("gated_delta_net_vllm_sm90", None),
    }
    assert {point["shape"]["columns"] for point in found.points} == {2 * 4 * 128 + 8 * 128}


def test_modules_unknown_tables_and_operations_are_counted(put, import_from) -> None:
    put("h100_sxm/mla/vllm", "mla_context_module_perf", GEMM, GEMM)
    put("h100_sxm/gemm/vllm", "new_perf", GEMM)
    root = put("h100_sxm/comm/nccl", "nccl_perf", NCCL | {"op_name": "broadcast", "latency": 0.02})
    found = import_from("aiconfigurator", root)
    assert found.reasons == {"module_not_one_kernel": 2, "unknown_table_new_perf": 1, "unknown_operation": 1}
    assert sum(line["read"] or 0 for line in found.summary) == 4
    assert found.points == []


def test_an_unlisted_kernel_keeps_its_own_name(put, import_from) -> None:
    found = import_from(
        "aiconfigurator", put("h100_sxm/gemm/vllm", "gemm_perf", GEMM | {"kernel_source": "New.Kernel"})
    )
    assert found.points[0]["implementation"] == "new_kernel"
    assert "kernels not in the table kernel_sources, imported by their own name: vllm gemm New.Kernel" in found.notes


def test_only_what_was_asked_for_is_read(put, import_from) -> None:
    put("h100_sxm/gemm/vllm", "gemm_perf", GEMM)
    put("a100_sxm/gemm/vllm", "gemm_perf", GEMM)
    root = put("h100_sxm/moe/vllm", "moe_perf", MOE, version="0.19.0")
    found = import_from("aiconfigurator", root, gpus="h100_sxm", families="gemm")
    assert [(line["family"], line["gpu"]) for line in found.summary] == [("gemm", "h100_sxm")]


def test_refusals(put, import_from, tmp_path, monkeypatch) -> None:
    root = put("h100_sxm/gemm/vllm", "gemm_perf", GEMM)
    with pytest.raises(UnknownName, match="unknown GPU of the sweep 'h101'. Did you mean h100_sxm"):
        import_from("aiconfigurator", root, gpus="h101")
    with pytest.raises(UnknownName, match="unknown kernel family 'gem'. Did you mean gemm"):
        import_from("aiconfigurator", root, families="gem")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="has no sweep: no file matches"):
        import_from("aiconfigurator", tmp_path / "empty")
    monkeypatch.setattr(aiconfigurator.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="an import without a PATH needs aiconfigurator-core, which is not"):
        import_from("aiconfigurator", None)


def test_a_table_without_its_columns_is_refused_by_name(put, import_from, tmp_path) -> None:
    put("h100_sxm/gemm/vllm", "gemm_perf", {name: value for name, value in GEMM.items() if name != "k"})
    with pytest.raises(
        InvalidInput, match="gemm_perf.parquet is not gemm_perf of aiconfigurator-core as known: unable to find column"
    ):
        import_from("aiconfigurator", tmp_path)
    broken = next(Path(tmp_path).rglob("gemm_perf.parquet"))
    broken.write_bytes(b"not a table")
    with pytest.raises(InvalidInput, match="gemm_perf.parquet cannot be read as Parquet"):
        import_from("aiconfigurator", tmp_path)
    assert not list(tmp_path.glob(".points*"))


def test_the_installed_package_is_found_without_importing_it(put, import_from, tmp_path, monkeypatch) -> None:
    (tmp_path / "site" / "aiconfigurator_core").mkdir(parents=True)
    (tmp_path / "site" / "aiconfigurator_core" / "__init__.py").write_text("raise ImportError('it was imported')\n")
    put("h100_sxm/gemm/vllm", "gemm_perf", GEMM)
    (tmp_path / "systems").rename(tmp_path / "site" / "aiconfigurator_core" / "systems")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert len(import_from("aiconfigurator", None).points) == 1
