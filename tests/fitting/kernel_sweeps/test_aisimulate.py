"""aisimulate's wheel: the same tables as aiconfigurator-core's, read in place; what is new is counted and named."""

from __future__ import annotations

import zipfile
from pathlib import Path

import polars as pl
import pytest

from kernelsight.errors import InvalidInput

DEVICES = {"h100_sxm": "NVIDIA H100 80GB HBM3", "b300_sxm": "NVIDIA B300 SXM6 AC"}
COMMON = {"framework": "VLLM", "op_name": "gemm"}
GEMM = COMMON | {
    "kernel_source": "torch.nn.functional.linear", "gemm_dtype": "bfloat16", "m": 512, "n": 4096, "k": 4096,
    "latency": 0.045,
}  # fmt: skip
EXPERTS = COMMON | {
    "kernel_source": "vllm_unquantizedfusedmoe_triton_tritonexperts", "moe_dtype": "bfloat16", "num_tokens": 64,
    "hidden_size": 4096, "inter_size": 1536, "topk": 8, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 1,
    "distribution": "balanced", "latency": 1.2,
}  # fmt: skip


def wheel(folder: Path, *tables: tuple[str, list[dict]], place: str = "aisimulate_core/systems/data/") -> Path:
    """Write a wheel with tables of gpu/family/engine/version/table, and a module that must not run."""
    path = folder / "aisimulate-0.13.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("aisimulate_core/__init__.py", "raise SystemExit('this was run')")
        for name, rows in tables:
            gpu, version = name.split("/")[0], name.split("/")[3]
            file = folder / "table.parquet"
            frame = pl.DataFrame([{"device": DEVICES[gpu], "version": version} | row for row in rows])
            frame.write_parquet(file)
            target.writestr(f"{place}{name}.parquet", file.read_bytes())
    return path


def test_a_wheel_is_read_in_place_like_its_folder(tmp_path, import_from) -> None:
    path = wheel(tmp_path, ("h100_sxm/gemm/vllm/0.25.0/gemm_perf", [GEMM]))
    found = import_from("aisimulate", path)
    point = found.points[0]
    assert point["shape"] == {"m": 512, "n": 4096, "k": 4096}
    assert (point["engine"], point["engine_version"], point["implementation"]) == ("vllm", "0.25.0", "cublas")
    assert point["source"] == "aisimulate/h100_sxm/gemm/vllm/0.25.0/gemm_perf.parquet"
    with zipfile.ZipFile(path) as packed:
        packed.extractall(tmp_path / "unpacked")
    assert import_from("aisimulate", tmp_path / "unpacked" / "aisimulate_core").points == found.points


def test_what_is_new_is_counted_and_named(tmp_path, import_from) -> None:
    new = [GEMM | {"m": 1, "tile": 4}]
    path = wheel(
        tmp_path,
        ("h100_sxm/gemm/vllm/0.31.0/gemm_perf", new),
        ("h100_sxm/gemm/vllm/dev-1/gemm_perf", [GEMM | {"sample_count": 20}]),
        ("h100_sxm/dsv41/vllm/dev-1/dsv41_module_perf", [GEMM]),
        ("h100_sxm/dsv99/vllm/dev-1/dsv99_module_perf", [GEMM, GEMM]),
    )
    found = import_from("aisimulate", path)
    assert found.reasons == {"python_call": 1, "module_not_one_kernel": 1, "unknown_table_dsv99_module_perf": 2}
    assert "not known, and were not read: tile\n" in found.notes


def test_gpus_of_the_final_evaluation_are_read_only_where_named(tmp_path, import_from) -> None:
    path = wheel(
        tmp_path, ("h100_sxm/gemm/vllm/0.25.0/gemm_perf", [GEMM]), ("b300_sxm/gemm/vllm/0.25.0/gemm_perf", [GEMM])
    )
    found = import_from("aisimulate", path)
    assert {point["gpu"] for point in found.points} == {"h100_sxm"}
    assert "b300_sxm and gb300 are held out for the final evaluation" in found.notes
    assert {point["gpu"] for point in import_from("aisimulate", path, gpus="b300_sxm").points} == {"b300_sxm"}


def test_block_scaled_products_count_once_their_sweep_ran_in_graphs(tmp_path, import_from) -> None:
    block = GEMM | {"gemm_dtype": "fp8_block", "kernel_source": "DeepGemmFp8BlockScaledMMKernel"}
    graphs = [block | {"m": 1, "n": 512, "k": 512, "latency": 0.006}, block]
    eager = [row | {"latency": row["latency"] + 0.15} for row in graphs]
    path = wheel(
        tmp_path, ("h100_sxm/gemm/vllm/0.25.0/gemm_perf", graphs), ("h100_sxm/gemm/vllm/0.27.1/gemm_perf", eager)
    )
    found = import_from("aisimulate", path)
    assert found.reasons == {"host_bound": 2}
    assert {point["engine_version"] for point in found.points} == {"0.25.0"} and len(found.points) == 2


def test_kernels_that_the_engine_does_not_choose_are_kept_out_of_fits(tmp_path, import_from) -> None:
    rows = [EXPERTS | {"default_eligible": True}, EXPERTS | {"num_tokens": 128, "default_eligible": False}]
    found = import_from("aisimulate", wheel(tmp_path, ("h100_sxm/moe/vllm/0.31.0/moe_perf", rows)))
    reasons = {point["shape"]["tokens"]: point["not_fitted"] for point in found.points}
    assert reasons == {64: None, 128: "not_the_engine_s_choice"}


def test_refusals(tmp_path, import_from) -> None:
    with pytest.raises(InvalidInput, match=r"aisimulate needs PATH: its wheel \(`pip download --no-deps"):
        import_from("aisimulate", None)
    broken = tmp_path / "broken.whl"
    broken.write_text("no zip")
    with pytest.raises(InvalidInput, match=r"broken\.whl cannot be read as a wheel"):
        import_from("aisimulate", broken)
    with pytest.raises(InvalidInput, match="has no sweep: no file matches"):
        import_from(
            "aisimulate", wheel(tmp_path, ("h100_sxm/gemm/vllm/1/gemm_perf", [GEMM]), place="aisimulate_core/other/")
        )
    with zipfile.ZipFile(tmp_path / "odd.whl", "w") as target:
        target.writestr("x/systems/data/h100_sxm/gemm/vllm/1/gemm_perf.parquet", "no parquet")
    with pytest.raises(InvalidInput, match=r"odd\.whl, x/systems/.* cannot be read as Parquet"):
        import_from("aisimulate", tmp_path / "odd.whl")
