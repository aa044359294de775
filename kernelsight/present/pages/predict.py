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
SHOWN += ("loss_us", "loss_share", "energy_mj")
# what a narrow terminal leaves out, in this order
EXPENDABLE = ("energy_mj", "p05_us", "p95_us", "eta", "family", "shape")


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
        {name: kernel[name] for name in SHOWN} | {name: percent(kernel[name], 1) for name in ("share", "loss_share")}
        for kernel in step["kernels"]
    ]
    kv_tokens = f"at {rounded(step['memory']['kv_bytes_per_token'])} bytes per token and GPU"
    return Page(
        f"{step['phase']} step of {step['model']} on {step['gpu']}",
        step,
        asked=[headline],
        sentences=[total, energy, rests_on(step), *([step["cliff"]] if step["cliff"] else [])],
        figures=lambda: roofline(step["kernels"], gpu),
        tables=[Table(rows=rows, expendable=EXPENDABLE)],
        evidence=[
            evidence_table(step["evidence"]),
            Table(lines=memory_lines(step["memory"], settings["max_model_len"], kv_tokens)),
        ],
        assumed=step["assumed"],
    )


MEASURED = ("measured_us", "latency_us", "ratio", "roofline_us", "bound", "loss_us", "loss_share", "name", "shape")
EVERY_CALL = ("name", "count", "roofline_us", "bound", "eta", "latency_us", "latency_p05_us", "latency_p95_us", "tier")


def calls_page(kernels: Rows, gpu: Mapping[str, Any]) -> Page:
    """Return the page of a table of kernels: where they were measured, those first that lose most to the roofline.

    ``kernels``: rows of ``predict_calls``; ``gpu``: its row of ``gpus``, whose roof the figure draws.
    """
    measured = [kernel for kernel in kernels if kernel.get("measured_us") is not None]
    sentences = [f"{counted(len(kernels), 'kernel')} on {gpu['gpu']}"]
    rows = [{name: kernel[name] for name in EVERY_CALL if name in kernel} for kernel in kernels]
    drawn: list[dict[str, Any]] = []
    if measured:
        total_us, roofline_us, predicted_us = (
            sum(kernel[name] for kernel in measured) for name in ("measured_us", "roofline_us", "latency_us")
        )
        first = measured[0]
        sentences = [
            f"{counted(len(measured), 'kernel')} on {gpu['gpu']}: measured {number(total_us)} us, predicted "
            f"{number(predicted_us)} us, roofline {number(roofline_us)} us",
            f"{first['name']} {number(first['shape'])} loses most: {number(first['loss_us'])} us above its roofline, "
            f"{percent(first['loss_share'], 1)} of the measured time",
            "ratio = measured / predicted; loss = measured - roofline, with its share of the measured time",
        ]
        rows = [
            {name: kernel[name] for name in MEASURED} | {"loss_share": percent(kernel["loss_share"], 1)}
            for kernel in measured
        ]
        drawn = [
            {**kernel, "latency_us": kernel["measured_us"], "share": kernel["measured_us"] / total_us}
            for kernel in measured
        ]
    return Page(
        f"kernels on {gpu['gpu']}",
        {"gpu": gpu["gpu"], "kernels": kernels},
        sentences=sentences,
        figures=lambda: roofline(drawn, gpu),
        tables=[Table(rows=rows)],
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "token"), counted(2000, "token")
    ('1 token', '2,000 tokens')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
