"""Number formats of a checkpoint's matrices, from the quantisation fields of its config.

``kernelsight/catalog/quantization_methods.yaml`` states how each method writes them; it also explains itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from kernelsight import errors
from kernelsight.models.config_fields import ConfigFields, Field
from kernelsight.models.expressions import Expression
from kernelsight.models.field_files import FieldFile, FieldScope

# paths of the decoder in text-only and multimodal checkpoints
DECODER_PATHS = ("model.", "model.language_model.", "language_model.model.", "backbone.")

Form = tuple[str | None, str]
"""Format (None: the model's dtype) and activation scales: none, static or dynamic."""


class Method(NamedTuple):
    """A method of quantisation: its fields, its forms (condition, format, activation scales), and all that it states.

    ``quantization_methods.yaml`` says what there is beside fields and forms.
    """

    fields: dict[str, Field]
    forms: list[tuple[Expression, str | None, Expression]]
    stated: Mapping[str, Any]


@cache
def _bits() -> dict[str, tuple[float, float]]:
    """Return the bits of a weight and of an activation of each number format."""
    from kernelsight.catalog.tables import facts

    return {row["format"]: (row["weight_bits"], row["activation_bits"]) for row in facts("number_formats").to_pylist()}


def of_weights_alone(number_format: str) -> bool:
    """Return whether only weights are narrow, as in int4_wo: activations keep the model's dtype.

    >>> of_weights_alone("int4_wo"), of_weights_alone("nvfp4"), of_weights_alone("bf16")
    (True, False, False)
    """
    weight_bits, activation_bits = _bits()[number_format]
    return weight_bits < 16 <= activation_bits


@cache
def _methods() -> dict[str, Method]:
    """Return the methods by quant_method."""
    from kernelsight.catalog.tables import catalogue_yaml

    return {name: _method(name, stated) for name, stated in catalogue_yaml("quantization_methods").items()}


def _method(name: str, stated: Mapping[str, Any]) -> Method:
    reading = FieldFile("file", f"quantization_methods.yaml, {name}", "")
    fields, read = reading.fields(stated.get("fields", {})), reading.expression
    forms = [
        (read("when", form.get("when", True)), form.get("format"), read("scales", form.get("scales", "none")))
        for form in stated["forms"]
    ]
    return Method(fields, forms, stated)


def matches(pattern: str, module: str) -> bool:
    """Return whether a pattern of a quantisation tool matches a module, or a module that contains it.

    ``re:`` begins a regular expression, matched from the start of the name; ``*`` makes a glob; anything else matches
    whole dotted names, so that ``gate`` (a router) does not match ``gate_proj``; ``Linear`` is a class, every matrix.
    """
    names = [path + module.removeprefix("model.") for path in DECODER_PATHS]
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], name) for name in names)
    if "*" in pattern:
        return any(fnmatchcase(name, pattern) or fnmatchcase(name, pattern + ".*") for name in names)
    return pattern == "Linear" or any(f".{pattern}." in f".{name}." for name in names)


def _patterns(fields: ConfigFields, *names: str) -> list[str]:
    """Return all patterns in the lists ``names``; InvalidInput: one is no string, or an invalid regular expression."""
    patterns = [pattern for name in names for pattern in fields.read(name, kind="items", default=[])]
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


def _form(method: Method, config: ConfigFields) -> Form:
    """Return the form of modules by the fields of a block or of one of its groups; InvalidInput: none applies."""
    scope = FieldScope(method.fields, config)
    for when, number_format, scales in method.forms:
        if scope.value(when):
            return number_format, scope.value(scales)
    known = dict.fromkeys(number_format for _, number_format, _ in method.forms if number_format)
    stated = {(field.names or (name,))[0]: scope[name] for name, field in method.fields.items() if field.place(config)}
    (what, value), *more = stated.items() or [("quantization_config", {})]
    if more:
        what, value = "quantisation", ", ".join(f"{path} {each}" for path, each in stated.items())
    raise errors.config_unsupported(config.label, what, value, [f"forms of {', '.join(known)}"])


def _forms_of(fields: ConfigFields, method: Method) -> tuple[Callable[[str], str | None], str]:
    """Return the format of a module by its name, None: the model's dtype; and the activation scales of all."""
    base_name, groups_name, targets = (method.stated.get(name) for name in ("base", "groups", "targets"))
    groups: list[tuple[list[str], Form]] = []
    held = fields.inside(groups_name, default=None) if groups_name else None
    for name in held.values if held else ():
        group = held.inside(name)
        stated = _patterns(group, targets) if targets else _patterns(ConfigFields({name: [name]}, held.label), name)
        groups.append((stated, _form(method, group)))
    if targets and held is None:
        raise errors.config_field_missing(fields.label, groups_name or "")
    block = fields.inside(base_name) if base_name else fields
    base: Form = (None, "none") if targets or (groups and not base_name) else _form(method, block)
    excluded, only = _patterns(fields, *method.stated.get("except", ())), method.stated.get("only", "")

    def format_of(module: str) -> str | None:
        if only not in module or any(matches(pattern, module) for pattern in excluded):
            return None
        return next((form[0] for patterns, form in groups if any(matches(each, module) for each in patterns)), base[0])

    return format_of, _common_scales(scales for _, scales in (*(form for _, form in groups), base))


def _common_scales(scales: Iterable[str]) -> str:
    """Return the activation scales of a model whose modules have several: dynamic before static before none."""
    quantised = set(scales) - {"none"}
    return "dynamic" if "dynamic" in quantised else next(iter(quantised), "none")


def _block_of(fields: ConfigFields, quant_config: Mapping[str, Any] | None) -> tuple[ConfigFields, str] | None:
    """Return the quantisation block of a config with its method; None: not quantised. InvalidInput: unknown method."""
    if quant_config is not None:
        block = ConfigFields(quant_config, f"{fields.label}, hf_quant_config.json").inside("quantization")
        return block, "modelopt"
    block = fields.inside("quantization_config", default=None)
    if not block:
        # MLX writes another block, and no quantization_config
        block = fields.inside("quantization", default=None)
        return (block, "mlx") if block else None
    # earlier exports of ModelOpt have quant_algo, but no quant_method
    fallback = {"default": "modelopt"} if "quant_algo" in block.values else {}
    method = block.read("quant_method", kind="text", **fallback)
    if method not in _methods():
        raise errors.config_unsupported(block.label, "quant_method", method, sorted(_methods()))
    return block, method


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


def _format_of_experts(method: Method, *places: ConfigFields) -> str | None:
    """Return the format that a config states for its routed experts alone; None: none."""
    known = method.stated.get("experts", {})
    stated = (place.values.get(known.get("field", "")) for place in places)
    return next((known[each] for each in stated if isinstance(each, str) and each in known), None)


def read_formats(
    fields: ConfigFields, quant_config: Mapping[str, Any] | None, modules: Mapping[str, Sequence[str]], dtype: str
) -> tuple[dict[str, str], list[str]]:
    """Return the format columns of a ``models`` row, and notes on classes with mixed formats.

    ``modules``: representative module names by class (attention, ffn, expert, mtp). ``quant_config``: content of
    ModelOpt's hf_quant_config.json, which has precedence over ``quantization_config``. InvalidInput: a method or format
    that is not supported.
    """
    found = _block_of(fields, quant_config)
    method = _methods()[found[1]] if found else None
    format_of, scales = _forms_of(found[0], method) if found else (lambda module: None, "none")
    experts = _format_of_experts(method, fields, found[0]) if found else None
    columns, notes = {}, []
    for name, members in modules.items():
        stated = {(".experts." in module and experts) or format_of(module) or dtype for module in members}
        formats = stated or {dtype}
        # of several the widest is used, with a note
        columns[f"{name}_format"] = max(sorted(formats), key=lambda each: _bits()[each])
        if len(formats) > 1:
            notes.append(f"{name} weights mix {' and '.join(sorted(formats))}: counted as {columns[f'{name}_format']}")
    scaled = {value for value in columns.values() if not of_weights_alone(value)} - {dtype}
    columns["activation_scales"] = scales if scaled else "none"
    block = found[0].read("weight_block_size", kind="block", default=None) if found else None
    columns["weight_block"] = min(block) if block else None
    columns["kv_cache_format"] = _kv_cache_format(found[0], dtype) if found else dtype
    return columns, notes
