"""Number formats by class of weights, from each way in which checkpoints state their quantisation."""

from __future__ import annotations

import json

import pytest

from kernelsight import errors
from kernelsight.catalog.model_names import CATALOGUE
from kernelsight.models.config import load_catalogue, read_config
from kernelsight.models.quantization import matches
from tests.asked import refusals

CONFIGS = {entry["model"]: entry["config"] for entry in map(json.loads, CATALOGUE.read_text().splitlines())}
ROWS = {row["model"]: row for row in load_catalogue()[0]}
COLUMNS = ("attention_format", "ffn_format", "expert_format", "activation_scales", "kv_cache_format")


def formats(quantization, model="qwen3-30b-a3b", quant_config=None):
    """Read a model's config with another quantisation; returns its five format columns and its notes."""
    config = {name: value for name, value in CONFIGS[model].items() if name != "quantization_config"}
    if quantization is not None:
        config["quantization_config"] = quantization
    row, _ = read_config(config, model="m", huggingface_id=None, source="m", quant_config=quant_config)
    return tuple(row[name] for name in COLUMNS), row["notes"]


def group(kind, bits, inputs=None, **more):
    activations = None if inputs is None else {"num_bits": bits, "type": kind, "dynamic": inputs}
    return {"targets": ["Linear"], "weights": {"type": kind, "num_bits": bits} | more, "input_activations": activations}


def weights_alone(number_format):
    return (number_format, number_format, number_format, "none", "bf16")


# AMD's FP8 checkpoints
FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
QUARK = {"weight": FP8, "input_tensors": FP8, "output_tensors": None, "bias": None}


def compressed(*groups, ignore=("lm_head",), **more):
    named = {f"group_{i}": each for i, each in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": list(ignore)} | more


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("qwen3-32b", ("bf16", "bf16", "bf16", "none", "bf16")),
        ("qwen3-32b-fp8", ("fp8_block", "fp8_block", "fp8_block", "dynamic", "bf16")),
        ("qwen3-32b-fp8-static-pertensor", ("fp8", "fp8", "fp8", "static", "fp8")),
        ("llama-3.1-70b-fp8", ("fp8", "fp8", "fp8", "static", "fp8")),
        ("qwen3-235b-a22b-nvfp4", ("nvfp4", "nvfp4", "nvfp4", "dynamic", "fp8")),
        ("gpt-oss-120b", ("bf16", "bf16", "mxfp4", "dynamic", "bf16")),
        ("kimi-k2.5", ("bf16", "bf16", "int4_g32_wo", "none", "bf16")),
        ("kimi-k2.5-nvfp4", ("bf16", "nvfp4", "nvfp4", "dynamic", "fp8")),
        ("minimax-m2.5-nvfp4", ("bf16", "nvfp4", "nvfp4", "dynamic", "fp8")),
        ("glm-5-nvfp4", ("bf16", "nvfp4", "nvfp4", "dynamic", "fp8")),
        ("qwen3.5-397b-a17b-nvfp4", ("bf16", "bf16", "nvfp4", "dynamic", "fp8")),
    ],
)
def test_published_checkpoints(model, expected):
    assert tuple(ROWS[model][name] for name in COLUMNS) == expected


def test_a_class_that_mixes_formats_takes_the_widest_and_says_so():
    row = ROWS["deepseek-v3.1-nvfp4"]
    assert (row["attention_format"], row["ffn_format"]) == ("bf16", "nvfp4")
    assert row["notes"] == "attention weights mix bf16 and nvfp4: counted as bf16"


def test_a_router_that_stays_does_not_keep_its_layer():
    excluded = ["gate", "e_score_correction_bias", "lm_head", "model.layers.24.mlp.gate"]
    found, _ = formats({"quant_method": "fp8", "modules_to_not_convert": excluded})
    assert found == ("fp8", "fp8", "fp8", "dynamic", "bf16")


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, ("fp8", "fp8", "fp8", "static", "bf16")),
        ({"quant_method": "awq", "bits": 4}, ("int4_wo", "int4_wo", "int4_wo", "none", "bf16")),
        ({"quant_method": "gptq", "bits": 8}, ("int8_wo", "int8_wo", "int8_wo", "none", "bf16")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4", "nvfp4", "nvfp4", "dynamic", "bf16")),
        (compressed(group("float", 8, True)), ("fp8", "fp8", "fp8", "dynamic", "bf16")),
        (compressed(group("float", 8, False)), ("fp8", "fp8", "fp8", "static", "bf16")),
        (
            compressed(group("float", 8, True, strategy="block"), kv_cache_scheme={"type": "float", "num_bits": 8}),
            ("fp8_block", "fp8_block", "fp8_block", "dynamic", "fp8"),
        ),
        (compressed(group("int", 8, True)), ("int8", "int8", "int8", "dynamic", "bf16")),
        (compressed(group("int", 8)), ("int8_wo", "int8_wo", "int8_wo", "none", "bf16")),
        (
            compressed(group("float", 4, "local", group_size=16), ignore=["re:.*self_attn.*"]),
            ("bf16", "nvfp4", "nvfp4", "dynamic", "bf16"),
        ),
        (compressed(group("float", 4, True, group_size=32)), ("mxfp4", "mxfp4", "mxfp4", "dynamic", "bf16")),
        (
            compressed(group("float", 8, True), ignore=["re:.*self_attn", "re:.*mlp\\.(gate|up|down)_proj"]),
            ("bf16", "bf16", "fp8", "dynamic", "bf16"),
        ),
        (compressed(group("float", 4, group_size=16)), weights_alone("nvfp4_wo")),
        (compressed(group("float", 4, group_size=32)), weights_alone("mxfp4_wo")),
        ({"quant_method": "gptq", "bits": 3}, weights_alone("int3_wo")),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, weights_alone("nf4_wo")),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ("int8", "int8", "int8", "dynamic", "bf16")),
        ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"}, weights_alone("int4_wo")),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, weights_alone("nvfp4_wo")),
        (
            {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}},
            weights_alone("int4_wo"),
        ),
        (
            {"quant_method": "quark", "global_quant_config": QUARK, "layer_quant_config": {"*k_proj": QUARK}},
            ("fp8", "fp8", "fp8", "static", "bf16"),
        ),
        (
            {"quant_method": "quark", "global_quant_config": QUARK, "exclude": ["re:.*self_attn.*", "*experts*"]},
            ("bf16", "fp8", "bf16", "static", "bf16"),
        ),
    ],
)
def test_ways_to_state_it(quantization, expected):
    assert formats(quantization)[0] == expected


def test_groups_with_targets_of_their_own():
    attention = group("float", 8, True) | {"targets": ["re:.*self_attn.*"]}
    experts = group("int", 4) | {"targets": ["re:.*experts.*"]}
    assert formats(compressed(attention, experts))[0] == ("fp8", "bf16", "int4_wo", "dynamic", "bf16")


def test_modelopt_mixed_precision_names_its_layers():
    layers = {}
    for layer in range(48):
        layers[f"model.layers.{layer}.self_attn"] = {"quant_algo": "FP8"}
        layers[f"model.layers.{layer}.mlp.experts"] = {"quant_algo": "NVFP4", "group_size": 16}
    mixed = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "quantized_layers": layers}
    found, _ = formats(None, quant_config={"quantization": mixed})
    assert found == ("fp8", "bf16", "nvfp4", "dynamic", "bf16")


def test_a_block_of_mlx_is_not_read_as_16_bit():
    config = CONFIGS["llama-3.1-8b"]
    row, _ = read_config(
        config | {"quantization": {"group_size": 64, "bits": 4}}, model="m", huggingface_id=None, source="m"
    )
    assert row["attention_format"] == "int4_wo"


def test_hf_quant_config_wins():
    unquantised = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    found, _ = formats({"quant_method": "fp8"}, quant_config=unquantised)
    assert found == ("bf16", "bf16", "bf16", "none", "fp8")


@pytest.mark.parametrize(
    ("quantization", "sentence"),
    refusals("models/test_quantization::test_what_is_not_understood_is_refused"),
)
def test_what_is_not_understood_is_refused(quantization, sentence):
    with pytest.raises(errors.InvalidInput, match=sentence):
        formats(quantization)


@pytest.mark.parametrize(
    ("pattern", "module", "expected"),
    [
        ("lm_head", "model.layers.0.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.11.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.1.mlp.gate_proj", True),
        ("gate_proj", "model.layers.1.mlp.gate_proj", True),
        ("model.language_model.layers.2.self_attn*", "model.layers.2.self_attn.q_proj", True),
        ("language_model.model.layers.2.mlp", "model.layers.2.mlp.up_proj", True),
        ("*.mlp.shared_expert.*", "model.layers.2.mlp.shared_expert.up_proj", True),
        ("re:self_attn", "model.layers.2.self_attn.q_proj", False),
    ],
)
def test_patterns(pattern, module, expected):
    assert matches(pattern, module) is expected
