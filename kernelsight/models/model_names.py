"""Model names that are not in the catalogue: quantised variants, mirrors, local copies and models like its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput, KernelSightError
from kernelsight.models.config import Rows, catalogue_name, likely_shape, load_catalogue, read_config_file, resolve

# endings of names in a format that no kernel family computes
UNSUPPORTED = {
    "-gguf": "GGUF",
    "-exl2": "ExLlama",
    "-exl3": "ExLlama",
    "-mlx": "MLX",
}
FORMATS = ("attention_format", "ffn_format", "expert_format")


class Variant(NamedTuple):
    """A model that the catalogue has under another name."""

    base: str  # its name in the catalogue
    quantization: str | None  # of the table ``quantizations``; None: as the base
    source: str


@cache
def _endings() -> tuple[dict[str, Any], ...]:
    """Return the rows of ``model_variants``, the longest suffix first, of equal ones those with an owner first."""
    rows = facts("model_variants").to_pylist()
    return tuple(sorted(rows, key=lambda row: (-len(row["suffix"]), row["owner"] == "*")))


@cache
def find_variant(name: str) -> Variant | None:
    """Return the catalogue model that an identifier or path is a variant of, or None.

    InvalidInput: its name ends in a format without kernels here.
    """
    owner, _, repository = name.rstrip("/").rpartition("/")
    owner, lower_case = owner.rpartition("/")[2].lower(), repository.lower()
    for ending, format_name in UNSUPPORTED.items():
        if lower_case.endswith(ending) and _name_in_catalogue(repository[: -len(ending)]):
            raise InvalidInput(
                f"{name} is quantised as {format_name}, in a format that its name does not say; use the model "
                f"without {ending} and --quantization, or give the path to a config.json or GGUF file."
            )
    for row in _endings():
        base = _name_in_catalogue(repository[: -len(row["suffix"])]) if lower_case.endswith(row["suffix"]) else None
        if base and row["owner"] in ("*", owner):
            return Variant(base, row["quantization"], row["source"])
    base = _name_in_catalogue(repository)
    if base is None:
        return None
    likely = likely_shape(repository)
    return Variant(base, None, likely[1] if likely else "a copy of the same name")


def _name_in_catalogue(repository: str) -> str | None:
    """Return the catalogue name of a repository's name, or None."""
    try:
        return resolve(repository)
    except KernelSightError:
        likely = likely_shape(repository)
        return likely[0] if likely else None


@cache
def _rows() -> dict[str, dict[str, Any]]:
    """Return the catalogue's ``models`` rows by name."""
    return {row["model"]: row for row in load_catalogue()[0]}


def is_quantised(name: str) -> bool:
    """Return whether a model's checkpoint is quantised, by its config or, of a variant, its name."""
    base, row = base_of(name)
    return bool(base and base.quantization) or any(row[column] != row["dtype"] for column in FORMATS)


def base_of(name: str) -> tuple[Variant | None, Mapping[str, Any]]:
    """Return what a model is a variant of, or None, and the ``models`` row of its base or of its own config."""
    row = _rows().get(name)
    if row is not None:
        return None, row
    try:
        return None, _rows()[resolve(name)]
    except KernelSightError:
        variant = find_variant(name)
        return (variant, _rows()[variant.base]) if variant else (None, read_config_file(name)[0])


def variant_rows(name: str, variant: Variant, row: Mapping[str, Any], layers: Iterable[Mapping[str, Any]]) -> Rows:
    """Return the ``models`` and ``model_layers`` rows of a variant, from those of its base, with a note.

    The FP4 variant of a MoE model with latent attention has 16 bits outside of its experts.
    """
    quantization = variant.quantization
    if quantization == "nvfp4" and row["kv_lora_rank"] is not None:
        quantization = "nvfp4_experts"
    columns: dict[str, Any] = {"huggingface_id": name}
    note = f"{name} is taken as {variant.base}"
    if quantization:
        formats = next(
            formats_row
            for formats_row in facts("quantizations").to_pylist()
            if formats_row["quantization"] == quantization
        )
        columns |= {column: formats[column] or row["dtype"] for column in FORMATS}
        columns |= {"activation_scales": formats["activation_scales"], "kv_cache_format": row["dtype"]}
        note += f" with quantization {quantization}, as its name says"
    note += f" ({variant.source})"
    return _derived_rows(catalogue_name(name.rstrip("/")), row, layers, columns, note)


def reach_rows(positions: int, row: Mapping[str, Any], layers: Iterable[Mapping[str, Any]]) -> Rows:
    """Return the rows of a model with another longest context than its config's (``--max-position-embeddings``)."""
    name = f"{row['model']}-{positions}-positions"
    note = f"{row['model']} is taken to reach {positions:,} positions (--max-position-embeddings)"
    return _derived_rows(name, row, layers, {"max_positions": positions}, note)


def alike_rows(name: str, row: Mapping[str, Any], layers: Iterable[Mapping[str, Any]]) -> Rows:
    """Return the rows of a new model with the shape and formats of another one (``--model-like``)."""
    note = f"{name} is taken to have the shape and formats of {row['model']} (--model-like)"
    return _derived_rows(name, row, layers, {"huggingface_id": None}, note)


def _derived_rows(
    name: str, row: Mapping[str, Any], layers: Iterable[Mapping[str, Any]], columns: Mapping[str, Any], note: str
) -> Rows:
    """Return the rows of a model derived from another: with other ``columns``, and ``note`` in its notes and source."""
    notes = "; ".join(text for text in (row["notes"], note) if text)
    model_row = {**row, **columns, "model": name, "notes": notes, "source": f"{row['source']}; {note}"}
    return model_row, [dict(layer) | {"model": name} for layer in layers]
