"""Tokenization of prompts, and hash keys of their blocks: with the model's tokenizer if it is on disk, else estimated.

An estimated token is four bytes of UTF-8, the mean of English prose. Equal beginnings stay equal either way, so that
prefixes are shared as with the model's tokenizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelsight.errors import InvalidInput, extra_missing
from kernelsight.files.bounded_files import read_bytes
from kernelsight.files.budget import TOKENIZER

BYTES_PER_TOKEN = 4
# template of a chat message: its role and two special tokens
TURN = "<|{role}|>\n{text}<|end|>\n"
# words of filler text, each of WORD_BYTES: one token for most tokenizers
WORD_BYTES = 4
WORDS = (" the", " and", " you", " for", " are", " not", " but", " all", " can", " has", " was", " out", " one", " new")


def estimated_tokens(text: str) -> np.ndarray:
    """Return estimated token ids of a text, one per four bytes; UnicodeEncodeError: half of a surrogate pair."""
    content = text.encode()
    return np.frombuffer(content + b"\0" * (-len(content) % BYTES_PER_TOKEN), "<u4").astype(np.int64)


def read_tokenizer(path: Path) -> Callable[[str], np.ndarray]:
    """Return a function from text to token ids, of a ``tokenizer.json`` or its folder; InvalidInput: unreadable."""
    file = path / "tokenizer.json" if path.is_dir() else path

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"the tokenizer {file} {problem}; give a tokenizer.json, or leave out --tokenizer.")

    content = read_bytes(file, refuse, TOKENIZER)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise extra_missing("a tokenizer of the model", "tokenizers", "serve", "leave out --tokenizer") from None
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises Exception itself
        raise refuse(f"cannot be read ({error})") from None

    def tokens_of(text: str) -> np.ndarray:
        text.encode()  # UnicodeEncodeError, as of estimated_tokens
        # of a batch: it lets other threads run meanwhile
        return np.array(tokenizer.encode_batch([text])[0].ids, np.int64)

    return tokens_of


def chat_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the messages of a chat, whose contents are texts, as one text."""
    turns = [TURN.format(role=message.get("role"), text=message["content"]) for message in messages]
    return "".join(turns) + "<|assistant|>\n"


def block_keys(tokens: np.ndarray, size: int) -> list[bytes]:
    """Return a hash key for each full block of ``size`` tokens, over the block and all before it; none if it is 0."""
    if size == 0:
        return []
    keys, key, content = [], b"", np.ascontiguousarray(tokens, np.int64).tobytes()
    for offset in range(0, tokens.size // size * size * 8, size * 8):
        key = hashlib.blake2b(key + content[offset : offset + size * 8], digest_size=16).digest()
        keys.append(key)
    return keys
