"""Readers of dense decoder architectures (GLM, Granite, OLMo, Cohere, ...); defaults as in transformers."""

from __future__ import annotations

from kernelsight.models.config_fields import ConfigFields
from kernelsight.models.layer_shapes import (
    Shape,
    attention_heads,
    dense_shape,
    listed_mixers,
    partial_rotary,
    trunk,
)

VISION_NOTE = "the vision tower is not modelled"
FUSED_GATE_UP = ("mlp.gate_up_proj", "mlp.down_proj")


def text_part(fields: ConfigFields, shape: Shape) -> Shape:
    """Return the shape of a language model, with a note where the config has a vision tower as well."""
    return shape._replace(notes=(*shape.notes, VISION_NOTE)) if "vision_config" in fields.values else shape


def glm(fields: ConfigFields) -> Shape:
    """Read GLM-4-9B of 2024; GlmConfig: RoPE covers half of each head of 128, 2 key-value heads."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"], head_dim=128, num_key_value_heads=2)
    columns |= partial_rotary(fields, columns["head_dim"], default=0.5)
    return dense_shape(fields, columns, ["full"] * columns["layer_count"]).with_modules(dense=FUSED_GATE_UP)


def glm4(fields: ConfigFields) -> Shape:
    """Read GLM-4-0414 and GLM-Z1: as GLM, with norms before and after attention and feed-forward."""
    shape = glm(fields)
    return shape._replace(columns=shape.columns | {"norms_per_layer": 4})


def granite(fields: ConfigFields) -> Shape:
    """Read Granite 3: Llama with scaled residuals and logits; GraniteConfig: KV heads default to heads."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    return dense_shape(fields, columns, ["full"] * columns["layer_count"])


def olmo2(fields: ConfigFields) -> Shape:
    """Read OLMo 2: norms after attention and feed-forward, and over all query and all key heads."""
    columns = trunk(fields) | {"qk_norm": "full"}
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    return dense_shape(fields, columns, ["full"] * columns["layer_count"])


def olmo3(fields: ConfigFields) -> Shape:
    """Read OLMo 3: OLMo 2 with a sliding window (Olmo3Config: all but every fourth layer)."""
    columns = trunk(fields) | {"qk_norm": "full"}
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    repeating = ["sliding" if (layer + 1) % 4 else "full" for layer in range(columns["layer_count"])]
    return dense_shape(fields, columns, listed_mixers(fields, columns["layer_count"], repeating))


def cohere(fields: ConfigFields) -> Shape:
    """Read Command R: parallel attention and feed-forward after one norm; CohereConfig: tied embeddings."""
    columns = trunk(fields, tie_word_embeddings=True) | {"norms_per_layer": 1}
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    columns["qk_norm"] = "head" if fields.flag("use_qk_norm", default=False) else "none"
    return dense_shape(fields, columns, ["full"] * columns["layer_count"])


def cohere2(fields: ConfigFields) -> Shape:
    """Read Command R7B and Command A: full attention without RoPE in every fourth layer, sliding in the others."""
    columns = trunk(fields, tie_word_embeddings=True) | {"norms_per_layer": 1, "rope_layers": "sliding"}
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    period = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=4)
    repeating = ["sliding" if (layer + 1) % period else "full" for layer in range(columns["layer_count"])]
    return dense_shape(fields, columns, listed_mixers(fields, columns["layer_count"], repeating))


def ernie(fields: ConfigFields) -> Shape:
    """Read dense ERNIE 4.5; Ernie4_5Config: tied embeddings, heads of 128."""
    columns = trunk(fields, tie_word_embeddings=True)
    columns |= attention_heads(fields, columns["hidden"], head_dim=128)
    return dense_shape(fields, columns, ["full"] * columns["layer_count"])


def hunyuan(fields: ConfigFields) -> Shape:
    """Read dense Hunyuan: norms on each head's query and key."""
    columns = trunk(fields) | {"qk_norm": "head" if fields.flag("use_qk_norm", default=True) else "none"}
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    return dense_shape(fields, columns, ["full"] * columns["layer_count"])


def seed_oss(fields: ConfigFields) -> Shape:
    """Read Seed-OSS; SeedOssConfig: heads of 128, whatever the hidden size."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"], head_dim=128)
    return dense_shape(fields, columns, ["full"] * columns["layer_count"])
