"""Converts a Hugging Face config.json to rows of ``models`` and ``model_layers``; loads the catalogue of models."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kernelsight import errors
from kernelsight.files.bounded_values import read_json
from kernelsight.files.own import own_json, own_text
from kernelsight.models.architectures import Shape, architecture_of, shape_of
from kernelsight.models.config_fields import ConfigFields, check_heads, check_rope, check_total
from kernelsight.models.config_forms import as_config, read_gguf
from kernelsight.models.quantization import read_formats

CATALOGUE = Path(__file__).parent.parent / "catalog" / "models.jsonl"
# billions of parameters in a name
SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])")
ADVICE = (
    "For a model of the shape of one in the catalogue add --model-like; otherwise give the path to its config.json."
)
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
# objects that hold a config's language model: in multimodal configs, and in those of heads that speculators trains
INNER = ("text_config", "transformer_layer_config")
# fields beside them that apply to the language model
OUTER_FIELDS = (
    *("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config", "vision_config"),
    *("draft_vocab_size", "aux_hidden_state_layer_ids"),
)
# stands for the owner of a repository in a launch line; whoever starts the server replaces it
UNKNOWN_OWNER = "REPOSITORY_OWNER"
Rows = tuple[dict[str, Any], list[dict[str, Any]]]
"""One ``models`` row and its ``model_layers`` rows."""


def catalogue_name(huggingface_id: str) -> str:
    """Return the repository's name in lower case, without owner and without -instruct."""
    return huggingface_id.rsplit("/", 1)[-1].lower().replace("-instruct", "")


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
    from kernelsight.catalog.tables import contracts

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
    kinds: dict[str, dict[str, Any]] = {}
    for attention, ffn, sizes in zip(shape.attention, shape.ffn, shape.sizes, strict=True):
        kind = kinds.setdefault(
            json.dumps([attention, ffn, sizes]),
            dict.fromkeys(
                (
                    *("v_head_dim", "index_heads", "expert_hidden", "compression", "shared_cache"),
                    "value_projections",
                    "products",
                )
            )
            | _mixer_columns(row, attention)
            | _ffn_columns(row, ffn)
            | sizes,
        )
        kind["count"] = kind.get("count", 0) + 1
    names: Counter[str] = Counter()
    rows = []
    for kind in kinds.values():
        name = f"{kind['attention']}_{kind['ffn']}"
        names[name] += 1
        numbered = name if names[name] == 1 else f"{name}_{names[name]}"
        rows.append({"model": row["model"], "layer_kind": numbered} | kind)
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
    shared = row["shared_intermediate"]
    columns = {"ffn": ffn, "intermediate": row["expert_intermediate"], "experts": row["experts"]}
    return columns | {"top_k": row["top_k"], "shared_intermediate": shared}


def read_config_file(path: str | Path, architecture: str | Path | None = None) -> Rows:
    """Return the rows of a config.json file, or of the one in a folder, with hf_quant_config.json of the same folder.

    Mistral's params.json and the metadata of a GGUF file are read as the config.json that states the same.

    The model is named like the folder, in lower case and without -instruct. ``architecture``: a user's file,
    which has precedence over those of the catalogue. InvalidInput: as :func:`read_config`, or no
    such file.
    """
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        file = path / "params.json"
        if not file.exists():
            raise errors.config_unreadable(path, "the folder has no config.json")
    quant_file = file.with_name("hf_quant_config.json")
    content = read_gguf(file) if file.suffix == ".gguf" else _json_object(file)
    return read_config(
        as_config(content, str(file)),
        model=catalogue_name(file.stem if file.suffix == ".gguf" else file.resolve().parent.name),
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


def _entries() -> Iterator[dict[str, Any]]:
    yield from map(own_json, own_text(CATALOGUE).splitlines())


def load_catalogue() -> Rows:
    """Return the ``models`` and ``model_layers`` rows of a catalogue: JSON Lines, each object with its ``config``."""
    models, layers = [], []
    for entry in _entries():
        row, layer_rows = read_config(
            entry["config"],
            model=entry["model"],
            huggingface_id=entry["huggingface_id"],
            source=entry["source"],
            quant_config=entry.get("quant_config"),
        )
        models.append(row)
        layers += layer_rows
    return models, layers


def _lookup_key(name: str) -> str:
    """Return a name or identifier in the form in which all spellings of a model are equal."""
    owner, _, repository = name.strip().lower().rpartition("/")
    repository = catalogue_name(repository).removesuffix("-it").removeprefix("meta-")
    return f"{owner}/{repository}" if owner else repository


@cache
def _spellings(compared: bool) -> dict[str, tuple[str, str]]:
    """Return catalogue names, with the reason, by lookup key: of names of the same config, or taken as that shape."""
    from kernelsight.catalog.tables import facts

    named = [(name, model, "") for model, own in _identifiers().items() for name in (model, own) if compared]
    aliases = [row for row in facts("model_aliases").to_pylist() if row["compared"] == compared]
    named += [(row["name"], row["model"], row["source"]) for row in aliases]
    found: dict[str, tuple[str, str]] = {}
    for name, model, why in named:
        for spelled in (name, name.rsplit("/", 1)[-1]):
            found.setdefault(_lookup_key(spelled), (model, why))
    return found


def likely_shape(name: str) -> tuple[str, str] | None:
    """Return the catalogue name that a name is taken as, and why, though their configs were not compared; else None.

    >>> likely_shape("Qwen/QwQ-32B")
    ('qwen2.5-32b', 'fine-tune: by its name and model card')
    """
    return _spellings(False).get(_lookup_key(name))


@cache
def _identifiers() -> dict[str, str]:
    """Return the Hugging Face identifiers of the catalogue by its names."""
    return {entry["model"]: entry["huggingface_id"] for entry in _entries()}


def served_name(model_name: str, identifier: str | None = None) -> str:
    """Return the model name for an engine's command line: an identifier or folder as given, else the identifier.

    A catalogue name becomes its Hugging Face identifier, with -Instruct where the name has it; another name without an
    owner, which no folder has, gets ``UNKNOWN_OWNER``: several publish checkpoints of one name in different formats.
    ``identifier``: that of the model's row, where it is known.

    >>> served_name("meta-llama/Llama-3.1-8B-Instruct"), served_name("llama-3.1-8b")
    ('meta-llama/Llama-3.1-8B-Instruct', 'meta-llama/Llama-3.1-8B')
    >>> served_name("llama-3.1-8b-instruct"), served_name("models/mine/config.json")
    ('meta-llama/Llama-3.1-8B-Instruct', 'models/mine')
    >>> served_name("Llama-3.3-70B-Instruct-FP8")
    'REPOSITORY_OWNER/Llama-3.3-70B-Instruct-FP8'
    """
    if model_name.endswith(".json"):
        return str(Path(model_name).parent)
    if "/" in model_name:
        return model_name
    model, _ = _spellings(True).get(_lookup_key(model_name), ("", ""))
    resolved = identifier or _identifiers().get(model)
    if resolved is None or "/" not in resolved:
        return model_name if Path(model_name).exists() else f"{UNKNOWN_OWNER}/{model_name}"
    return (
        resolved + "-Instruct"
        if "-instruct" in model_name.lower() and "-instruct" not in resolved.lower()
        else resolved
    )


def shapes_like(name: str, names: Iterable[str]) -> list[str]:
    """Return the names of the family and size that a name states, else of about its size; all where it states none.

    >>> known = ["deepseek-r1", "qwen3-8b", "qwen3-32b", "codellama-34b-hf"]
    >>> shapes_like("someone/Sky-Qwen-32B", known), shapes_like("DeepSeek-R1-Distill-Sky-32B", known)
    (['qwen3-32b'], ['qwen3-32b', 'codellama-34b-hf'])
    """
    size, names = _size(name), list(names)
    if size is None:
        return names
    near = [each for each in names if (other := _size(each)) and size / 2 <= other <= size * 2]
    family = [each for each in near if _size(each) == size and _words(name) & _words(each)]
    return family or near


def _size(name: str) -> float | None:
    """Return the billions of parameters that a name states first."""
    found = SIZE.search(name.lower())
    return float(found[1]) if found else None


def _words(name: str) -> set[str]:
    return set(re.findall("[a-z]{3,}", name.lower()))


def resolve(name: str) -> str:
    """Return the catalogue name of a model from that name or its Hugging Face identifier, in any case.

    UnknownName lists the nearest names.
    """
    found = _spellings(True).get(_lookup_key(name))
    if found is None:
        raise errors.unknown("model", name, shapes_like(name, _identifiers()), ADVICE)
    return found[0]
