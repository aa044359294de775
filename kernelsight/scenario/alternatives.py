"""Neighbouring engine settings of a deployment, one change each, as candidates for tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelsight.number_format import number
from kernelsight.scenario.speculation import MOST_DRAFTS

SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")
STEPS = {"max_num_batched_tokens": (0.25, 0.5, 2.0, 4.0), "max_num_seqs": (0.25, 0.5, 2.0, 4.0)}


def graphs_end(largest: int, batches: str, batch: int, whom: str, factor: float) -> str:
    """Return the sentence on CUDA graphs smaller than the batches, and the speedup from larger ones.

    ``largest``: tokens of the largest CUDA graph; ``batches``: words on what exceeds it; ``batch``: tokens of a batch;
    ``whom``: what gets faster; ``factor``: by how much.
    """
    return (
        f"CUDA graphs end at a batch of {largest:,}, which {batches}: --max-cudagraph-capture-size {graphs_for(batch)} "
        f"makes {whom} {number(factor, 2)} times as fast"
    )


def graphs_for(batch: int) -> int:
    """Return the max_cudagraph_capture_size that holds a batch: the next power of two, in tokens.

    >>> graphs_for(129), graphs_for(256)
    (256, 256)
    """
    return 1 << (batch - 1).bit_length()


def alternatives(settings: Mapping[str, Any], flags: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, flags) of all settings that differ from ``settings`` in one value.

    ``settings``: columns of ``deployment_settings``; changes that ``flags`` already state are left out.

    >>> settings = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "async_scheduling": True, "tp": 2}
    >>> [name for name, _ in alternatives(settings, {})][:3]
    ['max_num_batched_tokens=2048', 'max_num_batched_tokens=4096', 'max_num_batched_tokens=16384']
    """
    neighbours: list[tuple[str, dict[str, Any]]] = []

    def add(name: str, value: Any) -> None:
        neighbours.append((f"{name}={str(value).lower() if isinstance(value, bool) else value}", {name: value}))

    for name, factors in STEPS.items():
        for value in (int(settings[name] * factor) for factor in factors if settings.get(name)):
            add(name, value)
    for name in SWITCHES:
        if settings.get(name) is not None:
            add(name, not settings[name])
    drafts = settings.get("num_speculative_tokens")
    if drafts:  # none, and in a chain fewer and more
        for value in (0,) if settings.get("speculative_num_steps") else (0, drafts // 2, min(2 * drafts, MOST_DRAFTS)):
            add("num_speculative_tokens", value)
    add("enforce_eager", settings.get("graph_max_tokens") != 0)
    add("kv_cache_dtype", "bf16" if settings.get("kv_cache_dtype") == "fp8" else "fp8")
    if "ffn_format" in settings:
        add("quantization", "fp8" if settings["ffn_format"] in ("bf16", "fp16") else "none")
    tp = settings.get("tp", 1)
    for size in (tp // 2, tp * 2):
        if 1 <= size <= 8:
            neighbours.append((f"tensor_parallel_size={size}", {"tensor_parallel_size": size}))
    neighbours = list(dict(neighbours).items())
    return [
        (name, change) for name, change in neighbours if any(flags.get(key) != value for key, value in change.items())
    ]
