"""Readers of Hugging Face architectures, one function per class: from the fields of a config.json to the model's shape.

A default is used only where the configuration class of that architecture in transformers defines it. InvalidInput: a
field is missing or has a value that the reader does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelsight import errors
from kernelsight.models import dense_architectures as dense
from kernelsight.models import expert_architectures as experts
from kernelsight.models import recurrent_architectures as recurrent
from kernelsight.models.config_fields import ConfigFields
from kernelsight.models.dense_architectures import VISION_NOTE, text_part
from kernelsight.models.layer_shapes import (
    GATED,
    HYBRID,
    Shape,
    attention_heads,
    dense_shape,
    leading_dense,
    listed_kinds,
    listed_mixers,
    partial_rotary,
    qwen_mixers,
    routed_experts,
    sparse_steps,
    trunk,
    with_dense_width,
    with_windows,
)

BLOCK_SPARSE = tuple(f"block_sparse_moe.experts.0.{matrix}" for matrix in ("w1", "w2", "w3"))
ONE_SHARED = tuple(f"mlp.shared_expert.{matrix}" for matrix in GATED)
SPLIT_LINEAR = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj")
FUSED_PHI = {"softmax": ("self_attn.qkv_proj", "self_attn.o_proj"), "dense": ("mlp.gate_up_proj", "mlp.down_proj")}


def llama(fields: ConfigFields) -> Shape:
    """Read Llama 2 and 3, DeepSeek LLM and other LlamaForCausalLM; LlamaConfig: KV heads default to heads."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    return dense_shape(fields, columns, ["full"] * columns["layer_count"])


def mistral(fields: ConfigFields) -> Shape:
    """Read Mistral: a sliding window on every layer if the config states one, or as layer_types says."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"])
    mixer = "full" if fields.size("sliding_window", default=None) is None else "sliding"
    return dense_shape(fields, columns, listed_mixers(fields, columns["layer_count"], [mixer] * columns["layer_count"]))


def phi3(fields: ConfigFields) -> Shape:
    """Read Phi-3, 3.5 and 4; Phi3Config: KV heads default to heads, RoPE covers the whole head."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"], kv_heads_default_to_heads=True)
    columns |= partial_rotary(fields, columns["head_dim"], default=1.0)
    mixer = "full" if fields.size("sliding_window", default=None) is None else "sliding"
    return dense_shape(fields, columns, [mixer] * columns["layer_count"]).with_modules(**FUSED_PHI)


def qwen2(fields: ConfigFields) -> Shape:
    """Read Qwen2 and Qwen2.5."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"])
    return dense_shape(fields, columns, qwen_mixers(fields, columns["layer_count"]))


def qwen3(fields: ConfigFields) -> Shape:
    """Read dense Qwen3: explicit head_dim (Qwen3Config: 128), norms on each head's query and key."""
    columns = trunk(fields) | {"qk_norm": "head"}
    columns |= attention_heads(fields, columns["hidden"], head_dim=128)
    return dense_shape(fields, columns, qwen_mixers(fields, columns["layer_count"]))


def gemma2(fields: ConfigFields) -> Shape:
    """Read Gemma 2: sliding and full layers alternate, sliding first; four norms; Gemma2Config: tied, head_dim 256."""
    columns = trunk(fields, activation="gelu", tie_word_embeddings=True) | {"norms_per_layer": 4}
    columns |= attention_heads(fields, columns["hidden"], head_dim=256)
    alternating = ["full" if layer % 2 else "sliding" for layer in range(columns["layer_count"])]
    return dense_shape(fields, columns, listed_mixers(fields, columns["layer_count"], alternating))


def gemma3(fields: ConfigFields) -> Shape:
    """Read Gemma 3: every sixth layer full; Gemma3TextConfig defines the sizes missing in published configs."""
    columns = trunk(
        fields, activation="gelu", tie_word_embeddings=True, vocab_size=262208, max_position_embeddings=131072
    )
    columns |= {"norms_per_layer": 4, "qk_norm": "head"}
    columns |= attention_heads(fields, columns["hidden"], head_dim=256, num_attention_heads=8, num_key_value_heads=4)
    period = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    repeating = ["sliding" if (layer + 1) % period else "full" for layer in range(columns["layer_count"])]
    notes = (VISION_NOTE,) if "vision_config" in fields.values else ()
    return dense_shape(fields, columns, listed_mixers(fields, columns["layer_count"], repeating), notes)


def mixtral(fields: ConfigFields) -> Shape:
    """Read Mixtral: every layer is a mixture of experts of width intermediate_size."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"])
    columns |= routed_experts(fields, "num_local_experts", "intermediate_size")
    mixer = "full" if fields.size("sliding_window", default=None) is None else "sliding"
    attention = with_windows(fields, columns, [mixer] * columns["layer_count"])
    return Shape(columns, attention, ["moe"] * columns["layer_count"]).with_modules(expert=BLOCK_SPARSE)


def gpt_oss(fields: ConfigFields) -> Shape:
    """Read gpt-oss: alternating windows (sliding first) and one learned attention sink per head."""
    columns = trunk(fields) | {"attention_sinks": True}
    columns |= attention_heads(fields, columns["hidden"])
    columns |= routed_experts(fields, "num_local_experts", "intermediate_size", "experts_per_token")
    alternating = ["full" if layer % 2 else "sliding" for layer in range(columns["layer_count"])]
    attention = listed_mixers(fields, columns["layer_count"], alternating)
    shape = Shape(columns, with_windows(fields, columns, attention), ["moe"] * columns["layer_count"])
    return shape.with_modules(expert=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"))


def minimax_m2(fields: ConfigFields) -> Shape:
    """Read MiniMax-M2: partial RoPE, and one norm over all query heads and one over all key heads."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"])
    columns |= routed_experts(fields, "num_local_experts", "intermediate_size")
    for kind in fields.items("attn_type_list", default=[]):
        if kind != 1:
            raise errors.config_unsupported(fields.label, "attn_type_list entry", kind, ["1 (softmax attention)"])
    columns["rotary_dim"] = fields.size("rotary_dim")
    if fields.flag("use_qk_norm", default=False):
        columns["qk_norm"] = fields.choice("qk_norm_type", among={"per_layer": "full", "per_head": "head"})
    columns["shared_intermediate"] = fields.size("shared_intermediate_size", default=0, least=0)
    columns["mtp_layers"] = fields.size("num_mtp_modules", default=0, least=0)
    layers = columns["layer_count"]
    return Shape(columns, ["full"] * layers, ["moe"] * layers).with_modules(expert=BLOCK_SPARSE)


def qwen3_moe(fields: ConfigFields) -> Shape:
    """Read Qwen3 mixture-of-experts models."""
    columns = trunk(fields) | {"qk_norm": "head"}
    columns |= attention_heads(fields, columns["hidden"])
    columns |= routed_experts(fields, "num_experts", "moe_intermediate_size")
    ffn = with_dense_width(fields, columns, sparse_steps(fields, columns["layer_count"]))
    return Shape(columns, with_windows(fields, columns, qwen_mixers(fields, columns["layer_count"])), ffn)


def glm4_moe(fields: ConfigFields) -> Shape:
    """Read GLM-4.5 and 4.6; Glm4MoeConfig: RoPE covers half of each head, no query-key norm."""
    columns = trunk(fields)
    columns |= attention_heads(fields, columns["hidden"])
    columns |= partial_rotary(fields, columns["head_dim"], default=0.5)
    columns["qk_norm"] = "head" if fields.flag("use_qk_norm", default=False) else "none"
    columns |= routed_experts(fields, "n_routed_experts", "moe_intermediate_size")
    columns["shared_intermediate"] = fields.size("n_shared_experts", least=0) * columns["expert_intermediate"]
    columns["mtp_layers"] = fields.size("num_nextn_predict_layers", default=0, least=0)
    ffn = with_dense_width(fields, columns, leading_dense(fields, columns["layer_count"]))
    return Shape(columns, ["full"] * columns["layer_count"], ffn)


def deepseek(fields: ConfigFields) -> Shape:
    """Read multi-head latent attention with mixtures of experts: DeepSeek-V2, V3 and R1, Kimi-K2."""
    columns = trunk(fields)
    heads = fields.size("num_attention_heads")
    nope, rope = fields.size("qk_nope_head_dim"), fields.size("qk_rope_head_dim")
    columns |= {
        "heads": heads,
        "kv_heads": 1,
        "head_dim": nope + rope,
        "rotary_dim": rope,
        "q_lora_rank": fields.size("q_lora_rank", default=None),
        "kv_lora_rank": fields.size("kv_lora_rank"),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": fields.size("v_head_dim"),
        "mtp_layers": fields.size("num_nextn_predict_layers", default=0, least=0),
    }
    columns |= routed_experts(fields, "n_routed_experts", "moe_intermediate_size")
    shared = fields.size("n_shared_experts", default=0, least=0)
    columns["shared_intermediate"] = shared * columns["expert_intermediate"]
    ffn = with_dense_width(fields, columns, leading_dense(fields, columns["layer_count"]))
    return Shape(columns, ["mla"] * columns["layer_count"], ffn)


def deepseek_sparse(fields: ConfigFields) -> Shape:
    """Read latent attention with an indexer on every layer: DeepSeek-V3.2, GLM-5."""
    shape = deepseek(fields)
    shared = [kind for kind in fields.items("indexer_types", default=[]) if kind != "full"]
    if shared:
        raise errors.config_unsupported(fields.label, "indexer type", shared[0], ["full"])
    columns = shape.columns | {
        "index_heads": fields.size("index_n_heads"),
        "index_head_dim": fields.size("index_head_dim"),
        "index_top_k": fields.size("index_topk"),
    }
    return shape._replace(columns=columns, attention=["sparse"] * columns["layer_count"])


def kimi_k25(fields: ConfigFields) -> Shape:
    """Read Kimi-K2.5: Kimi-K2 with a vision tower."""
    return deepseek(fields)._replace(notes=(VISION_NOTE,))


def _gated_delta_hybrid(fields: ConfigFields) -> tuple[dict[str, Any], list[str]]:
    """Return the columns and each layer's attention of Qwen's hybrids.

    Gated delta net, with softmax attention in every full_attention_interval-th layer (default 4).
    """
    columns = trunk(fields) | {"qk_norm": "head"}
    columns |= attention_heads(fields, columns["hidden"])
    columns |= partial_rotary(fields, columns["head_dim"], default=0.25)
    # Qwen3-Next always has the gate; Qwen3.5 has a field for it
    columns["attention_output_gate"] = fields.flag("attn_output_gate", default=True)
    columns |= {
        "linear_key_heads": fields.size("linear_num_key_heads"),
        "linear_value_heads": fields.size("linear_num_value_heads"),
        "linear_key_head_dim": fields.size("linear_key_head_dim"),
        "linear_value_head_dim": fields.size("linear_value_head_dim"),
        "linear_conv_kernel": fields.size("linear_conv_kernel_dim"),
        "mtp_layers": fields.size("mtp_num_hidden_layers", default=0, least=0),
    }
    if columns["linear_value_heads"] % columns["linear_key_heads"]:
        expected = f"a multiple of linear_num_key_heads ({columns['linear_key_heads']})"
        value_heads = columns["linear_value_heads"]
        raise errors.config_field_wrong(fields.label, "linear_num_value_heads", value_heads, expected)
    period = fields.size("full_attention_interval", default=4)
    repeating = ["linear" if (layer + 1) % period else "full" for layer in range(columns["layer_count"])]
    return columns, listed_kinds(fields, "layer_types", HYBRID, columns["layer_count"], repeating)


def qwen3_next(fields: ConfigFields) -> Shape:
    """Read Qwen3-Next: a gated delta net hybrid with mixtures of experts and one shared expert."""
    columns, attention = _gated_delta_hybrid(fields)
    columns |= routed_experts(fields, "num_experts", "moe_intermediate_size")
    columns["shared_intermediate"] = fields.size("shared_expert_intermediate_size", least=0)
    ffn = with_dense_width(fields, columns, sparse_steps(fields, columns["layer_count"]))
    return Shape(columns, attention, ffn).with_modules(shared=ONE_SHARED)


def qwen35_moe(fields: ConfigFields) -> Shape:
    """Read Qwen3.5 mixture-of-experts models: Qwen3-Next with a vision tower."""
    return qwen3_next(fields)._replace(notes=(VISION_NOTE,)).with_modules(linear=SPLIT_LINEAR)


def qwen35(fields: ConfigFields) -> Shape:
    """Read dense Qwen3.5: a gated delta net hybrid with dense feed-forward layers and a vision tower."""
    columns, attention = _gated_delta_hybrid(fields)
    return dense_shape(fields, columns, attention, (VISION_NOTE,)).with_modules(linear=SPLIT_LINEAR)


def with_vision(reader: Callable[[ConfigFields], Shape]) -> Callable[[ConfigFields], Shape]:
    """Return a reader of a multimodal model's language model, whose shape has a note where there is a vision tower."""
    return lambda fields: text_part(fields, reader(fields))


ARCHITECTURES: dict[str, Callable[[ConfigFields], Shape]] = {
    "Cohere2ForCausalLM": dense.cohere2,
    "CohereForCausalLM": dense.cohere,
    "DeepseekV2ForCausalLM": deepseek,
    "DeepseekV3ForCausalLM": deepseek,
    "DeepseekV32ForCausalLM": deepseek_sparse,
    "Ernie4_5ForCausalLM": dense.ernie,
    "Ernie4_5_ForCausalLM": dense.ernie,
    "Ernie4_5_MoeForCausalLM": experts.ernie_moe,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3ForConditionalGeneration": gemma3,
    "Glm4ForCausalLM": dense.glm4,
    "Glm4MoeForCausalLM": glm4_moe,
    "Glm4MoeLiteForCausalLM": deepseek,
    "Glm4vMoeForConditionalGeneration": with_vision(glm4_moe),
    "GlmForCausalLM": dense.glm,
    "GlmMoeDsaForCausalLM": deepseek_sparse,
    "GptOssForCausalLM": gpt_oss,
    "GraniteForCausalLM": dense.granite,
    "GraniteMoeForCausalLM": experts.granite_moe,
    "GraniteMoeHybridForCausalLM": recurrent.granite_hybrid,
    "GraniteMoeSharedForCausalLM": experts.granite_moe,
    "HunYuanDenseV1ForCausalLM": dense.hunyuan,
    "HunYuanMoEV1ForCausalLM": experts.hunyuan_moe,
    "KimiK25ForConditionalGeneration": kimi_k25,
    "Llama4ForCausalLM": experts.llama4,
    "Llama4ForConditionalGeneration": with_vision(experts.llama4),
    "LlamaForCausalLM": llama,
    "MiniMaxM2ForCausalLM": minimax_m2,
    "Ministral3ForCausalLM": mistral,
    "Mistral3ForConditionalGeneration": with_vision(mistral),
    "MistralForCausalLM": mistral,
    "MixtralForCausalLM": mixtral,
    "NemotronHForCausalLM": recurrent.nemotron_h,
    "Olmo2ForCausalLM": dense.olmo2,
    "Olmo3ForCausalLM": dense.olmo3,
    "Phi3ForCausalLM": phi3,
    "Qwen2ForCausalLM": qwen2,
    "Qwen2VLForConditionalGeneration": with_vision(qwen2),
    "Qwen2_5_VLForConditionalGeneration": with_vision(qwen2),
    "Qwen3ForCausalLM": qwen3,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "Qwen3NextForCausalLM": qwen3_next,
    "Qwen3VLForConditionalGeneration": with_vision(qwen3),
    "Qwen3VLMoeForConditionalGeneration": with_vision(qwen3_moe),
    "Qwen3_5ForConditionalGeneration": qwen35,
    "Qwen3_5MoeForConditionalGeneration": qwen35_moe,
    "SeedOssForCausalLM": dense.seed_oss,
}
