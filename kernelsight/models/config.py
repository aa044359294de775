"""Converts a Hugging Face config.json to rows of ``models`` and ``model_layers``; loads the catalogue of models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelsight import errors
from kernelsight.catalog.model_names import catalogue_name, entries
from kernelsight.catalog.tables import catalogue_yaml, contracts
from kernelsight.files.bounded_values import read_json
from kernelsight.files.gguf_files import read_gguf
from kernelsight.files.own import own_json
from kernelsight.models.architectures import Shape, architecture_of, shape_of
from kernelsight.models.config_fields import ConfigFields, check_heads, check_rope, check_total
from kernelsight.models.quantization import read_formats

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# objects that hold a config's language model: in multimodal configs, and in those of heads that speculators trains
INNER = ("text_config", "transformer_layer_config")
# fields beside them that apply to the language model
OUTER_FIELDS = (
    *("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config", "vision_config"),
    *("draft_vocab_size", "aux_hidden_state_layer_ids"),
)
Rows = tuple[dict[str, Any], list[dict[str, Any]]]
"""One ``models`` row and its ``model_layers`` rows."""


def read_config(
    config: Mapping[str, Any],
    *,
    model: str,
    huggingface_id: str | None,
    source: str,
    quant_config: Mapping[str, Any] | None = None,
    own_architecture: Path | None = None,
) -> Rows:
    """Return the ``models`` row of a config.json's content, and its ``model_layers`` rows.

    ``quant_config``: content of ModelOpt's hf_quant_config.json. ``own_architecture``: a user's file, which
    has precedence over those of the catalogue. InvalidInput names the field: it is missing, a size is
    not a whole number above 0, the architecture or quantisation is not supported.
    """
    label = huggingface_id or source
    if not isinstance(config, Mapping):
        raise errors.config_unreadable(label, "it is not a JSON object")
    architecture = next(iter(ConfigFields(config, label).read("architectures", kind="items")), None)
    known = architecture_of(architecture, label, own_architecture)
    fields = _language_model(config, label)
    fields.read("sliding_window", default=None, least=0)  # whether or not a layer has one
    shape = shape_of(known, fields)
    columns = shape.columns
    check_heads(fields, columns)
    check_rope(fields)
    check_total(fields, columns)
    dtype = fields.read("dtype", "torch_dtype", kind="choice", values=DTYPES, default=None)
    # published configs without a dtype (gpt-oss, MiniMax-M2.5) belong to bfloat16 checkpoints
    notes = [*shape.notes, *([] if dtype else ["the config has no dtype: bf16 assumed"])]
    dtype = dtype or "bf16"
    formats, format_notes = read_formats(fields, quant_config, _representative_modules(shape), dtype)
    row = dict.fromkeys(contracts()["models"].column_names) | columns | formats
    row |= {"model": model, "huggingface_id": huggingface_id, "architecture": architecture}
    row |= {"dtype": dtype, "notes": "; ".join(notes + format_notes) or None, "source": source}
    return row, _layer_rows(row, shape)


def _language_model(config: Mapping[str, Any], label: str) -> ConfigFields:
    """Return the fields of the language model, which some configs have in an object of their own."""
    holders = (ConfigFields(config, label).inside(name, default=None) for name in INNER)
    inner = next(filter(None, holders), None)
    if inner is None:
        return ConfigFields(config, label)
    outer = {name: config[name] for name in OUTER_FIELDS if config.get(name) is not None}
    return ConfigFields(outer | {k: v for k, v in inner.values.items() if v is not None}, inner.label)


def _representative_modules(shape: Shape) -> dict[str, list[str]]:
    """Return module names of one layer by class (attention, ffn, expert, mtp), for look-ups in quantisation patterns.

    The layer is from the middle of the model, because first and last layers may be quantised differently.
    """
    layers = range(len(shape.attention))

    def middle(layer_kinds: list[str], kind: str) -> str | None:
        matching = [layer for layer in layers if layer_kinds[layer] == kind]
        return f"model.layers.{matching[len(matching) // 2]}." if matching else None

    mixers = {"linear": "linear", "mla": "latent", "sparse": "latent", "compressed": "latent"}
    attention = []
    for kind in [kind for kind in dict.fromkeys(shape.attention) if kind != "none"]:
        attention += [
            middle(shape.attention, kind) + name for name in shape.modules.get(mixers.get(kind, "softmax"), ())
        ]
    dense, moe = middle(shape.ffn, "dense"), middle(shape.ffn, "moe")
    some = dense or moe or "model.layers.0."  # layers without feed-forward have no such matrices
    # a shared expert represents the class: more layers have one than are dense
    shared = bool(shape.columns.get("shared_intermediate"))
    ffn_layer, ffn_kind = (moe, "shared") if shared and moe else (some, "dense")
    modules = {
        "attention": attention,
        "ffn": [ffn_layer + name for name in shape.modules.get(ffn_kind, ())],
        "expert": [(moe or some) + name for name in shape.modules.get("expert", ())],
    }
    if shape.columns.get("mtp_layers"):
        # the layer after the last one, unless the architecture names another module
        layer = (*shape.modules.get("mtp_layer", ()), f"model.layers.{len(layers)}.")[0]
        modules["mtp"] = [layer + name for name in shape.modules.get("expert" if moe else "dense", ())]
    return modules


def _layer_rows(row: Mapping[str, Any], shape: Shape) -> list[dict[str, Any]]:
    """Return one ``model_layers`` row for each kind of layer, in the order in which the kinds first appear.

    Kinds that differ in sizes alone are numbered: full_dense, full_dense_2.
    """
    layers = Counter(map(json.dumps, zip(shape.attention, shape.ffn, shape.sizes, strict=True)))
    names: Counter[str] = Counter()
    rows = []
    for kind, count in layers.items():
        attention, ffn, sizes = own_json(kind)
        name = f"{attention}_{ffn}"
        names[name] += 1
        numbered = name if names[name] == 1 else f"{name}_{names[name]}"
        columns = dict.fromkeys(contracts()["model_layers"].column_names)
        columns |= {"model": row["model"], "layer_kind": numbered, "count": count}
        rows.append(columns | _mixer_columns(row, attention) | _ffn_columns(row, ffn) | sizes)
    return rows


def _mixer_columns(row: Mapping[str, Any], attention: str) -> dict[str, Any]:
    if attention == "none":
        return {"attention": attention, "window": 0, "heads": 0, "kv_heads": 0, "head_dim": 0}
    prefix = "linear_value_" if attention == "linear" else ""
    return {
        "attention": attention,
        "window": row["sliding_window"] if attention == "sliding" else 0,
        "heads": row[f"{prefix}heads"],
        "kv_heads": row["linear_key_heads"] if attention == "linear" else row["kv_heads"],
        "head_dim": row[f"{prefix}head_dim"],
    }


def _ffn_columns(row: Mapping[str, Any], ffn: str) -> dict[str, Any]:
    if ffn in ("dense", "none"):
        width = row["intermediate"] if ffn == "dense" else 0
        return {"ffn": ffn, "intermediate": width, "experts": 0, "top_k": 0, "shared_intermediate": 0}
    sizes = {name: row[name] for name in ("experts", "top_k", "shared_intermediate")}
    return {"ffn": ffn, "intermediate": row["expert_intermediate"]} | sizes


def read_config_file(path: str | Path, architecture: str | Path | None = None) -> Rows:
    """Return the rows of a config.json file, or of the one in a folder, with hf_quant_config.json of the same folder.

    Mistral's params.json and the metadata of a GGUF file are read as the config.json that states the same.

    The model is named like the folder, in lower case and without -instruct. ``architecture``: a user's file,
    which has precedence over those of the catalogue. InvalidInput: as :func:`read_config`, or no
    such file.
    """
    path = Path(path)
    names = [name for name in ("config.json", "params.json") if (path / name).exists()]
    if path.is_dir() and not names:
        raise errors.config_unreadable(path, "the folder has no config.json")
    file = path / names[0] if names else path
    quant_file = file.with_name("hf_quant_config.json")
    is_gguf = file.suffix == ".gguf"

    def refuse(problem: str) -> errors.InvalidInput:
        return errors.config_unreadable(file, f"the file {problem}")

    return read_config(
        as_config(read_gguf(file, refuse) if is_gguf else _json_object(file), str(file)),
        model=catalogue_name(file.stem if is_gguf else file.resolve().parent.name),
        huggingface_id=None,
        source=str(file),
        quant_config=_json_object(quant_file) if quant_file.exists() else None,
        own_architecture=Path(architecture) if architecture is not None else None,
    )


def _json_object(file: Path) -> dict[str, Any]:
    content = read_json(file, lambda problem: errors.config_unreadable(file, f"the file {problem}"), piped=True)
    if not isinstance(content, dict):
        raise errors.config_unreadable(file, "it is not a JSON object")
    return content


def load_catalogue() -> Rows:
    """Return the ``models`` and ``model_layers`` rows of the catalogue."""
    rows = [
        read_config(
            entry["config"],
            model=entry["model"],
            huggingface_id=entry["huggingface_id"],
            source=entry["source"],
            quant_config=entry.get("quant_config"),
        )
        for entry in entries()
    ]
    return [row for row, _ in rows], [layer for _, layers in rows for layer in layers]


def as_config(content: Mapping[str, Any], label: str) -> Mapping[str, Any]:
    """Return the config.json that a config of another form states, or ``content`` itself where it has none of them.

    InvalidInput: a form that is known, with a class that is not.

    >>> params = {"dim": 4096, "n_layers": 32, "n_heads": 32, "moe": {"num_experts": 8}}
    >>> config = as_config(params, "params.json")
    >>> config["architectures"], config["hidden_size"], config["num_local_experts"]
    (['MixtralForCausalLM'], 4096, 8)
    """
    if "architectures" in content:
        return content
    for form in catalogue_yaml("config_forms").values():
        if all(_value(content, name) is not None for name in form["has"]):
            return _converted(content, form, label)
    return content


def _converted(content: Mapping[str, Any], form: Mapping[str, Any], label: str) -> dict[str, Any]:
    chosen = next((case["class"] for case in form["classes"] if _applies(content, case)), None)
    if chosen is None:
        field = form["classes"][0]["field"]
        known = sorted({case["value"] for case in form["classes"] if "value" in case})
        raise errors.config_unsupported(label, field, _value(content, field), known)
    config: dict[str, Any] = {"architectures": [chosen]}
    stated = [(name, _value(content, spelling)) for spelling, names in form["fields"].items() for name in names]
    words = form.get("words", {})
    for name, value in [*form["adds"].items(), *((name, value) for name, value in stated if value is not None)]:
        *holders, last = name.split(".")
        held = config
        for holder in holders:
            held = held.setdefault(holder, {})
        held[last] = words.get(value, value) if isinstance(value, str) else value
    return config


def _applies(content: Mapping[str, Any], case: Mapping[str, str]) -> bool:
    value = _value(content, case["field"])
    unless = case.get("unless")
    return value is not None and case.get("value", value) == value and not (unless and _value(content, unless))


def _value(content: Mapping[str, Any], name: str) -> Any:
    """Return a field by its name, which may have dots, or by a path of nested objects; None: it is absent."""
    if name in content:
        return content[name]
    holder, _, rest = name.partition(".")
    inner = content.get(holder)
    return _value(inner, rest) if rest and isinstance(inner, Mapping) else None
