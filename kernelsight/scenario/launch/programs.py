"""Recognises servers in words and images, by the table ``server_programs``, engines that are not simulated included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kernelsight.catalog.tables import facts

_VERSION = re.compile(r"v?(\d+\.\d+[\w.]*)")
# words after trtllm-serve that start no server of requests
_OTHER_VERBS = ("disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve")


class Program(NamedTuple):
    """One row of ``server_programs``."""

    kind: str
    name: str
    engine: str
    title: str | None
    model: str | None
    shards: str | None
    variables: str | None
    starts: bool | None
    versioned: bool | None
    source: str

    def stated(self, names: str | None, words: Sequence[str], environment: Mapping[str, str], image: str) -> str | None:
        """Return what options or variables of the engine hold, such as its model."""
        for name in (names or "").split():
            if name == "IMAGE":
                return "/".join(image.partition("@")[0].split("/")[-2:]).partition(":")[0]
            if environment.get(name):
                return environment[name]
            for index, word in enumerate(words):
                option, equals, value = word.partition("=")
                if option == name and (equals or index + 1 < len(words)):
                    following = value if equals else words[index + 1]
                    return following if not following.startswith("-") else None
        return None


@cache
def programs(kind: str) -> dict[str, Program]:
    """Return the rows of a kind by name."""
    return {row["name"]: Program(**row) for row in facts("server_programs").to_pylist() if row["kind"] == kind}


def program_names() -> list[str]:
    """Return the names of programs and modules that start a server which is simulated."""
    rows = [*programs("program").values(), *programs("module").values()]
    return [row.name for row in rows if row.engine != "other"]


@cache
def program_of_image(image: str) -> tuple[Program | None, str | None]:
    """Return (the row of an image, the engine's version where its tag is one).

    >>> program_of_image("lmsysorg/sglang:v0.5.5-cu129")[1], program_of_image("runpod/worker-v1-vllm:v2.7.0")[1]
    ('0.5.5', None)
    """
    path, _, tag = image.partition("@sha256")[0].lower().rpartition("/")
    name, _, tag = tag.partition(":")
    parts = [*path.split("/"), name]
    ends = ["/".join(parts[start:]) for start in range(len(parts))]
    row = next((row for row in programs("image").values() if any(fnmatchcase(end, row.name) for end in ends)), None)
    version = _VERSION.match(tag)
    return row, version[1] if version and row and row.versioned else None


def program_of_words(words: Sequence[str]) -> tuple[Program, int, int] | None:
    """Return (row, index of the program, index of its first option) of the first program in words, or None."""
    modules = programs("module")
    for index, word in enumerate(words):
        module = word.removesuffix(".py").replace("/", ".")
        row = modules.get(word) or next((row for name, row in modules.items() if module.endswith("." + name)), None)
        if row:
            start = index - 2 if index > 1 and words[index - 1] == "-m" else max(index - 1, 0)
            return row, start, index + 1 + (list(words[index + 1 : index + 2]) == ["serve"])
        row = programs("program").get(Path(word).name)
        following = words[index + 1] if index + 1 < len(words) else ""
        if row and (following == "serve" or row.engine in ("trtllm", "other")) and following not in _OTHER_VERBS:
            return row, index, index + 1 + (following == "serve")
    return None
