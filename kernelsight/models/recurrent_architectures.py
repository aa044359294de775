"""Readers of hybrid architectures with Mamba-2 layers (arXiv 2405.21060); defaults as in transformers' configurations.

A Mamba-2 layer is read as gated linear attention with the same matrices, short convolution and state: its groups are
the key heads, its state size is the width of a key, its heads are the value heads. No sweep has its kernels, which a
note says.
"""

from __future__ import annotations

from typing import Any

from kernelsight import errors
from kernelsight.models.config_fields import ConfigFields
from kernelsight.models.layer_shapes import HYBRID, Shape, attention_heads, listed_kinds, routed_experts, trunk

MAMBA_NOTE = "Mamba-2 layers are predicted as gated delta nets of the same matrices and state"
MAMBA_NAMES = {"linear": ("mamba.in_proj", "mamba.out_proj")}
# (attention, feed-forward) of a layer by its letter in hybrid_override_pattern or its entry in layer_types
BLOCKS = {
    "M": ("linear", "none"),
    "*": ("full", "none"),
    "-": ("none", "dense"),
    "E": ("none", "moe"),
    "linear_attention": ("linear", "none"),
    "full_attention": ("full", "none"),
    "mamba": ("linear", "none"),
    "attention": ("full", "none"),
    "mlp": ("none", "dense"),
    "moe": ("none", "moe"),
}


def nemotron_h(fields: ConfigFields) -> Shape:
    """Read Nemotron-H and Nemotron 3: each layer is one of Mamba-2, attention without RoPE, feed-forward or experts."""
    pattern = fields.text("hybrid_override_pattern", default=None)
    listed = fields.items("layer_types", default=None) or fields.items("layers_block_type", default=None)
    blocks = list(pattern) if pattern else listed
    if not blocks:
        raise errors.config_field_missing(fields.label, "hybrid_override_pattern")
    for block in blocks:
        if block not in BLOCKS:
            raise errors.config_unsupported(fields.label, "layer type", block, sorted(BLOCKS))
    if fields.values.get("moe_latent_size") is not None:
        latent_size = fields.values["moe_latent_size"]
        raise errors.config_unsupported(
            fields.label, "moe_latent_size", latent_size, ["none: experts of the hidden size"]
        )
    attention, ffn = (list(column) for column in zip(*(BLOCKS[block] for block in blocks), strict=True))
    columns = trunk(ConfigFields({"num_hidden_layers": len(blocks), **_without_replaced(fields)}, fields.label))
    columns["activation"] = fields.choice("mlp_hidden_act", among={"relu2": "relu2", "silu": "silu"}, default="relu2")
    columns |= {"layer_count": len(blocks), "norms_per_layer": 1, "ffn_gated": False}
    columns |= attention_heads(_with_head_dim(fields), columns["hidden"], head_dim=128) | {"rotary_dim": 0}
    columns |= _mamba(fields, "mamba_num_heads", "n_groups", "ssm_state_size", "mamba_head_dim", "conv_kernel")
    if "moe" in ffn:
        columns |= routed_experts(fields, "n_routed_experts", "moe_intermediate_size")
        shared = fields.size("n_shared_experts", default=1, least=0)
        columns["shared_intermediate"] = shared * fields.size("moe_shared_expert_intermediate_size", default=0, least=0)
    if "dense" in ffn:
        columns["intermediate"] = fields.size("intermediate_size")
    columns["mtp_layers"] = fields.size("num_nextn_predict_layers", default=0, least=0)
    names = {
        module_class: tuple(f"mixer.{matrix}_proj" for matrix in ("up", "down")) for module_class in ("dense", "expert")
    }
    names["expert"] = tuple(f"mixer.experts.0.{matrix}_proj" for matrix in ("up", "down"))
    names["shared"] = tuple(f"mixer.shared_experts.{matrix}_proj" for matrix in ("up", "down"))
    names["softmax"] = tuple(f"mixer.{matrix}_proj" for matrix in "qkvo")
    names["linear"] = ("mixer.in_proj", "mixer.out_proj")
    notes = (MAMBA_NOTE,) if "linear" in attention else ()
    return Shape(columns, attention, ffn, notes).with_modules(**names)


def granite_hybrid(fields: ConfigFields) -> Shape:
    """Read Granite 4: Mamba-2 or attention in each layer, then experts and a shared one, or a dense feed-forward."""
    columns = trunk(fields)
    layers = columns["layer_count"]
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    if fields.text("position_embedding_type", default=None) != "rope":
        columns["rotary_dim"] = 0
    heads = fields.size("mamba_n_heads", default=128)
    width = fields.size("mamba_expand", default=2) * columns["hidden"] // heads
    sizes = {"mamba_d_head": width} if fields.values.get("mamba_d_head", "auto") == "auto" else {}
    columns |= _mamba(
        ConfigFields(dict(fields.values) | sizes, fields.label),
        *("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head", "mamba_d_conv"),
    )
    kinds = HYBRID | {"mamba": "linear", "attention": "full"}
    attention = listed_kinds(fields, "layer_types", kinds, layers, ["linear"] * layers)
    shared = fields.size("shared_intermediate_size")
    if fields.size("num_local_experts", default=0, least=0):
        columns |= routed_experts(fields, "num_local_experts", "intermediate_size") | {"shared_intermediate": shared}
        ffn = ["moe"] * layers
    else:
        columns["intermediate"], ffn = shared, ["dense"] * layers
    names: dict[str, Any] = MAMBA_NAMES | {
        "dense": ("shared_mlp.input_linear", "shared_mlp.output_linear"),
        "shared": ("shared_mlp.input_linear", "shared_mlp.output_linear"),
        "expert": ("block_sparse_moe.input_linear", "block_sparse_moe.output_linear"),
    }
    return Shape(columns, attention, ffn, (MAMBA_NOTE,) if "linear" in attention else ()).with_modules(**names)


def _mamba(fields: ConfigFields, heads: str, groups: str, state: str, width: str, taps: str) -> dict[str, int]:
    """Return the sizes of Mamba-2 layers as columns of linear attention; arguments: names of their fields."""
    columns = {
        "linear_key_heads": fields.size(groups),
        "linear_value_heads": fields.size(heads),
        "linear_key_head_dim": fields.size(state),
        "linear_value_head_dim": fields.size(width),
        "linear_conv_kernel": fields.size(taps),
    }
    if columns["linear_value_heads"] % columns["linear_key_heads"]:
        expected = f"a multiple of {groups} ({columns['linear_key_heads']})"
        raise errors.config_field_wrong(fields.label, heads, columns["linear_value_heads"], expected)
    return columns


def _without_replaced(fields: ConfigFields) -> dict[str, Any]:
    """Return the fields without hidden_act and num_hidden_layers: mlp_hidden_act and the pattern replace them."""
    return {name: value for name, value in fields.values.items() if name not in ("hidden_act", "num_hidden_layers")}


def _with_head_dim(fields: ConfigFields) -> ConfigFields:
    """Return the fields with head_dim, attention_head_dim in the first Nemotron-H configs."""
    older = fields.values.get("attention_head_dim")
    return fields if older is None else ConfigFields({"head_dim": older, **fields.values}, fields.label)
