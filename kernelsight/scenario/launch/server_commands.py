"""Finds the commands that start an inference server in shell text, docker run lines and deployment files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from kernelsight.catalog.tables import catalogue_yaml
from kernelsight.errors import InvalidInput, shown
from kernelsight.files.bounded_files import read_text
from kernelsight.files.redaction import redacted_words
from kernelsight.scenario.launch.documents import other_text, plain_text
from kernelsight.scenario.launch.engine_options import find_option, options
from kernelsight.scenario.launch.programs import Program, program_names, program_of_image, program_of_words
from kernelsight.scenario.launch.shape_table import Role, forms
from kernelsight.scenario.launch.shapes import read_roles
from kernelsight.scenario.launch.shell_scripts import Script

ENGINES = ("vllm", "sglang", "trtllm")
INSTEAD = "give a file or line with the server's own command or manifest"
MOST_NESTED = 4  # shells within shells; the quotes of each make the text up to three times as long
OWN_TAG, OTHER_TAG = "the engine's version is that of its tag", "its tag says nothing of the engine's version"
NOT_HERE = "the command of its container is not in the file"


class Command(NamedTuple):
    """A command that starts a server.

    ``program``: what it starts; ``role``: what the documents say of the part of the deployment that it serves.
    """

    engine: str
    words: list[str]  # after the program
    environment: dict[str, str]
    version: str | None = None  # by the tag of its image
    around: tuple[tuple[str, str, str], ...] = ()  # (words that are no option of the engine, effect, why)
    folder: Path = Path()  # of the files that it names
    program: Program | None = None
    options: tuple[tuple[str, Any], ...] = ()  # settings that are no words, such as fields of YAML
    texts: Mapping[str, str] = MappingProxyType({})
    image: str = ""
    role: Role = Role({})

    def after(self, option: str) -> str | None:
        """Return the word after an option, or after its equals sign."""
        words = [part for word in self.words for part in (word.split("=", 1) if word.startswith("-") else [word])]
        return next((words[n + 1] for n, word in enumerate(words[:-1]) if word.replace("_", "-") == option), None)

    @property
    def is_worker(self) -> bool:
        """Whether it is a further node of a server that another command starts."""
        rank = self.after("--node-rank")
        return "--headless" in self.words or (rank is not None and rank.isdecimal() and rank.strip("0") != "")


def read_commands(text: str) -> list[Command]:
    """Return the server commands of shell text, docker run, a deployment file, or ``@file`` with one.

    InvalidInput: the file cannot be read, a quotation is not closed, or no command starts a known server.

    >>> [(command.engine, command.words) for command in read_commands("vllm serve Qwen/Qwen3-8B -tp 2")]
    [('vllm', ['Qwen/Qwen3-8B', '-tp', '2'])]
    """
    if not text.startswith("@"):
        if len(text) < 256 and not re.search(r"\s", text) and Path(text).is_file():
            raise InvalidInput(f"the launch text {shown(text)} is the name of a file; write @ before it to read it.")
        return commands_in(text, "the launch text")
    path = Path(text[1:])
    origin = f"the launch file {path}"
    text = read_text(path, lambda problem: InvalidInput(f"{origin} {problem}; {INSTEAD}."), piped=True)
    return [command._replace(folder=path.parent) for command in commands_in(text, origin)]


def commands_in(text: str, origin: str) -> list[Command]:
    """Return the server commands in a text; ``origin``: its source, for error messages."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{origin} {problem}; {INSTEAD}.")

    plain = plain_text(text)
    other = other_text(plain)
    roles = [] if other else read_roles(plain, refuse, engine_of_options)
    found = [command for role in roles for command in _of_role(role)]
    servers = [command for command in found if command.engine in ENGINES]
    if not servers:
        error = InvalidInput(_no_server(found, roles, other))
        error.details = f"known programs: {', '.join(program_names())}; known forms of documents: {', '.join(forms())}"
        raise error
    others = [command for command in found if command.engine not in ENGINES]
    notes = [(_named(command), "none", f"{command.program.title}: not simulated") for command in others]
    notes += [("typographic quotes or dashes", "none", "read as plain ones")] if plain != text else []
    started = {id(command.role) for command in found}
    notes += [
        (".".join(role.names) or "a service", "none", _why_none(role)) for role in roles if id(role) not in started
    ]
    first, *rest = servers
    return [first._replace(around=(*first.around, *notes)), *rest]


def _named(command: Command) -> str:
    return ".".join(command.role.names) or command.program.name


def _why_none(role: Role) -> str:
    if role.facts.get("enabled") is False:
        return "it is switched off"
    program = program_of_image(str(role.facts.get("image", "")))[0]
    return f"{NOT_HERE}: no server is read from it" if program else "starts no inference server"


def _no_server(found: Sequence[Command], roles: Sequence[Role], other: Mapping[str, Any] | None) -> str:
    """Return the sentence for a text without a known server: another engine is named."""
    title = other["title"] if other else None
    taken = ""
    for command in found[:1]:
        title = command.program.title
        stated = (_all_words(command), command.environment, command.image)
        names = (("--model", command.program.model), ("-tp", command.program.shards))
        values = ((option, command.program.stated(names_of, *stated)) for option, names_of in names)
        taken = " ".join(f"{option} {value}" for option, value in values if value)
    if title:
        return (
            f"the launch text starts {title}, which is not simulated; in place of --launch give its model and shards: "
            f"{taken or '--model NAME -tp N'}, and --engine."
        )
    hidden = next((role for role in roles if program_of_image(str(role.facts.get("image", "")))[0]), None)
    unread = next((note for role in roles for note in role.notes if note[1] == "not_modelled"), None)
    reason = f" ({'.'.join(hidden.names) or 'image'}: {NOT_HERE})" if hidden else ""
    reason = f" ({unread[0]}: {unread[2]})" if unread and not hidden else reason
    return (
        f"the launch line starts no known server{reason}; give its own command, such as `vllm serve MODEL`, or @FILE "
        "with a deployment file."
    )


def _all_words(command: Command) -> list[str]:
    """Return the words of another engine; the first one after its verbs follows MODEL."""
    verbs = (command.program.model or "").partition("MODEL")[2].split()
    words = [word for word in command.words if word not in verbs]
    return ["MODEL", *words] if command.program.model and command.program.model.startswith("MODEL") else words


def engine_of_options(fields: Mapping[str, Any]) -> str | None:
    """Return the engine whose options a mapping holds, as the files of --config do; None: of no engine.

    >>> engine_of_options({"model": "m", "max-num-seqs": 8}), engine_of_options({"kv_cache_config": {}})
    ('vllm', 'trtllm')
    """
    names = [f"--{str(name).replace('_', '-')}" for name in list(fields)[:1000]]
    known = {engine: sum(name in options(engine) for name in names) for engine in ENGINES}
    engine = max(ENGINES, key=lambda name: known[name])
    has_model = any(isinstance(fields.get(name), str) for name in ("model", "model-path", "model_path"))
    return engine if known[engine] >= 1 + has_model and known[engine] * 2 >= len(names) else None


def _of_role(role: Role) -> Iterator[Command]:
    """Yield the server commands of a role of a deployment."""
    stated = role.facts
    if stated.get("enabled") is False:
        return
    renamed = stated.get("renamed", {})
    entrypoint = stated.get("entrypoint", [])
    words = _redacted([_renamed(word, renamed) for word in (*entrypoint, *stated.get("arguments", ()))])
    image = str(stated.get("image", ""))
    if stated.get("tag") and ":" not in image.rpartition("/")[2]:
        image = f"{image}:{stated['tag']}"
    notes = role.notes
    if "shell" in stated:
        commands = list(_of_shell(str(stated["shell"]), role.environment, role.variables))
    else:
        commands = list(_of_container(image, words, role.environment, texts=role.texts, own_start=bool(entrypoint)))
    engine = stated.get("engine")
    if not commands and engine and (not words or words[0].startswith("-")) and "shell" not in stated:
        commands = [Command(engine, words, dict(role.environment))]
    if image and "shell" not in stated:
        version = program_of_image(image)[1]
        notes = ((f"image {image}", "none", OWN_TAG if version else OTHER_TAG), *notes)
    for command in commands:
        version = command.version or (stated["tag"].lstrip("v") if stated.get("tag_is_engine") else None)
        yield command._replace(
            role=role,
            options=(*command.options, *role.options),
            around=(*notes, *command.around),
            texts={**role.texts, **command.texts},
            image=command.image or image,
            version=version,
        )


def _renamed(word: str, renamed: Mapping[str, str]) -> str:
    name, equals, value = word.partition("=")
    return f"{renamed.get(name, name)}{equals}{value}"


def _of_shell(
    text: str, environment: Mapping[str, str], variables: Mapping[str, str] | None = None, depth: int = 0
) -> Iterator[Command]:
    """Yield the server commands of a shell script; assignments and exports hold for later commands.

    ``environment``: variables of its programs; ``variables``: others; ``depth``: number of shells around it.
    InvalidInput: more than MOST_NESTED.
    """
    if depth > MOST_NESTED:
        raise InvalidInput(
            f"the launch line has shells within shells, more than {MOST_NESTED} deep; give the command of the "
            "innermost one."
        )
    script = Script(environment, variables or {})
    for words in script.commands(text):
        words = _redacted(words)
        if words[0].startswith("-"):  # no shell runs an option: without this error it would be predicted without it
            raise InvalidInput(
                f"{words[0]} begins a line of its own in the launch line: the line before ends without a backslash, or "
                "with something after it; end that line with a backslash, or put all on one line."
            )
        assigned, words = script.assigned(words)
        if words:
            for command in _of_words(words, script.environment | assigned, depth, script.variables):
                notes = tuple(
                    (words, "not_modelled", "in a condition, which is taken to hold") for words in script.conditional
                )
                yield command._replace(texts={**script.files, **command.texts}, around=(*command.around, *notes))


def _of_words(
    words: list[str], environment: Mapping[str, str], depth: int = 0, variables: Mapping[str, str] | None = None
) -> Iterator[Command]:
    """Yield the server command in the words of one simple command, also within docker run, a shell or a wrapper."""
    start = next((n for n, word in enumerate(words) if Path(word).name in ("docker", "podman", "nerdctl")), len(words))
    if "run" in words[start:]:
        for command in _of_docker(words[start:], environment, depth):
            yield command._replace(around=(*_wrapping(words[:start]), *command.around))
        return
    index, inner = _shell_of(words)
    if inner:
        for command in _of_shell(words[inner], environment, variables, depth + 1):
            yield command._replace(around=(*_wrapping(words[:index]), *command.around))
        return
    found = program_of_words(words)
    if found is None and Path(words[0]).name in _words("carriers"):
        for word in words[1:]:
            if " " in word and program_of_words(word.split()):
                yield from _of_shell(word, environment, variables, depth + 1)
    if found is None:
        return
    program, program_start, options_start = found
    assigned, wrapping = Script.leading([word for word in words[:program_start] if word != "env"])
    around = tuple(_wrapping(wrapping))
    yield Command(program.engine, words[options_start:], {**environment, **assigned}, around=around, program=program)


def _words(kind: str) -> list[str]:
    return catalogue_yaml("launch_words")[kind]


def _shell_of(words: Sequence[str]) -> tuple[int, int]:
    """Return (index of the first shell in words, index of the script that its -c names; 0: it has none)."""
    index = next((n for n, word in enumerate(words) if Path(word).name in _words("shells")), len(words))
    inner = next((n + 1 for n in range(index + 1, len(words)) if re.fullmatch(r"-\w*c", words[n])), 0)
    return index, inner if inner < len(words) else 0


def _redacted(words: Sequence[str]) -> list[str]:
    """Redact words but the script of a shell, whose commands are redacted when it is read."""
    _, inner = _shell_of(words)
    if not inner:
        return redacted_words(words)
    return [*redacted_words(words[:inner]), words[inner], *redacted_words(words[inner + 1 :])]


def _wrapping(words: Sequence[str]) -> list[tuple[str, str, str]]:
    return [(" ".join(words), "none", "starts the server: no step takes longer")] if words else []


def _of_docker(words: list[str], environment: Mapping[str, str], depth: int) -> Iterator[Command]:
    """Yield the server command of a docker run line; the entrypoint of vLLM's image is `vllm serve`."""
    variables, around, entrypoint = dict(environment), [], []
    index = words.index("run") + 1
    while index < len(words) and words[index].startswith("-"):
        option, equals, value = words[index].partition("=")
        if not equals and option not in _words("docker_switches") and index + 1 < len(words):
            index, value = index + 1, words[index + 1]
        if option in ("-e", "--env"):
            name, _, setting = value.partition("=")
            variables[name] = setting
        elif option == "--entrypoint":
            entrypoint = [value]
        else:
            around.append((f"{option} {value}".strip(), "none", "option of the container: no step takes longer"))
        index += 1
    if index < len(words):
        image, words = words[index], [*entrypoint, *words[index + 1 :]]
        for command in _of_container(image, words, variables, depth, own_start=bool(entrypoint)):
            yield command._replace(around=(*around, *command.around), image=image)


def _of_container(
    image: str,
    words: list[str],
    environment: Mapping[str, str],
    depth: int = 0,
    texts: Mapping[str, str] | None = None,
    own_start: bool = False,
) -> Iterator[Command]:
    """Yield the server command of a container; ``own_start``: its words replace the start of the image.

    ``texts``: files of the deployment, one of which the words may run.
    """
    program, version = program_of_image(image)
    commands = list(_of_words(words, environment, depth)) if words else []
    script = next((texts[Path(word).name] for word in words if Path(word).name in (texts or {})), None)
    if not commands and script is not None and depth == 0:
        commands = list(_of_shell(script, environment, depth=depth + 1))
    is_start = bool(program and program.starts and not own_start)
    if not commands and program and ((words and words[0].startswith("-")) or is_start):
        commands = [_by_variables(program, words, environment)]
    for command in commands:
        yield command._replace(version=version if program and command.engine == program.engine else None)


def _by_variables(program: Program, words: list[str], environment: Mapping[str, str]) -> Command:
    """Return the command of an image without one of its own: variables are options where its row says so."""
    rest, found = dict(environment), []
    prefix = program.variables.rstrip("*") if program.variables else ""
    for name, value in environment.items() if program.variables and program.engine in ENGINES else ():
        if name in (program.model or "").split():
            found.append(("MODEL", value))
        elif name in (program.shards or "").split():
            found.append(("--tensor-parallel-size", value))
        elif name.startswith(prefix):
            option = f"--{name[len(prefix) :].lower().replace('_', '-')}"
            if find_option(program.engine, option) is None or option == "--model":
                continue
            found.append((option, value))
        else:
            continue
        rest.pop(name)
    return Command(program.engine, words, rest, options=tuple(found), program=program)
