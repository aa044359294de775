"""Tokens of texts and the keys of their blocks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.server.requests import read_request
from kernelsight.server.start import tokens_of
from kernelsight.serving.load.prompts import WORDS, block_keys, chat_text, estimated_tokens, read_tokenizer

TEXT = "the and you for are not but all can has was out one new"


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(TEXT.split())}, "the"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_tokenizer_on_the_disk(tokenizer_file: Path) -> None:
    folder = tokenizer_file.parent
    for tokens in (read_tokenizer(tokenizer_file), tokens_of(None, str(folder)), tokens_of(str(folder), "any")):
        assert tokens("you are new").tolist() == [2, 4, 13]
    assert tokens_of(None, str(folder / "config.json"))("you are").tolist() == [2, 4]
    assert read_tokenizer(folder)("".join(WORDS)).size == len(WORDS)


def test_a_tokenizer_that_cannot_be_read(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(InvalidInput, match="the tokenizer .*tokenizer.json does not exist; give a tokenizer.json"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InvalidInput, match="the tokenizer .* cannot be read"):
        read_tokenizer(tmp_path)


def test_without_a_tokenizer_tokens_are_estimated() -> None:
    assert tokens_of(None, "qwen3-0.6b") is estimated_tokens
    assert estimated_tokens("".join(WORDS)).size == len(WORDS)
    assert estimated_tokens("").size == 0 and estimated_tokens("é" * 4).size == 2


def test_equal_beginnings_have_equal_keys() -> None:
    first, second = np.arange(100), np.append(np.arange(70), np.zeros(30, np.int64))
    keys, others = block_keys(first, 16), block_keys(second, 16)
    assert len(keys) == 6 and keys[:4] == others[:4] and not set(keys[4:]) & set(others[4:])
    assert block_keys(first, 0) == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (["Hel", {"type": "text", "text": "lo"}], "Hello"),
        ([{"text": "Hel"}, {"type": "refusal", "refusal": "lo"}, {"type": "text", "text": None}], "Hello"),
        (None, ""),
    ],
)
def test_a_message_counts_all_its_parts_of_text(content: object, text: str) -> None:
    body, asked = {"messages": [{"role": "user", "content": content}]}, []
    read_request(json.dumps(body).encode(), True, ["m"], 100, lambda words: asked.append(words) or np.arange(3))
    assert asked == [chat_text([{"role": "user", "content": text}])]
