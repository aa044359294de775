"""Names of models in the tests and documentation of vLLM and SGLang: which are read, and as what."""

from __future__ import annotations

import csv
from pathlib import Path

from kernelsight.catalog.model_names import find_variant, resolve
from kernelsight.errors import UnknownName

# name of a repository, the catalogue's model; empty: unknown. From vLLM's tests/models/registry.py and
# docs/models/supported_models.md, and SGLang's docs/supported_models/generative_models.md
NAMES = list(csv.DictReader((Path(__file__).parent / "engine_names.csv").read_text(encoding="utf-8").splitlines()))


def read_as(name: str) -> str:
    variant = find_variant(name)
    try:
        return variant.base if variant else resolve(name)
    except UnknownName as refused:
        assert "--model-like" in str(refused) and "config.json" in str(refused)
        return ""


def test_names_of_engines_are_read_as_their_shapes():
    found = {row["name"]: read_as(row["name"]) for row in NAMES}
    assert found == {row["name"]: row["model"] for row in NAMES}
    assert sum(map(bool, found.values())) >= 110
