"""NeuSight's dataset: products become FP32 points, everything else is counted."""

from __future__ import annotations

import pytest

from kernelsight.errors import InvalidInput

HEADER = (
    "OPName,Latency,Device,Torch Version,CUDNN Version,Kernel Name,Warps per SM,Blocks per SM,Grid x,Grid y,Grid z,"
    "Block x,Block y,Block z,CUDA Version,Kernels,B,M,N,K"
)
REST = "8902,ampere_sgemm_128x64_tn,66.2,16.55,20,16,3,128,1,1,cu121,;ampere_sgemm_128x64_tn"


def line(operator: str, device: str, sizes: str, latency_ms: float = 0.45) -> str:
    return f"{operator},{latency_ms},{device},p2.1.0,{REST},{sizes}"


def test_products_become_points(tmp_path, import_from) -> None:
    rows = [line("linear", "NVIDIA L4", "2,1024,512,3072"), line("bmm", "Tesla T4", "32,64,512,128")]
    (tmp_path / "products.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    found = import_from("neusight", tmp_path / "products.csv")
    shapes = {point["gpu"]: (point["family"], point["shape"]) for point in found.points}
    assert shapes == {
        "t4": ("batched_gemm", {"batch": 32, "m": 64, "n": 512, "k": 128}),
        "l4": ("gemm", {"m": 2048, "n": 512, "k": 3072}),
    }
    point = found.points[0]
    assert (point["implementation"], point["engine"], point["engine_version"]) == ("cublas", "pytorch", "2.1.0")
    assert (point["dtype"], point["math"], point["latency_us"]) == ("fp32", "fp32", 450.0)


def test_other_operators_and_unknown_gpus_are_counted(tmp_path, import_from) -> None:
    rows = [
        line("gelu", "NVIDIA L4", "1,1,1,1"),
        line("linear", "Tesla P4", "1,8,8,8"),
        line("linear", "NVIDIA L4", "1,8,8,8"),
    ]
    (tmp_path / "mixed.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    found = import_from("neusight", tmp_path)
    assert found.reasons == {"operator_without_family": 1, "gpu_not_in_catalogue": 1}
    assert len(found.points) == 1


def test_refusals(tmp_path, import_from) -> None:
    with pytest.raises(InvalidInput, match="neusight needs PATH"):
        import_from("neusight", None)
    with pytest.raises(InvalidInput, match=r"has no sweep of NeuSight: no file matches \*\.csv"):
        import_from("neusight", tmp_path)
    (tmp_path / "dims.csv").write_text("B,M\n1,2\n")
    with pytest.raises(
        InvalidInput, match=r"dims\.csv is not a sweep of NeuSight: missing columns OPName, Latency, Device"
    ):
        import_from("neusight", tmp_path)
    (tmp_path / "dims.csv").write_text("OPName,Latency,Device,Torch Version\nlinear,1.0,NVIDIA L4,p2.1.0\n")
    with pytest.raises(InvalidInput, match="missing columns B, M, N, K"):
        import_from("neusight", tmp_path)
