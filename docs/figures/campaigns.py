"""Tables of errors on measured servers, by campaign and metric, from `benches/results/campaigns.json`."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any

from record import RESULTS

from figures.blocks import result
from figures.text import NONE, count, full, percent, table

CAMPAIGNS = {
    "inferencex": "InferenceX (aiconfigurator)",
    "gap_analysis": "gap analysis (aiconfigurator)",
    "vllm_0_15_1": "vLLM 0.15.1 over HTTP",
    "inference_perf": "inference-perf, vLLM 0.11",
    "mlenergy": "ML.ENERGY v3, vLLM, text",
    "trtllm_tables": "TensorRT-LLM's throughput tables",
    "sglang_cookbook": "SGLang's cookbook",
    "gpustack_lab": "GPUStack's laboratory",
}
METRICS = {
    "ttft_mean": "TTFT, mean",
    "tpot_mean": "TPOT, mean",
    "itl_p50": "ITL, median",
    "itl_mean": "ITL, mean",
    "e2e_mean": "E2E, mean",
    "e2e_p99": "E2E, p99",
    "throughput": "output throughput",
}


# before constants were changed for these campaigns, as shipped, with constants fitted on the other campaigns
NAMES = ("before", "shipped", "left_out")


def figures() -> dict[str, Any]:
    """Return the recorded figures."""
    return result("campaigns")


def errors() -> str:
    """Table of errors by campaign and metric: before, with shipped constants, and with the other campaigns' constants."""
    recorded, floors = figures(), repeats()
    rows = []
    for campaign, title in CAMPAIGNS.items():
        for metric, words in METRICS.items():
            if metric not in recorded["shipped"].get(campaign, {}):
                continue
            columns = [recorded.get(name, {}).get(campaign, {}).get(metric) for name in NAMES]
            shipped = columns[1]
            inside, floor = percent(shipped["coverage_90"], 0), floors.get((campaign, metric), "unknown")
            rows.append([title, words, count(shipped["n"]), *map(_cell, columns), inside, floor])
    head = ["campaign", "metric", "runs", "before", "constants as shipped", "constants of the other campaigns"]
    return table([*head, "in the 90 % interval", "two runs of the same differ by"], rows)


def repeats() -> dict[tuple[str, str], str]:
    """Return how far two measurements of the same run are apart, by campaign and metric, where any are published."""
    with (RESULTS / "repeats.csv").open(encoding="utf-8", newline="") as file:
        return {(row["campaign"], row["metric"]): percent(float(row["difference"])) for row in csv.DictReader(file)}


# the main metrics of each campaign
FIRST = {
    "inferencex": ("ttft_mean", "tpot_mean"),
    "gap_analysis": ("ttft_mean", "tpot_mean"),
    "vllm_0_15_1": ("ttft_mean", "e2e_mean"),
    "inference_perf": ("e2e_mean", "throughput"),
    "mlenergy": ("itl_p50",),
    "trtllm_tables": ("throughput",),
    "sglang_cookbook": ("ttft_mean", "tpot_mean"),
    "gpustack_lab": ("tpot_mean", "throughput"),
}


def short() -> str:
    """Table of the median errors of each campaign's main metrics: before, as shipped, and fitted without it."""
    recorded = figures()
    rows = []
    for campaign, metrics in FIRST.items():
        for metric in metrics:
            columns = [recorded.get(name, {}).get(campaign, {}).get(metric) for name in NAMES]
            if columns[1] is None:
                continue
            cells = [percent(each["median_ape"]) if each else NONE for each in columns]
            rows.append([CAMPAIGNS[campaign], METRICS[metric], count(columns[1]["n"]), *cells])
    return table(["campaign", "metric", "runs", "before", "as shipped", "fitted without it"], rows)


def coverage() -> str:
    """Table of the coverage and width of 90 % intervals by what is known of a prediction beforehand."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in figures()["coverage"]:
        cell = f"{percent(row['coverage_90'], 0)} of {count(row['n'])}, {row['width_90']:.2f}"
        cells.setdefault((row["label"], row["value"]), {})[row["metric"]] = cell
    names = {"ttft": "TTFT", "tpot": "TPOT or ITL", "e2e": "E2E", "throughput": "output throughput"}
    rows = [
        [" ".join(dict.fromkeys(key)), *(by_metric.get(metric, NONE) for metric in names)]
        for key, by_metric in cells.items()
    ]
    return table(["", *names.values()], rows)


def _cell(score: Mapping[str, Any] | None) -> str:
    """Return a cell of errors; a dash without a score."""
    return full(score) if score else NONE


def sample() -> str:
    """Sentence on the runs of the tables: numbers read, excluded and replayed."""
    recorded = figures()
    excluded = sum(reason["n"] for reason in recorded["excluded"])
    return (
        f"{count(recorded['read'])} rows read, {count(excluded)} excluded, {count(recorded['runs'])} replayed: at most "
        f"{recorded['sample']} of each campaign, spread evenly over its engines, models and GPUs."
    )


def exclusions() -> str:
    """Table of excluded rows by reason."""
    return table(["reason", "rows"], [[reason["reason"], count(reason["n"])] for reason in figures()["excluded"]])


def line() -> str:
    """README's line: median errors of each campaign's main metrics with constants of the others, else as shipped."""
    recorded, words = figures(), []
    for campaign, metrics in FIRST.items():
        which = "left_out" if campaign in recorded["left_out"] else "shipped"
        errors = [
            f"{METRICS[metric].split(',')[0].removeprefix('output ')} {percent(recorded[which][campaign][metric]['median_ape'], 0)}"
            for metric in metrics
        ]
        mark = "" if which == "left_out" else " *"
        words.append(f"{CAMPAIGNS[campaign].split(' (')[0].split(', ')[0]}{mark} {', '.join(errors)}")
    return (
        f"- **End to end**, median error by campaign, host constants from the other campaigns (*: as shipped): "
        f"{'; '.join(words)} ({count(recorded['runs'])} runs)."
    )
