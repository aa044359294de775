"""From flags to tables: one row of flags is one scenario; its deployment and its load become rows of their tables."""

from __future__ import annotations

import hashlib
import json
import math
import numbers
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput, unknown

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.session import Session

# flag: column of ``deployments``
DEPLOYMENT_FLAGS = {
    "model": "model",
    "gpu": "gpu",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "expert_parallel_size": "ep",
    "engine": "engine",
    "engine_version": "engine_version",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "block_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_tokens": "kv_cache_tokens",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enable_prefix_caching": "enable_prefix_caching",
    "enforce_eager": "enforce_eager",
    "moe_backend": "moe_backend",
    "async_scheduling": "async_scheduling",
    "scheduling": "scheduling",
    "scheduling_policy": "scheduling_policy",
    "capacity_policy": "capacity_policy",
    "schedule_conservativeness": "schedule_conservativeness",
    "batch_wait_timeout_iters": "batch_wait_timeout_iters",
    "batch_wait_max_tokens_ratio": "batch_wait_max_tokens_ratio",
    "scheduler_recv_interval": "scheduler_recv_interval",
    "max_num_partial_prefills": "max_num_partial_prefills",
    "max_long_partial_prefills": "max_long_partial_prefills",
    "tier": "tier",
}
# flag: the flag of the engines that decode which it stands for where others compute the prompts; left open: the same
PREFILL_FLAGS = {
    f"prefill_{flag}": flag
    for flag in (
        *("gpu", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "expert_parallel_size"),
        *("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_tokens"),
    )
}
# flags of a scenario on two deployments: one that computes prompts, and one that decodes
POOL_FLAGS = ("prefill_replicas", "decode_replicas", "kv_transfer_fabric")
LOAD_FLAGS = (
    "trace",
    "request_rate",
    "burstiness",
    "ramp_up_strategy",
    "ramp_up_start_rps",
    "ramp_up_end_rps",
    "max_concurrency",
    "num_prompts",
    "num_warmups",
    "input_len",
    "output_len",
    "range_ratio",
    "length_distribution",
    "input_len_cv",
    "output_len_cv",
    "lengths_from",
    "prefix_len",
    "num_prefixes",
    "num_priorities",
    "num_turns",
    "think_time_s",
    "router",
    "router_cache_threshold",
    "router_balance_abs_threshold",
    "router_balance_rel_threshold",
    "seed",
    "goodput_ttft_ms",
    "goodput_tpot_ms",
    "goodput_e2el_ms",
    "keep_steps",
)
DEPLOYMENT_DEFAULTS = {"tp": 1, "pp": 1, "dp": 1, "ep": 1, "engine": "vllm"}
LOAD_DEFAULTS = {"burstiness": 1.0, "range_ratio": 1.0, "seed": 0, "keep_steps": False}
SAME_AS_LEFT_OUT = {"num_warmups": 0, "num_turns": 1, "router": "round_robin"}
# the smallest value of each flag that is a whole number; the largest of parallel sizes is the contract's
WHOLE_NUMBERS = {
    **dict.fromkeys(
        (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "expert_parallel_size",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "kv_cache_tokens",
            "max_concurrency",
            "num_prompts",
            "input_len",
            "output_len",
            "num_prefixes",
            "num_priorities",
            "scheduler_recv_interval",
            "num_turns",
            "prefill_tensor_parallel_size",
            "prefill_pipeline_parallel_size",
            "prefill_data_parallel_size",
            "prefill_expert_parallel_size",
            "prefill_max_num_seqs",
            "prefill_max_num_batched_tokens",
            "prefill_kv_cache_tokens",
            "prefill_replicas",
            "decode_replicas",
        ),
        1,
    ),
    "num_warmups": 0,
    "prefix_len": 0,
    "router_balance_abs_threshold": 0,
    "long_prefill_token_threshold": 0,
    "batch_wait_timeout_iters": 0,
    "max_num_partial_prefills": 0,
    "max_long_partial_prefills": 0,
    "seed": 0,
}
LARGEST_PARALLEL_SIZE = 1024
LARGEST_WHOLE_NUMBER = 2**53
POSITIVE_NUMBERS = (
    *("request_rate", "burstiness", "ramp_up_start_rps", "ramp_up_end_rps", "input_len_cv", "output_len_cv"),
    *("goodput_ttft_ms", "goodput_tpot_ms", "goodput_e2el_ms"),
)
WORDS = {
    "ramp_up_strategy": ("linear", "exponential"),
    "length_distribution": ("fixed", "uniform", "lognormal", "empirical"),
    "scheduling": ("continuous", "static"),
    "scheduling_policy": ("fcfs", "priority"),
    "capacity_policy": ("max_utilization", "guaranteed_no_evict", "new_token_ratio"),
    "router": ("round_robin", "least_loaded", "prefix_aware"),
}
SHARES = ("gpu_memory_utilization", "prefill_gpu_memory_utilization", "range_ratio")
SHARES_OR_NONE = ("batch_wait_max_tokens_ratio", "router_cache_threshold")
NOT_NEGATIVE = ("schedule_conservativeness",)
# the smallest value of other numbers
LEAST = {"think_time_s": 0.0, "router_balance_rel_threshold": 1.0}
# the simulated clock counts nanoseconds in 64 bits, which is room for 290 years
LONGEST_LOAD_S = 1e9
# spelled so by other tools
ALIASES = {
    "isl": "input_len",
    "osl": "output_len",
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "expert_parallel_size",
    "think_time": "think_time_s",
    "prefill_tp": "prefill_tensor_parallel_size",
    "prefill_pp": "prefill_pipeline_parallel_size",
    "prefill_dp": "prefill_data_parallel_size",
}
AUTO_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp8_e4m3": "fp8", "auto": None}


def normalise(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags by their full names without those left open; UnknownName for a flag that does not exist."""
    known = {*DEPLOYMENT_FLAGS, *LOAD_FLAGS, *PREFILL_FLAGS, *POOL_FLAGS, "enable_expert_parallel"}
    named = {ALIASES.get(name, name): value for name, value in flags.items() if value is not None}
    for name in named:
        if name not in known:
            raise unknown("flag", name, known | set(ALIASES), "`kernelsight simulate --help` lists them.")
    named = {name: _checked(name, value) for name, value in named.items()}
    for name in ("dtype", "kv_cache_dtype"):
        if name in named:
            named[name] = AUTO_DTYPES.get(named[name], named[name])
    if named.pop("enable_expert_parallel", False):
        named["expert_parallel_size"] = named.get("tensor_parallel_size", 1) * named.get("data_parallel_size", 1)
    return {
        name: value
        for name, value in named.items()
        if value is not None and not (name in SAME_AS_LEFT_OUT and value == SAME_AS_LEFT_OUT[name])
    }


def _checked(name: str, value: Any) -> Any:
    """Return a flag's value in its own type, so that 8 and 8.0 name the same scenario; InvalidInput tells the range."""
    if value == "":
        raise InvalidInput(f"{name} is empty; give a value, or leave it out.")
    if name in WHOLE_NUMBERS:
        least, most = (
            WHOLE_NUMBERS[name],
            LARGEST_PARALLEL_SIZE if name.endswith(("parallel_size", "_replicas")) else LARGEST_WHOLE_NUMBER,
        )
        if not _is_number(value) or value != math.floor(value) or not least <= value <= most:
            bound = f"of at least {least}" if most == LARGEST_WHOLE_NUMBER else f"from {least} to {most}"
            raise InvalidInput(f"{name} is {value!r}; give a whole number {bound}.")
        return int(value)
    if name in POSITIVE_NUMBERS:
        if not _is_number(value) or not value > 0:
            raise InvalidInput(f"{name} is {value!r}; give a finite number above 0.")
        return float(value)
    if name in SHARES:
        if not _is_number(value) or not 0 < value <= 1:
            raise InvalidInput(f"{name} is {value!r}; give a number above 0 and at most 1.")
        return float(value)
    if name in SHARES_OR_NONE:
        if not _is_number(value) or not 0 <= value <= 1:
            raise InvalidInput(f"{name} is {value!r}; give a number from 0 to 1.")
        return float(value)
    if name in NOT_NEGATIVE:
        if not _is_number(value) or not value >= 0:
            raise InvalidInput(f"{name} is {value!r}; give a finite number, 0 or more.")
        return float(value)
    if name in LEAST:
        if not _is_number(value) or not LEAST[name] <= value <= LONGEST_LOAD_S:
            raise InvalidInput(f"{name} is {value!r}; give a number from {LEAST[name]:g} to {LONGEST_LOAD_S:g}.")
        return float(value)
    if name == "engine_version" and not any(letter.isdigit() for letter in str(value)):
        raise InvalidInput(f"engine_version is {value!r}; give a version such as 0.11.0, or leave it out.")
    if name in WORDS and value not in WORDS[name]:
        raise InvalidInput(f"{name} is {value!r}; give one of {', '.join(WORDS[name])}.")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def identity(values: Mapping[str, Any], digits: int) -> str:
    """Return the first hexadecimal digits of the SHA-256 of the canonical JSON: the same values, the same name."""
    canonical = json.dumps(
        {name: value for name, value in values.items() if value is not None}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:digits]


def deployment_row(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``deployments`` row of normalised flags; InvalidInput where the model or the GPU is missing."""
    for name in ("model", "gpu"):
        if name not in flags:
            raise InvalidInput(f"no {name} is named; give --{name}.")
    row = DEPLOYMENT_DEFAULTS | {column: flags[flag] for flag, column in DEPLOYMENT_FLAGS.items() if flag in flags}
    return {"deployment_id": identity(row, 12), **row}


def prefill_row(flags: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the ``deployments`` row of the engines that compute the prompts; None where the same engines decode.

    Experts that are spread over all GPUs of the engines that decode are spread over all of these. InvalidInput: a flag
    of disaggregated serving without ``prefill_replicas``, or static batches.
    """
    stated = [name for name in (*PREFILL_FLAGS, *POOL_FLAGS) if name in flags]
    if "prefill_replicas" not in flags:
        if stated:
            raise InvalidInput(
                f"{stated[0]} is about disaggregated serving, and no engines compute prompts for others; "
                "give prefill_replicas too."
            )
        return None
    if flags.get("scheduling") == "static":
        raise InvalidInput("static batches prefill and decode in one engine; leave out scheduling or prefill_replicas.")
    own = dict(flags) | {flag: flags[name] for name, flag in PREFILL_FLAGS.items() if name in flags}
    sizes = [one.get("tensor_parallel_size", 1) * one.get("data_parallel_size", 1) for one in (flags, own)]
    if own.get("expert_parallel_size", 1) == sizes[0] > 1 and "prefill_expert_parallel_size" not in flags:
        own["expert_parallel_size"] = sizes[1]
    return deployment_row(own)


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
    named = {**{name: value for name, value in deployment.items() if name != "deployment_id"}, **load}
    return {"scenario_id": identity(named, 16), "deployment_id": deployment["deployment_id"], **load}


def deployments_of(scenario: Mapping[str, Any]) -> list[str]:
    """Return the deployments that serve a scenario: the one that decodes, then the one that computes its prompts."""
    prefill = scenario.get("prefill_deployment_id")
    return [scenario["deployment_id"], *([prefill] if prefill else [])]


def give_plan(session: Session, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Give the ``deployments`` and ``scenarios`` of rows of flags; return the scenario ids, one a row."""
    flags = [resolve_names(session, normalise(row)) for row in rows]
    deployments = [deployment_row(row) for row in flags]
    scenarios = [scenario_row(row, deployment) for row, deployment in zip(flags, deployments, strict=True)]
    deployments += [prefill for row in flags if (prefill := prefill_row(row))]
    give_rows(session, "deployments", {row["deployment_id"]: row for row in deployments}.values())
    give_rows(session, "scenarios", {row["scenario_id"]: row for row in scenarios}.values())
    return [row["scenario_id"] for row in scenarios]


def give_rows(session: Session, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Give rows as a table of the contract's types; columns that no row has are null."""
    session.give(table, as_table(session, table, list(rows)))


def as_table(session: Session, table: str, rows: list[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table of the contract's types; InvalidInput: a value that does not fit its column."""
    import pyarrow as pa

    columns = {}
    for column in session.graph.known(table).columns:
        values = [row.get(column.name) for row in rows]
        if column.arrow_type == pa.float64():
            values = [
                float(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in values
            ]
        elif column.arrow_type == pa.int64():
            values = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
        try:
            if not all(_keeps_value(value, column.arrow_type) for value in values):
                raise pa.ArrowInvalid("a value would be changed")
            columns[column.name] = pa.array(values, column.arrow_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            wrong = next(value for value in values if not _fits(value, column.arrow_type))
            raise InvalidInput(f"{column.name} is {wrong!r}; give a value of type {column.type}.") from None
    return pa.table(columns)


def _keeps_value(value: Any, kind: pa.DataType) -> bool:
    """Tell whether Arrow would take the value as it is: it cuts 1.5 to 1, and takes true for 1.0."""
    import pyarrow as pa

    if isinstance(value, bool):
        return pa.types.is_boolean(kind)
    return not (pa.types.is_integer(kind) and isinstance(value, float))


def _fits(value: Any, kind: pa.DataType) -> bool:
    import pyarrow as pa

    if not _keeps_value(value, kind):
        return False
    try:
        pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True


def resolve_names(session: Session, flags: dict[str, Any]) -> dict[str, Any]:
    """Return flags with the model's and the GPU's catalogue names; a config.json by path becomes rows of its own.

    UnknownName: neither a catalogue name nor a path, with the nearest names.
    """
    from kernelsight.read.config import read_config_file, resolve

    flags = dict(flags)
    if "model" in flags:
        models = set(session.table("models")["model"].to_pylist())
        path = Path(str(flags["model"]))
        if path.suffix == ".json" or (path.exists() and flags["model"] not in models):
            row, layers = read_config_file(path)
            session.extend("models", as_table(session, "models", [row]))
            kept = [layer for layer in session.table("model_layers").to_pylist() if layer["model"] != row["model"]]
            give_rows(session, "model_layers", [*kept, *layers])
            flags["model"] = row["model"]
        elif flags["model"] not in models:
            flags["model"] = resolve(str(flags["model"]))
    for name in [flag for flag in ("gpu", "prefill_gpu") if flag in flags]:
        gpus = set(session.table("gpus")["gpu"].to_pylist())
        spelled = str(flags[name]).lower().replace("-", "_")
        flags[name] = flags[name] if flags[name] in gpus else spelled
        if flags[name] not in gpus:
            raise unknown("GPU", flags[name], gpus, "Any other is a row: --gpus FILE.")
    if "kv_transfer_fabric" in flags:
        known = set(session.table("fabrics")["fabric"].to_pylist())
        if flags["kv_transfer_fabric"] not in known:
            raise unknown("fabric", flags["kv_transfer_fabric"], known, "The table fabrics lists them.")
    if "quantization" in flags:
        known = set(session.table("quantizations")["quantization"].to_pylist())
        if flags["quantization"] not in known:
            raise unknown("quantization", flags["quantization"], known)
    if "moe_backend" in flags:
        kernels = session.table("kernel_implementations").to_pylist()
        known = {row["implementation"] for row in kernels if row["family"] == "moe"}
        if flags["moe_backend"] not in known:
            raise unknown("moe_backend", flags["moe_backend"], known, "The table kernel_implementations lists them.")
    return flags


def what_if(session: Session, grid: Any, table: str = "scenario_summary") -> pa.Table:
    """Serve every row of flags in one go and return its flags beside its row of ``table``; the session stays as it was.

    ``grid``: rows of flags as a list of dicts, or anything with ``__arrow_c_stream__``. InvalidInput: neither, no row.
    """
    import pyarrow as pa

    rows = pa.table(grid).to_pylist() if hasattr(grid, "__arrow_c_stream__") else grid
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidInput(
            f"what_if takes one row of flags or more, as a list of dicts or an Arrow table, and was given {grid!r:.60}."
        )
    with session.fork() as fork:
        names = give_plan(fork, rows)
        asked = pa.table({"scenario_id": names, "position": list(range(len(names)))})
        # a flag that every row leaves open says nothing, and has no type to join by
        names_of_flags = dict.fromkeys(name for row in rows for name in row if row[name] is not None)
        flags = pa.table({name: [row.get(name) for row in rows] for name in names_of_flags})
        answer = fork.table(table)
        taken = set(answer.column_names)
        for name in flags.column_names:
            if name not in taken:
                asked = asked.append_column(name, flags[name])
        joined = asked.join(answer, "scenario_id", join_type="inner")
        return joined.sort_by("position").drop_columns(["position"])
