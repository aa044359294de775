"""aiter's tuned CSV files: products, batched products and experts become points; what cannot be is counted."""

from __future__ import annotations

import gzip

import pytest

from kernelsight.errors import InvalidInput

DENSE = "gfx,cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
REST = "ck,8,0"
EXPERTS = (
    "cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,us1,us2,us,_tag"
)


def dense(shape: str, us: float | str, gpu: str = "gfx942,304") -> str:
    return f"{gpu},{shape},{REST},{us},a8w8,1,1,0.0"


def experts(tokens: int, us: float, weight: str = "torch.float8_e4m3fnuz", scales: str = "per_1x128", gated: int = 1):
    kinds = f"ActivationType.Silu,torch.bfloat16,{weight},{weight},QuantType.{scales},{gated}"
    return f"80,{tokens},4096,384,128,8,{kinds},1.0,1.0,{us},"


def write(folder, name: str, header: str, *lines: str):
    text = "\n".join([header, *lines]) + "\n"
    path = folder / name
    path.write_bytes(gzip.compress(text.encode())) if name.endswith(".gz") else path.write_text(text)
    return path


def test_products_of_both_gpus_become_points(tmp_path, import_from) -> None:
    write(tmp_path, "a8w8_blockscale_tuned_gemm.csv.gz", DENSE, dense("16,4096,4096", 12.5))
    write(tmp_path, "x_a8w8_blockscale_bpreshuffle.csv", DENSE, dense("16,4096,4096", 14.5, "gfx942,80"))
    found = import_from("aiter", tmp_path)
    kernels = {point["gpu"]: (point["implementation"], point["latency_us"]) for point in found.points}
    assert kernels == {"mi300x": ("aiter", 12.5), "mi308x": ("aiter_preshuffled", 14.5)}
    point = found.points[0]
    assert point["shape"] == {"m": 16, "n": 4096, "k": 4096}
    assert (point["engine"], point["dtype"], point["math"]) == ("aiter", "fp8_block", "fp8")
    assert point["source"] == "aiter/a8w8_blockscale_tuned_gemm.csv.gz"


def test_formats_come_from_columns_or_from_the_name(tmp_path, import_from) -> None:
    rowwise = DENSE.replace("libtype", "q_dtype_w,libtype")
    write(tmp_path, "a8w8_tuned_gemm.csv", rowwise, "gfx942,80,16,512,512,torch.int8,ck,8,0,9.5,a8w8,1,1,0.0")
    write(
        tmp_path,
        "bf16_tuned_gemm.csv",
        DENSE.replace("libtype", "dtype,libtype"),
        "gfx942,80,16,512,512,torch.bfloat16,opus,8,0,9.5,o,1,1,0.0",
    )
    batched = "gfx,cu_num,B,M,N,K,kernelId,us"
    write(tmp_path, "a8w8_tuned_batched_gemm.csv", batched, "gfx942,304,16,1,1280,8192,3,100.5")
    write(tmp_path, "bf16_tuned_batched_gemm.csv", batched, "gfx942,304,16,1,1280,8192,3,150.5")
    found = import_from("aiter", tmp_path)
    assert sorted((point["family"], point["dtype"]) for point in found.points) == [
        ("batched_gemm", "bf16"),
        ("batched_gemm", "int8"),
        ("gemm", "bf16"),
        ("gemm", "int8"),
    ]


def test_experts_become_points_of_one_gpu(tmp_path, import_from) -> None:
    lines = [experts(1, 30.5), experts(64, 90.5, "torch.bfloat16", "No", gated=0), experts(4, 40.5, scales="per_Token")]
    found = import_from("aiter", write(tmp_path, "tuned_fmoe.csv", EXPERTS, *lines))
    by_dtype = {point["dtype"]: point["shape"] for point in found.points}
    assert set(by_dtype) == {"fp8_block", "bf16", "fp8"}
    assert by_dtype["bf16"]["expert_matrices"] == 2
    sizes = {"hidden": 4096, "intermediate": 384, "experts": 128, "top_k": 8, "moe_tp": 1, "moe_ep": 1}
    assert by_dtype["fp8_block"] == {"tokens": 1, **sizes, "expert_matrices": 3}


def test_the_fastest_of_a_shape_is_kept_and_the_rest_is_counted(tmp_path, import_from) -> None:
    shape = "16,4096,4096"
    first = write(tmp_path, "a_blockscale.csv", DENSE, dense(shape, 12.5), dense(shape, 13.5))
    # 550 TFLOP in 40 us are beyond any peak: such a row is no best time
    large = "65536,4096,1024"
    second = write(tmp_path, "b_blockscale.csv", DENSE, dense(shape, 11.5), dense(large, 4.5), dense(large, 500.5))
    found = import_from("aiter", [first, second])
    times = {point["shape"]["m"]: point["latency_us"] for point in found.points}
    assert times == {16: 11.5, 65536: 500.5}
    assert found.reasons == {"slower_duplicate": 2, "faster_than_peak": 1}


def test_what_is_no_measurement_is_counted_by_reason(tmp_path, import_from) -> None:
    lines = [dense("1,512,512", us) for us in (0.0, -3.0, "inf", 1.0)] + [dense("2,512,512", 8.5)]
    write(tmp_path, "tuned_blockscale.csv", DENSE, *lines)
    copied = [experts(tokens, 500.25) for tokens in (2048, 4096, 8192)] + [experts(1, 40.5, "torch.int4", "per_Token")]
    write(tmp_path, "tuned_fmoe.csv", EXPERTS, *copied)
    found = import_from("aiter", tmp_path)
    assert found.reasons == {
        "no_latency": 3,
        "placeholder_time": 1,
        "time_of_fewer_tokens": 2,
        "format_not_known": 1,
    }
    assert [point["shape"].get("tokens") for point in found.points] == [None, 2048]


def test_refusals(tmp_path, import_from) -> None:
    with pytest.raises(InvalidInput, match="aiter needs PATH"):
        import_from("aiter", None)
    with pytest.raises(InvalidInput, match=r"has no sweep of aiter: no file matches \*\.csv\*"):
        import_from("aiter", tmp_path)
    path = write(tmp_path, "tuned_blockscale.csv", DENSE, dense("1,8,8", 5.5, "gfx950,256"))
    with pytest.raises(InvalidInput, match="gfx gfx950 and cu_num 256, which is not known"):
        import_from("aiter", path)
    write(tmp_path, "tuned_blockscale.csv", "cu_num,M,N,us", "304,1,1,1")
    with pytest.raises(InvalidInput, match="missing columns K"):
        import_from("aiter", path)
    with pytest.raises(InvalidInput, match="vidur reads one PATH, and 2 are given"):
        import_from("vidur", [path, path])
