"""Coverage, seen implementations and serving shapes, at their edges."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kernelsight.fitting.cells import is_covered, is_seen, is_serving

GEMMS = {  # (m, n, k): is it served?
    (1, 1024, 1024): True,
    (1, 1024, 1023): False,
    (1, 128, 8192): True,
    (1, 127, 65536): False,
    (16_384, 4096, 4096): True,
    (16_385, 4096, 4096): False,
}
PREFILLS = {  # (batch, new_tokens, heads, kv_heads, head_dim)
    (1, 16, 32, 8, 128): True,
    (1, 15, 32, 8, 128): False,
    (2, 8192, 32, 8, 64): True,
    (2, 8193, 32, 8, 64): False,
    (1, 64, 16, 1, 256): True,
    (1, 64, 32, 1, 256): False,
    (1, 64, 24, 8, 128): False,
    (1, 64, 32, 8, 96): False,
}
DECODES = {  # (batch, context, heads, kv_heads, head_dim): 255 cached tokens and the new one are 256
    (512, 255, 32, 8, 128): True,
    (513, 255, 32, 8, 128): False,
    (512, 254, 32, 8, 128): False,
    (1, 4095, 8, 8, 128): False,
}
EXPERTS = {  # (tokens, moe_tp, moe_ep)
    (16_384, 2, 4): True,
    (16_385, 2, 4): False,
    (1, 4, 4): False,
}


@pytest.mark.parametrize(
    ("family", "names", "shapes"),
    [
        ("gemm", ("m", "n", "k"), GEMMS),
        ("prefill_attention", ("batch", "new_tokens", "heads", "kv_heads", "head_dim"), PREFILLS),
        ("decode_attention", ("batch", "context", "heads", "kv_heads", "head_dim"), DECODES),
        ("moe", ("tokens", "moe_tp", "moe_ep"), EXPERTS),
    ],
)
def test_serving_shapes_end_where_they_are_said_to(family: str, names: tuple[str, ...], shapes: dict):
    rows = pa.table({name: [float(shape[place]) for shape in shapes] for place, name in enumerate(names)})
    assert dict(zip(shapes, is_serving(family, rows).tolist(), strict=True)) == shapes


@pytest.mark.parametrize(
    ("gpus", "covered"),
    [
        ([], False),
        (["l40s"], False),
        (["h100_sxm", "h200_sxm"], False),
        (["b200_sxm", "gb200"], False),
        (["a100_sxm", "l40s"], True),
        (["gb200", "rtx_pro_6000_server"], True),
    ],
)
def test_a_cell_is_covered_by_two_generations(gpus: list[str], covered: bool):
    assert is_covered(gpus) is covered


def kernels(*rows: tuple[str, str, str]) -> pa.Table:
    engines, implementations, gpus = zip(*rows, strict=True)
    return pa.table({"engine": engines, "implementation": implementations, "gpu": gpus})


def test_a_kernel_is_seen_with_its_engine():
    train = kernels(("vllm", "flashinfer", "l40s"), ("sglang", "triton_attention", "h100_sxm"))
    test = kernels(("vllm", "flashinfer", "gb200"), ("sglang", "flashinfer", "gb200"))
    seen, same = is_seen("prefill_attention", train, test)
    assert seen.tolist() == same.tolist() == [True, False]


def test_a_router_is_seen_by_its_name_only():
    train = kernels(("trtllm", "trtllm_wgmma_fmha", "h100_sxm"))
    test = kernels(("trtllm", "trtllm_gen_fmha", "gb200"), ("vllm", "trtllm_gen_fmha", "gb200"))
    seen, same = is_seen("prefill_attention", train, test)
    assert seen.tolist() == [True, False]
    assert same.tolist() == [False, False]
