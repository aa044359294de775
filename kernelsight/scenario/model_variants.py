"""Rows of models that are derived from another one's: quantised variants, longer contexts, models like a known one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kernelsight.catalog.model_names import Variant, catalogue_name, find_variant, resolve
from kernelsight.catalog.tables import facts
from kernelsight.errors import KernelSightError
from kernelsight.models.config import Rows, load_catalogue, read_config_file

FORMATS = ("attention_format", "ffn_format", "expert_format")


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
        formats = {row["quantization"]: row for row in facts("quantizations").to_pylist()}[quantization]
        columns |= {column: formats[column] or row["dtype"] for column in FORMATS}
        columns |= {"activation_scales": formats["activation_scales"], "kv_cache_format": row["dtype"]}
        note += f" with quantization {quantization}, as its name says"
    note += f" ({variant.source})"
    return derived_rows(catalogue_name(name.rstrip("/")), row, layers, columns, note)


def derived_rows(
    name: str, row: Mapping[str, Any], layers: Iterable[Mapping[str, Any]], columns: Mapping[str, Any], note: str
) -> Rows:
    """Return the rows of a model derived from another: with other ``columns``, and ``note`` in its notes and source."""
    notes = "; ".join(text for text in (row["notes"], note) if text)
    model_row = {**row, **columns, "model": name, "notes": notes, "source": f"{row['source']}; {note}"}
    return model_row, [dict(layer) | {"model": name} for layer in layers]
