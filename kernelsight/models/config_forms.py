"""Other forms of a model's config than config.json, as ``kernelsight/catalog/config_forms.yaml`` declares them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from kernelsight import errors
from kernelsight.catalog.tables import catalogue_yaml
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import open_file
from kernelsight.number_format import number

# metadata of a GGUF file: its vocabulary is the largest part
MOST_BYTES, MOST_ENTRIES = 1 << 27, 1 << 22
# struct formats of GGUF's types of values by number; 8 is text, 9 a list
SCALARS = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?"))) | {10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9


def as_config(content: Mapping[str, Any], label: str) -> Mapping[str, Any]:
    """Return the config.json that a config of another form states, or ``content`` itself where it has none of them.

    InvalidInput: a form that is known, with a class that is not.

    >>> params = {"dim": 4096, "n_layers": 32, "n_heads": 32, "moe": {"num_experts": 8}}
    >>> config = as_config(params, "params.json")
    >>> config["architectures"], config["hidden_size"], config["num_local_experts"]
    (['MixtralForCausalLM'], 4096, 8)
    """
    if "architectures" in content:
        return content
    for form in catalogue_yaml("config_forms").values():
        if all(_value(content, name) is not None for name in form["has"]):
            return _converted(content, form, label)
    return content


def _converted(content: Mapping[str, Any], form: Mapping[str, Any], label: str) -> dict[str, Any]:
    chosen = next((case["class"] for case in form["classes"] if _applies(content, case)), None)
    if chosen is None:
        field = form["classes"][0]["field"]
        known = sorted({case["value"] for case in form["classes"] if "value" in case})
        raise errors.config_unsupported(label, field, _value(content, field), known)
    config: dict[str, Any] = {"architectures": [chosen]}
    stated = [(name, _value(content, spelling)) for spelling, names in form["fields"].items() for name in names]
    words = form.get("words", {})
    for name, value in [*form["adds"].items(), *((name, value) for name, value in stated if value is not None)]:
        *holders, last = name.split(".")
        held = config
        for holder in holders:
            held = held.setdefault(holder, {})
        held[last] = words.get(value, value) if isinstance(value, str) else value
    return config


def _applies(content: Mapping[str, Any], case: Mapping[str, str]) -> bool:
    value = _value(content, case["field"])
    unless = case.get("unless")
    return value is not None and case.get("value", value) == value and not (unless and _value(content, unless))


def _value(content: Mapping[str, Any], name: str) -> Any:
    """Return a field by its name, which may have dots, or by a path of nested objects; None: it is absent."""
    if name in content:
        return content[name]
    holder, _, rest = name.partition(".")
    inner = content.get(holder)
    return _value(inner, rest) if rest and isinstance(inner, Mapping) else None


def read_gguf(path: Path) -> dict[str, Any]:
    """Return the metadata of a GGUF file: numbers and texts by key, of lists their lengths, without the architecture's
    prefix; and ``tied_embeddings``, whether it has no matrix for the output. InvalidInput: no such file, or no GGUF.
    """

    def refuse(problem: str) -> InvalidInput:
        return errors.config_unreadable(path, f"the file {problem}")

    with open_file(path, refuse) as file:
        reader = _GgufReader(file, refuse)
        try:
            content = reader.metadata()
        except (struct.error, UnicodeDecodeError, RecursionError):
            raise refuse("is no complete GGUF file") from None
    prefix = f"{content.get('general.architecture')}."
    return {name.removeprefix(prefix): value for name, value in content.items()}


class _GgufReader:
    """Reads the head of a GGUF file: little-endian, at most MOST_BYTES of it."""

    def __init__(self, file: BinaryIO, refuse: Any) -> None:
        self.file, self.refuse, self.left = file, refuse, MOST_BYTES

    def metadata(self) -> dict[str, Any]:
        """Return the values by key, and whether the output reuses the embedding."""
        if self._bytes(4) != b"GGUF":
            raise self.refuse("is no GGUF file")
        if (version := self._number("I")) not in (2, 3):
            raise self.refuse(f"is GGUF of version {version}; versions 2 and 3 are read")
        tensors, entries = self._count(), self._count()
        content: dict[str, Any] = {}
        for _ in range(entries):
            name = self._text()
            content[name] = self._read(self._number("I"))
        content["tied_embeddings"] = "output.weight" not in set(self._tensors(tensors))
        return content

    def _tensors(self, count: int) -> Iterator[str]:
        for _ in range(count):
            yield self._text()
            dimensions = self._number("I")
            if dimensions > 8:
                raise self.refuse("is no complete GGUF file")
            self._bytes(8 * dimensions + 4 + 8)  # sizes, type, offset

    def _read(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind != LIST:
            if kind not in SCALARS:
                raise self.refuse(f"has values of an unknown type ({kind})")
            return self._number(SCALARS[kind])
        kind, count = self._number("I"), self._count()
        if kind in SCALARS:
            self._bytes(struct.calcsize(SCALARS[kind]) * count)
        else:
            for _ in range(count):
                self._read(kind)
        return count

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode()

    def _count(self) -> int:
        count = self._number("Q")
        if count > MOST_ENTRIES:
            raise self.refuse(f"states {number(count)} entries of one list, more than {number(MOST_ENTRIES)}")
        return count

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._bytes(struct.calcsize(form)))[0]

    def _bytes(self, count: int) -> bytes:
        if count > self.left:
            raise self.refuse(f"has more than {number(MOST_BYTES >> 20)} MiB of metadata")
        self.left -= count
        data = self.file.read(count)
        if len(data) < count:
            raise self.refuse("is no complete GGUF file")
        return data
