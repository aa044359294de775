"""Files as readers see them: what is refused before any format, and what the first bytes show."""

from __future__ import annotations

import pytest

from kernelsight.logs.files import open_log
from kernelsight.logs.json_outline import MOST_DEPTH, MOST_FIELDS, outline
from tests.logs.written import save


@pytest.mark.parametrize(
    "content, kind",
    [
        ("PAR1", "parquet"),
        ("SQLite format 3\x00", "sqlite"),
        ('{"a": 1}', "json"),
        ("a,b\n1,2", "text"),
        ("[ 1]", "json"),
    ],
)
def test_containers(tmp_path, content, kind):
    assert open_log(save(tmp_path / "a", content)).kind == kind
    assert open_log(save(tmp_path / "a.gz", content)).compressed


def test_the_outline_of_a_text_that_ends_anywhere():
    text = b'{"a": {"b:": [{"c": "x{"}, {"d": 1}]}, "e": "\\"f\\": 1", "g": {'
    assert outline(text) == {"a", "a.b:", "a.b:[].c", "a.b:[].d", "e", "g"}
    for length in range(len(text)):
        assert outline(text[:length]) <= outline(text)
        assert outline([text[:length], text[length:]]) == outline(text)
    assert outline(text[i : i + 1] for i in range(len(text))) == outline(text)


def test_an_outline_keeps_neither_texts_nor_depth_nor_names_without_end():
    long = b'{"' + b"x" * 5000 + b'": {"a": "' + b"y\\" * 4000 + b'", "b": 1}}'
    assert {len(name) for name in outline([long[:3000], long[3000:]])} == {400, 402}
    assert outline(b'{"a": ' * MOST_DEPTH * 2) == {".".join("a" * n) for n in range(1, MOST_DEPTH + 1)}
    deep = b'{"a": ' + b"[" * 10**5 + b"]" * 10**5 + b', "b": 1}'
    assert outline(deep) == {"a", "b"}
    assert len(outline(b"".join(b'{"%d": 1}' % n for n in range(MOST_FIELDS + 5)))) == MOST_FIELDS
