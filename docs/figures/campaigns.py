"""Views of `benches/results/campaigns.json`: errors on measured servers, by campaign and metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from figures.blocks import result
from figures.text import NONE, count, full, percent, table

CAMPAIGNS = {
    "inferencex": "InferenceX (aiconfigurator)",
    "gap_analysis": "gap analysis (aiconfigurator)",
    "vllm_0_15_1": "vLLM 0.15.1 over HTTP",
    "inference_perf": "inference-perf, vLLM 0.11",
    "mlenergy": "ML.ENERGY v3, vLLM, text",
    "trtllm_tables": "TensorRT-LLM's throughput tables",
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


# before any constant was changed for them, as shipped, with constants that the other campaigns give
NAMES = ("before", "shipped", "left_out")


def figures() -> dict[str, Any]:
    """Return the figures of the result."""
    return result("campaigns")


def errors() -> str:
    """Median / mean, 90th percentile, bias of each campaign and metric: before, as shipped, and with others' constants."""
    found = figures()
    rows = []
    for campaign, title in CAMPAIGNS.items():
        for metric, words in METRICS.items():
            if metric not in found["shipped"].get(campaign, {}):
                continue
            columns = [found.get(name, {}).get(campaign, {}).get(metric) for name in NAMES]
            last = columns[1]
            rows.append([title, words, count(last["n"]), *map(_cell, columns), percent(last["coverage_90"], 0)])
    head = ["campaign", "metric", "runs", "before", "constants as shipped", "constants of the other campaigns"]
    return table([*head, "in the 90 % interval"], rows)


# what each campaign is first of all about
FIRST = {
    "inferencex": ("ttft_mean", "tpot_mean"),
    "gap_analysis": ("ttft_mean", "tpot_mean"),
    "vllm_0_15_1": ("ttft_mean", "e2e_mean"),
    "inference_perf": ("e2e_mean", "throughput"),
    "mlenergy": ("itl_p50",),
    "trtllm_tables": ("throughput",),
}


def short() -> str:
    """Median error of what each campaign is about: before its campaign was known, and now."""
    found = figures()
    rows = []
    for campaign, metrics in FIRST.items():
        for metric in metrics:
            columns = [found.get(name, {}).get(campaign, {}).get(metric) for name in NAMES]
            cells = [percent(each["median_ape"]) if each else NONE for each in columns]
            rows.append([CAMPAIGNS[campaign], METRICS[metric], count(columns[1]["n"]), *cells])
    return table(["campaign", "metric", "runs", "before", "as shipped", "fitted without it"], rows)


def _cell(found: Mapping[str, Any] | None) -> str:
    return full(found) if found else NONE


def sample() -> str:
    """What the table rests on: runs read, excluded, and how many of each campaign were replayed."""
    found = figures()
    excluded = sum(reason["n"] for reason in found["excluded"])
    return (
        f"{count(found['read'])} rows read, {count(excluded)} excluded, {count(found['runs'])} replayed: at most "
        f"{found['sample']} of each campaign, spread evenly over its engines, models and GPUs."
    )


def exclusions() -> str:
    """How many rows are excluded for each reason."""
    return table(["reason", "rows"], [[reason["reason"], count(reason["n"])] for reason in figures()["excluded"]])
