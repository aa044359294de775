"""Architectures that are read from a config.json: layer kinds, windows, positions, experts, and weights by hand."""

from __future__ import annotations

import json

import pytest

from kernelsight import errors
from kernelsight.catalog.model_names import CATALOGUE
from kernelsight.models.config import read_config

CONFIGS = {entry["model"]: entry["config"] for entry in map(json.loads, CATALOGUE.read_text().splitlines())}
PLAIN = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 65536,
    "torch_dtype": "bfloat16",
}


def read(architecture, **changes):
    config = {name: value for name, value in (PLAIN | changes).items() if value is not None}
    return read_config(
        config | {"architectures": [architecture]}, model="m", huggingface_id=None, source="m/config.json"
    )


def catalogued(model, **changes):
    config = CONFIGS[model]
    text = {"text_config": config["text_config"] | changes} if "text_config" in config else changes
    return read_config(config | text, model="m", huggingface_id=None, source="m/config.json")


def kinds(rows):
    return [(layer["layer_kind"], layer["count"], layer["window"]) for layer in rows[1]]


def weights(rows):
    """Matrices of all layers, embedding and head, from the columns that lowering reads."""
    row, layers = rows
    total = row["vocab"] * row["hidden"] * (1 if row["tied_embeddings"] else 2)
    for layer in layers:
        heads, kv_heads = layer["heads"], layer["kv_heads"]
        each = 2 * row["hidden"] * layer["head_dim"] * (heads + kv_heads)
        if layer["attention"] == "linear":
            keys, values = kv_heads * row["linear_key_head_dim"], heads * layer["head_dim"]
            each = row["hidden"] * (2 * keys + 3 * values + 2 * heads)
        branches = 3 if row["ffn_gated"] else 2
        copies = max(layer["experts"], 1)
        each += branches * row["hidden"] * (copies * layer["intermediate"] + layer["shared_intermediate"])
        total += layer["count"] * (each + row["hidden"] * layer["experts"])
    return total


ATTENTION = 2 * 1024 * 64 * (16 + 4)
DENSE = 3 * 1024 * 3072
EMBEDDING = 32000 * 1024


@pytest.mark.parametrize(
    ("architecture", "changes", "columns", "layers"),
    [
        ("GlmForCausalLM", {"head_dim": 64}, {"rotary_dim": 32, "norms_per_layer": 2}, [("full_dense", 8, 0)]),
        ("Glm4ForCausalLM", {"head_dim": 64}, {"rotary_dim": 32, "norms_per_layer": 4}, [("full_dense", 8, 0)]),
        ("GraniteForCausalLM", {"residual_multiplier": 0.2}, {"rotary_dim": 64}, [("full_dense", 8, 0)]),
        ("Olmo2ForCausalLM", {}, {"qk_norm": "full"}, [("full_dense", 8, 0)]),
        ("Olmo3ForCausalLM", {"sliding_window": 4096}, {}, [("sliding_dense", 6, 4096), ("full_dense", 2, 0)]),
        ("HunYuanDenseV1ForCausalLM", {}, {"qk_norm": "head"}, [("full_dense", 8, 0)]),
        ("SeedOssForCausalLM", {"head_dim": 64}, {"head_dim": 64}, [("full_dense", 8, 0)]),
        ("Ernie4_5ForCausalLM", {"head_dim": 64, "tie_word_embeddings": False}, {}, [("full_dense", 8, 0)]),
        ("Ministral3ForCausalLM", {}, {}, [("full_dense", 8, 0)]),
    ],
)
def test_dense_decoders(architecture, changes, columns, layers):
    rows = read(architecture, **changes)
    assert rows[0] | columns == rows[0]
    assert kinds(rows) == layers
    assert weights(rows) == 2 * EMBEDDING + 8 * (ATTENTION + DENSE)


def test_defaults_are_those_of_the_configuration_classes():
    assert read("GlmForCausalLM", num_key_value_heads=None)[0]["kv_heads"] == 2
    assert read("SeedOssForCausalLM")[0]["head_dim"] == 128
    assert read("Ernie4_5ForCausalLM")[0] | {"head_dim": 128, "tied_embeddings": True} == read("Ernie4_5ForCausalLM")[0]
    assert read("GraniteForCausalLM", num_key_value_heads=None)[0]["kv_heads"] == 16


def test_command_has_one_norm_and_tied_embeddings():
    rows = read("CohereForCausalLM", use_qk_norm=True)
    assert (rows[0]["norms_per_layer"], rows[0]["qk_norm"], rows[0]["rope_layers"]) == (1, "head", "all")
    assert weights(rows) == EMBEDDING + 8 * (ATTENTION + DENSE)
    rows = read("Cohere2ForCausalLM", sliding_window=4096)
    assert kinds(rows) == [("sliding_dense", 6, 4096), ("full_dense", 2, 0)]
    assert rows[0]["rope_layers"] == "sliding"


def test_llama_4_chunks_positions_and_interleaved_experts():
    row, layers = catalogued("llama-4-maverick-17b-128e")
    assert kinds((row, layers)) == [("sliding_dense", 24, 8192), ("sliding_moe", 12, 8192), ("full_moe", 12, 0)]
    assert (row["rope_layers"], row["qk_norm"], row["intermediate"]) == ("sliding", "none", 16384)
    assert {layer["shared_intermediate"] for layer in layers} == {0, 8192}
    assert "chunked attention over 8,192 tokens counts as a sliding window" in row["notes"]
    assert "the vision tower is not modelled" in row["notes"]
    scout = catalogued("llama-4-scout-17b-16e", interleave_moe_layer_step=3, no_rope_layers=[1] * 48)
    assert kinds(scout) == [("sliding_dense", 32, 8192), ("sliding_moe", 16, 8192)]
    short = catalogued("llama-4-scout-17b-16e", max_position_embeddings=8192)
    assert kinds(short) == [("full_moe", 48, 0)] and short[0]["rope_layers"] == "all"
    with pytest.raises(errors.InvalidInput, match="no_rope_layers"):
        catalogued("llama-4-scout-17b-16e", no_rope_layers=[1, 2])


@pytest.mark.parametrize(
    ("architecture", "columns"),
    [
        ("Mistral3ForConditionalGeneration", {"qk_norm": "none"}),
        ("Qwen2_5_VLForConditionalGeneration", {"qk_norm": "none"}),
        ("Qwen2VLForConditionalGeneration", {"qk_norm": "none"}),
        ("Qwen3VLForConditionalGeneration", {"qk_norm": "head"}),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_text_part_of_multimodal_models(architecture, columns, nested):
    config = PLAIN | {"head_dim": 64, "tie_word_embeddings": False}
    config = ({"text_config": config} if nested else config) | {"vision_config": {"depth": 3}}
    rows = read_config(config | {"architectures": [architecture]}, model="m", huggingface_id=None, source="here")
    assert rows[0] | columns | {"notes": "the vision tower is not modelled"} == rows[0]
    assert weights(rows) == 2 * EMBEDDING + 8 * (ATTENTION + DENSE)


def test_ernie_experts_begin_after_the_first_layers():
    rows = catalogued("ernie-4.5-21b-a3b-pt", num_nextn_predict_layers=1)
    assert kinds(rows) == [("full_dense", 1, 0), ("full_moe", 27, 0)]
    assert rows[0] | {"mtp_layers": 1, "shared_intermediate": 3072} == rows[0]
    rows = catalogued("ernie-4.5-21b-a3b-pt", moe_layer_interval=2, moe_layer_end_index=20)
    assert kinds(rows) == [("full_dense", 18, 0), ("full_moe", 10, 0)]
    assert catalogued("ernie-4.5-21b-a3b-pt", moe_k=64)[0]["top_k"] == 64
    with pytest.raises(errors.InvalidInput, match="'moe_k' is 65, but must be at most moe_num_experts"):
        catalogued("ernie-4.5-21b-a3b-pt", moe_k=65)


def test_hunyuan_lists_the_same_number_for_each_layer():
    lists = {"moe_topk": [2] * 8, "moe_intermediate_size": [512] * 8, "num_shared_expert": [1] * 8, "num_experts": 4}
    rows = read("HunYuanMoEV1ForCausalLM", **lists)
    assert kinds(rows) == [("full_moe", 8, 0)]
    experts = 3 * 1024 * (4 * 512 + 3072) + 4 * 1024
    assert weights(rows) == 2 * EMBEDDING + 8 * (ATTENTION + experts)
    with pytest.raises(errors.InvalidInput, match="moe_topk"):
        read("HunYuanMoEV1ForCausalLM", **lists | {"moe_topk": [1, 2] * 4})


def test_granite_experts():
    rows = read("GraniteMoeSharedForCausalLM", num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=768)
    experts = 3 * 1024 * (4 * 3072 + 768) + 4 * 1024
    assert weights(rows) == 2 * EMBEDDING + 8 * (ATTENTION + experts)
    assert kinds(read("GraniteMoeForCausalLM", num_local_experts=4, num_experts_per_tok=2)) == [("full_moe", 8, 0)]


MAMBA = {"mamba_n_heads": 32, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_head": "auto", "mamba_d_conv": 4}


def test_granite_4_hybrid():
    types = ["mamba"] * 6 + ["attention", "mamba"]
    hybrid = MAMBA | {"layer_types": types, "shared_intermediate_size": 768, "position_embedding_type": "nope"}
    rows = read("GraniteMoeHybridForCausalLM", num_local_experts=4, num_experts_per_tok=2, **hybrid)
    assert kinds(rows) == [("linear_moe", 7, 0), ("full_moe", 1, 0)]
    assert rows[0] | {"rotary_dim": 0, "linear_value_head_dim": 64, "linear_key_heads": 1} == rows[0]
    assert rows[0]["notes"] == "Mamba-2 layers are predicted as gated delta nets of the same matrices and state"
    dense = read("GraniteMoeHybridForCausalLM", num_local_experts=0, **hybrid)
    assert kinds(dense) == [("linear_dense", 7, 0), ("full_dense", 1, 0)]
    assert dense[0]["intermediate"] == 768
    mixer = 1024 * (2 * 128 + 3 * 2048 + 2 * 32)
    assert weights(dense) == 2 * EMBEDDING + 7 * mixer + ATTENTION + 8 * 3 * 1024 * 768


def test_nemotron_h_layers_are_one_block_each():
    row, layers = catalogued("nvidia-nemotron-3-nano-30b-a3b-bf16")
    assert kinds((row, layers)) == [("linear_none", 23, 0), ("none_moe", 23, 0), ("full_none", 6, 0)]
    assert row | {"norms_per_layer": 1, "ffn_gated": False, "activation": "relu2", "rotary_dim": 0} == row
    assert [layer["heads"] for layer in layers] == [64, 0, 32]
    assert [layer["shared_intermediate"] for layer in layers] == [0, 3712, 0]
    listed = catalogued(
        "nemotron-h-56b-base-8k", hybrid_override_pattern=None, layers_block_type=["mamba", "mlp", "attention"]
    )
    assert kinds(listed) == [("linear_none", 1, 0), ("none_dense", 1, 0), ("full_none", 1, 0)]
    with pytest.raises(errors.InvalidInput, match="hybrid_override_pattern entry 'X' is not supported"):
        catalogued("nemotron-h-56b-base-8k", hybrid_override_pattern="M-X")


def by_kind(model):
    return {layer["layer_kind"]: layer for layer in catalogued(model)[1]}


def test_experts_of_a_latent_width():
    moe = by_kind("nvidia-nemotron-3-super-120b-a12b-fp8")["none_moe"]
    assert (moe["count"], moe["expert_hidden"], moe["experts"], moe["top_k"]) == (40, 1024, 512, 22)
    assert [(each["name"], each["n"], each["k"]) for each in moe["products"]] == [
        ("latent_down_proj", 1024, 4096),
        ("latent_up_proj", 4096, 1024),
    ]


def test_heads_differ_by_layer():
    mimo = by_kind("mimo-v2-flash")
    sizes = {name: tuple(kind[size] for size in ("kv_heads", "head_dim", "v_head_dim")) for name, kind in mimo.items()}
    assert sizes == {"full_dense": (4, 192, 128), "sliding_moe": (8, 192, 128), "full_moe": (4, 192, 128)}
    gemma = by_kind("gemma-4-26b-a4b")
    sizes = ("count", "kv_heads", "head_dim", "value_projections")
    assert [tuple(kind[size] for size in sizes) for kind in gemma.values()] == [(25, 8, 256, None), (5, 2, 512, 0)]


def test_a_searched_architecture_skips_attention_and_narrows_its_layers():
    kinds = catalogued("llama-3_3-nemotron-super-49b-v1")[1]
    assert sum(kind["count"] for kind in kinds if kind["attention"] == "full") == 49
    # ffn_mult 2.625: two thirds of 5.25 x 8192 in blocks of 256
    assert {kind["intermediate"] for kind in kinds if kind["attention"] == "full"} == {14336, 28672}


def test_delta_attention_beside_latent_attention():
    kimi = by_kind("kimi-k3")
    assert {name: kind["count"] for name, kind in kimi.items()} == {"linear_dense": 1, "linear_moe": 68, "mla_moe": 24}
    flash = by_kind("glm-5.3-flash")
    assert {name: kind["count"] for name, kind in flash.items()} == {
        "linear_dense": 3,
        "sparse_moe": 11,
        "linear_moe": 31,
    }


def test_entries_and_selections_of_tokens():
    kinds = [
        (kind["compression"], kind["count"], kind["index_heads"], kind["window"])
        for kind in catalogued("deepseek-v4-flash")[1]
    ]
    assert kinds == [(0, 2, 0, 128), (4, 21, 64, 128), (128, 20, 0, 128)]
    newest = [
        (kind["compression"], kind["count"], kind["index_heads"], kind["shared_cache"])
        for kind in catalogued("deepseek-v4.1-flash")[1]
    ]
    # entries of 2 in layers 2, 8 and 14, of one in layer 20; four of the last nineteen select anew
    assert newest == [(0, 2, 0, 0), (2, 3, 32, 0), (2, 15, 0, 1), (1, 1, 32, 0), (1, 15, 0, 1), (1, 4, 32, 1)]
    row, layers = catalogued("minimax-m3")
    assert [(kind["layer_kind"], kind["count"], kind["window"]) for kind in layers] == [
        ("full_dense", 3, 0),
        ("selected_moe", 57, 2048),
    ]
    assert (row["index_top_k"], row["intermediate"], row["shared_intermediate"]) == (2048, 12288, 3072)


def test_plain_decoders_under_another_class_name_are_llama():
    llama = read("LlamaForCausalLM")
    for architecture in ("SmolLM3ForCausalLM", "InternLM3ForCausalLM"):
        rows = read(architecture, no_rope_layers=[1, 1, 1, 0] * 2, use_sliding_window=False)
        assert ({**rows[0], "architecture": "LlamaForCausalLM"}, rows[1]) == llama
    row, _ = read("ApertusForCausalLM", hidden_act="xielu")
    assert (row["ffn_gated"], row["qk_norm"]) == (False, "head")
