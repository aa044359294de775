"""The page of one predicted forward step: its time, kernels by their time, evidence, memory; HTML draws a roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.number_format import interval, number, percent, rounded
from kernelsight.present.figures.files import figures_of
from kernelsight.present.page import Figure, Page, Rows, Table
from kernelsight.present.pages.evidence import evidence_table, formats_line, memory_lines, rests_on

RATES = {"bf16": "bf16_flops_per_s", "fp8": "fp8_flops_per_s", "fp4": "fp4_flops_per_s", "int8": "int8_flops_per_s"}


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
    return [figures_of("predict")["Roofline"]._replace(rows=[*roofs, *points])]


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


SHOWN = ("name", "family", "count", "shape", "bound", "roofline_us", "eta", "latency_us", "p05_us", "p95_us", "share")
SHOWN += ("energy_mj",)


def predict_page(step: Mapping[str, Any], gpu: Mapping[str, Any]) -> Page:
    """Return the page of a predicted step; ``step`` as printed by `predict --format json`.

    ``gpu``: its row of ``gpus``, whose roof the figure draws.
    """
    settings, power = step["settings"], step["power_w"]
    headline = (
        f"{step['model']} on {step['gpu']}, tp {settings['tp']} pp {settings['pp']} dp {settings['dp']} ep "
        f"{settings['ep']}, {settings['engine']}, {formats_line(settings)}: {step['phase']} step of "
        f"{counted(step['tokens'], 'token')} in {counted(step['sequences'], 'sequence')}"
    )
    total = (
        f"total {number(step['total_us'])} us (90 % interval {interval(step['p05_us'], step['p95_us'])}): "
        f"GPU {number(step['gpu_us'])} us, exposed host {number(step['host_us'])} us"
    )
    energy = (
        f"energy of a GPU {number(step['energy_mj'])} mJ, {number(power['mean'])} W (90 % interval "
        f"{interval(power['low'], power['high'])})"
    )
    rows = [
        {name: kernel[name] for name in SHOWN} | {"share": percent(kernel["share"], 1)} for kernel in step["kernels"]
    ]
    kv_tokens = f"at {rounded(step['memory']['kv_bytes_per_token'])} bytes per token and GPU"
    return Page(
        f"{step['phase']} step of {step['model']} on {step['gpu']}",
        step,
        asked=[headline],
        sentences=[total, energy, rests_on(step), *([step["cliff"]] if step["cliff"] else [])],
        figures=lambda: roofline(step["kernels"], gpu),
        tables=[Table(rows=rows)],
        evidence=[
            evidence_table(step["evidence"]),
            Table(lines=memory_lines(step["memory"], settings["max_model_len"], kv_tokens)),
        ],
        assumed=step["assumed"],
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "token"), counted(2000, "token")
    ('1 token', '2,000 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
