"""Number formats of a checkpoint's matrices, from the quantisation fields of its config (AWQ, GPTQ, ModelOpt, ...)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from kernelsight import errors
from kernelsight.models.config_fields import ConfigFields

WEIGHT_ONLY = {"int4_wo", "int8_wo", "nvfp4_wo", "mxfp4_wo"}
# widest first: for a class with mixed formats the widest is used, with a note
WIDTH_ORDER = (
    *(
        "fp32",
        "bf16",
        "fp16",
        "fp8_block",
        "fp8",
        "int8",
        "int8_wo",
        "nvfp4_wo",
        "mxfp4_wo",
        "int4_wo",
        "nvfp4",
        "mxfp4",
    ),
)
MODELOPT_FORMATS = {
    "FP8": ("fp8", "static"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", "dynamic"),
    "NVFP4": ("nvfp4", "dynamic"),
    "NVFP4_AWQ": ("nvfp4", "dynamic"),
    "W4A16_AWQ": ("int4_wo", "none"),
    "W4A16_NVFP4": ("nvfp4_wo", "none"),
    "W8A16": ("int8_wo", "none"),
    "W8A8_SQ_PER_CHANNEL": ("int8", "dynamic"),
}
# formats of a compressed-tensors group by (number type, bits of a weight, whether activations are quantised)
COMPRESSED_FORMATS = {
    ("float", 8, True): "fp8",
    ("float", 4, True): "nvfp4",
    ("float", 4, False): "nvfp4_wo",
    ("int", 8, True): "int8",
    ("int", 8, False): "int8_wo",
    ("int", 4, False): "int4_wo",
}
# paths of the decoder in text-only and multimodal checkpoints
DECODER_PATHS = ("model.", "model.language_model.", "language_model.model.", "backbone.")

FormatOf = Callable[[str], "str | None"]
"""Function from a module's name to its format, or None where it has the model's dtype."""


def matches(pattern: str, module: str) -> bool:
    """Return whether a pattern of a quantisation tool matches a module, or a module that contains it.

    ``re:`` begins a regular expression, matched from the start of the name; ``*`` makes a glob; anything else matches
    whole dotted names, so that ``gate`` (a router) does not match ``gate_proj``.

    >>> matches("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj"), matches("gate", "mlp.gate_proj")
    (True, False)
    """
    names = [path + module.removeprefix("model.") for path in DECODER_PATHS]
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], name) for name in names)
    if "*" in pattern:
        return any(fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".*") for name in names)
    return any(f".{pattern}." in f".{name}." for name in names)


def _patterns(fields: ConfigFields, *names: str) -> list[str]:
    """Return all patterns in the lists ``names``; InvalidInput: one is no string, or an invalid regular expression."""
    patterns = [pattern for name in names for pattern in fields.items(name, default=[])]
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise errors.config_field_wrong(fields.label, names[0], pattern, "a list of module names")
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except re.error:
                expected = "a list of module names and valid regular expressions"
                raise errors.config_field_wrong(fields.label, names[0], pattern, expected) from None
    return patterns


def _except(fields: ConfigFields, number_format: str, *names: str) -> FormatOf:
    """Return a FormatOf that is ``number_format`` for all modules except those that patterns in ``names`` match."""
    patterns = _patterns(fields, *names)
    return lambda module: None if any(matches(p, module) for p in patterns) else number_format


def _fp8(fields: ConfigFields) -> tuple[FormatOf, str]:
    """Return formats and activation scales of method fp8, in blocks where weight_block_size is present."""
    block = fields.items("weight_block_size", default=None)
    scales = fields.choice("activation_scheme", among={"dynamic": "dynamic", "static": "static"}, default="dynamic")
    if block is not None and not (
        len(block) == 2 and all(type(block_size) is int and block_size > 0 for block_size in block)
    ):
        raise errors.config_field_wrong(fields.label, "weight_block_size", block, "two whole numbers above 0")
    number_format = "fp8" if block is None else "fp8_block"
    return _except(fields, number_format, "modules_to_not_convert", "ignored_layers"), scales


def _mxfp4(fields: ConfigFields) -> tuple[FormatOf, str]:
    """Return formats and activation scales of method mxfp4, which in transformers quantises experts alone."""
    format_of = _except(fields, "mxfp4", "modules_to_not_convert")
    return lambda module: format_of(module) if ".experts" in module else None, "dynamic"


def _integer_weights(fields: ConfigFields) -> tuple[FormatOf, str]:
    """Return formats and activation scales (none) of awq and gptq: 4 or 8 bits, weights only."""
    bits = fields.size("bits", "w_bit")
    if bits not in (4, 8):
        raise errors.config_unsupported(fields.label, "bits", bits, ["4", "8"])
    return _except(fields, f"int{bits}_wo", "modules_to_not_convert"), "none"


def _group_format(group: ConfigFields) -> tuple[str, str]:
    """Return format and activation scales (none, static, dynamic) of one compressed-tensors group."""
    weights, inputs = group.inside("weights"), group.inside("input_activations", default=None)
    key = (weights.text("type"), weights.size("num_bits"), inputs is not None)
    number_format = COMPRESSED_FORMATS.get(key)
    if number_format == "fp8" and weights.text("strategy", default=None) == "block":
        number_format = "fp8_block"
    elif number_format in ("nvfp4", "nvfp4_wo") and weights.size("group_size") != 16:
        number_format = number_format.replace("nv", "mx") if weights.size("group_size") == 32 else None
    if number_format is None or (key[2] and inputs.size("num_bits") != key[1]):
        difference = f"{key[0]}{key[1]} weights, {'quantised' if key[2] else 'plain'} activations"
        supported = "float8, float4 and int8 for weights and activations; float4, int8 and int4 for weights only"
        raise errors.config_unsupported(group.label, "quantisation", difference, [supported])
    if number_format in WEIGHT_ONLY:
        return number_format, "none"
    # "local": NVFP4's scale per 16 values, computed at run time
    static = inputs.values.get("dynamic") is False and number_format in ("fp8", "int8")
    return number_format, "static" if static else "dynamic"


def _compressed_tensors(fields: ConfigFields) -> tuple[FormatOf, str]:
    """Return formats and activation scales of compressed-tensors: the first group whose targets match a module."""
    groups = fields.inside("config_groups")
    group_formats = []
    for name in groups.values:
        group = groups.inside(name)
        group_formats.append((_patterns(group, "targets"), *_group_format(group)))
    ignored = _patterns(fields, "ignore")

    def format_of(module: str) -> str | None:
        if any(matches(pattern, module) for pattern in ignored):
            return None
        for targets, number_format, _ in group_formats:
            # "Linear", a class of layers, is every matrix that is looked up here
            if any(target == "Linear" or matches(target, module) for target in targets):
                return number_format
        return None

    return format_of, _common_scales(scales for _, _, scales in group_formats)


def _common_scales(scales: Iterable[str]) -> str:
    """Return the activation scales of a model whose modules have several: dynamic before static before none."""
    quantised = set(scales) - {"none"}
    return "dynamic" if "dynamic" in quantised else next(iter(quantised), "none")


def _modelopt_format(fields: ConfigFields) -> tuple[str, str]:
    """Return format and activation scales of ModelOpt's quant_algo."""
    algorithm = fields.text("quant_algo")
    if algorithm not in MODELOPT_FORMATS:
        supported = [*sorted(MODELOPT_FORMATS), "MIXED_PRECISION"]
        raise errors.config_unsupported(fields.label, "quant_algo", algorithm, supported)
    return MODELOPT_FORMATS[algorithm]


def _modelopt(fields: ConfigFields) -> tuple[FormatOf, str]:
    """Return formats and activation scales of ModelOpt: one quant_algo, or MIXED_PRECISION by module."""
    excluded = ("exclude_modules", "ignore")
    if fields.text("quant_algo", default=None) is None:
        return lambda module: None, "none"
    if fields.text("quant_algo") != "MIXED_PRECISION":
        number_format, scales = _modelopt_format(fields)
        return _except(fields, number_format, *excluded), scales
    layers = fields.inside("quantized_layers")
    layer_formats = {name: _modelopt_format(layers.inside(name)) for name in layers.values}
    included = _except(fields, "included", *excluded)

    def format_of(module: str) -> str | None:
        formats = (number_format for name, (number_format, _) in layer_formats.items() if matches(name, module))
        return next(formats, None) if included(module) else None

    return format_of, _common_scales(scales for _, scales in layer_formats.values())


METHODS: dict[str, Callable[[ConfigFields], tuple[FormatOf, str]]] = {
    "awq": _integer_weights,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "gptq": _integer_weights,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mxfp4": _mxfp4,
}


def _method(fields: ConfigFields) -> tuple[FormatOf, str]:
    """Return formats and activation scales by quant_method; InvalidInput: a method that is not supported."""
    # earlier exports of ModelOpt have quant_algo, but no quant_method
    fallback = "modelopt" if "quant_algo" in fields.values else None
    method = fields.text("quant_method", **({"default": fallback} if fallback else {}))
    if method not in METHODS:
        raise errors.config_unsupported(fields.label, "quant_method", method, sorted(METHODS))
    return METHODS[method](fields)


def _kv_cache_format(fields: ConfigFields, dtype: str) -> str:
    """Return fp8 if ModelOpt's or compressed-tensors' fields say so, else ``dtype``; InvalidInput: another format."""
    algorithm = fields.values.get("kv_cache_quant_algo") or fields.values.get("kv_cache_scheme")
    if algorithm is None:
        return dtype
    if algorithm == "FP8" or (
        isinstance(algorithm, Mapping) and algorithm.get("num_bits") == 8 and algorithm.get("type") == "float"
    ):
        return "fp8"
    raise errors.config_unsupported(fields.label, "KV cache quantisation", algorithm, ["FP8"])


def read_formats(
    fields: ConfigFields, quant_config: Mapping[str, Any] | None, modules: Mapping[str, Sequence[str]], dtype: str
) -> tuple[dict[str, str], list[str]]:
    """Return the format columns of a ``models`` row, and notes on classes with mixed formats.

    ``modules``: representative module names by class (attention, ffn, expert, mtp). ``quant_config``: content of
    ModelOpt's hf_quant_config.json, which has precedence over ``quantization_config``. InvalidInput: a method or format
    that is not supported.
    """
    if quant_config is not None:
        quantised = ConfigFields(quant_config, f"{fields.label}, hf_quant_config.json").inside("quantization")
        format_of, scales = _modelopt(quantised)
    else:
        quantised = fields.inside("quantization_config", default=None)
        format_of, scales = _method(quantised) if quantised else (lambda module: None, "none")
    columns, notes = {}, []
    for name, members in modules.items():
        formats = {format_of(module) or dtype for module in members}
        columns[f"{name}_format"] = min(formats, key=WIDTH_ORDER.index)
        if len(formats) > 1:
            notes.append(f"{name} weights mix {' and '.join(sorted(formats))}: counted as {columns[f'{name}_format']}")
    scaled = set(columns.values()) - WEIGHT_ONLY - {dtype}
    columns["activation_scales"] = scales if scaled else "none"
    columns["kv_cache_format"] = _kv_cache_format(quantised, dtype) if quantised else dtype
    return columns, notes
