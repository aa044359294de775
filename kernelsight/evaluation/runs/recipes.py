"""Flags of scenarios for measured runs, from the matching rows of the table ``recipes``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.evaluation.runs.limited_outputs import with_limited_outputs

# columns of a recipe that are flags
STATED = (
    *("quantization", "kv_cache_dtype", "gpu_memory_utilization", "enable_chunked_prefill"),
    *("async_scheduling", "prefill_policy", "enable_expert_parallel", "moe_backend", "batch_wait_timeout_iters"),
    *("batch_wait_max_tokens_ratio", "sampling", "scheduler_recv_interval", "range_ratio", "num_speculative_tokens"),
    *("expert_exchange", "attention_dp_balance", "attention_dp_timeout_iters", "attention_dp_batching_wait_iters"),
)
EQUAL = {
    "campaign": "campaign",
    "model": "model",
    "engine": "engine",
    "precision": "quantization",
    "speculative": "speculative",
    "ep": "ep",
    "isl": "isl",
    "osl": "osl",
}
# columns of disaggregated runs, and their flags
DISAGGREGATED = {
    "prefill_workers": "prefill_replicas",
    "prefill_tp": "prefill_tensor_parallel_size",
    "prefill_dp": "prefill_data_parallel_size",
    "prefill_ep": "prefill_expert_parallel_size",
    "decode_workers": "decode_replicas",
}
STARTS = ("gpu", "engine_version")
OF_SYNTHETIC_LOADS = ("max_concurrency", "request_rate", "num_prompts", "input_len", "output_len", "range_ratio")
TERM = re.compile(r"(?:(\d+)\s*\*\s*)?(isl|osl|concurrency)|(\d+)")
SIGNED = re.compile(r"([+-])([^+-]*)")


def matches(recipe: Mapping[str, Any], run: Mapping[str, Any]) -> bool:
    """Return whether a recipe applies to a run: every column that it sets matches.

    >>> matches({"gpu": "b200", "largest_tp": 4}, {"gpu": "b200_sxm", "tp": 2, "dp": 1})
    True
    """
    for name, of_run in EQUAL.items():
        if recipe.get(name) is not None and recipe[name] != run.get(of_run):
            return False
    for name in STARTS:
        if recipe.get(name) is not None and not (run[name] or "").startswith(recipe[name]):
            return False
    first, last = recipe.get("from_date"), recipe.get("until_date")
    if (first or last) and not (run["measured_on"] and (first or "") <= run["measured_on"] <= (last or "9999")):
        return False
    if not (recipe.get("least_tp") or 0) <= run["tp"] <= (recipe.get("largest_tp") or run["tp"]):
        return False
    if (recipe.get("least_dp") or 0) > run["dp"]:
        return False
    least = recipe.get("least_concurrency")
    return least is None or (run["max_concurrency"] or 0) >= least


def tokens_of(text: str, run: Mapping[str, Any]) -> int:
    """Return the value of a sum such as ``2*isl + 64`` or ``concurrency - 1``, at least 1; InvalidInput if malformed.

    >>> tokens_of("2*isl + concurrency + 64", {"isl": 1000, "osl": 10, "concurrency": 4})
    2068
    """
    total = 0
    for sign, part in SIGNED.findall(f"+{text}"):
        term = TERM.fullmatch(part.strip())
        if term is None:
            raise InvalidInput(f"recipes: {text!r} is not a sum of numbers and multiples of isl, osl and concurrency.")
        value = int(term[3]) if term[3] else int(term[1] or 1) * run[term[2]]
        total += -value if sign == "-" else value
    return max(total, 1)


def numbered(version: str | None) -> str | None:
    """Return a version that begins with a number; None for a nightly build, simulated as the newest version.

    >>> numbered("0.11.2"), numbered("nightly-dev-20260216")
    ('0.11.2', None)
    """
    return version if version and re.match(r"v?\d", version) else None


def is_prose(run: Mapping[str, Any]) -> bool:
    """Return whether a run's prompts are prose; text of random tokens takes longer to tokenise."""
    return run.get("prompt_text") == "prose"


def prompt_text_of(run: Mapping[str, Any], recipes: Iterable[Mapping[str, Any]]) -> str | None:
    """Return what a run's prompts are made of, by the last recipe that says so."""
    prompt_texts = [recipe["prompt_text"] for recipe in recipes if recipe.get("prompt_text") and matches(recipe, run)]
    return prompt_texts[-1] if prompt_texts else None


def flags_of(run: Mapping[str, Any], recipes: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the flags of ``simulate`` that replay a run, and the names of the recipes applied.

    If several engines share the load, one is simulated with its part of the concurrency. A concurrency gives a closed
    loop, else the request rate an open one.
    """
    concurrency = -(-run["max_concurrency"] // run["workers"]) if run["max_concurrency"] else None
    sizes = {**run, "isl": run["isl"] or 0, "osl": run["osl"] or 0, "concurrency": concurrency or 0}
    recipe_fields: dict[str, Any] = {}
    names = []
    for recipe in recipes:
        if matches(recipe, run):
            names.append(recipe["recipe"])
            recipe_fields |= {name: value for name, value in recipe.items() if value is not None}
    if "checkpoint" not in recipe_fields:
        recipe_fields["checkpoint"] = run["model"]
    prompts = run.get("num_prompts") or recipe_fields.get("prompts_per_concurrency", 10) * (concurrency or 10)
    flags = {
        "model": recipe_fields["checkpoint"],
        "gpu": run["gpu"],
        "tensor_parallel_size": run["tp"],
        "pipeline_parallel_size": run["pp"],
        "data_parallel_size": run["dp"],
        "expert_parallel_size": run["ep"],
        "engine": run["engine"],
        "engine_version": numbered(run["engine_version"]) or recipe_fields.get("served_version"),
        **{name: recipe_fields[name] for name in STATED if name in recipe_fields},
        "max_concurrency": concurrency,
        "request_rate": None if concurrency else run["request_rate"],
        "num_prompts": prompts,
        "input_len": run["isl"],
        "output_len": run["osl"],
    }
    for name in ("max_num_batched_tokens", "max_num_seqs", "max_cudagraph_capture_size"):
        if name in recipe_fields:
            flags[name] = tokens_of(recipe_fields[name], sizes)
    for name, flag in DISAGGREGATED.items():
        flags[flag] = run.get(name)
    if run.get("num_speculative_tokens"):
        flags |= {name: run.get(name) for name in ("num_speculative_tokens", "draft_acceptance_rate")}
    if flags.get("enable_expert_parallel"):
        del flags["expert_parallel_size"]
    if run.get("stated_flags"):
        flags |= json.loads(run["stated_flags"])
    # of prompts that are sent again all but the last token belong to a shared prefix
    if distinct := flags.pop("distinct_prompts", recipe_fields.get("distinct_prompts")):
        flags |= {"num_prefixes": distinct, "prefix_len": run["isl"] - 1, "input_len": 1}
    if most := flags.pop("output_len_limit", None):  # of the client, not of the engine
        flags = with_limited_outputs(flags, most)
    if "ramp_up_strategy" in flags:  # whose mean the stated rate is
        flags["request_rate"] = None
    if "trace" in flags:  # which has the requests
        flags = {name: value for name, value in flags.items() if name not in OF_SYNTHETIC_LOADS}
    return {name: value for name, value in flags.items() if value is not None}, names
