"""Writes the launch command of a deployment (vLLM, SGLang, TensorRT-LLM), by the table ``engine_flags``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from kernelsight.catalog.model_names import served_name
from kernelsight.catalog.tables import catalogue_yaml, facts
from kernelsight.errors import InvalidInput
from kernelsight.escape import shell_line
from kernelsight.files.bounded_values import parse_json
from kernelsight.files.budget import OPTIONS
from kernelsight.scenario.flags import DEPLOYMENT_FLAGS
from kernelsight.scenario.launch.engine_options import Option, options
from kernelsight.scenario.launch.kv_tiers import tier_options
from kernelsight.scenario.launch.rules import BLOCK_TOKENS

OPTIONS_FILE = "options.yaml"
# flags that a launch command does not express: hardware, engine version, prediction tier, and acceptance of drafts
BESIDE = frozenset("model gpu engine engine_version tier draft_acceptance_rate draft_acceptance".split())
# the tables of engines' defaults
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "expert_parallel_size")
DEFAULTS = ("engine_presets", "engine_sizes", "engine_memory")


def engine_words(engine: str) -> dict[str, Any]:
    """Return the words of an engine's commands and files, by ``launch_words.yaml``."""
    return catalogue_yaml("launch_words")["engines"][engine]


class LaunchCommand(NamedTuple):
    """A launch command for a shell."""

    line: str
    options_file: str | None  # text of the options file that it names (TensorRT-LLM)
    unsaid: dict[str, Any]  # flags that no option of the engine expresses

    def __str__(self) -> str:
        if self.options_file is None:
            return self.line
        return f"cat > {OPTIONS_FILE} <<'EOF'\n{self.options_file}EOF\n{self.line}"


def launch_command(
    deployment: Mapping[str, Any],
    model: Mapping[str, Any] | None = None,
    speculative_model: str | None = None,
    asked: str | None = None,
    explicit: bool = False,
) -> LaunchCommand:
    """Return the command that launches a row of ``deployments``, or flags; ``model``: its row of ``models``.

    ``speculative_model``: the draft model's name; ``asked``: the model's name as a user wrote it, where the row has the
    catalogue's. Settings that are the engine's default are left out, unless ``explicit``. InvalidInput: no model.

    >>> launch_command({"model": "qwen3-32b", "engine": "vllm", "tp": 4, "max_num_seqs": 128}).line
    'vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-num-seqs 128'
    >>> launch_command({"model": "/m", "engine": "sglang", "tp": 1, "enable_prefix_caching": False}).line
    'python -m sglang.launch_server --model-path /m --disable-radix-cache'
    """
    if not deployment.get("model"):
        raise InvalidInput("the row of the deployment names no model; give model, such as qwen3-32b.")
    engine = deployment.get("engine") or "vllm"
    flags = {
        flag: deployment.get(column, deployment.get(flag))
        for flag, column in DEPLOYMENT_FLAGS.items()
        if flag not in BESIDE
    }
    flags["speculative_model"] = speculative_model and served_name(speculative_model)
    flags = {flag: value for flag, value in flags.items() if value is not None}
    served = served_name(asked or deployment["model"], (model or {}).get("huggingface_id"))
    flags_before = dict(flags)
    option_words, unsaid = _parallel(engine, flags, bool((model or {}).get("experts")))
    if flags.get("enable_chunked_prefill") is False and engine == "sglang":
        flags.pop("max_num_batched_tokens", None)
        option_words["--chunked-prefill-size"] = "-1"
    for flag, value in flags.items():
        if flag == "kv_cache_tokens" and engine == "vllm":  # its option counts blocks
            value, remainder = divmod(value, flags.get("block_size", BLOCK_TOKENS[engine]))
            unsaid |= {flag: flags[flag]} if remainder else {}
        if flag == "max_num_seqs" and engine == "trtllm":  # its option counts the requests of a micro-batch
            value, remainder = divmod(value, flags.get("pipeline_parallel_size", 1))
            unsaid |= {flag: flags[flag]} if remainder else {}
        default = _default(engine, flag, bool(deployment.get("engine_version")))
        is_default = value == default and flags[flag] == flags_before[flag]
        if flag in (*PARALLEL, *unsaid) or (is_default and not explicit):
            continue
        if flag == "kv_tier":
            tier_words = tier_options(engine, value, flags.get(PARALLEL[0], 1) * flags.get(PARALLEL[1], 1))
            option_words |= tier_words or {}
            unsaid |= {} if tier_words else {flag: value}
            continue
        option = _option(engine, flag, value)
        if option is None:
            if not is_default and not (flag == "enable_chunked_prefill" and engine == "sglang"):
                unsaid[flag] = value
        else:
            option_words[option[0]] = option[1]
    return _written(engine, served, option_words, unsaid)


def _parallel(engine: str, flags: dict[str, Any], moe: bool) -> tuple[dict[str, str | None], dict[str, Any]]:
    """Return (options of the parallel sizes, sizes that no option expresses); DP attention shares its engine's GPUs."""
    tp, pp, dp, ep = (flags.get(name, 1) for name in PARALLEL)
    option_words: dict[str, str | None] = {}
    unsaid: dict[str, Any] = {}
    shares_group = engine == "trtllm" or (engine == "sglang" and (moe or ep > 1))
    if dp > 1 and shares_group:
        if engine == "trtllm" and tp > 1:
            unsaid["data_parallel_size"] = dp
        else:
            option_words["--enable_attention_dp" if engine == "trtllm" else "--enable-dp-attention"] = None
            for name in ("max_num_seqs", "max_num_batched_tokens") if engine == "sglang" else ():
                if name in flags:
                    flags[name] *= dp
    sizes = {PARALLEL[0]: tp * dp if shares_group and not unsaid else tp, PARALLEL[1]: pp}
    if engine != "trtllm":
        sizes[PARALLEL[2]] = dp
    if ep > 1 and engine == "vllm":
        option_words |= {"--enable-expert-parallel": None} if ep == tp * dp else {}
        unsaid |= {} if ep == tp * dp else {PARALLEL[3]: ep}
    else:
        sizes[PARALLEL[3]] = ep
    written = {_first_option(engine, flag).option: str(size) for flag, size in sizes.items() if size > 1}
    return written | option_words, unsaid


@cache
def _of_flag(engine: str, flag: str) -> tuple[Option, ...]:
    return tuple(dict.fromkeys(row for row in options(engine).values() if row.flag == flag))


def _first_option(engine: str, flag: str) -> Option:
    return _of_flag(engine, flag)[0]


def _default(engine: str, flag: str, versioned: bool) -> Any:
    """Return the engine's default of a flag if it is the same for all GPUs and sizes, else None.

    ``versioned``: the engine's version is set, so that a default must hold in all versions; otherwise in the newest.
    """
    defaults = set()
    for table in DEFAULTS:
        rows = [row for row in facts(table).to_pylist() if row["engine"] == engine and flag in row]
        defaults |= {row[flag] for row in rows if versioned or row["from_version"] == rows[-1]["from_version"]}
    return defaults.pop() if len(defaults) == 1 else {"enforce_eager": False}.get(flag)


def _option(engine: str, flag: str, value: Any) -> tuple[str, str | None] | None:
    """Return (option, its value; None: a switch) that expresses a flag's value, or None."""
    text = str(value).lower() if isinstance(value, bool) else _number(value)
    for option in _of_flag(engine, flag):
        if option.rule == "negated":
            return option.option, str(not value).lower()
        if option.rule in ("draft_tokens", "draft_tree", "attention_dp", "largest", "rope"):
            continue
        option_value = option.written(text)
        if option.takes == "optional":
            return (option.option if value or engine == "trtllm" else "--no-" + option.option[2:]), (
                text if engine == "trtllm" else None
            )
        if option_value is not None:
            return option.option, None if option.takes == "none" else option_value
    return None


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _written(engine: str, model: str, option_words: Mapping[str, str | None], unsaid: dict[str, Any]) -> LaunchCommand:
    """Return the command; options with a dot become one JSON value, those of TensorRT-LLM a file."""
    own, nested = engine_words(engine), {}
    words = [*own["program"], model]
    for option, value in option_words.items():
        if "command" in own and option not in own["command"]:
            _put(nested, option.lstrip("-").split("."), value)
        elif "." in option:
            _put(nested, option.split("."), value)
        else:
            words += [option, *([] if value is None else [value])]
    if engine != "trtllm":
        for option, fields in nested.items():
            words += [option, json.dumps(fields)]
        return LaunchCommand(shell_line(words), None, unsaid)
    text = _as_yaml(nested)
    words += ["--config", OPTIONS_FILE] if nested else []
    return LaunchCommand(shell_line(words), text if nested else None, unsaid)


def _put(fields: dict[str, Any], path: list[str], value: str | None) -> None:
    """Set a nested field, with its value parsed as JSON where it is."""
    for name in path[:-1]:
        fields = fields.setdefault(name, {})
    fields[path[-1]] = plain = "true" if value is None else value
    with contextlib.suppress(InvalidInput):
        fields[path[-1]] = parse_json(plain, InvalidInput, OPTIONS)


def _as_yaml(fields: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(fields), sort_keys=False)
