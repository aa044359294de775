"""Options of a server command with their values; fields of JSON values and YAML files are options too."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import read_text
from kernelsight.files.bounded_values import parse_json, parse_yaml
from kernelsight.files.budget import OPTIONS

# function from an option to what it takes: none, value, list, json, file or optional; None: unknown option
Takes = Callable[[str], "str | None"]
_PROBLEM = re.compile(r"(\(line \d+): .*\)", re.DOTALL)  # a parser's message may quote the line
_SHORT_LEVEL = re.compile(r"-O=?(\w+)")


class Setting(NamedTuple):
    """One option of a command: its name, its value as text, and its words as written.

    ``words`` are shown to users. For an option from a file (``of_file``) they name its place; its value is not shown.
    """

    name: str
    value: str
    words: str
    of_file: bool = False


def read_options(
    words: list[str], takes: Takes, folder: Path, read_files: bool = False, texts: Mapping[str, str] | None = None
) -> Iterator[Setting]:
    """Yield the settings of a command's words; a word that belongs to no option is the setting MODEL.

    ``folder``: folder of the files that options name; ``read_files``: whether they may be read; ``texts``: files that
    the text of the command holds itself. InvalidInput: an option without its value, JSON that cannot be read, or a file
    that exists and may not be read.
    """
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        if not word.startswith("-") or word == "-":
            yield Setting("MODEL", word, word)
            continue
        name, equals, value = word.partition("=")
        level = _SHORT_LEVEL.fullmatch(word)
        if level:
            name, equals, value = "-O", "=", level[1]
        kind, stem = takes(name), name.partition(".")[0]
        if kind is None and _is_negated(name, takes):
            yield Setting("--" + name[5:], "false", word)
            continue
        if kind is None and stem != name and takes(stem) == "json":
            kind = "value"
        if kind in ("none", "optional") or (kind is None and not equals and _is_option(words, index)):
            following = words[index].lower() if index < len(words) else ""
            if not equals and kind == "optional" and following in ("true", "false"):
                value, index, word = following, index + 1, f"{word} {following}"
            yield Setting(name, (value if value else "true").lower(), word)
            continue
        if kind == "list" and not equals:
            stop = next((n for n in range(index, len(words)) if words[n].startswith("-")), len(words))
            yield Setting(name, " ".join(words[index:stop]), " ".join([word, *words[index:stop]]))
            index = stop
            continue
        if not equals:
            if index == len(words):
                raise InvalidInput(f"{name} of the launch line has no value; add it, or remove the option.")
            value, index = words[index], index + 1
            word = f"{word} {value}"
        if name == "-O" and value.startswith("{"):  # until vLLM 0.11, the short form of the whole configuration
            name, kind = "--compilation-config", "json"
        elif name == "--compilation-config" and value.isdigit():  # and a number here was its level
            name, kind = "-O", "value"
        if kind == "file":
            own = (texts or {}).get(Path(value).name)
            yield from _of_file(name, value, word, folder, takes, read_files, own)
        else:
            yield from _valued(name, value, word, kind, takes)


def _is_option(words: list[str], index: int) -> bool:
    return index == len(words) or (words[index].startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", words[index]))


def _is_negated(name: str, takes: Takes) -> bool:
    return name.startswith("--no-") and takes("--" + name[5:]) == "optional"


def _valued(name: str, value: str, word: str, kind: str | None, takes: Takes) -> Iterator[Setting]:
    if kind == "json":
        fields = parse_json(value, lambda problem: InvalidInput(f"{name} of the launch line {problem}."))
        if not isinstance(fields, Mapping):
            raise InvalidInput(f"{name} of the launch line is no JSON object; give its fields.")
        yield from nested(name, fields, takes)
    else:
        yield Setting(name, value, word)


def nested(name: str, value: Any, takes: Takes) -> Iterator[Setting]:
    """Yield the fields of a JSON or YAML object as options with dots, down to those that ``engine_flags`` knows."""
    if isinstance(value, Mapping) and value and takes(name) in ("json", None):
        for field, inner in value.items():
            yield from nested(f"{name}.{field}", inner, takes)
        return
    if isinstance(value, list):
        text = " ".join(str(item) for item in value) or "[]"
    elif isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    else:
        text = json.dumps(value) if isinstance(value, Mapping) else str(value)
    words = f"{name} {text}"
    if takes(name) is None and _is_negated(name, takes):
        name, text = "--" + name[5:], "false" if text == "true" else "true"
    yield Setting(name, text, words)


def _of_file(
    name: str, value: str, word: str, folder: Path, takes: Takes, read_files: bool, own: str | None
) -> Iterator[Setting]:
    """Yield the settings of a YAML file of options; the option itself where the file does not exist.

    ``own``: the file's text, if the text of the command holds it. Only the file and names of known options are shown: a
    pasted line may name any file of this machine.
    """
    found = next((path for path in (folder / value, Path(value)) if os.path.exists(path)), None)
    path = Path(value) if own else found
    if path is None:
        yield Setting(name, value, word)
        return
    if not read_files and not own:
        raise InvalidInput(
            f"{name} of the launch line names the file {value}, which is not read without --read-launch-files; add "
            f"that flag, or take {name} out of the line."
        )

    def refuse(problem: str) -> InvalidInput:
        without_content = _PROBLEM.sub(r"\1)", problem)
        return InvalidInput(f"{path} of {name} {without_content}; give one `name: value` a line.")

    fields = next(iter(parse_yaml(own or read_text(path, refuse), refuse, OPTIONS)), None)
    if not isinstance(fields, Mapping):
        raise refuse("has no options")
    for number, (field, inner) in enumerate(fields.items(), start=1):
        for setting in nested(f"--{field}", inner, takes):
            shown = setting.name if takes(setting.name) else f"option {number}"
            yield setting._replace(words=f"{value}: {shown}", of_file=True)
