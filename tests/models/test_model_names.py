"""Hugging Face identifiers of quantised variants, mirrors and local copies; models of the shape of another."""

from __future__ import annotations

import pytest

from kernelsight.catalog.model_names import find_variant
from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.scenario.model_variants import is_quantised
from kernelsight.scenario.scenario_rows import resolve_model, resolve_names
from kernelsight.session import connect

VARIANTS = {
    "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": ("qwen3-30b-a3b-2507", "fp8_block"),
    "nvidia/Llama-3.3-70B-Instruct-FP8": ("llama-3.3-70b", "fp8_static"),
    "nvidia/Llama-3.3-70B-Instruct-FP4": ("llama-3.3-70b", "nvfp4"),
    "nvidia/Qwen3-32B-NVFP4": ("qwen3-32b", "nvfp4"),
    "RedHatAI/Qwen3-32B-FP8-dynamic": ("qwen3-32b", "fp8"),
    "RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8": ("llama-3.1-70b", "fp8_static"),
    "neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": ("llama-3.1-8b", "int4_wo"),
    "neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": ("llama-3.1-8b", "int8"),
    "Qwen/Qwen2.5-72B-Instruct-AWQ": ("qwen2.5-72b", "int4_wo"),
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4": ("qwen2.5-72b", "int4_wo"),
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8": ("qwen2.5-72b", "int8_wo"),
    "amd/Llama-3.3-70B-Instruct-FP8-KV": ("llama-3.3-70b", "fp8_static"),
    "someone/Llama-3.3-70B-Instruct-FP8": ("llama-3.3-70b", "fp8"),
    "unsloth/Llama-3.3-70B-Instruct": ("llama-3.3-70b", None),
    "/models/Qwen3-32B/": ("qwen3-32b", None),
}


@pytest.mark.parametrize(("name", "expected"), VARIANTS.items())
def test_variants(name, expected):
    assert find_variant(name)[:2] == expected
    assert is_quantised(name) == (expected[1] is not None)


def test_what_is_no_variant():
    assert find_variant("acme/gpt-17b-FP8") is None
    with pytest.raises(InvalidInput, match=r"is quantised in a format that its name does not say \(GGUF of llama.cpp"):
        find_variant("unsloth/Qwen3-32B-GGUF")
    with connect() as session, pytest.raises(UnknownName, match="unknown model 'acme/gpt-17b-FP8'"):
        resolve_model(session, "acme/gpt-17b-FP8")


def rows(name, **flags):
    with connect() as session:
        found = resolve_names(session, {"model": name, **flags})["model"]
        row = next(row for row in session.table("models").to_pylist() if row["model"] == found)
        return row, [layer for layer in session.table("model_layers").to_pylist() if layer["model"] == found]


def test_a_variant_has_the_shape_of_its_base_and_says_what_is_assumed():
    row, layers = rows("RedHatAI/Qwen3-32B-FP8-dynamic")
    base, base_layers = rows("qwen3-32b")
    assert row["model"] == "qwen3-32b-fp8-dynamic"
    assert (row["attention_format"], row["ffn_format"], row["activation_scales"]) == ("fp8", "fp8", "dynamic")
    assert row["notes"].startswith(
        "RedHatAI/Qwen3-32B-FP8-dynamic is taken as qwen3-32b with quantization fp8, as its name says"
    )
    assert (row["hidden"], row["dtype"]) == (base["hidden"], base["dtype"])
    assert [layer | {"model": "qwen3-32b"} for layer in layers] == base_layers


def test_fp4_of_latent_attention_is_of_the_experts_alone():
    row, _ = rows("nvidia/DeepSeek-R1-0528-FP4")
    assert (row["attention_format"], row["ffn_format"], row["expert_format"]) == ("bf16", "bf16", "nvfp4")


def test_a_catalogue_entry_comes_before_a_variant():
    row, _ = rows("nvidia/Llama-3.1-70B-Instruct-FP8")
    assert (row["model"], row["notes"]) == ("llama-3.1-70b-fp8", None)


def test_a_model_whose_rope_reaches_further():
    row, layers = rows("qwen3-32b", max_position_embeddings=131072)
    base, base_layers = rows("qwen3-32b")
    assert (row["model"], row["max_positions"]) == ("qwen3-32b-131072-positions", 131072)
    assert "qwen3-32b is taken to reach 131,072 positions (--max-position-embeddings)" in row["notes"]
    assert [layer | {"model": ""} for layer in layers] == [layer | {"model": ""} for layer in base_layers]
    # what a model reaches by itself is the model
    assert rows("qwen3-32b", max_position_embeddings=base["max_positions"])[0] == base


def test_a_private_model_like_another():
    row, layers = rows("acme/Support-Bot", model_like="Qwen/Qwen3-30B-A3B-FP8")
    base, _ = rows("qwen3-30b-a3b-fp8")
    assert row["notes"] == "support-bot is taken to have the shape and formats of qwen3-30b-a3b-fp8 (--model-like)"
    same = {"model", "huggingface_id", "notes", "source"}
    assert {k: v for k, v in row.items() if k not in same} == {k: v for k, v in base.items() if k not in same}
    assert sum(layer["count"] for layer in layers) == 48
    assert rows(None, model_like="qwen3-8b")[0]["model"] == "like-qwen3-8b"
