"""Readers of mixture-of-experts architectures (Llama 4, Granite, ERNIE, Hunyuan); defaults as in transformers."""

from __future__ import annotations

from typing import Any

from kernelsight import errors
from kernelsight.models.config_fields import ConfigFields
from kernelsight.models.layer_shapes import (
    GATED,
    Shape,
    attention_heads,
    listed_kinds,
    listed_layers,
    routed_experts,
    trunk,
    with_windows,
)

CHUNKED = {"full_attention": "full", "chunked_attention": "sliding"}
LLAMA4_NAMES = {
    "dense": tuple(f"feed_forward.{matrix}" for matrix in GATED),
    "shared": tuple(f"feed_forward.shared_expert.{matrix}" for matrix in GATED),
    "expert": ("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"),
}


def llama4(fields: ConfigFields) -> Shape:
    """Read Llama 4: chunked attention with RoPE except in every fourth layer, experts in every or every second layer.

    A chunk counts as a window of its length, an upper bound for contexts beyond one chunk. Llama4TextConfig: one
    shared expert, query and key norms without weights.
    """
    columns = trunk(fields) | {"rope_layers": "sliding"}
    layers = columns["layer_count"]
    columns |= attention_heads(fields, columns["hidden"], head_dim=128)
    columns["qk_norm"] = "head" if fields.flag("use_qk_norm", default=True) else "none"
    columns |= routed_experts(fields, "num_local_experts", "intermediate_size")
    columns["shared_intermediate"] = columns["expert_intermediate"]
    attention = listed_kinds(fields, "layer_types", CHUNKED, layers, _chunked_or_full(fields, layers))
    chunk = fields.size("attention_chunk_size", default=8192)
    notes = ()
    if "sliding" in attention and chunk >= columns["max_positions"]:
        attention, columns["rope_layers"] = ["full"] * layers, "all"
    elif "sliding" in attention:
        columns["sliding_window"] = chunk
        notes = (f"chunked attention over {chunk:,} tokens counts as a sliding window of that length",)
    else:
        columns["rope_layers"] = "all"
    ffn = _interleaved(fields, layers)
    if "dense" in ffn:
        columns["intermediate"] = fields.size("intermediate_size_mlp")
    return Shape(columns, attention, ffn, notes).with_modules(**LLAMA4_NAMES)


def _chunked_or_full(fields: ConfigFields, layers: int) -> list[str]:
    """Return the attention of each layer: chunked (as sliding) with RoPE (no_rope_layers: 1), full without it (0)."""
    period = fields.size("no_rope_layer_interval", default=4)
    has_rope = fields.items("no_rope_layers", default=None) or [int((n + 1) % period != 0) for n in range(layers)]
    if len(has_rope) != layers or any(value not in (0, 1) for value in has_rope):
        expected = f"a list of num_hidden_layers ({layers}) entries, each 0 or 1"
        raise errors.config_field_wrong(fields.label, "no_rope_layers", has_rope, expected)
    return ["sliding" if value else "full" for value in has_rope]


def _interleaved(fields: ConfigFields, layers: int) -> list[str]:
    """Return moe or dense for each layer: moe in moe_layers, or in every interleave_moe_layer_step-th layer."""
    step = fields.size("interleave_moe_layer_step", default=1)
    moe = listed_layers(fields, "moe_layers", layers)
    if moe is None:
        moe = list(range(step - 1, layers, step))
    return ["moe" if layer in moe else "dense" for layer in range(layers)]


def granite_moe(fields: ConfigFields) -> Shape:
    """Read Granite 3 mixtures, also with a shared expert; every layer is a mixture of width intermediate_size."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    columns |= routed_experts(fields, "num_local_experts", "intermediate_size")
    columns["shared_intermediate"] = fields.size("shared_intermediate_size", default=0, least=0)
    layers = columns["layer_count"]
    names = {"expert": ("block_sparse_moe.input_linear", "block_sparse_moe.output_linear")}
    names["shared"] = ("shared_mlp.input_linear", "shared_mlp.output_linear")
    return Shape(columns, ["full"] * layers, ["moe"] * layers).with_modules(**names)


def ernie_moe(fields: ConfigFields) -> Shape:
    """Read ERNIE 4.5 mixtures: shared experts have the width of routed ones."""
    columns = trunk(fields, tie_word_embeddings=True)
    columns |= attention_heads(fields, columns["hidden"])
    columns |= _experts(fields, fields.size("moe_num_experts"), fields.size("moe_k"), "moe_k")
    columns["expert_intermediate"] = fields.size("moe_intermediate_size")
    shared = fields.size("moe_num_shared_experts", default=0, least=0)
    columns["shared_intermediate"] = shared * columns["expert_intermediate"]
    columns["mtp_layers"] = fields.size("num_nextn_predict_layers", default=0, least=0)
    layers = columns["layer_count"]
    first_layer = fields.size("moe_layer_start_index", default=1, least=0)
    last_layer = fields.values.get("moe_layer_end_index", -1)
    last_layer = layers - 1 if last_layer in (None, -1) else fields.size("moe_layer_end_index", least=0)
    period = fields.size("moe_layer_interval", default=1)
    ffn = ["moe" if first_layer <= n <= last_layer and (n + 1) % period == 0 else "dense" for n in range(layers)]
    if "dense" in ffn:
        columns["intermediate"] = fields.size("intermediate_size")
    return Shape(columns, ["full"] * layers, ffn)


def hunyuan_moe(fields: ConfigFields) -> Shape:
    """Read Hunyuan mixtures, whose config lists sizes per layer, all equal; shared experts have intermediate_size."""
    columns = trunk(fields) | {"qk_norm": "head" if fields.flag("use_qk_norm", default=True) else "none"}
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    experts, top_k = _one_size(fields, "num_experts"), _one_size(fields, "moe_topk")
    columns |= _experts(fields, experts, top_k, "moe_topk")
    columns["expert_intermediate"] = _one_size(fields, "moe_intermediate_size", "intermediate_size")
    shared = _one_size(fields, "num_shared_expert", default=1)
    columns["shared_intermediate"] = shared * fields.size("intermediate_size")
    layers = columns["layer_count"]
    dense = fields.size("moe_layer_num_skipped", default=0, least=0)
    if dense:
        columns["intermediate"] = fields.size("intermediate_size")
    names = {"shared": tuple(f"mlp.shared_mlp.{matrix}" for matrix in GATED)}
    attention = with_windows(fields, columns, ["full"] * layers)
    return Shape(columns, attention, ["dense"] * dense + ["moe"] * (layers - dense)).with_modules(**names)


def _one_size(fields: ConfigFields, *names: str, default: int | None = None) -> int:
    """Return a size that the config has as one number, or as a list of equal numbers, one per layer."""
    name = next((name for name in names if fields.values.get(name) is not None), names[0])
    value = fields.values.get(name)
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        return ConfigFields({name: value[0]}, fields.label).size(name)
    return fields.size(name) if default is None else fields.size(name, default=default, least=0)


def _experts(fields: ConfigFields, experts: int, top_k: int, name: str) -> dict[str, Any]:
    """Return the columns of routed experts; InvalidInput: the field ``name``, top-k, exceeds the number of experts."""
    if top_k > experts:
        raise errors.config_field_wrong(fields.label, name, top_k, f"at most the number of experts ({experts})")
    return {"experts": experts, "top_k": top_k, "shared_intermediate": 0}
