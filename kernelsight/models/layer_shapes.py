"""Model shapes and the field reads that architecture readers share: widths, heads, attention and FFN of each layer."""

from __future__ import annotations

from typing import Any, NamedTuple

from kernelsight import errors
from kernelsight.models.config_fields import REQUIRED, ConfigFields
from kernelsight.models.limits import longest_context

ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu2": "relu2"}
# values of the config's lists of layers, and what they mean in ``model_layers``
WINDOWED = {"full_attention": "full", "sliding_attention": "sliding"}
HYBRID = {"full_attention": "full", "linear_attention": "linear"}
FFN_TYPES = {"dense": "dense", "sparse": "moe"}
# module names of a layer's matrices in the checkpoint, which quantisation patterns refer to
GATED = ("gate_proj", "up_proj", "down_proj")
MODULES: dict[str, tuple[str, ...]] = {
    "softmax": tuple(f"self_attn.{matrix}_proj" for matrix in "qkvo"),
    "latent": ("self_attn.q_b_proj", "self_attn.kv_b_proj", "self_attn.o_proj"),
    "linear": ("linear_attn.in_proj_qkvz", "linear_attn.out_proj"),
    "dense": tuple(f"mlp.{matrix}" for matrix in GATED),
    "shared": tuple(f"mlp.shared_experts.{matrix}" for matrix in GATED),
    "expert": tuple(f"mlp.experts.0.{matrix}" for matrix in GATED),
}


class Shape(NamedTuple):
    """What an architecture reader returns: columns of ``models``, and each layer's attention and feed-forward."""

    columns: dict[str, Any]
    attention: list[str]  # of each layer: full, sliding, linear, mla, sparse or none
    ffn: list[str]  # of each layer: dense, moe or none
    notes: tuple[str, ...] = ()  # sentences on what is not modelled
    modules: dict[str, tuple[str, ...]] = MODULES  # module names of matrices by class

    def with_modules(self, **modules: tuple[str, ...]) -> Shape:
        """Return the shape with the architecture's own module names of some classes."""
        return self._replace(modules=self.modules | modules)


def trunk(fields: ConfigFields, **defaults: Any) -> dict[str, Any]:
    """Return the columns of every decoder: layers, hidden size, vocabulary, context, activation, tied embeddings.

    ``defaults``: those of the configuration class, by field name.
    """
    return {
        # bounded far above any model: a typo must not allocate a list of a billion layers
        "layer_count": fields.size("num_hidden_layers", most=10_000),
        "hidden": fields.size("hidden_size"),
        "vocab": fields.size("vocab_size", default=defaults.get("vocab_size", REQUIRED)),
        "max_positions": longest_context(
            fields,
            fields.size("max_position_embeddings", default=defaults.get("max_position_embeddings", REQUIRED)),
        ),
        "activation": fields.choice(
            "hidden_act", "hidden_activation", among=ACTIVATIONS, default=defaults.get("activation", "silu")
        ),
        # PretrainedConfig ties by default, but every decoder class here except Gemma overrides it with false
        "tied_embeddings": fields.flag("tie_word_embeddings", default=defaults.get("tie_word_embeddings", False)),
    }


def attention_heads(fields: ConfigFields, hidden: int, **defaults: Any) -> dict[str, Any]:
    """Return the columns of grouped-query attention; head_dim defaults to hidden_size / num_attention_heads.

    ``defaults``: num_attention_heads, num_key_value_heads, head_dim; kv_heads_default_to_heads.
    """
    heads = fields.size("num_attention_heads", default=defaults.get("num_attention_heads", REQUIRED))
    kv_default = heads if defaults.get("kv_heads_default_to_heads") else defaults.get("num_key_value_heads", REQUIRED)
    kv_heads = fields.size("num_key_value_heads", default=kv_default)
    head_dim = fields.size("head_dim", default=defaults.get("head_dim"))
    if heads % kv_heads:
        expected = f"a divisor of num_attention_heads ({heads})"
        raise errors.config_field_wrong(fields.label, "num_key_value_heads", kv_heads, expected)
    if head_dim is None:
        if hidden % heads:
            expected = f"a multiple of num_attention_heads ({heads}), or head_dim must be given"
            raise errors.config_field_wrong(fields.label, "hidden_size", hidden, expected)
        head_dim = hidden // heads
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "rotary_dim": head_dim}


def partial_rotary(fields: ConfigFields, head_dim: int, default: float) -> dict[str, int]:
    """Return rotary_dim: partial_rotary_factor of the config, or of its rope_parameters, times head_dim."""
    rope = fields.inside("rope_parameters", default=None)
    inner = rope.fraction("partial_rotary_factor", default=default) if rope else default
    return {"rotary_dim": int(head_dim * fields.fraction("partial_rotary_factor", default=inner))}


def listed_kinds(
    fields: ConfigFields, name: str, kinds_by_name: dict[str, str], layer_count: int, otherwise: list[str]
) -> list[str]:
    """Return the kind of each layer from the config's list ``name``, or ``otherwise`` where it has no such list."""
    listed = fields.items(name, default=None)
    if listed is None:
        return otherwise
    for kind in listed:
        if not isinstance(kind, str) or kind not in kinds_by_name:
            raise errors.config_unsupported(fields.label, f"{name} entry", kind, sorted(kinds_by_name))
    if len(listed) != layer_count:
        expected = f"a list of num_hidden_layers ({layer_count}) entries"
        raise errors.config_field_wrong(fields.label, name, f"{len(listed)} entries", expected)
    return [kinds_by_name[kind] for kind in listed]


def listed_layers(fields: ConfigFields, name: str, layer_count: int) -> list[int] | None:
    """Return the layer numbers in the config's list ``name``, or None where it has no such list."""
    listed = fields.items(name, default=None)
    for layer in listed or ():
        if type(layer) is not int or not 0 <= layer < layer_count:
            expected = f"numbers of layers, 0 to {layer_count - 1}"
            raise errors.config_field_wrong(fields.label, name, layer, expected)
    return listed


def listed_mixers(fields: ConfigFields, layer_count: int, otherwise: list[str]) -> list[str]:
    """Return full or sliding for each layer from layer_types, or ``otherwise`` where the config has no such list."""
    return listed_kinds(fields, "layer_types", WINDOWED, layer_count, otherwise)


def with_windows(fields: ConfigFields, columns: dict[str, Any], attention: list[str]) -> list[str]:
    """Return the attention of each layer, full where a window is as long as the context; sets sliding_window."""
    if "sliding" not in attention:
        return attention
    window = fields.size("sliding_window")
    if window >= columns["max_positions"]:
        return ["full" if kind == "sliding" else kind for kind in attention]
    columns["sliding_window"] = window
    return attention


def dense_shape(
    fields: ConfigFields, columns: dict[str, Any], attention: list[str], notes: tuple[str, ...] = ()
) -> Shape:
    """Return the shape of a model with only dense layers."""
    columns["intermediate"] = fields.size("intermediate_size")
    return Shape(columns, with_windows(fields, columns, attention), ["dense"] * columns["layer_count"], notes)


def qwen_mixers(fields: ConfigFields, layer_count: int) -> list[str]:
    """Return full or sliding for each of Qwen's layers: sliding from max_window_layers on, if use_sliding_window."""
    if not fields.flag("use_sliding_window", default=False):
        return ["full"] * layer_count
    if fields.items("layer_types", default=None) is not None:
        return listed_mixers(fields, layer_count, [])
    first_sliding = fields.size("max_window_layers", least=0)
    return ["sliding" if layer >= first_sliding else "full" for layer in range(layer_count)]


def routed_experts(fields: ConfigFields, count: str, width: str, *older: str) -> dict[str, Any]:
    """Return the columns of routed experts from the fields ``count`` and ``width``; ``older``: fields of top-k."""
    experts, top_k = fields.size(count), fields.size("num_experts_per_tok", *older)
    if top_k > experts:
        raise errors.config_field_wrong(fields.label, "num_experts_per_tok", top_k, f"at most {count} ({experts})")
    return {"experts": experts, "top_k": top_k, "expert_intermediate": fields.size(width), "shared_intermediate": 0}


def sparse_steps(fields: ConfigFields, layer_count: int) -> list[str]:
    """Return moe or dense for each of Qwen's layers: every decoder_sparse_step-th is moe, except mlp_only_layers."""
    step = fields.size("decoder_sparse_step", default=1)
    dense = listed_layers(fields, "mlp_only_layers", layer_count) or []
    return ["moe" if layer not in dense and (layer + 1) % step == 0 else "dense" for layer in range(layer_count)]


def with_dense_width(fields: ConfigFields, columns: dict[str, Any], ffn: list[str]) -> list[str]:
    """Return ``ffn`` unchanged; sets intermediate from intermediate_size where a layer is dense."""
    if "dense" in ffn:
        columns["intermediate"] = fields.size("intermediate_size")
    return ffn


def leading_dense(fields: ConfigFields, layer_count: int) -> list[str]:
    """Return moe or dense for each of DeepSeek's layers: first_k_dense_replace dense, then moe every moe_layer_freq."""
    first_moe = fields.size("first_k_dense_replace", default=0, least=0)
    period = fields.size("moe_layer_freq", default=1)
    pattern = ["moe" if layer >= first_moe and layer % period == 0 else "dense" for layer in range(layer_count)]
    return listed_kinds(fields, "mlp_layer_types", FFN_TYPES, layer_count, pattern)
