"""The roofline of a step: each kernel's arithmetic intensity against the rate that it reaches, below the GPU's roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.present.figures.chart import LOG, amount, chart, dots, kind, tips
from kernelsight.present.page import Figure, Rows

NOTE = (
    "A point is a kernel: its FLOP for each byte of memory, and the rate that it is predicted to reach; its size is "
    "its share of the step. Lines: the GPU's memory bandwidth, then its dense rate in a number format."
)
RATES = {"bf16": "bf16_flops_per_s", "fp8": "fp8_flops_per_s", "fp4": "fp4_flops_per_s", "int8": "int8_flops_per_s"}
X = amount("intensity", "FLOP / byte", scale=LOG)
Y = amount("tflops", "TFLOP/s", scale=LOG)
SPEC = {
    "layer": [
        chart(
            {"type": "line", "strokeWidth": 1.5},
            {"filter": "datum.roof"},
            x=X,
            y=Y,
            strokeDash=kind("roof", "roof"),
            color={"value": "#888"},
        ),
        chart(
            dots(60, opacity=0.8),
            {"filter": "!datum.roof"},
            x=X,
            y=Y,
            size=amount("percent", legend=None, scale={"range": [40, 700]}),
            color=kind("family"),
            tooltip=tips("name", "family", "bound", intensity=".4g", tflops=".4g", percent=".3g"),
        ),
    ]
}


def roofline(kernels: Rows, gpu: Mapping[str, Any]) -> Sequence[Figure]:
    """Return the roofline of a step's kernels; none where no kernel has FLOP and bytes.

    ``kernels``: as in the JSON of `predict`; ``gpu``: its row of ``gpus``.
    """
    points = [
        {
            **{name: kernel[name] for name in ("name", "family", "bound")},
            "intensity": kernel["flops"] / kernel["bytes"],
            "tflops": kernel["flops"] / kernel["latency_us"] / 1e6,
            "percent": 100.0 * kernel["share"],
        }
        for kernel in kernels
        if kernel["flops"] and kernel["bytes"] and kernel["latency_us"] > 0.0
    ]
    if not points:
        return []
    roofs = roofs_of(gpu, [point["intensity"] for point in points])
    return [Figure("Roofline", NOTE, spec=SPEC, wide=True, rows=[*roofs, *points])]


def roofs_of(gpu: Mapping[str, Any], intensities: Sequence[float]) -> list[dict[str, Any]]:
    """Return the corners of a GPU's roof in each number format, around some arithmetic intensities (FLOP / byte)."""
    bandwidth = gpu["memory_bandwidth_bytes_per_s"]
    low, high = min(intensities), max(intensities)
    roofs = []
    for name, column in RATES.items():
        if rate := gpu.get(column):
            ends = (low / 2.0, rate / bandwidth, max(2.0 * high, 4.0 * rate / bandwidth))
            roofs += [{"roof": name, "intensity": at, "tflops": min(at * bandwidth, rate) / 1e12} for at in ends]
    return roofs
