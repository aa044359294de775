"""Flags that simulate a measured run, from the run and the matching rows of the table ``recipes``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kernelsight import laboratory
from kernelsight.errors import InvalidInput
from kernelsight.files.own import own_json
from kernelsight.models.expressions import Impossible, Malformed, read_expression

# columns of a recipe that are flags
STATED = (
    *("quantization", "kv_cache_dtype", "gpu_memory_utilization", "enable_chunked_prefill"),
    *("async_scheduling", "prefill_policy", "enable_expert_parallel", "moe_backend", "batch_wait_timeout_iters"),
    *("batch_wait_max_tokens_ratio", "sampling", "scheduler_recv_interval", "range_ratio", "num_speculative_tokens"),
    *(
        "prompt_graphs",
        "expert_exchange",
        "attention_dp_balance",
        "attention_dp_timeout_iters",
        "attention_dp_batching_wait_iters",
        "request_delay_ms",
    ),
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


def matches(recipe: Mapping[str, Any], run: Mapping[str, Any]) -> bool:
    """Whether a recipe applies to a run: every column that it sets matches."""
    for name, run_column in EQUAL.items():
        if recipe.get(name) is not None and recipe[name] != run.get(run_column):
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
    """Return the value of a sum such as ``2*isl + 64`` or ``concurrency - 1``, 1 or more; InvalidInput if malformed."""
    try:
        return max(read_expression(text).evaluate(run), 1)
    except (Malformed, Impossible, LookupError):
        raise InvalidInput(
            f"recipes: {text!r} is not a sum of numbers and multiples of isl, osl and concurrency."
        ) from None


def numbered(version: str | None) -> str | None:
    """Return a version if it begins with a number; None for a nightly build, which is simulated as the newest version.

    >>> numbered("0.11.2"), numbered("nightly-dev-20260216")
    ('0.11.2', None)
    """
    return version if version and re.match(r"v?\d", version) else None


def is_prose(run: Mapping[str, Any]) -> bool:
    """Whether a run's prompts are natural text; text of random tokens takes longer to tokenise."""
    return run.get("prompt_text") == "prose"


def prompt_text_of(run: Mapping[str, Any], recipes: Iterable[Mapping[str, Any]]) -> str | None:
    """Return ``prompt_text`` of the last matching recipe that sets it, such as "prose"; else None."""
    prompt_texts = [recipe["prompt_text"] for recipe in recipes if recipe.get("prompt_text") and matches(recipe, run)]
    return prompt_texts[-1] if prompt_texts else None


def flags_of(run: Mapping[str, Any], recipes: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return the flags of ``simulate`` that reproduce a run, and the names of the recipes applied.

    ``run``: a row of ``measured_runs``; ``recipes``: rows of ``recipes``, of which later ones win. If several engines
    share the load, one is simulated with its share of the concurrency. A run with a concurrency is a closed loop, one
    with a request rate an open loop.
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
    stated = own_json(run["stated_flags"]) if run.get("stated_flags") else {}
    flags |= stated
    # a repeated prompt is a shared prefix of all its tokens but the last
    if distinct_prompts := flags.pop("distinct_prompts", recipe_fields.get("distinct_prompts")):
        flags |= {"num_prefixes": distinct_prompts, "prefix_len": run["isl"] - 1, "input_len": 1}
    if limit := flags.pop("output_len_limit", None):  # the client's limit, not the engine's
        limited = laboratory.part("runs.limited_outputs", "a client's limit of outputs (output_len_limit)")
        flags = limited.with_limited_outputs(flags, limit)
    if "ramp_up_strategy" in flags:  # the stated rate is the ramp's mean
        flags["request_rate"] = None
    if "trace" in flags:  # a trace replaces synthetic loads; its requests may be those of a closed loop
        flags = {name: value for name, value in flags.items() if name not in OF_SYNTHETIC_LOADS or name in stated}
    return {name: value for name, value in flags.items() if value is not None}, names
