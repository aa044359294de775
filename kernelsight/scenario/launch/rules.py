"""Rules of ``engine_flags``, a function each: options of a launch line whose meaning depends on other options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput, KernelSightError
from kernelsight.files.bounded_values import parse_json
from kernelsight.models.config_fields import ConfigFields, longest_context
from kernelsight.scenario.launch.kv_tiers import kv_connector, kv_tier, kv_variable
from kernelsight.scenario.speculation import methods

if TYPE_CHECKING:
    from kernelsight.scenario.launch.command_options import Setting
    from kernelsight.scenario.launch.engine_options import Option
    from kernelsight.scenario.launch.reading import Reading

BLOCK_TOKENS = {"vllm": 16, "sglang": 1, "trtllm": 32}


def _quantization(reading: Reading, option: Option, setting: Setting, value: str | None) -> None:
    """--quantization with a quantised checkpoint means the checkpoint's formats, else quantisation at load time."""
    from kernelsight.scenario.model_variants import is_quantised

    model = reading.flags.get("model")
    quantised = None if model is None else _is_quantised(is_quantised, model)
    if value is None and quantised is False and setting.value != "unquant":
        reading.ignore(setting, "not_modelled", "the checkpoint is not quantised, and no engine would load it so")
    elif value is None or quantised:
        reading.use(setting, option.flag, None, "the checkpoint's formats, which come from the model")
    else:
        reading.use(setting, option.flag, value, "weights are quantised while they are loaded")


def is_known_model(name: str) -> bool:
    """Return whether a name is a model of the catalogue, a variant of one, or a folder or file with a config."""
    from kernelsight.scenario.model_variants import is_quantised

    return "$" not in name and _is_quantised(is_quantised, name) is not None


def _is_quantised(is_known: Callable[[str], bool], model: str) -> bool | None:
    """Return whether a model's checkpoint is quantised; None: the model is not known."""
    try:
        return is_known(model)
    except KernelSightError:
        return None


def _blocks(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """A KV cache capacity in blocks: set it in tokens."""
    tokens = reading.flags.get("block_size", BLOCK_TOKENS[reading.engine])
    reading.use(setting, option.flag, _whole_number(setting, value) * tokens, option.reason)


def _per_stage(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """TensorRT-LLM's max batch size counts the requests of a micro-batch; every pipeline stage has one."""
    stages = reading.flags.get("pipeline_parallel_size", 1)
    reason = f"requests of a micro-batch, times {stages} pipeline stages" if stages > 1 else option.reason
    reading.use(setting, option.flag, _whole_number(setting, value) * stages, reason)


def _largest(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """A list of CUDA graph sizes: the largest counts."""
    numbers = value.strip("[]").replace(",", " ").split()
    if numbers:
        reading.use(setting, option.flag, max(_whole_number(setting, number) for number in numbers), option.reason)
    else:
        reading.ignore(setting, "none", "an empty list: the engine chooses")


def _cudagraph_mode(reading: Reading, option: Option, setting: Setting, value: str | None) -> None:
    """vLLM's modes of CUDA graphs: NONE has none at all; in FULL_DECODE_ONLY steps with prompts have none."""
    if setting.value.upper() in ("NONE", "0"):
        reading.use(setting, "enforce_eager", "true")
    else:
        reading.use(setting, option.flag, value, option.reason if value is None else None)


def _negated(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """A switch that turns the flag off."""
    reading.use(setting, option.flag, "false" if value == "true" else "true")


def _chunked_prefill(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """SGLang's --chunked-prefill-size: -1 turns chunked prefill off, other values are the tokens of a chunk."""
    if value == "-1":
        reading.use(setting, "enable_chunked_prefill", "false")
    else:
        reading.use(setting, option.flag, value)


def _attention_dp(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """DP attention: replicas share the GPUs of the tensor-parallel group; SGLang states their number (dp)."""
    flags, sizes = reading.flags, ("tensor_parallel_size", "data_parallel_size")
    tp = flags.get(sizes[0], 1)
    if value == "false":
        reading.ignore(setting, "none", "the default")
        return
    if reading.engine == "trtllm":
        replicas = tp
    elif value == "true":
        replicas = flags.get(sizes[1], 1)
    else:
        replicas = _whole_number(setting, value)
    if tp % replicas:
        raise InvalidInput(
            f"{setting.words} of the launch line: {replicas} attention replicas do not divide the tensor-parallel size "
            f"{tp}; use a size that does."
        )
    reading.use(setting, sizes[1], replicas, option.reason)
    flags[sizes[0]] = tp // replicas
    for name in ("max_num_seqs", "max_num_batched_tokens") if reading.engine == "sglang" else ():
        if name in flags:
            flags[name] = max(flags[name] // replicas, 1)
    reading.words = [
        word._replace(value=flags[word.flag], reason=f"divided by {replicas} attention replicas")
        if word.effect == "used" and word.flag != sizes[1] and word.value != flags.get(word.flag)
        else word
        for word in reading.words
    ]


def _expert_group(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """SGLang spreads the experts over the whole tensor-parallel group with an all-to-all (DeepEP)."""
    if value == "false":
        reading.ignore(setting, "none", "the default")
        return
    if option.flag == "expert_exchange":
        reading.use(setting, option.flag, value, option.reason)
        if value != "all_to_all":
            return
    size = reading.flags.get("tensor_parallel_size", 1)
    reading.use(setting, "expert_parallel_size", size, "the engine spreads the experts over its tensor-parallel group")


def _rope(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """JSON that overrides config fields, or rope_scaling: YaRN extends the longest context."""
    try:
        fields = parse_json(value, InvalidInput)
    except InvalidInput:
        fields = None
    read_fields = fields if isinstance(fields, dict) else {}
    inner = read_fields.get("text_config")
    reach = max(
        _positions(config)
        for config in ({"rope_scaling": read_fields}, read_fields, inner if isinstance(inner, dict) else {})
    )
    if reach:
        reading.use(setting, option.flag, reach, "so far reaches the model's RoPE")
    else:
        reading.ignore(setting, "not_modelled", "the shape of the model is that of its config.json")


def _positions(config: dict[str, Any]) -> int:
    positions = config.get("max_position_embeddings")
    return longest_context(ConfigFields(config, "the launch line"), positions if isinstance(positions, int) else 0)


def _speculation(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """Speculative decoding: method, number of draft tokens, draft model; ignored if the method is not modelled."""
    method = _drafts(reading)
    if method is None:
        reading.ignore(setting, "not_modelled", "this source of drafts is not predicted: steps have no draft tokens")
    elif option.flag == "speculative_model" and methods()[method]["proposer"] not in ("head", "model"):
        reading.ignore(setting, "none", f"drafts of {method} need no other model")
    elif option.flag == "num_speculative_tokens" and _is_tree(reading):
        reading.use(setting, "speculative_num_steps", value, option.reason)
    elif option.flag == "speculative_method":
        reading.use(setting, option.flag, method, None)
    else:
        reading.use(setting, option.flag, value, option.reason)
        if option.flag == "speculative_model" and method != "draft_model":
            reading.flags.setdefault("speculative_method", method)


def _drafts(reading: Reading) -> str | None:
    """Return the speculative method of a line, of ``draft_acceptance_rates``; None: another one, or none.

    Where a line names none, the engines take that of a head by the name of its checkpoint.
    """
    pending_values = {
        option.rule if option.rule != "speculation" else option.flag: value for option, _, value in reading.pending
    }
    refused = any("not predicted" in (word.reason or "") and _names_method(word.words) for word in reading.words)
    if (
        refused
        or (_is_tree(reading) and "draft_tokens" not in pending_values)
        or "num_speculative_tokens" not in pending_values | _counted(pending_values)
    ):
        return None
    method, model = (pending_values.get(name) for name in ("speculative_method", "speculative_model"))
    if reading.engine == "sglang" and method == "eagle" and not model:
        return "mtp"
    heads = [name for name, row in methods().items() if row["proposer"] == "head" and name in str(model).lower()]
    return method or (max(heads, key=len) if heads else "draft_model" if model else "mtp")


def _is_tree(reading: Reading) -> bool:
    return any(option.rule == "draft_tree" and value != "1" for option, _, value in reading.pending)


def _counted(pending_values: dict[str, Any]) -> dict[str, Any]:
    return {"num_speculative_tokens": None} if "draft_tokens" in pending_values else {}


def _names_method(words: str) -> bool:
    return any(name in words for name in ("method", "algo", "decoding_type"))


def _draft_tokens(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """SGLang's number of tokens to verify: one more than the draft tokens."""
    if _drafts(reading) is None:
        reading.ignore(setting, "not_modelled", "this source of drafts is not predicted: steps have no draft tokens")
    elif not _is_tree(reading) and any(
        pending_option.flag == option.flag and pending_option.rule == "speculation"
        for pending_option, _, _ in reading.pending
    ):
        reading.ignore(setting, "none", "the number of draft steps says it")
    else:
        reading.use(setting, option.flag, max(_whole_number(setting, value) - 1, 1), option.reason)


def _draft_tree(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """SGLang's top-k of drafts: above 1 drafts form a tree."""
    if value == "1":
        reading.ignore(setting, "none", option.reason)
    elif _drafts(reading) is None:
        reading.ignore(
            setting, "not_modelled", "a tree needs --speculative-num-draft-tokens: steps have no draft tokens"
        )
    else:
        reading.use(setting, "speculative_eagle_topk", value, option.reason)


def _adapters(reading: Reading, option: Option, setting: Setting, value: str) -> None:
    """An option of adapters, which turns them on beside what it states."""
    reading.use(setting, "enable_lora", "true")
    if option.flag != "enable_lora":
        reading.use(setting, option.flag, value)


def _whole_number(setting: Setting, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        value_shown = "" if setting.of_file else f", and has {text!r}"
        raise InvalidInput(f"{setting.words} of the launch line needs whole numbers{value_shown}.") from None


RULES: dict[str, Callable[[Reading, Option, Setting, Any], None]] = {
    "quantization": _quantization,
    "blocks": _blocks,
    "per_stage": _per_stage,
    "largest": _largest,
    "cudagraph_mode": _cudagraph_mode,
    "negated": _negated,
    "chunked_prefill": _chunked_prefill,
    "attention_dp": _attention_dp,
    "expert_group": _expert_group,
    "rope": _rope,
    "speculation": _speculation,
    "draft_tokens": _draft_tokens,
    "draft_tree": _draft_tree,
    "adapters": _adapters,
    "kv_tier": kv_tier,
    "kv_connector": kv_connector,
    "kv_variable": kv_variable,
}
