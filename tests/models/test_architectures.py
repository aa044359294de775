"""Architecture files: expressions, what is refused with its line, and a user's own file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from kernelsight.errors import InvalidInput
from kernelsight.models.architectures import FOLDER, architecture_of
from kernelsight.models.config import read_config, read_config_file
from kernelsight.models.expressions import LARGEST, Impossible, Malformed, read_expression
from tests.asked import refusals

SIZES = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16}
CONFIG = SIZES | {"num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 65536, "dtype": "bfloat16"}
OWN = """
like: grouped_query
architectures: [MineForCausalLM]
fields:
  window_every: {default: 2}
layers:
  attention: sliding if layer % window_every else full
"""


@pytest.mark.parametrize(
    ("text", "scope", "value"),
    [
        ("a if layer else b", {"layer": 1, "a": 5}, 5),
        ("moe if layer >= first else dense", {"layer": 3, "first": 3}, "moe"),
        ("a or b and not c", {"a": False, "b": True, "c": False}, True),
        ("1 <= a < 3", {"a": 3}, False),
        ("a in listed and a not in others", {"a": 2, "listed": [1, 2], "others": []}, True),
        ("a * b // 2 - -1 + 7 % 4", {"a": 3, "b": 5}, 11),
        ("a / b", {"a": 12, "b": 4}, 3),
        ("kinds[layer]", {"kinds": ["full", "linear"], "layer": 1}, "linear"),
        ("int(a * 0.5)", {"a": 7, "int": int}, 3),
        ("'x' == name", {"name": "x"}, True),
        ("null if false else true", {}, True),
    ],
)
def test_expressions(text, scope, value):
    assert read_expression(text).evaluate(scope) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    refusals("models/test_architectures::test_what_is_no_expression"),
)
def test_what_is_no_expression(text, problem):
    with pytest.raises(Malformed, match=problem):
        read_expression(text)


@pytest.mark.parametrize(
    ("text", "scope", "problem"),
    [
        ("a / b", {"a": 5, "b": 2}, r"a is 5, but must be a multiple of b \(2\)"),
        ("a // b", {"a": 5, "b": 0}, "b is 0, but must be another number than 0"),
        ("a * a", {"a": LARGEST}, "must be at most"),
        ("a + 1", {"a": "x"}, "a is 'x', but must be a number"),
        ("a < 1", {"a": None}, "comparable"),
        ("a[3]", {"a": [1]}, "an entry 3"),
    ],
)
def test_what_has_no_value(text, scope, problem):
    with pytest.raises(Impossible, match=problem):
        read_expression(text).evaluate(scope)


def test_every_file_of_the_catalogue_is_read_and_every_class_has_one():
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.yaml")]
    classes = [name for content in files for name in content.get("architectures", ())]
    assert len(classes) == len(set(classes)) >= 48
    for name in classes:
        assert {"hidden", "heads", "vocab", "activation"} <= set(architecture_of(name, "here").columns)
    assert all(path.read_text(encoding="utf-8").startswith("# ") for path in FOLDER.glob("*.yaml"))


@pytest.fixture
def own(tmp_path: Path):
    """Read CONFIG as a class of a user's file with some of its text replaced."""

    def read(*changes: tuple[str, str], **fields):
        text = OWN
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / "mine.yaml"
        file.write_text(text, encoding="utf-8")
        config = CONFIG | {"architectures": ["MineForCausalLM"], "sliding_window": 512} | fields
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return read_config_file(tmp_path / "config.json", file)

    return read


def test_a_file_of_ones_own(own):
    row, layers = own()
    assert [(layer["layer_kind"], layer["count"]) for layer in layers] == [("full_dense", 2), ("sliding_dense", 2)]
    assert (row["head_dim"], row["sliding_window"], row["architecture"]) == (64, 512, "MineForCausalLM")
    row, layers = own(window_every=4)
    assert [(layer["layer_kind"], layer["count"]) for layer in layers] == [("full_dense", 1), ("sliding_dense", 3)]
    with pytest.raises(InvalidInput, match="'MineForCausalLM' is not supported"):
        read_config(CONFIG | {"architectures": ["MineForCausalLM"]}, model="m", huggingface_id=None, source="here")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    refusals("models/test_architectures::test_what_a_file_cannot_state"),
)
def test_what_a_file_cannot_state(own, old, new, problem):
    if problem == "sliding_dense":  # a default as a plain value
        assert own((old, new.replace("7", "{default: 7}")))[1][1]["layer_kind"] == problem
        return
    with pytest.raises(InvalidInput, match=problem):
        own((old, new))


def test_a_check_names_the_field_as_the_config_spells_it(own):
    check = (
        "checks:\n  - {holds: window_every < 9, field: window_every, expected: 'below {num_hidden_layers}'}\nlayers:"
    )
    with pytest.raises(InvalidInput, match=r"'window_every' is 12, but must be below num_hidden_layers \(4\)"):
        own(("layers:", check), window_every=12)
