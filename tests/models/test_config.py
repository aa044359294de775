"""Reading config.json: shapes and layers by architecture, and what is refused, by name."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelsight import errors
from kernelsight.catalog.model_names import CATALOGUE
from kernelsight.models.config import read_config, read_config_file
from tests.asked import refusals

CONFIGS = {entry["model"]: entry for entry in map(json.loads, CATALOGUE.read_text().splitlines())}
LLAMA = CONFIGS["llama-3.1-8b"]["config"]


def read(config, **changes):
    """Read a config after replacing some fields; None removes one."""
    changed = {name: value for name, value in (config | changes).items() if value is not None}
    return read_config(changed, model="m", huggingface_id=None, source="m/config.json")


def kinds(config, **changes):
    return [(layer["layer_kind"], layer["count"], layer["window"]) for layer in read(config, **changes)[1]]


def test_llama_row():
    row, layers = read(LLAMA)
    expected = {"hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "rotary_dim": 128, "vocab": 128256}
    assert row | expected == row
    assert (row["experts"], row["kv_lora_rank"], row["notes"], row["dtype"]) == (None, None, None, "bf16")
    assert [layer["layer_kind"] for layer in layers] == ["full_dense"]


def test_llama_defaults_are_those_of_its_configuration_class():
    row, _ = read(LLAMA, num_key_value_heads=None, tie_word_embeddings=None, hidden_act=None)
    assert (row["kv_heads"], row["tied_embeddings"], row["activation"]) == (32, False, "silu")


def test_no_dtype_is_noted():
    row, _ = read(LLAMA, torch_dtype=None)
    assert row["dtype"] == "bf16"
    assert row["notes"] == "the config has no dtype: bf16 assumed"
    assert read(LLAMA, torch_dtype=None, dtype="float16")[0]["kv_cache_format"] == "fp16"


def test_sliding_windows():
    mistral = CONFIGS["mistral-7b-v0.1"]["config"]
    assert kinds(mistral) == [("sliding_dense", 32, 4096)]
    # A window as long as the context sees everything.
    assert kinds(mistral, sliding_window=32768) == [("full_dense", 32, 0)]
    qwen = CONFIGS["qwen2.5-7b"]["config"]
    assert kinds(qwen, use_sliding_window=False, sliding_window=4096) == [("full_dense", 28, 0)]
    windows = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    assert kinds(qwen, **windows) == [("full_dense", 20, 0), ("sliding_dense", 8, 4096)]
    assert kinds(CONFIGS["gemma-3-27b"]["config"]) == [("sliding_dense", 52, 1024), ("full_dense", 10, 0)]
    listed = ["full_attention"] * 40 + ["sliding_attention"] * 2
    gemma = CONFIGS["gemma-2-9b"]["config"]
    assert kinds(gemma, layer_types=listed) == [("full_dense", 40, 0), ("sliding_dense", 2, 4096)]
    assert read(gemma)[0]["norms_per_layer"] == 4


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"type": "yarn", "factor": 2, "original_max_position_embeddings": 32768}, 65536),
        ({"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 32768}, 40960),
        ({"rope_type": "yarn", "factor": 4.0}, 40960),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 40960),
    ],
)
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_yarn_reaches_further_than_the_positions_that_were_trained(field, scaling, positions):
    config = CONFIGS["qwen3-8b"]["config"] | {"max_position_embeddings": 40960}
    assert read(config, **{field: scaling})[0]["max_positions"] == positions


def test_a_factor_of_yarn_beyond_all_reason_is_refused():
    scaling = {"rope_type": "yarn", "factor": 1e300, "original_max_position_embeddings": 32768}
    with pytest.raises(errors.InvalidInput, match="rope_scaling: field 'factor' is 1e.300, but must be one that reach"):
        read(LLAMA, rope_scaling=scaling)


def test_gpt_oss_alternates_with_or_without_layer_types():
    config = CONFIGS["gpt-oss-20b"]["config"]
    expected = [("sliding_moe", 12, 128), ("full_moe", 12, 0)]
    assert kinds(config) == kinds(config, layer_types=None) == expected
    assert read(config)[0]["attention_sinks"] is True


def test_gpt_oss_takes_the_older_name_of_top_k():
    config = CONFIGS["gpt-oss-20b"]["config"]
    assert read(config, num_experts_per_tok=None, experts_per_token=4)[0]["top_k"] == 4


def test_dense_and_mixture_layers():
    qwen = CONFIGS["qwen3-30b-a3b"]["config"]
    assert kinds(qwen, mlp_only_layers=[0, 47]) == [("full_dense", 2, 0), ("full_moe", 46, 0)]
    assert kinds(qwen, decoder_sparse_step=2) == [("full_dense", 24, 0), ("full_moe", 24, 0)]
    deepseek = CONFIGS["deepseek-v3"]["config"]
    assert kinds(deepseek) == [("mla_dense", 3, 0), ("mla_moe", 58, 0)]
    # Layers 3 to 60 that are even.
    assert kinds(deepseek, moe_layer_freq=2) == [("mla_dense", 32, 0), ("mla_moe", 29, 0)]
    listed = ["dense"] * 5 + ["sparse"] * 56
    assert kinds(deepseek, mlp_layer_types=listed) == [("mla_dense", 5, 0), ("mla_moe", 56, 0)]
    row, layers = read(deepseek)
    assert (row["kv_heads"], row["head_dim"], row["shared_intermediate"], row["mtp_layers"]) == (1, 192, 2048, 1)
    assert layers[0]["intermediate"] == 18432 and layers[0]["experts"] == 0
    assert (layers[1]["intermediate"], layers[1]["experts"], layers[1]["top_k"]) == (2048, 256, 8)


@pytest.mark.parametrize("model", ["deepseek-v3", "glm-4.5"])
def test_shared_experts_stand_side_by_side(model):
    width = CONFIGS[model]["config"]["moe_intermediate_size"]
    for experts in (1, 2):
        assert read(CONFIGS[model]["config"], n_shared_experts=experts)[0]["shared_intermediate"] == experts * width
    if model == "deepseek-v3":
        assert read(CONFIGS[model]["config"], n_shared_experts=None)[0]["shared_intermediate"] == 0


def test_sparse_attention_and_its_indexer():
    row, layers = read(CONFIGS["glm-5"]["config"])
    assert (row["index_heads"], row["index_head_dim"], row["index_top_k"], row["head_dim"]) == (32, 128, 2048, 256)
    assert [layer["layer_kind"] for layer in layers] == ["sparse_dense", "sparse_moe"]


def test_linear_attention_layers():
    row, layers = read(CONFIGS["qwen3-next-80b-a3b"]["config"])
    linear, full = layers
    assert (linear["layer_kind"], linear["count"], full["layer_kind"], full["count"]) == (
        "linear_moe", 36, "full_moe", 12,
    )  # fmt: skip
    assert (linear["heads"], linear["kv_heads"], linear["head_dim"]) == (32, 16, 128)
    assert (row["rotary_dim"], row["attention_output_gate"], row["linear_conv_kernel"]) == (64, True, 4)
    assert full["shared_intermediate"] == 512


def test_a_model_that_sees_is_read_from_its_text_config():
    row, _ = read(CONFIGS["kimi-k2.5"]["config"])
    assert (row["hidden"], row["notes"]) == (7168, "the vision tower is not modelled")
    inner = {key: value for key, value in CONFIGS["kimi-k2.5"]["config"]["text_config"].items() if key != "vocab_size"}
    with pytest.raises(errors.InvalidInput, match="text_config has no field 'vocab_size'"):
        read(CONFIGS["kimi-k2.5"]["config"], text_config=inner)


def test_a_missing_field_is_named():
    fields = ("hidden_size", "num_hidden_layers", "num_experts_per_tok", "n_routed_experts", "kv_lora_rank")
    for (model, entry), field in itertools.product(CONFIGS.items(), fields):
        config = entry["config"]
        holder = config.get("text_config", config)
        if field in holder and not (
            field == "num_hidden_layers" and {*holder} & {"hybrid_override_pattern", "layers_block_type"}
        ):
            shorter = {name: value for name, value in holder.items() if name != field}
            changed = config | {"text_config": shorter} if holder is not config else shorter
            said = sentence_of(changed)
            assert re.search(rf"^config of m/config.json.* has no field '{field}'\. Use", said), (model, said)


def sentence_of(config, **changes):
    """Return the sentence that refuses a config, or nothing."""
    try:
        read(config, **changes)
    except errors.InvalidInput as refused:
        return str(refused)
    return ""


def test_an_unknown_architecture_is_refused_with_the_supported_ones():
    with pytest.raises(errors.InvalidInput) as refused:
        read(LLAMA, architectures=["MambaForCausalLM"])
    assert "architecture 'MambaForCausalLM' is not supported" in str(refused.value)
    assert {"LlamaForCausalLM", "DeepseekV4ForCausalLM"} <= set(re.findall(r"\w+", str(refused.value)))
    for nothing in ([], [["LlamaForCausalLM"]], [None]):
        with pytest.raises(errors.InvalidInput, match="architecture"):
            read(LLAMA, architectures=nothing)


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_bad_sizes_are_refused_by_name(field):
    for value in (0, -1, 4096.5, 4096.0, "4096", True, [4096], float("nan"), 10**400):
        said = sentence_of(LLAMA, **{field: value})
        assert re.search(f"field '{field}' is .* but must be", said), (value, said)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    refusals("models/test_config::test_contradictions_are_refused"),
)
def test_contradictions_are_refused(changes, sentence):
    with pytest.raises(errors.InvalidInput, match=sentence):
        read(LLAMA, **changes)


@pytest.mark.parametrize(
    ("model", "changes", "sentence"),
    refusals("models/test_config::test_what_an_architecture_cannot_be_is_refused"),
)
def test_what_an_architecture_cannot_be_is_refused(model, changes, sentence):
    with pytest.raises(errors.InvalidInput, match=sentence):
        read(CONFIGS[model]["config"], **changes)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(sorted(CONFIGS)),
    extra=st.dictionaries(st.text(max_size=8).map(lambda name: "unknown_" + name), json_values, max_size=4),
)
def test_unknown_fields_change_nothing(model, extra):
    config = CONFIGS[model]["config"]
    noisy = extra | config | extra
    if "text_config" in noisy:
        noisy["text_config"] = extra | noisy["text_config"]
    assert read(noisy) == read(config)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_is_read_or_refused_with_one_sentence(data):
    config = CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))]["config"]
    field = data.draw(st.sampled_from(sorted(config)))
    try:
        read(config | {field: data.draw(json_values)})
    except errors.InvalidInput as refused:
        assert str(refused).startswith("config of m/config.json") and "\n" not in str(refused)


def test_files_and_folders(tmp_path):
    folder = tmp_path / "My-Model-8B-Instruct"
    folder.mkdir()
    with pytest.raises(errors.InvalidInput, match="the folder has no config.json"):
        read_config_file(folder)
    file = folder / "config.json"
    with pytest.raises(errors.InvalidInput, match="the file does not exist"):
        read_config_file(file)
    file.write_text("{")
    with pytest.raises(errors.InvalidInput, match="the file is not JSON .line 1, column 2: "):
        read_config_file(file)
    file.write_text("[1]")
    with pytest.raises(errors.InvalidInput, match="it is not a JSON object"):
        read_config_file(file)
    file.write_text(json.dumps(LLAMA))
    row, layers = read_config_file(folder)
    assert (row["model"], row["huggingface_id"], row["attention_format"]) == ("my-model-8b", None, "bf16")
    assert read_config_file(file) == (row, layers) == read_config_file(str(folder))
    quantised = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(quantised))
    row, _ = read_config_file(folder)
    assert (row["attention_format"], row["activation_scales"], row["kv_cache_format"]) == ("fp8", "static", "fp8")
