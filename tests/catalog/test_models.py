"""The model catalogue: its rows keep their contracts, and its shapes give the published parameter counts."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from kernelsight import errors
from kernelsight.catalog.model_names import CATALOGUE, catalogue_name, resolve
from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import conform
from kernelsight.models.config import load_catalogue

SCHEMAS = Path(__file__).parents[2] / "schemas"
MODELS, LAYERS = load_catalogue()
BY_NAME = {row["model"]: row for row in MODELS}
PYTHON_TYPES = {"string": str, "int64": int, "bool": bool}


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
    assert conform(pa.Table.from_pylist(rows), contracts()[table]).num_rows == len(rows)


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
        for name in (entry["model"], entry["huggingface_id"]):
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
