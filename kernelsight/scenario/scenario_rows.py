"""From the flags of one scenario to its rows of ``deployments`` and ``scenarios``; names resolved by the catalogue."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput, UnknownName, speaks_flags, unknown
from kernelsight.scenario.flag import LONGEST_LOAD_S
from kernelsight.scenario.flag_values import typed_value
from kernelsight.scenario.flags import (
    ALIASES,
    DEPLOYMENT_FLAGS,
    FLAGS,
    LOAD_FLAGS,
    POOL_FLAGS,
    PREFILL_FLAGS,
    SPECULATION,
)
from kernelsight.scenario.load_rules import with_finite_rate, with_prompts
from kernelsight.scenario.speculation import head_name, head_rows, layer_rows, methods, proposer, with_method

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# flags of the target model that a draft model does not inherit
NOT_INHERITED_BY_DRAFT = "pipeline_parallel_size kv_cache_tokens kv_tier kv_write_policy sampling enable_lora".split()
DEPLOYMENT_DEFAULTS = {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "engine": "vllm"}
LOAD_DEFAULTS = {"burstiness": 1.0, "range_ratio": 1.0, "seed": 0}
# values that mean the same as an unset flag
SAME_AS_LEFT_OUT = {"num_warmups": 0, "num_turns": 1, "router": "round_robin", "replicas": 1}
AUTO_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "auto": None,
}
# flags that name a kernel, with the families whose kernels they may be
BACKENDS = {"attention_backend": ("prefill_attention", "decode_attention"), "moe_backend": ("moe",)}
# flags whose value is a row of a table: flag, table, column
OF_TABLES = (
    ("kv_transfer_fabric", "fabrics", "fabric"),
    ("quantization", "quantizations", "quantization"),
    ("cpu", "cpus", "cpu"),
)


def normalise(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return typed flags by full name, the launch line filled in, unset ones left out; UnknownName: no such flag."""
    by_name = {ALIASES.get(name, name): value for name, value in flags.items() if value is not None}
    if "launch" in by_name or "read_launch_files" in by_name:
        from kernelsight.scenario.launch.deployments import with_launch_line

        by_name = with_launch_line(by_name)
    by_name = with_finite_rate(by_name)
    for name in by_name:
        if name not in FLAGS:
            raise unknown("flag", name, {*FLAGS, *ALIASES}, "`kernelsight simulate --help` lists them.")
    by_name = with_prompts({name: typed_value(name, value) for name, value in by_name.items()})
    for name in ("dtype", "kv_cache_dtype"):
        if name in by_name:
            by_name[name] = AUTO_DTYPES.get(by_name[name], by_name[name])
    if by_name.pop("enable_expert_parallel", False):
        by_name["expert_parallel_size"] = by_name.get("tensor_parallel_size", 1) * by_name.get("data_parallel_size", 1)
    by_name = with_method(by_name)
    return {
        name: value
        for name, value in by_name.items()
        if value is not None and not (name in SAME_AS_LEFT_OUT and value == SAME_AS_LEFT_OUT[name])
    }


def identity(values: Mapping[str, Any], digits: int) -> str:
    """Return the id of values: the first hexadecimal digits of the SHA-256 of their canonical JSON."""
    canonical = json.dumps(
        {name: value for name, value in values.items() if value is not None}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:digits]


def deployment_row(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``deployments`` row of normalised flags.

    InvalidInput: the model or the GPU is missing, or static batching with prefill_policy mixed.
    """
    for name in ("model", "gpu"):
        if name not in flags:
            raise InvalidInput(f"no {name} is given; set --{name}.")
    if flags.get("scheduling") == "static" and flags.get("prefill_policy") == "mixed":
        raise InvalidInput("prefill_policy mixed cannot be used with static scheduling; remove one of them.")
    row = DEPLOYMENT_DEFAULTS | {column: flags[flag] for flag, column in DEPLOYMENT_FLAGS.items() if flag in flags}
    draft = draft_row(flags)
    if draft is not None:
        row["draft_deployment_id"] = draft["deployment_id"]
    return {"deployment_id": identity(row, 12), **row}


def draft_row(flags: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the ``deployments`` row of the draft model, on the same GPUs; None without one."""
    if "speculative_model" not in flags:
        return None
    left_out = {*(flag.name for flag in SPECULATION), *NOT_INHERITED_BY_DRAFT}
    if proposer(flags) != "layer":
        left_out |= {"quantization", *BACKENDS}  # of another checkpoint
    draft_flags = {name: value for name, value in flags.items() if name not in left_out}
    if methods()[flags["speculative_method"]]["passes"] == "block":  # its attention takes all drafts at once
        draft_flags |= {"num_speculative_tokens": flags["num_speculative_tokens"], "speculative_method": "ngram"}
    return deployment_row(draft_flags | {"model": flags["speculative_model"]})


def deployment_rows(flags: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the ``deployments`` rows of normalised flags: decode, prefill and draft deployments."""
    prefill = prefill_flags(flags)
    pools = [flags] if prefill is None else [flags, prefill]
    return [*map(deployment_row, pools), *(draft for pool in pools if (draft := draft_row(pool)))]


def prefill_flags(flags: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the flags of the prefill replicas; None without P/D disaggregation.

    Where the decode engines spread experts over all their GPUs, the prefill engines do. InvalidInput: a flag of
    disaggregation without ``prefill_replicas``, or static batching.
    """
    pool_flags_set = [name for name in (*PREFILL_FLAGS, *POOL_FLAGS) if name in flags]
    if "prefill_replicas" not in flags:
        if pool_flags_set:
            raise InvalidInput(f"{pool_flags_set[0]} needs P/D disaggregation, but prefill_replicas is unset; set it.")
        return None
    if "replicas" in flags:
        raise InvalidInput("replicas cannot be used with prefill_replicas; set prefill_replicas and decode_replicas.")
    if flags.get("scheduling") == "static":
        raise InvalidInput("static scheduling cannot be used with prefill_replicas; remove one of them.")
    flags_of_prefill = dict(flags) | {flag: flags[name] for name, flag in PREFILL_FLAGS.items() if name in flags}
    sizes = [
        pool_flags.get("tensor_parallel_size", 1) * pool_flags.get("data_parallel_size", 1)
        for pool_flags in (flags, flags_of_prefill)
    ]
    if flags_of_prefill.get("expert_parallel_size", 1) == sizes[0] > 1 and "prefill_expert_parallel_size" not in flags:
        flags_of_prefill["expert_parallel_size"] = sizes[1]
    return flags_of_prefill


def prefill_row(flags: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the ``deployments`` row of the prefill replicas; see ``prefill_flags``."""
    flags_of_prefill = prefill_flags(flags)
    return None if flags_of_prefill is None else deployment_row(flags_of_prefill)


def scenario_row(flags: Mapping[str, Any], deployment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``scenarios`` row of normalised flags on a deployment."""
    load = LOAD_DEFAULTS | {name: flags[name] for name in LOAD_FLAGS if name in flags}
    for name in ("request_rate", "ramp_up_start_rps", "ramp_up_end_rps"):
        if load.get("num_prompts", 0) / load.get(name, math.inf) > LONGEST_LOAD_S:
            raise InvalidInput(
                f"{name} {load[name]} spreads {load['num_prompts']} requests over more than 30 years; "
                "give a higher rate."
            )
    prefill = prefill_row(flags)
    if prefill is not None:
        load |= {name: flags[name] for name in POOL_FLAGS if name in flags}
        load["prefill_deployment_id"] = prefill["deployment_id"]
    identified_by = {**{name: value for name, value in deployment.items() if name != "deployment_id"}, **load}
    return {"scenario_id": identity(identified_by, 16), "deployment_id": deployment["deployment_id"], **load}


def deployments_of(scenario: Mapping[str, Any]) -> list[str]:
    """Return the deployment ids that serve a scenario: decode, then prefill."""
    prefill = scenario.get("prefill_deployment_id")
    return [scenario["deployment_id"], *([prefill] if prefill else [])]


def with_drafts(keys: Iterable[str], deployments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return deployment ids and those of their draft models, each once."""
    keys = list(keys)
    drafts = [draft for key in keys if key in deployments and (draft := deployments[key].get("draft_deployment_id"))]
    return list(dict.fromkeys(keys + drafts))


def resolve_names(session: Session, flags: dict[str, Any]) -> dict[str, Any]:
    """Return flags with the catalogue names of model and GPU; a config.json by path is added to the session's models.

    UnknownName: neither a catalogue name nor a path, with the nearest names.
    """
    flags = dict(flags)
    if "model_like" in flags:
        flags["model"] = give_model_like(session, flags.get("model"), flags.pop("model_like"))
    architecture = flags.pop("architecture", None)
    proposes = proposer(flags)
    for name in [flag for flag in ("model", "speculative_model") if flag in flags]:
        if name == "model" or proposes != "head":
            flags[name] = resolve_model(session, str(flags[name]), architecture)
    if "model" in flags and "max_position_embeddings" in flags:
        positions = flags.pop("max_position_embeddings")
        flags["model"] = give_longer_context(session, flags["model"], positions, flags.get("max_model_len"))
    if proposes in ("layer", "head"):
        flags["speculative_model"] = give_head(
            session, flags["model"], flags["speculative_method"], flags.get("speculative_model"), architecture
        )
    for name in [flag for flag in ("gpu", "prefill_gpu") if flag in flags]:
        flags[name] = resolve_gpu(session, str(flags[name]))
    for name, table, column in OF_TABLES:
        if name in flags:
            names_known = set(session.table(table)[column].to_pylist())
            if flags[name] not in names_known:
                raise unknown(column, flags[name], names_known, f"The table {table} lists them.")
    for name, families in BACKENDS.items():
        if name in flags:
            kernels = session.table("kernel_implementations").to_pylist()
            names_known = {row["implementation"] for row in kernels if row["family"] in families}
            if flags[name] not in names_known:
                raise unknown(name, flags[name], names_known, "The table kernel_implementations lists them.")
    return flags


def resolve_model(session: Session, name: str, architecture: str | None = None) -> str:
    """Return the name of a model in the session's tables; a config.json, or a variant of a model, is added to them.

    ``architecture``: a user's file that states how a config.json is read.

    UnknownName: neither a catalogue name nor an identifier nor a path, with the nearest names.
    """
    from kernelsight.catalog.model_names import find_variant, resolve
    from kernelsight.models.config import read_config_file
    from kernelsight.scenario.model_variants import variant_rows

    models = session.table("models")["model"].to_pylist()
    path = Path(name)
    if path.suffix in (".json", ".gguf") or (os.path.exists(name) and name not in models):
        row, layers = read_config_file(path, architecture)
        give_model(session, row, layers)
        return row["model"]
    if name in models:
        return name
    try:
        return resolve(name)
    except UnknownName:
        variant = find_variant(name)
        if variant is None:
            raise
    row, layers = variant_rows(name, variant, *model_rows(session, variant.base))
    give_model(session, row, layers)
    return row["model"]


def resolve_gpu(session: Session, name: str) -> str:
    """Return the name of a GPU in the session's tables; UnknownName with the nearest names."""
    from kernelsight.catalog.gpu_names import gpu_named

    advice = "Define other GPUs with --gpus FILE." if speaks_flags() else "The table gpus has them."
    return gpu_named(name, session.table("gpus")["gpu"].to_pylist(), advice)


def gpu_assumptions(session: Session, flags: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each GPU whose name in ``flags`` is another one's in results, on the board of several."""
    from kernelsight.catalog.gpu_names import find_gpu

    gpus, sentences = set(session.table("gpus")["gpu"].to_pylist()), []
    for name in dict.fromkeys(str(flags[flag]) for flag in ("gpu", "prefill_gpu") if flags.get(flag) is not None):
        gpu_name = None if {name, name.lower().replace("-", "_")} & gpus else find_gpu(name)
        if gpu_name is not None:
            sentences.append(f"{name} is read as {gpu_name.gpu}{f': {gpu_name.assumed}' if gpu_name.assumed else ''}")
    return sentences


def give_model_like(session: Session, name: str | None, like: str) -> str:
    """Add a model with the shape and formats of another to a session's tables; return its name."""
    from kernelsight.catalog.model_names import catalogue_name
    from kernelsight.scenario.model_variants import derived_rows

    base = resolve_model(session, str(like))
    new_name = catalogue_name(name.rstrip("/")) if name else f"like-{base}"
    if new_name == base:
        return base
    note = f"{new_name} is taken to have the shape and formats of {base} (--model-like)"
    give_model(session, *derived_rows(new_name, *model_rows(session, base), {"huggingface_id": None}, note))
    return new_name


def give_longer_context(session: Session, name: str, positions: int, longest: int | None) -> str:
    """Add a variant of a model with a RoPE of ``positions`` (YaRN) to a session's tables; return its name.

    The model itself where its config has as many, or where ``longest`` (max_model_len) needs fewer than its config has.
    """
    from kernelsight.scenario.model_variants import derived_rows

    row, layers = model_rows(session, name)
    if positions == row["max_positions"] or (longest or math.inf) <= positions < row["max_positions"]:
        return name
    longer = f"{name}-{positions}-positions"
    note = f"{name} is taken to reach {positions:,} positions (--max-position-embeddings)"
    give_model(session, *derived_rows(longer, row, layers, {"max_positions": positions}, note))
    return longer


def model_rows(session: Session, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the rows of one model of a session in ``models`` and ``model_layers``."""
    row = next(row for row in session.table("models").to_pylist() if row["model"] == name)
    return row, [layer for layer in session.table("model_layers").to_pylist() if layer["model"] == name]


def give_model(session: Session, row: Mapping[str, Any], layers: Iterable[Mapping[str, Any]]) -> None:
    """Add a model to a session's tables; it replaces one of the same name."""
    session.extend("models", [row])
    other_layers = [layer for layer in session.table("model_layers").to_pylist() if layer["model"] != row["model"]]
    session.give("model_layers", [*other_layers, *layers])


def give_head(session: Session, model: str, method: str, named: str | None, architecture: str | None) -> str:
    """Add the layer or head of a model that drafts for it to the session's tables as a draft model; return its name.

    ``named``: checkpoint or config.json of a head; one that is not known is estimated from the model. InvalidInput: the
    model has no such layer, or ``named`` is a whole model.
    """
    if named is not None and named != head_name(model, method):
        try:
            head = resolve_model(session, str(named), architecture)
        except UnknownName:
            head = None
        if head is not None:
            if model_rows(session, head)[0]["draft_inputs"] is None:
                raise InvalidInput(
                    f"{named} is a whole model, not a head of {method}; use --speculative-method draft_model."
                )
            return head
    name = head_name(model, method)
    if name not in session.table("models")["model"].to_pylist():
        rows = model_rows(session, model)
        is_head = methods()[method]["proposer"] == "head"
        give_model(session, *(head_rows(*rows, method, named) if is_head else layer_rows(*rows)))
    return name
