"""Represents an engine's kernel calls by points of kernels that can be measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.errors import unknown
from kernelsight.kernels.call_kinds import BY_MATH
from kernelsight.measure.library_kernels import of_family
from kernelsight.measure.suite import FAMILIES, OF_NO_ENGINE, OWN, OWN_DTYPES

if TYPE_CHECKING:
    import pyarrow as pa

# half width of a 90 % interval in standard deviations of a normal error
INTERVAL_SIGMAS = 1.645
# a rotary call does not record its head size: the first of these that divides its columns is taken
HEAD_WIDTHS = (128, 64, 96, 80, 32, 16, 2)
# implementations that represent a family's calls in a suite
KERNELS = {"norm": ("fused_add_rms_norm",), "sampling": ("top_k_top_p",), "quantize": ("quantize_per_token",)}
# compute capability for which kernels are chosen where a GPU states none
HOPPER = 9.0
# families of which one library is chosen for both, and the libraries; the first is the default
SOFTMAX = ("prefill_attention", "decode_attention")
ATTENTION = ("flashinfer", "flash_attention_vllm", "torch_sdpa")
# what names the kernel of a point
KERNEL = ("family", "implementation", "dtype")


def attention_of(name: str | None) -> str:
    """Return the library to measure attention with, by default the first; UnknownName if there is no such one."""
    if name is not None and name not in ATTENTION:
        raise unknown("attention library", name, ATTENTION, f"Known: {', '.join(ATTENTION)}.")
    return name or ATTENTION[0]


def measurable(
    calls: Sequence[Mapping[str, Any]], attention: str = ATTENTION[0], capability: float = HOPPER
) -> list[dict[str, Any]]:
    """Return the points that represent calls: one per kernel and shape, with the sum of the calls' weights.

    ``attention``: the library for softmax attention; ``capability``: compute capability of the GPU, which determines
    the libraries' kernels that represent an engine's.
    """
    points: dict[str, dict[str, Any]] = {}
    for call in calls:
        for point in _points_of(call, attention, capability):
            key = json.dumps([*(point[name] for name in KERNEL), point["shape"]])
            point_of_shape = points.setdefault(key, {**point, "weight": 0.0})
            point_of_shape["weight"] += call["weight"]
    return list(points.values())


def capability_of(gpus: pa.Table, gpu: str) -> float:
    """Return the compute capability of a GPU of the table ``gpus``, HOPPER's if it has none."""
    found = dict(zip(gpus["gpu"].to_pylist(), gpus["compute_capability"].to_pylist(), strict=True))
    return float(found.get(gpu) or HOPPER)


def _kernels_of(family: str, dtype: str, library: str, capability: float) -> tuple[str, ...]:
    """Return the kernels that represent an engine's calls of a family in a number format."""
    of_libraries = [kernel for kernel in of_family(family) if dtype in kernel.formats and kernel.runs_on(capability)]
    if family in SOFTMAX:
        return tuple(kernel.implementation for kernel in of_libraries if kernel.implementation == library)
    if dtype in OWN_DTYPES[family] and not OF_NO_ENGINE.intersection(own := OWN[family]):
        return KERNELS.get(family, own[:1])
    return tuple(kernel.implementation for kernel in of_libraries[:1])


def _points_of(call: Mapping[str, Any], library: str, capability: float) -> list[dict[str, Any]]:
    family = FAMILIES.get(call["family"])
    if family is None:
        return []
    shape = {name: size for name, size in call["shape"].items() if size is not None}
    dtype = BY_MATH.get((call["format"], call["math"]), call["format"] or family.dtypes[0])
    # for attention the suite gives the KV cache's format; queries are bfloat16, of MLA in that of the arithmetic
    if call["family"] in SOFTMAX:
        dtype = f"bf16/{call['format']}"
    elif call["family"].startswith("mla_"):
        dtype = f"{call['math']}/{call['format']}"
    sizes = family.defaults | {name: shape[name] for name in (*family.sizes, *family.defaults) if name in shape}
    if "head_dim" in family.sizes and "head_dim" not in shape:
        sizes["head_dim"] = next(width for width in (*HEAD_WIDTHS, 1) if shape["columns"] % width == 0)
    if any(name not in sizes for name in family.sizes):
        return []
    kernels = _kernels_of(call["family"], dtype, library, capability)
    half = max(float(call["half"]), 1e-3)
    return [
        {
            "family": call["family"],
            "implementation": kernel,
            "dtype": dtype,
            # in serving, weights and KV caches are cold, activations were just written
            "cache": "cold" if call["family"] in ("gemm", "batched_gemm") else family.caches[-1],
            "shape": sizes,
            "latency_us": float(call["latency_us"]),
            "deviation": half / INTERVAL_SIGMAS,
        }
        for kernel in kernels
    ]
