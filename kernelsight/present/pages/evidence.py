"""Number formats, memory, and the evidence behind kernel latencies (tier, measured share): what pages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.models.quantization import of_weights_alone
from kernelsight.number_format import gib, number, percent
from kernelsight.present.page import Table

CLASSES = {"attention_format": "attention", "ffn_format": "feed-forward", "expert_format": "experts"}


def formats_line(settings: Mapping[str, Any]) -> str:
    """Return the formats of weights, activations and KV cache of a row of ``deployment_settings``.

    >>> same = dict.fromkeys(CLASSES, "fp8")
    >>> formats_line(same | {"dtype": "bf16", "kv_cache_dtype": "fp8"})
    'weights fp8, activations fp8, KV fp8, the rest bf16'
    >>> formats_line(same | {"expert_format": "nvfp4", "ffn_format": "bf16", "dtype": "bf16", "kv_cache_dtype": "bf16"})
    'weights fp8 (attention), bf16 (feed-forward), nvfp4 (experts), activations fp8, nvfp4, KV bf16, the rest bf16'
    >>> formats_line(dict.fromkeys(CLASSES, "bf16") | {"dtype": "bf16", "kv_cache_dtype": "bf16"})
    'weights bf16, activations bf16, KV bf16'
    """
    by_format: dict[str, list[str]] = {}
    for column, weights_class in CLASSES.items():
        by_format.setdefault(settings[column], []).append(weights_class)
    dtype = settings["dtype"]
    if len(by_format) == 1:
        weights = next(iter(by_format))
    else:
        weights = ", ".join(f"{form} ({' and '.join(classes)})" for form, classes in by_format.items())
    # the suffix _block is about the scales of weights
    narrow = [form.removesuffix("_block") for form in by_format if form != dtype and not of_weights_alone(form)]
    line = f"weights {weights}, activations {', '.join(narrow) or dtype}, KV {settings['kv_cache_dtype']}"
    return line if set(by_format) == {dtype} else f"{line}, the rest {dtype}"


def rests_on(answer: Mapping[str, Any]) -> str:
    """Return a line on the evidence of an answer: tier, measured share of GPU time, and what was not measured."""
    share = f"{percent(answer['measured_share'])} of GPU time" if answer["measured_share"] is not None else ""
    words = {"target-measured": f" ({share})", "log-corrected": f" ({share})", "gpu-measured": f" (measured: {share})"}
    share = words.get(answer["tier"], "")
    missing = answer["not_measured"]
    return f"kernel latencies: {answer['tier']}{share}{f'; not measured: {missing}' if missing else ''}"


def evidence_table(evidence: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Return a table of the evidence for each component of the steps; ``evidence``: as in the JSON of `simulate`.

    >>> row = {"component": "experts", "tier": "gpu-measured", "measured_share": 0.2, "evidence": "sweep of a: b"}
    >>> evidence_table([row]).rows
    [{'component': 'experts', 'tier': 'gpu-measured', 'measured': '20%', 'rests on': 'sweep of a: b'}]
    """
    rows = [
        {"component": f"{row['pool']}: {row['component']}" if row.get("pool") else row["component"]}
        | {"tier": row["tier"], "measured": percent(row["measured_share"]), "rests on": row["evidence"]}
        for row in evidence
    ]
    return Table(title, rows)


def memory_lines(memory: Mapping[str, Any], max_model_len: int, tokens: str) -> list[str]:
    """Return the lines on the memory of a GPU and the capacity of its KV cache; ``tokens``: of what these are."""
    parts = ", ".join(
        f"{name} {gib(memory[column])}"
        for name, column in (
            ("weights", "weights_bytes"),
            ("activations", "activations_bytes"),
            ("graphs", "graphs_bytes"),
            ("KV cache", "kv_bytes"),
        )
    )
    return [
        f"memory per GPU: {gib(memory['memory_bytes'])} GiB, usable {gib(memory['usable_bytes'])}: {parts}",
        f"KV cache: {memory['kv_cache_tokens']:,} tokens {tokens}; fits {number(memory['max_concurrency'])} "
        f"requests of {max_model_len:,} tokens",
    ]
