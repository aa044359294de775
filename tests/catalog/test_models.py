"""The model catalogue: its rows keep their contracts, and its shapes give the published parameter counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from kernelsight import errors
from kernelsight.models.config import CATALOGUE, catalogue_name, load_catalogue, resolve

SCHEMAS = Path(__file__).parents[2] / "schemas"
MODELS, LAYERS = load_catalogue()
BY_NAME = {row["model"]: row for row in MODELS}
PYTHON_TYPES = {"string": str, "int64": int, "bool": bool}

# Total parameters in billions, as published; tied embeddings counted once.
PUBLISHED_TOTAL = [
    ("llama-3.1-8b", 8.03, "repository page of meta-llama/Llama-3.1-8B"),
    ("llama-3.1-70b", 70.6, "repository page of meta-llama/Llama-3.1-70B"),
    ("codellama-34b-hf", 33.7, "model card of codellama/CodeLlama-34b-hf: 34B"),
    ("llama-2-70b-hf", 69.0, "model card of meta-llama/Llama-2-70b-hf: 70B"),
    ("llama-3.1-405b", 405.9, "repository page of meta-llama/Llama-3.1-405B: 406B"),
    ("llama-3.2-1b", 1.23, "model card"),
    ("llama-3.2-3b", 3.21, "model card"),
    ("qwen2.5-0.5b", 0.49, "model card"),
    ("qwen2.5-1.5b", 1.54, "model card"),
    ("qwen2.5-3b", 3.09, "model card"),
    ("qwen2.5-7b", 7.61, "model card"),
    ("qwen2.5-14b", 14.7, "model card"),
    ("qwen2.5-32b", 32.5, "model card"),
    ("qwen2.5-72b", 72.7, "model card"),
    ("qwen3-4b", 4.0, "model card"),
    ("qwen3-8b", 8.2, "model card"),
    ("qwen3-14b", 14.8, "model card"),
    ("qwen3-32b", 32.8, "model card"),
    ("qwen3-30b-a3b", 30.5, "model card"),
    ("qwen3-235b-a22b", 235, "model card"),
    ("qwen3-coder-480b-a35b", 480, "model card"),
    ("qwen3-next-80b-a3b", 80, "model card"),
    ("qwen3.5-397b-a17b", 397, "model card"),
    ("gemma-2-2b", 0.590 + 2.024, "Gemma 2 report (arXiv 2408.00118), table 2"),
    ("gemma-2-9b", 0.918 + 8.324, "Gemma 2 report, table 2"),
    ("gemma-2-27b", 1.180 + 26.047, "Gemma 2 report, table 2"),
    ("gemma-3-27b", 1.416 + 25.600, "Gemma 3 report (arXiv 2503.19786), table 1, without the vision encoder"),
    ("phi-4-mini", 3.8, "model card"),
    ("phi-3.5-mini", 3.8, "model card"),
    ("mistral-7b-v0.1", 7.24, "repository page"),
    ("mistral-nemo-2407", 12.2, "repository page"),
    ("mistral-large-2407", 123, "model card"),
    ("mixtral-8x7b-v0.1", 46.7, "Mistral's announcement of Mixtral 8x7B"),
    ("mixtral-8x22b-v0.1", 141, "Mistral's announcement of Mixtral 8x22B"),
    ("gpt-oss-20b", 20.91, "gpt-oss model card (arXiv 2508.10925), table 1"),
    ("gpt-oss-120b", 116.83, "gpt-oss model card, table 1"),
    ("deepseek-llm-67b-chat", 67, "model card"),
    ("deepseek-v3", 671, "model card, without the multi-token-prediction module"),
    ("kimi-k2", 1040, "Kimi K2 report (arXiv 2507.20534): 1.04 trillion"),
    ("minimax-m2", 230, "model card"),
    ("glm-4.5", 355, "model card"),
    ("glm-4.5-air", 106, "model card"),
    ("glm-5", 744, "model card"),
    ("phi-4", 14.7, "repository page"),
    ("mistral-small-24b-2501", 23.6, "repository page"),
    ("mistral-small-3.1-24b-2503", 23.6, "as Mistral Small 3, whose text part it has"),
    ("ministral-3-8b-base-2512", 8.4, "model card, language model"),
    ("llama-4-scout-17b-16e", 109, "model card, with the vision encoder"),
    ("llama-4-maverick-17b-128e", 400, "model card"),
    ("qwen3-vl-8b", 8.2, "model card of Qwen3-8B, whose shape the text part has"),
    ("qwen3-vl-30b-a3b", 30.5, "model card of Qwen3-30B-A3B, whose shape the text part has"),
    ("qwen3-vl-235b-a22b", 235, "model card of Qwen3-235B-A22B, whose shape the text part has"),
    ("nemotron-h-56b-base-8k", 56, "model card"),
    ("nvidia-nemotron-3-nano-30b-a3b-bf16", 31.6, "model card"),
    ("c4ai-command-r-v01", 35, "model card"),
    ("glm-4-9b-chat-hf", 9.4, "repository page"),
    ("ernie-4.5-0.3b-pt", 0.36, "model card"),
    ("qwen3.8-2.4t-a95b", 2420, "name of Qwen/Qwen3.8-2.4T-A95B"),
    ("mimo-v2-flash", 309, "model card"),
    ("gemma-4-26b-a4b", 25.2, "model card, without the vision encoder"),
    ("gemma-4-31b", 30.7, "model card, without the vision encoder"),
    ("llama-3_3-nemotron-super-49b-v1", 49.9, "repository page"),
    ("nvidia-nemotron-3-super-120b-a12b-fp8", 120, "name of the model, without the multi-token-prediction layers"),
    ("nvidia-nemotron-3-ultra-550b-a55b-bf16", 550, "name of the model, without the multi-token-prediction layers"),
    ("step-3.7-flash", 196, "model card of Step-3.5-Flash, whose shape it has"),
    ("glm-5.2", 744, "model card of GLM-5, whose shape it has"),
    ("qwen3.6-27b", 27, "name of the model, language part"),
    ("qwen3.6-35b-a3b", 35, "name of the model, language part"),
]
# Parameters that one token passes, in billions, as published.
PUBLISHED_ACTIVE = [
    ("qwen3-30b-a3b", 3.3, "model card"),
    ("qwen3-235b-a22b", 22, "model card"),
    ("mixtral-8x7b-v0.1", 12.9, "Mistral's announcement of Mixtral 8x7B"),
    ("mixtral-8x22b-v0.1", 39, "Mistral's announcement of Mixtral 8x22B"),
    ("deepseek-v3", 37, "model card"),
    ("kimi-k2", 32.6, "Kimi K2 report"),
    ("llama-4-scout-17b-16e", 17, "model card"),
    ("llama-4-maverick-17b-128e", 17, "model card"),
    ("qwen3.8-2.4t-a95b", 95, "name of the model"),
    ("gemma-4-26b-a4b", 3.8, "model card"),
]


def mixer_parameters(row: dict, layer: dict) -> int:
    """Weights of one layer's token mixer, from the widths alone."""
    hidden, heads = row["hidden"], layer["heads"]
    if layer["attention"] == "linear":
        keys = row["linear_key_heads"] * row["linear_key_head_dim"]
        values = row["linear_value_heads"] * row["linear_value_head_dim"]
        inputs = 2 * keys + 2 * values + 2 * row["linear_value_heads"]
        return hidden * inputs + (2 * keys + values) * row["linear_conv_kernel"] + values * hidden
    if layer["attention"] in ("mla", "sparse"):
        query = heads * layer["head_dim"]
        rank = row["q_lora_rank"]
        total = hidden * query if rank is None else hidden * rank + rank * query
        total += hidden * (row["kv_lora_rank"] + row["qk_rope_head_dim"])
        total += row["kv_lora_rank"] * heads * (row["qk_nope_head_dim"] + row["v_head_dim"])
        total += heads * row["v_head_dim"] * hidden
        if layer["attention"] == "sparse" and layer["index_heads"] != 0:
            width = row["index_heads"] * row["index_head_dim"]
            total += rank * width + hidden * (row["index_head_dim"] + row["index_heads"])
        return total
    gate = 2 if row["attention_output_gate"] else 1
    keys, values = layer["head_dim"], layer["v_head_dim"] or layer["head_dim"]
    return hidden * (heads * (gate * keys + values) + layer["kv_heads"] * (keys + values))


def parameters(model: str, active: bool = False) -> int:
    """Embedding, layers and head of a model; ``active``: top-k experts only."""
    row = BY_NAME[model]
    hidden = row["hidden"]
    total = row["vocab"] * hidden * (1 if row["tied_embeddings"] else 2)
    for layer in (layer for layer in LAYERS if layer["model"] == model):
        each = mixer_parameters(row, layer) + row["norms_per_layer"] * hidden
        matrices = 3 if row["ffn_gated"] else 2
        if layer["ffn"] == "moe":
            passed = layer["top_k"] if active else layer["experts"]
            each += matrices * (layer["expert_hidden"] or hidden) * passed * layer["intermediate"]
            each += hidden * (matrices * layer["shared_intermediate"] + layer["experts"])
        else:
            each += matrices * hidden * layer["intermediate"]
        for product in layer["products"] or ():
            sides = (product[side] * {"one": 1, "heads": layer["heads"]}[product[f"{side}_of"]] for side in "nk")
            each += math.prod(sides)
        total += layer["count"] * each
    return total


@pytest.mark.parametrize(("model", "billions", "source"), PUBLISHED_TOTAL)
def test_shapes_give_the_published_parameter_count(model, billions, source):
    assert parameters(model) / 1e9 == pytest.approx(billions, rel=0.015), source


@pytest.mark.parametrize(("model", "billions", "source"), PUBLISHED_ACTIVE)
def test_shapes_give_the_published_active_parameters(model, billions, source):
    assert parameters(model, active=True) / 1e9 == pytest.approx(billions, rel=0.025), source


def test_a_name_that_rounds_down_is_close():
    """ERNIE-4.5-21B-A3B: the name and the model card say 21 and 3 billion."""
    assert 21 < parameters("ernie-4.5-21b-a3b-pt") / 1e9 < 22
    assert 3 < parameters("ernie-4.5-21b-a3b-pt", active=True) / 1e9 < 3.5


@pytest.mark.parametrize(("model", "billions"), [("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)])
def test_gpt_oss_active_parameters_leave_out_the_embedding(model, billions):
    """The gpt-oss model card counts the output head as active, the embedding not."""
    embedding = BY_NAME[model]["vocab"] * BY_NAME[model]["hidden"]
    assert (parameters(model, active=True) - embedding) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(("table", "rows"), [("models", MODELS), ("model_layers", LAYERS)])
def test_rows_keep_their_contract(table, rows):
    columns = {column["name"]: column for column in json.loads((SCHEMAS / f"{table}.json").read_text())["columns"]}
    formats = {line.split(",")[0] for line in CATALOGUE.with_name("number_formats.csv").read_text().splitlines()[1:]}
    for row in rows:
        assert set(row) == set(columns)
        for name, value in row.items():
            if value is None:
                assert columns[name].get("nullable"), f"{row['model']}: {name}"
            else:
                assert type(value) is PYTHON_TYPES.get(columns[name]["type"], list), f"{row['model']}: {name}"
            if columns[name].get("reference") == "number_formats.format":
                assert value is None or value in formats
    stated = pa.Table.from_pylist(rows)
    connection = duckdb.connect()
    connection.register("stated", stated)
    for column in columns.values():
        broken = f"select model from stated where not ({column.get('check', 'true')})"
        assert connection.execute(broken).fetchall() == [], column["name"]


def test_layer_counts_sum_to_the_layers():
    for row in MODELS:
        counts = [layer["count"] for layer in LAYERS if layer["model"] == row["model"]]
        assert sum(counts) == row["layer_count"], row["model"]
    kinds = [(layer["model"], layer["layer_kind"]) for layer in LAYERS]
    assert len(kinds) == len(set(kinds))


def test_names_are_unique_and_follow_from_the_identifier():
    assert len(BY_NAME) == len(MODELS)
    for row in MODELS:
        plain = catalogue_name(row["huggingface_id"]).removesuffix("-it")
        assert row["model"] == plain, row["huggingface_id"]
        assert row["source"]


def test_every_spelling_of_a_model_resolves_to_it():
    owners: dict[str, str] = {}
    for line in CATALOGUE.read_text().splitlines():
        entry = json.loads(line)
        for name in (entry["model"], entry["huggingface_id"], *entry.get("aliases", [])):
            assert owners.setdefault(name.lower(), entry["model"]) == entry["model"]
            for spelling in (name, name.upper(), name.lower()):
                assert resolve(spelling) == entry["model"]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama-3-8b", "meta-llama-3-8b"),
        ("gemma-2-9b-it", "gemma-2-9b"),
        ("google/gemma-2-9b", "gemma-2-9b"),
        ("qwen2.5-7b-instruct", "qwen2.5-7b"),
        ("deepseek-ai/deepseek-llm-7b-base", "deepseek-llm-7b-chat"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"),
    ],
)
def test_common_spellings_resolve(name, model):
    assert resolve(name) == model


def test_an_unknown_model_is_told_the_nearest():
    with pytest.raises(errors.UnknownName, match=r"unknown model 'llama-3\.1-9b'\. Did you mean .*llama-3\.1-8b"):
        resolve("llama-3.1-9b")
    with pytest.raises(errors.UnknownName, match="unknown model 'someone/Llama-3.1-8B'"):
        resolve("someone/Llama-3.1-8B")
