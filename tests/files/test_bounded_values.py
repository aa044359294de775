"""JSON and YAML within budget: every fault is one sentence with its line, aliases count where they stand."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_values import parse_json, parse_yaml, read_json
from kernelsight.files.budget import MANIFEST, SETTINGS, Budget
from tests.conftest import random_worlds

FEW = Budget(1 << 20, 100, 5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def refuse(found: str) -> InvalidInput:
    return InvalidInput(f"it {found}")


def refused(parse: Any, text: str, budget: Budget = FEW) -> str:
    """Return what is wrong with a text."""
    with pytest.raises(InvalidInput) as caught:
        parse(text, refuse, budget)
    return str(caught.value).removeprefix("it ")


@random_worlds(200)
@given(VALUES)
@pytest.mark.whole
def test_sound_json_is_read(value: Any) -> None:
    assert parse_json(json.dumps(value), refuse) == value


@random_worlds(200)
@given(VALUES)
def test_sound_yaml_is_read(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    assert parse_yaml(text, refuse) == [yaml.safe_load(text)]  # whose own dumper writes U+0085 as a line break


@random_worlds(300)
@given(st.text(alphabet="[]{}:,-&*a1 \n\"'!|>#?%@\t", max_size=60) | st.text(max_size=30))
def test_any_text_is_a_value_or_one_sentence(text: str) -> None:
    for parse in (parse_json, parse_yaml):
        try:
            parse(text, refuse)
        except InvalidInput as error:
            assert str(error).startswith("it ") and "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1,\n"b": }', "is not JSON (line 2, column 6: Expecting value)"),
        ("", "is not JSON (line 1, column 1: Expecting value)"),
        ('{"a": 1, "a": 2}', "is not JSON ('a' occurs twice; keep one)"),
        ("9" * 5000, "is not JSON (a number has thousands of digits)"),
        ("[" * 6 + "]" * 6, "nests deeper than 5 levels"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "nests deeper than 5 levels"),
        (f"[{'0,' * 100}0]", "holds more than 100 values"),
        ("[" * 1_000_000, "holds more than 100 values"),
    ],
)
def test_json_that_is_refused(text: str, found: str) -> None:
    budget = SETTINGS._replace(levels=5) if "deeper" in found else FEW
    assert refused(parse_json, text, budget) == found


def test_json_as_deep_and_as_long_as_the_limit_is_read(tmp_path: Path) -> None:
    assert parse_json("[" * 5 + "]" * 5, refuse, FEW) == [[[[[]]]]]
    assert len(parse_json(f"[{'0,' * 98}0]", refuse, FEW)) == 99
    path = tmp_path / "a.json"
    path.write_text('{"a": [1]}')
    assert read_json(path, refuse) == {"a": [1]}
    with pytest.raises(InvalidInput, match="has more than 0 MiB"):
        read_json(path, refuse, FEW._replace(bytes=9))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x: &a [*a]", "line 1: the anchor 'a' contains itself"),
        ("a: 1\nx: &a {b: {c: *a}}", "line 2: the anchor 'a' contains itself"),
        ("a: *b", "line 1: found undefined alias"),
        ("a: [1,", "line 2: did not find expected node content"),
        ("a: 1\nd: 2020-13-45", "line 2: no valid timestamp"),
        ("d: 2001-12-14t21:59:43+99:99", "line 1: no valid timestamp"),
        ('!!int "zz"', "line 1: no valid int"),
        ('!!int ""', "line 1: no valid int"),
        ('!!float "zz"', "line 1: no valid float"),
        ("!!bool zz", "line 1: no valid bool"),
        ("!!timestamp zz", "line 1: no valid timestamp"),
        ("? [a]\n: 1", "line 1: found unhashable key"),
        ("a: b: c", "line 1: mapping values are not allowed in this context"),
        ("a: \x00", "line 1: control characters are not allowed"),
        ("\n\n!!python/object/apply:os.system [ls]", "line 3: could not determine a constructor for the tag"),
        ("9" * 5000, "line 1: a number has more than 1,000 digits"),
        ("a: " + "1:" * 5000 + "1", "line 1: a number has more than 1,000 digits"),
        (f'!!int "{"1:" * 5000}1"', "line 1: a number has more than 1,000 digits"),
    ],
)
def test_yaml_that_is_refused(text: str, found: str) -> None:
    assert refused(parse_yaml, text).startswith(f"is not YAML ({found}")


def test_bytes_of_a_command_line_are_refused() -> None:
    assert refused(parse_yaml, "a: \udcff") == "is not UTF-8"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "[" * 1_000_000,
        "{a: " * 5000,
        "\n".join(" " * level + "-" for level in range(5000)),
        "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 9)),
    ],
)
def test_yaml_that_nests_too_deep_is_refused_where_it_does(text: str) -> None:
    assert refused(parse_yaml, text).startswith("nests deeper than 5 levels (line ")


def alias_bomb(kind: str, levels: int) -> str:
    """Return lists, maps or merges of nine aliases of the level below, 9 ** levels values where they stand."""
    bottom = {"lists": "[" + ",".join("1" * 9) + "]", "maps": "{a: 1}", "merges": "{a: 1}", "texts": "x" * 900}[kind]
    lines = [f"a0: &a0 {bottom}"]
    for level in range(1, levels):
        below = [f"*a{level - 1}"] * 9
        named = ", ".join(f"k{number}: {alias}" for number, alias in enumerate(below))
        merged = f"{{<<: [{', '.join(below)}]}}"
        made = {"lists": f"[{', '.join(below)}]", "maps": f"{{{named}}}", "merges": merged}
        lines.append(f"a{level}: &a{level} {made.get(kind, made['lists'])}")
    return "\n".join(lines)


@pytest.mark.parametrize("kind", ["lists", "maps", "merges", "texts"])
def test_aliases_count_where_they_stand(kind: str) -> None:
    assert refused(parse_yaml, alias_bomb(kind, 12), MANIFEST).startswith("holds more than 100,000 values (line ")
    assert parse_yaml(alias_bomb(kind, 3), refuse, MANIFEST)


def test_the_limit_is_exact() -> None:
    # the list, 97 numbers, and an alias of one of them
    text = f"[&a 1, {'1, ' * 96}*a]"
    assert len(parse_yaml(text, refuse, FEW._replace(values=100))[0]) == 98
    assert refused(parse_yaml, text, FEW._replace(values=98)) == "holds more than 98 values (line 1)"
    assert parse_yaml("[[[[[1]]]]]", refuse, FEW._replace(levels=6)) and refused(parse_yaml, "[[[[[1]]]]]")


def test_documents_have_anchors_of_their_own() -> None:
    documents = parse_yaml("&a [1, 2]\n---\n- &a {b: 2020-01-02}\n- *a\n", refuse)
    assert documents == [[1, 2], [{"b": datetime.date(2020, 1, 2)}] * 2]
    assert parse_yaml("", refuse) == []
