"""The page of one predicted forward step: its time, kernels by their time, evidence, memory; HTML draws a roofline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelsight.number_format import interval, number, percent, rounded
from kernelsight.present.figures.roofline import roofline
from kernelsight.present.page import Page, Table
from kernelsight.present.pages.evidence import evidence_table, formats_line, memory_lines, rests_on

SHOWN = ("name", "family", "count", "shape", "bound", "roofline_us", "eta", "latency_us", "p05_us", "p95_us", "share")
SHOWN += ("energy_mj",)


def predict_page(step: Mapping[str, Any], gpu: Mapping[str, Any] | None = None) -> Page:
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
        figures=lambda: roofline(step["kernels"], gpu) if gpu else (),
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
