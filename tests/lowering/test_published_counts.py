"""Parameters of every model, and the weights of some, as published."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from tests.lowering.by_hand import flops_per_token, parameters, vector_parameters

# Parameters with tied embeddings counted once, and those that a token passes: with embedding and head, or as `counts`
# says. `as`: the model of equal shape that has a count. `off`, `active_off`: by how many percent ours is off where the
# two differ. llmfit: safetensors metadata in AlexsJones/llmfit, llmfit-core/data/hf_models.json (026ac57).
PUBLISHED = list(csv.DictReader((Path(__file__).parent / "published_parameters.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def weights(ask, catalogue):
    rows = ask("layer_weights", *catalogue)
    sums = {}
    for row in rows:
        sums[row["deployment_id"]] = sums.get(row["deployment_id"], 0) + row["parameters"]
    return sums


def test_every_model_holds_the_parameters_of_its_shape(weights, catalogue):
    assert weights == {name: parameters(model) for name, model in catalogue.items()}


@pytest.fixture(scope="module")
def counted(weights, catalogue):
    """All parameters of each model: matrices, norms and biases."""
    return {name: weights[name] + vector_parameters(model) for name, model in catalogue.items()}


def kind(row: dict[str, str]) -> str:
    """How a model is compared with what was published."""
    if row["source"].startswith("unchecked"):
        return "unchecked"
    if row["as"]:
        return "of equal shape"
    if row["off"] or row["active_off"]:
        return "differ"
    return "to the digit" if row["exactly"] else "within 1 %"


def test_every_model_has_a_published_count_or_is_unchecked(catalogue, counted):
    assert [row["model"] for row in PUBLISHED] == [*catalogue]
    rows = {row["model"]: row for row in PUBLISHED}
    for row in PUBLISHED:
        figures = row["billions"] or row["active_billions"] or row["exactly"]
        assert row["source"] and bool(figures) == (kind(row) not in ("unchecked", "of equal shape")), row["model"]
        if row["as"]:
            assert counted[row["model"]] == counted[row["as"]] and kind(rows[row["as"]]) != "unchecked", row["model"]
    page = (Path(__file__).parents[2] / "docs" / "extending" / "facts.md").read_text()
    numbers = Counter(map(kind, PUBLISHED))
    said = (f"Of {len(PUBLISHED)} models, {numbers['to the digit']} have the published number of parameters to the"
            f" digit, {numbers['within 1 %']} within 1 % or its digits, {numbers['of equal shape']} the shape of one"
            f" that has, {numbers['differ']} differ by more, {numbers['unchecked']} are unchecked")  # fmt: skip
    assert said in page


def test_parameters_are_the_published_count(counted):
    exact = {row["model"]: int(row["exactly"]) for row in PUBLISHED if row["exactly"]}
    assert {model: counted[model] for model in exact} == exact and exact


def agrees(found: float, stated: str, off: str) -> bool:
    """Whether a number is one that was published: within 1 % or half of its last digit, or off as is said."""
    mantissa, _, power = stated.partition("e")
    last = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    deviation = found / float(stated) - 1.0
    is_near = abs(deviation) <= 0.01 or abs(found - float(stated)) <= last / 2.0
    return f"{100.0 * deviation:+.1f}" == off if off else is_near


def test_parameters_are_near_the_rounded_count(counted):
    stated = [row for row in PUBLISHED if row["billions"]]
    assert not [row for row in stated if not agrees(counted[row["model"]] / 1e9, row["billions"], row["off"])]


def test_parameters_that_a_token_passes(catalogue):
    differ = []
    for row in (stated := [row for row in PUBLISHED if row["active_billions"]]):
        model = catalogue[row["model"]]
        matrices = {"neither": 0, "head": 1, "": 1 if model["tied_embeddings"] else 2}[row["counts"]]
        active = flops_per_token(model) // 2 + matrices * model["vocab"] * model["hidden"]
        if not agrees(active / 1e9, row["active_billions"], row["active_off"]):
            differ.append((row["model"], active / 1e9))
    assert not differ and len(stated) > 40


@pytest.mark.parametrize(
    ("model", "gigabytes"),
    [
        ("llama-3.1-8b", 16.06),  # total_size of its safetensors index
        ("gpt-oss-120b", 60.8 * 1.073741824),  # model card (arXiv 2508.10925), table 1: GiB
        ("gpt-oss-20b", 12.8 * 1.073741824),
        # exo-explore/exo, resources/inference_model_cards: Kimi-K2.6, whose shape and format it has; GLM-5 in 16 bit
        ("kimi-k2.5", 595.148192736),
        ("glm-5", 1487.822475264),
        # total_size of its safetensors index (vllm-project/recipes), with the layer of multi-token prediction
        ("qwen3.8-2.4t-a95b", 4892.388705238),
        # vllm-project/recipes: 160 and 865 GB with that layer, a 44th and a 62nd
        ("deepseek-v4-flash", 160 * 43 / 44),
        ("deepseek-v4-pro", 865 * 61 / 62),
    ],
)
def test_weights_are_those_of_the_published_checkpoint(ask, model, gigabytes):
    weight_bytes = sum(row["weight_bytes"] for row in ask("layer_weights", model))
    assert weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.02)
