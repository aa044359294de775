"""Host time of a step (scheduling, input preparation, launches): one rule for Python and the compiled loop."""

from __future__ import annotations

import math
from typing import Any

from kernelsight.serving.engine.inputs import Host

# standard deviations from the median of a normal distribution to the ends of its 90 % interval
Z_90 = 1.6448536269514722


def host_times(requests: int, tokens: int, prompts: int, host: Any) -> tuple:
    """Return (hidden, exposed, launch) host time of a step, us: the step takes exposed + max(hidden, GPU time).

    Launches always run beside kernels; scheduling and input preparation do so where the engine overlaps them.
    ``prompts``: prompt chunks in the step, whose attention is in no CUDA graph.
    ``host``: a ``Host``, or a HOST record of the loop, which compiles this function (``costs.host_times``).
    """
    cpu_us = host.base_us + host.per_request_us * requests + host.per_token_us * tokens
    # a captured graph is one launch for all its kernels; with prompts, piecewise graphs alternate with attention
    if prompts > 0:
        launch_us = host.eager_launches_us if tokens > host.prompt_graph_max_tokens else host.piecewise_launches_us
    else:
        launch_us = host.eager_launches_us if tokens > host.graph_max_tokens else host.captured_launches_us
    # with many requests a part of their host time is hidden behind longer steps
    seen = requests / (1.0 + requests / host.exposed_requests_half)
    exposed_us = host.exposed_us + host.exposed_per_request_us * seen
    if not host.overlapped:
        exposed_us += cpu_us
        cpu_us = 0.0
    # a correction fitted to a log may reduce host time, but not below the gaps between kernels
    exposed_us = exposed_us if exposed_us > host.gap_us else host.gap_us
    hidden_us = cpu_us + launch_us
    # a front end that streams tokens more slowly than steps end sets the pace of steps
    streamed_us = host.per_output_token_us * (requests - prompts) - exposed_us
    return streamed_us if streamed_us > hidden_us else hidden_us, exposed_us, launch_us


def step_interval(
    gpu_us: float, gpu_p05_us: float, gpu_p95_us: float, hidden_us: float, exposed_us: float, log_sd: float
) -> tuple:
    """Return (time, p05, p95, host time, its p05, its p95) of a step, us; host time: what kernels do not hide.

    ``gpu_p05_us``, ``gpu_p95_us``: the ends of the kernels' 90 % interval; ``log_sd``: spread of the host's constants.
    """
    total_us = exposed_us + max(hidden_us, gpu_us)
    faster, slower = math.exp(-Z_90 * log_sd), math.exp(Z_90 * log_sd)
    host_us = exposed_us + max(hidden_us - gpu_us, 0.0)
    host_p05_us = faster * exposed_us + max(faster * hidden_us - gpu_us, 0.0)
    host_p95_us = slower * exposed_us + max(slower * hidden_us - gpu_us, 0.0)
    # errors of kernels and host are independent: their parts of the half-width add up as squares
    below_us = math.hypot(exposed_us + max(hidden_us, gpu_p05_us) - total_us, host_p05_us - host_us)
    above_us = math.hypot(exposed_us + max(hidden_us, gpu_p95_us) - total_us, host_p95_us - host_us)
    return total_us, total_us - below_us, total_us + above_us, host_us, host_p05_us, host_p95_us


def front_end_of(overhead: dict[str, Any], deployment: dict[str, Any]) -> tuple[float, float]:
    """Return the front-end time before the queue, us: per request, and per prompt token; 0 in the roofline tier.

    ``overhead``: a row of ``host_settings``; ``deployment``: of ``deployment_settings``.
    """
    if deployment["tier"] == "roofline":
        return 0.0, 0.0
    return overhead["request_us"], overhead["per_prompt_token_us"]


def graph_tokens(deployment: dict[str, Any]) -> tuple[int, int]:
    """Return the most tokens of a step in a CUDA graph: of steps that decode, and of those with prompts (0: none)."""
    largest = deployment["graph_max_tokens"]
    if deployment["prompt_graphs"] == "piecewise":
        return largest, largest
    # graphs of decode steps alone are sized by requests, each of which verifies several tokens with drafts
    chunk = deployment["prompt_graphs"] == "chunk" and largest > 0
    return largest * deployment["query_tokens"], deployment["max_num_batched_tokens"] if chunk else 0


def host_of(overhead: dict[str, Any], deployment: dict[str, Any], launches: int, of_adapters: int = 0) -> Host:
    """Return the engine's host overhead; 0 in the roofline tier, which bounds the GPU's work.

    ``overhead``: a row of ``host_settings``; ``deployment``: of ``deployment_settings``; ``launches``: kernels of a
    forward pass, ``of_adapters`` of them adapters'. Polling for new requests for ``batch_wait_timeout_ms`` is host work
    of every step.
    """
    wait_us = deployment["batch_wait_timeout_ms"] * 1e3
    if deployment["tier"] == "roofline":
        return Host(0.0, wait_us, 0.0, 0.0, 0.0, 0.0, True, 0)
    gap_us = overhead["launch_gap_us"] * launches
    launch_us = overhead["per_eager_launch_us"]
    pieces = min(overhead["piecewise_launches"], launches)
    decodes, prompts = graph_tokens(deployment)
    half = overhead["exposed_requests_half"]
    return Host(
        overhead["step_exposed_us"] + gap_us, overhead["step_base_us"] + wait_us, overhead["per_request_us"],
        overhead["per_token_us"],
        launch_us * (launches + overhead["inner_launches"]) + overhead["eager_dispatch_us"], overhead["request_us"],
        overhead["overlapped"] and deployment["async_scheduling"], decodes,
        overhead["per_captured_launch_us"] * launches, gap_us, overhead["exposed_per_request_us"],
        overhead["per_prompt_token_us"],
        prompts, launch_us * pieces, math.inf if half is None else half,
        overhead["per_output_token_us"] / overhead["front_ends"],
        overhead["per_active_us"],
        overhead["ranks_padded"] and deployment["graph_max_tokens"] > 0,
        overhead["chat_us"] / overhead["front_ends"],
        overhead["per_prompt_token_us"] / overhead["front_ends"],
        overhead["launch_gap_us"] * of_adapters, launch_us * (of_adapters + overhead["adapter_launches"]),
        overhead["per_captured_launch_us"] * of_adapters,
        0.0 if deployment["async_scheduling"] else launch_us * overhead["draft_launches"],
    )  # fmt: skip
