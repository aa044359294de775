"""Configs in other forms than config.json: Mistral's params.json and the metadata of GGUF files."""

from __future__ import annotations

import json
import struct

import pytest

from kernelsight.errors import InvalidInput
from kernelsight.files.gguf_files import SCALARS
from kernelsight.models.config import read_config, read_config_file

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "float16",
    "tie_word_embeddings": False,
}
METADATA = {
    "general.architecture": "llama",
    "llama.embedding_length": 4096,
    "llama.feed_forward_length": 14336,
    "llama.block_count": 32,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.context_length": 131072,
    "llama.rope.freq_base": 500000.0,
    "general.file_type": 1,
    "tokenizer.ggml.tokens": ["a"] * 128256,
    "tokenizer.ggml.token_type": [1] * 128256,
}
NUMBERS = {kind: number for number, kind in SCALARS.items()}


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        kind = 8 if isinstance(value[0], str) else NUMBERS["i"]
        items = [text(item) if kind == 8 else struct.pack("<i", item) for item in value]
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(items)
    kind = "f" if isinstance(value, float) else "I"
    return struct.pack(f"<I{kind}", NUMBERS[kind], value)


def gguf(tensors=("token_embd.weight", "output.weight"), version=3, **changed):
    content = {name: value for name, value in {**METADATA, **changed}.items() if value is not None}
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(content))
    body = b"".join(text(name) + entry(value) for name, value in content.items())
    return head + body + b"".join(text(name) + struct.pack("<IQQIQ", 2, 4096, 128256, 1, 0) for name in tensors)


def shape(rows):
    row, layers = rows
    named = ("model", "huggingface_id", "source", "notes")
    return {k: v for k, v in row.items() if k not in named}, [{**layer, "model": ""} for layer in layers]


def read(folder, data, name="my-llama.gguf"):
    path = folder / name
    path.write_bytes(data)
    return read_config_file(path)


def config(**changed):
    return shape(read_config(LLAMA | changed, model="m", huggingface_id=None, source="by hand"))


def test_a_gguf_file_is_the_config_that_states_the_same(tmp_path):
    found = read(tmp_path, gguf())
    assert shape(found) == config() and found[0]["model"] == "my-llama"
    # no matrix of the output: the embedding is reused
    assert shape(read(tmp_path, gguf(tensors=["token_embd.weight"]))) == config(tie_word_embeddings=True)
    # most matrices in Q4_K_M, Q5_K_M, Q6_K
    rows = [read(tmp_path, gguf(**{"general.file_type": kind}))[0] for kind in (15, 17, 18)]
    assert [row["ffn_format"] for row in rows] == ["int4_g32_wo", "q5_k_wo", "q6_k_wo"]
    assert rows[0]["kv_cache_format"] == "fp16"
    moe = {"llama.expert_count": 8, "llama.expert_used_count": 2}
    assert read(tmp_path, gguf(**moe))[0]["experts"] == 8


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is no complete GGUF file"),
        (b"PK\3\4" + bytes(40), "is no GGUF file"),
        (gguf(version=1), "is GGUF of version 1; versions 2 and 3 are read"),
        (gguf(**{"general.architecture": "rwkv7", "rwkv7.block_count": 32}), "general.architecture 'rwkv7' is not"),
        (gguf(**{"general.file_type": 9}), "file_type"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "states 1,152,921,504,606,846,976 entries of one list"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "has more than 128 MiB of metadata"),
    ],
)
def test_what_is_no_gguf_file_is_said(tmp_path, data, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        read(tmp_path, data)


def test_a_gguf_file_that_was_cut_is_said(tmp_path):
    whole = gguf(**{"tokenizer.ggml.tokens": ["a"] * 7, "tokenizer.ggml.token_type": [1] * 7})
    for length in range(0, len(whole), 11):
        with pytest.raises(InvalidInput, match="is no complete GGUF file"):
            read(tmp_path, whole[:length])


def test_params_of_mistral_are_the_config_that_states_the_same(tmp_path):
    params = {
        "dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 32768, "n_heads": 32, "n_kv_heads": 8,
        "vocab_size": 131072, "max_position_embeddings": 131072, "norm_eps": 1e-5,
    }  # fmt: skip
    same = {
        "architectures": ["MistralForCausalLM"], "hidden_size": 5120, "num_hidden_layers": 40, "head_dim": 128,
        "intermediate_size": 32768, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 131072,
        "max_position_embeddings": 131072,
    }  # fmt: skip
    expected = shape(read_config(same, model="m", huggingface_id=None, source="by hand"))
    folder = tmp_path / "my-small"
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps(params))
    assert shape(read_config_file(folder / "params.json")) == expected == shape(read_config_file(folder))
    experts = read(
        folder, json.dumps(params | {"moe": {"num_experts": 8, "num_experts_per_tok": 2}}).encode(), "p.json"
    )
    assert (experts[0]["experts"], experts[0]["architecture"]) == (8, "MixtralForCausalLM")
