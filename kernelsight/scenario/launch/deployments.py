"""Reads a launch line or deployment file into flags: of its server, or of its prefill and decode pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelsight.catalog.tables import catalogue_yaml
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flag_values import typed_value
from kernelsight.scenario.flags import FLAGS, PREFILL_FLAGS
from kernelsight.scenario.launch.commands import PARALLEL
from kernelsight.scenario.launch.lines import LaunchLine, Word, read_command
from kernelsight.scenario.launch.server_commands import Command, read_commands

POOLS = ("prefill", "decode")
LONGEST_LIST = 70  # characters, after which no further server is named


def read_launch_line(text: str, read_files: bool = False) -> LaunchLine:
    """Return the flags of a launch line of vLLM, SGLang or TensorRT-LLM, and the effect of each of its words.

    ``text``: a line, a script or a deployment file, or ``@FILE`` with one, or ``@FILE#NAME`` for one of its servers;
    secrets are redacted. ``read_files``: read the files of options that it names, such as ``--config``. The pools of
    prefill and decode replicas become one disaggregated deployment. InvalidInput: it starts no known server or several,
    an option has no value or one out of range, or a file that it names exists and is not read.
    """
    text, name = _choice(text)
    commands = _first_nodes(read_commands(text))
    if name is not None:
        commands = _chosen(commands, name, text)
    elif len(commands) > 1:
        commands = [command for command in commands if not command.role.facts.get("profile")] or commands
        started = [command for command in commands if str(command.role.facts.get("replicas", 1)) != "0"]
        commands = started or commands
    if len(commands) == 1:
        if name is None and "shell" not in commands[0].role.facts and (role := _stated_role(commands[0])):
            raise InvalidInput(
                f"the launch text has {role} replicas alone; give those of the other pool too, or choose them with "
                f"{text if text.startswith('@') else '@FILE'}#{(commands[0].role.names or ('1',))[-1]}."
            )
        return read_command(commands[0], read_files)
    roles = {_role(command): command for command in commands}
    equal = all(command.words == roles[_role(command)].words for command in commands)
    if set(roles) == set(POOLS) and (len(commands) == 2 or equal):
        counts = {name: sum(_role(command) == name for command in commands) for name in POOLS}
        pools = (read_command(roles[name], read_files, f"{name}_replicas") for name in POOLS)
        return _disaggregated(*pools, *counts.values())
    place = text if text.startswith("@") else "@FILE"
    error = InvalidInput(
        f"the launch text starts {len(commands)} servers: {_listed(commands)}; choose one with {place}#NAME, or give "
        "the prefill and the decode replicas of one."
    )
    error.details = f"servers: {_listed(commands, len(commands))}"
    raise error


def _choice(text: str) -> tuple[str, str | None]:
    """Return (the launch text, the name after # of @FILE#NAME)."""
    path, sign, name = text[1:].rpartition("#")
    if not text.startswith("@") or not sign or len(text) > 5000 or Path(text[1:]).exists():
        return text, None
    return f"@{path}", name


def _first_nodes(commands: Sequence[Command]) -> list[Command]:
    """Return the commands without those of further nodes, which run the same server."""

    def scopes(kept: Sequence[Command], places: tuple[str | None, ...]) -> set[tuple[Any, ...]]:
        return {command.role.scope for command in kept if command.role.facts.get("place") in places}

    leading = scopes(commands, (None,))
    kept = [
        command
        for command in commands
        if command.role.facts.get("place") is None
        or (command.role.scope not in leading and command.role.facts["place"] == "template")
        or command.role.scope not in leading | scopes(commands, ("template",))
    ]
    first = [command for command in kept if not command.is_worker]
    return first or kept


def _names(command: Command) -> list[str]:
    """Return the names of a command: of the objects around it, its profiles, and the models it serves."""
    names = [*command.role.names, *command.role.facts.get("profile", ()), command.role.facts.get("served_model")]
    names += [command.after("--served-model-name"), _role(command)]
    return [name for name in names if name]


def _chosen(commands: Sequence[Command], name: str, text: str) -> list[Command]:
    """Return the commands with a name, or of that number; InvalidInput lists the names."""
    found = [command for command in commands if name in _names(command) or name == ".".join(command.role.names)]
    if not found and name.isdecimal() and 0 < int(name[:6]) <= len(commands):
        found = [commands[int(name) - 1]]
    if not found:
        raise InvalidInput(f"the launch file {text[1:]} has no server {name!r}; it has {_listed(commands)}.")
    return found


def _listed(commands: Sequence[Command], most: int = 0) -> str:
    """Return the names of commands with their models: of ``most``, else as many as a sentence takes."""
    shown: list[str] = []
    for number, command in enumerate(commands, start=1):
        own = [name for name in command.role.names if sum(name in other.role.names for other in commands) == 1]
        shown.append(f"{own[0] if own else number} ({_model(command)})")
        if not most and len(", ".join(shown)) > LONGEST_LIST:
            break
    more = f" and {len(commands) - len(shown)} more" if len(commands) > len(shown) else ""
    return ", ".join(shown) + more


def _model(command: Command) -> str:
    stated = command.role.facts.get("model") or command.after("--model") or command.after("--model-path")
    of_options = dict(command.options)
    named = stated or next((of_options[name] for name in ("MODEL", "model", "model_path") if name in of_options), None)
    first = command.words[0] if command.words and not command.words[0].startswith("-") else "no model"
    return f"{command.engine} {named or first}"[:80]


def _role(command: Command) -> str | None:
    """Return "prefill" or "decode" by a command's disaggregation options, its role or its name, or None."""
    role = _stated_role(command) or command.role.facts.get("role")
    named = [pool for pool in POOLS if any(pool in name.lower() for name in command.role.names[-2:])]
    return role or (named[0] if len(named) == 1 else None)


def _stated_role(command: Command) -> str | None:
    """Return the pool that the options of a command state, or None."""
    text = " ".join(command.words).lower().replace("=", " ")
    return next((role for role, signs in _signs().items() if any(sign in text for sign in signs)), None)


def _signs() -> dict[str, list[str]]:
    return catalogue_yaml("launch_words")["signs"]


def _disaggregated(prefill: LaunchLine, decode: LaunchLine, prefills: int = 1, decodes: int = 1) -> LaunchLine:
    """Return one launch line from those of prefill and decode replicas: decode flags, and prefill flags that differ.

    ``prefills``, ``decodes``: equal commands of each, a replica each.
    """
    if prefill.engine != decode.engine:
        raise InvalidInput("the prefill and the decode replicas of the launch text are of different engines; give one.")
    prefill, decode = _with_expert_size(prefill), _with_expert_size(decode)
    flags = dict(decode.flags)
    for name, line, count in (("prefill_replicas", prefill, prefills), ("decode_replicas", decode, decodes)):
        flags[name] = count * line.flags.get(name, 1)
    words = [word._replace(words=f"decode: {word.words}") for word in decode.words if not _states_role(word)]
    for name, decode_name in PREFILL_FLAGS.items():
        if decode_name in decode.flags and decode_name not in prefill.flags:
            if decode_name in PARALLEL:
                flags[name] = 1
            else:
                reason = "the prefill replicas do not state it, and take it from the decode replicas"
                words.append(Word(f"decode: {decode_name} {decode.flags[decode_name]}", "not_modelled", reason=reason))
    for word in prefill.words:
        prefill_flag = f"prefill_{word.flag}"
        prefill_word = word._replace(words=f"prefill: {word.words}")
        if word.effect != "used" or word.flag in ("engine", "model", "prefill_replicas"):
            words += [] if _states_role(word) else [prefill_word]
        elif prefill_flag in FLAGS:
            flags[prefill_flag] = word.value
            words.append(prefill_word._replace(flag=prefill_flag))
        elif decode.flags.get(word.flag) == word.value:
            words.append(prefill_word._replace(reason="as for the decode replicas"))
        else:
            reason = "the prefill replicas take this from the decode replicas"
            words.append(prefill_word._replace(effect="not_modelled", reason=reason))
    return LaunchLine(decode.engine, flags, tuple(words))


def _with_expert_size(line: LaunchLine) -> LaunchLine:
    """Return a line with the size of expert parallelism in place of the switch: the pools differ in it."""
    flags = dict(line.flags)
    if not flags.pop("enable_expert_parallel", False):
        return line._replace(flags=flags)
    size = flags["expert_parallel_size"] = flags.get(PARALLEL[0], 1) * flags.get(PARALLEL[2], 1)
    words = [
        word._replace(flag=PARALLEL[3], value=size) if word.flag == "enable_expert_parallel" else word
        for word in line.words
    ]
    return line._replace(flags=flags, words=tuple(words))


def _states_role(word: Word) -> bool:
    options = [sign.partition(" ")[0] for signs in _signs().values() for sign in signs if sign[0] == "-"]
    return word.words.startswith((*options, "--kv-transfer-config"))


def with_launch_line(
    flags: Mapping[str, Any], lines_read: dict[tuple[str, bool], LaunchLine] | None = None
) -> dict[str, Any]:
    """Return flags with the flag ``launch`` replaced by the flags of its line; explicit flags have precedence.

    The flag ``read_launch_files``: read files that the line names. ``lines_read``: cache of lines by their text and
    this flag.
    """
    explicit_flags = {name: value for name, value in flags.items() if name not in ("launch", "read_launch_files")}
    text, read_files = flags.get("launch"), typed_value("read_launch_files", flags.get("read_launch_files") or False)
    if text is None:
        if read_files:
            raise InvalidInput("read_launch_files needs launch, the line that names the files; give both, or neither.")
        return explicit_flags
    if not isinstance(text, str):
        raise InvalidInput(f"launch is of type {type(text).__name__}; give a launch line as text, or @FILE.")
    lines = {} if lines_read is None else lines_read
    if (text, read_files) not in lines:
        lines[text, read_files] = read_launch_line(text, read_files)
    return lines[text, read_files].flags | {name: value for name, value in explicit_flags.items() if value is not None}


def launch_assumptions(flags: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each flag that the launch line of ``flags``, if there is one, does not state itself."""
    if flags.get("launch") is None:
        return []
    line = read_launch_line(flags["launch"], bool(flags.get("read_launch_files")))
    return line.overridden_by({name: value for name, value in flags.items() if name in line.flags}).assumed
