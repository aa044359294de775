"""Prompts as tokens, and the keys of their blocks: by the model's tokenizer where it is on the disk, else estimated.

Estimated, a token is four bytes of UTF-8 text: as many as English prose has in the mean. Equal beginnings stay equal
either way, so that prefixes are shared where a model would share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernelsight.errors import InvalidInput, extra_missing

BYTES_PER_TOKEN = 4
# around each message of a chat: its role and two marks, as templates have
TURN = "<|{role}|>\n{text}<|end|>\n"
# what an answer is filled with: four bytes each, which most tokenizers read as one token
WORDS = (" the", " and", " you", " for", " are", " not", " but", " all", " can", " has", " was", " out", " one", " new")


def estimated_tokens(text: str) -> np.ndarray:
    """Return token ids that stand for a text, one for every four bytes.

    >>> estimated_tokens("one two three").size, (estimated_tokens("one two") == estimated_tokens("one two")).all()
    (4, np.True_)
    """
    content = text.encode("utf-8", "surrogatepass")
    return np.frombuffer(content + b"\0" * (-len(content) % BYTES_PER_TOKEN), "<u4").astype(np.int64)


def read_tokenizer(path: Path) -> Callable[[str], np.ndarray]:
    """Return the tokenizer of a ``tokenizer.json`` or its folder; InvalidInput: none there, or an unreadable one."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise extra_missing("a tokenizer of the model", "tokenizers", "serve", "leave out --tokenizer") from None
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput(f"there is no tokenizer.json at {path}; give its path, or leave out --tokenizer.")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise InvalidInput(f"cannot read the tokenizer {file}: {error}.") from None
    return lambda text: np.array(tokenizer.encode(text).ids, np.int64)


def chat_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the messages of a chat as one text; parts that are no text, such as images, have no tokens here.

    >>> chat_text([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    '<|user|>\\nHello<|end|>\\n<|assistant|>\\n'
    """
    turns = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))
        turns.append(TURN.format(role=message.get("role"), text=content))
    return "".join(turns) + "<|assistant|>\n"


def block_keys(tokens: np.ndarray, size: int) -> list[bytes]:
    """Return a key for each full block of tokens, of the block and all before it; none where ``size`` is 0.

    >>> first, second = block_keys(np.arange(32), 16), block_keys(np.arange(1, 33), 16)
    >>> len(first), first[0] == block_keys(np.arange(16), 16)[0], first[1] == second[1]
    (2, True, False)
    """
    if size == 0:
        return []
    keys, key, content = [], b"", np.ascontiguousarray(tokens, np.int64).tobytes()
    for offset in range(0, tokens.size // size * size * 8, size * 8):
        key = hashlib.blake2b(key + content[offset : offset + size * 8], digest_size=16).digest()
        keys.append(key)
    return keys
