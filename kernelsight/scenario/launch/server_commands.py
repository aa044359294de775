"""Finds the commands that start an inference server in shell lines and scripts, docker run lines and YAML manifests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import read_text
from kernelsight.files.redaction import (
    REDACTED,
    names_secret,
    redacted_text,
    redacted_variable,
    redacted_words,
)
from kernelsight.files.shell_words import MOST_CHARACTERS, split_commands
from kernelsight.scenario.launch.manifests import read_manifest

ENGINES = ("vllm", "sglang", "trtllm")
# modules (python -m), and scripts of the same name
MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
    "tensorrt_llm.commands.serve": "trtllm",
}
PROGRAMS = {"vllm": "vllm", "sglang": "sglang", "trtllm-serve": "trtllm"}
IMAGES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm", "trtllm": "trtllm"}
INSTEAD = "give a file or line with the server's own command or manifest"
SHELLS = ("sh", "bash", "zsh", "dash")
MOST_NESTED = 4  # shells within shells; the quotes of each make the text up to three times as long
# options of docker run that take no value; every other one takes one
DOCKER_SWITCHES = frozenset(
    "--rm -i -t -d -it -ti -dit -itd --interactive --tty --detach --privileged --init --read-only -P --publish-all "
    "--no-healthcheck --oom-kill-disable --quiet -q".split()
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]{0,300}))?\}|\$\((\w+)\)|\$(\w+)")
_MANIFEST = re.compile(r"^[ \t]*(?:-[ \t]*)?(apiVersion|containers|services|spec):", re.MULTILINE)
_VERSION = re.compile(r"v?(\d+\.\d+[\w.]*)")


class Command(NamedTuple):
    """A command that starts a server."""

    engine: str
    words: list[str]  # after the program
    environment: dict[str, str]
    version: str | None = None  # by the tag of its image
    around: tuple[tuple[str, str], ...] = ()  # (words that are no option of the engine, why they are ignored)
    selectors: tuple[str, ...] = ()  # of the nodes in a manifest, such as names of GPUs or instances
    replicas: int | str | None = None  # of a manifest; may be a variable
    folder: Path = Path()  # of the files that it names


def read_commands(text: str) -> list[Command]:
    """Return the server commands in a text: a shell line or script, docker run, a YAML manifest, or ``@file`` with one.

    InvalidInput: the file cannot be read, a quotation is not closed, or no command starts a known server.

    >>> [(command.engine, command.words) for command in read_commands("vllm serve Qwen/Qwen3-8B -tp 2")]
    [('vllm', ['Qwen/Qwen3-8B', '-tp', '2'])]
    """
    if not text.startswith("@"):
        return commands_in(text, "the launch text")
    path = Path(text[1:])
    origin = f"the launch file {path}"
    text = read_text(path, lambda problem: InvalidInput(f"{origin} {problem}; {INSTEAD}."), piped=True)
    return [command._replace(folder=path.parent) for command in commands_in(text, origin)]


def commands_in(text: str, origin: str) -> list[Command]:
    """Return the server commands in a text; ``origin``: its source, for error messages."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{origin} {problem}; {INSTEAD}.")

    if _MANIFEST.search(text):
        commands = [command for document in read_manifest(text, refuse) for command in _containers(document, {})]
    else:
        commands = list(_of_shell(text, {}))
    if not commands:
        raise InvalidInput(
            "the launch line starts no known server; give a line with `vllm serve`, `sglang "
            "serve`, `python -m sglang.launch_server` or `trtllm-serve`, a docker run line, or @FILE with one or with "
            "a Kubernetes manifest."
        )
    return commands


def _of_shell(text: str, environment: Mapping[str, str], depth: int = 0) -> Iterator[Command]:
    """Yield the server commands of a shell script; assignments and exports hold for later commands.

    ``depth``: number of shells around it. InvalidInput: more than MOST_NESTED.
    """
    if depth > MOST_NESTED:
        raise InvalidInput(
            f"the launch line has shells within shells, more than {MOST_NESTED} deep; give the command of the "
            "innermost one."
        )
    variables = dict(environment)
    characters = MOST_CHARACTERS
    for words in split_commands(text):
        words = expanded_words(words, variables, characters)
        characters -= sum(map(len, words))
        words = redacted_words(words)
        if words and words[0].startswith(
            "-"
        ):  # no shell runs an option: without this error the server would be predicted without it
            raise InvalidInput(
                f"{words[0]} begins a line of its own in the launch line: the line before ends without a backslash, or "
                "with something after it; end that line with a backslash, or put all on one line."
            )
        if words and words[0] in ("export", "set", "declare"):
            words = words[1:]
        assigned, words = _leading_assignments(words)
        if not words:
            variables |= assigned
            continue
        yield from _of_words(words, variables | assigned, depth)


def _leading_assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    count = next((index for index, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    return dict(word.split("=", 1) for word in words[:count]), list(words[count:])


def expanded(word: str, environment: Mapping[str, str], most: int = MOST_CHARACTERS) -> str:
    """Return a word with the variables of an environment expanded; unknown ones stay. InvalidInput: too long.

    >>> expanded("${MODEL:-none}/$SIZE/$OTHER", {"SIZE": "8b"})
    'none/8b/$OTHER'
    """

    def value(match: re.Match) -> str:
        name, default = match[1] or match[3] or match[4], match[2]
        if default and name not in environment and names_secret(name, variable=True):
            return REDACTED
        return environment.get(name, match[0] if default is None else default)

    def bounded(match: re.Match) -> str:
        nonlocal most
        filled = value(match)
        most -= len(filled)
        if most < 0:
            raise InvalidInput(f"the variables of the launch line make it longer than {MOST_CHARACTERS:,} characters.")
        return filled

    return _VARIABLE.sub(bounded, word)


def expanded_words(words: Iterable[str], environment: Mapping[str, str], most: int = MOST_CHARACTERS) -> list[str]:
    """Return words with variables expanded; InvalidInput for more than ``most`` characters: expansion may explode.

    >>> expanded_words(["$A$A", "c"], {"A": "ab"})
    ['abab', 'c']
    """
    filled = []
    for word in words:
        filled.append(expanded(word, environment, most))
        most -= len(filled[-1])
    return filled


def _of_words(words: list[str], environment: Mapping[str, str], depth: int = 0) -> Iterator[Command]:
    """Yield the server command in the words of one simple command, also within docker run, a shell or a wrapper."""
    if words[0] in ("docker", "podman", "nerdctl") and "run" in words:
        yield from _of_docker(words, environment, depth)
        return
    for index, word in enumerate(words):
        if Path(word).name in SHELLS and index + 1 < len(words):
            inner = next((index + 2 + n for n, w in enumerate(words[index + 1 :]) if re.fullmatch(r"-\w*c", w)), None)
            if inner is not None and inner < len(words):
                for command in _of_shell(words[inner], environment, depth + 1):
                    yield command._replace(around=(*_wrapping(words[:index]), *command.around))
                return
            break  # a later shell has no -c either
    program = _program(words)
    if program is None:
        return
    engine, program_start, options_start = program
    assigned, wrapping = _leading_assignments([word for word in words[:program_start] if word != "env"])
    yield Command(engine, words[options_start:], {**environment, **assigned}, around=tuple(_wrapping(wrapping)))


def _wrapping(words: Sequence[str]) -> list[tuple[str, str]]:
    return [(" ".join(words), "starts the server: no step takes longer")] if words else []


def _program(words: Sequence[str]) -> tuple[str, int, int] | None:
    """Return (engine, index of its program, index of its first option) in words, or None."""
    for index, word in enumerate(words):
        module = word.removesuffix(".py").replace("/", ".")
        engine = MODULES.get(word) or next((e for name, e in MODULES.items() if module.endswith("." + name)), None)
        if engine:
            start = index - 2 if index > 1 and words[index - 1] == "-m" else max(index - 1, 0)
            return engine, start, index + 1 + (list(words[index + 1 : index + 2]) == ["serve"])
        engine = PROGRAMS.get(Path(word).name)
        following = words[index + 1] if index + 1 < len(words) else ""
        if engine and (following == "serve" or engine == "trtllm"):
            return engine, index, index + 1 + (following == "serve")
    return None


def _of_docker(words: list[str], environment: Mapping[str, str], depth: int) -> Iterator[Command]:
    """Yield the server command of a docker run line; the entrypoint of vLLM's image is `vllm serve`."""
    variables, around, entrypoint = dict(environment), [], []
    index = words.index("run") + 1
    while index < len(words) and words[index].startswith("-"):
        option, equals, value = words[index].partition("=")
        if not equals and option not in DOCKER_SWITCHES and index + 1 < len(words):
            index, value = index + 1, words[index + 1]
        if option in ("-e", "--env"):
            name, _, setting = value.partition("=")
            variables[name] = setting
        elif option == "--entrypoint":
            entrypoint = [value]
        else:
            around.append((f"{option} {value}".strip(), "option of the container: no step takes longer"))
        index += 1
    if index < len(words):
        yield from _of_container(words[index], [*entrypoint, *words[index + 1 :]], variables, around, depth)


def _of_container(
    image: str, words: list[str], environment: Mapping[str, str], around: Sequence[tuple[str, str]], depth: int = 0
) -> Iterator[Command]:
    """Yield the server command of a container, its engine's version from the tag of the image."""
    _, _, tag = image.rpartition("/")[2].partition(":")
    engine = next((engine for image_name, engine in IMAGES.items() if image_name in image.lower()), None)
    version = _VERSION.match(tag)
    shipped = version[1] if version and engine else None
    commands = list(_of_words(words, environment, depth)) if words else []
    if not commands and engine and (not words or words[0].startswith("-") or engine == "vllm"):
        commands = [Command(engine, words, dict(environment))]
    for command in commands:
        known_version = shipped if command.engine == engine else None
        yield command._replace(version=known_version, around=(*around, *command.around))


def _containers(node: Any, outer: Mapping[str, Any]) -> Iterator[Command]:
    """Yield the server commands of all containers below a node of a manifest."""
    if isinstance(node, list):
        for item in node:
            yield from _containers(item, outer)
    if not isinstance(node, Mapping):
        return
    facts = dict(outer)
    if isinstance(node.get("replicas"), int | str):
        facts["replicas"] = node["replicas"]
    if isinstance(node.get("nodeSelector"), Mapping):
        facts["selectors"] = [str(value) for value in node["nodeSelector"].values()]
    if isinstance(node.get("image"), str):
        yield from _container(node, facts)
        return
    for value in node.values():
        yield from _containers(value, facts)


def _container(node: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[Command]:
    """Yield the server command of one container; ``facts``: replicas and node selectors of the objects around it."""
    environment = _environment(node.get("env", node.get("environment")))
    words = expanded_words([word for key in ("command", "args") for word in _as_words(node.get(key))], environment)
    words = redacted_words(words)
    around = [(f"image {redacted_text(node['image'])}", "the engine's version is that of its tag")]
    limits = ((node.get("resources") or {}).get("limits") or {}) if isinstance(node.get("resources"), Mapping) else {}
    for name, number in limits.items():
        around.append((f"{name}: {number}", "the number of GPUs follows from the parallel sizes"))
    deploy = node["deploy"] if isinstance(node.get("deploy"), Mapping) else {}  # of Compose, as scale is
    replicas = deploy.get("replicas", node.get("scale", facts.get("replicas")))
    for command in _of_container(node["image"], words, environment, around):
        yield command._replace(replicas=replicas, selectors=tuple(facts.get("selectors", ())))


def _as_words(value: Any) -> list[str]:
    if isinstance(value, str):
        return [word for words in split_commands(value) for word in words]
    return [str(word) for word in value or []]


def _environment(value: Any) -> dict[str, str]:
    """Return environment variables from Kubernetes's list of name and value, or Compose's mapping or list of a=b."""
    variables = {}
    if isinstance(value, Mapping):
        variables = {str(name): str(setting) for name, setting in value.items()}
        value = None
    for item in value or []:
        if isinstance(item, Mapping) and item.get("value") is not None:
            variables[str(item.get("name"))] = str(item["value"])
        elif isinstance(item, str):
            name, _, setting = item.partition("=")
            variables[name] = setting
    return {name: redacted_variable(name, setting) for name, setting in variables.items()}
