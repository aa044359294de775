"""Reader of start-up scripts and manifests beside logs: the settings of the server that they start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kernelsight.errors import InvalidInput
from kernelsight.logs.files import HEAD_BYTES, LogFile
from kernelsight.logs.log_run import LogFormat, LogRun
from kernelsight.logs.settings import flat_settings
from kernelsight.scenario.launch.command_options import read_options
from kernelsight.scenario.launch.server_commands import Command, commands_in

NAME = "launch"
# a text without one of these starts no known server
_SERVER = re.compile(r"\bvllm\b|\bsglang\b|\btrtllm-serve\b|tensorrt")


def _recognises(file: LogFile) -> bool:
    return bool(_commands(file))


def _commands(file: LogFile) -> list[Command]:
    """Return the commands in a text that start a known server; none in a large file or a damaged one."""
    if file.kind != "text" or len(file.head) == HEAD_BYTES or not _SERVER.search(file.text):
        return []
    try:
        return commands_in(file.text, f"log {file.path}")
    except InvalidInput:
        return []


def read_launch(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per file, without requests: the options of its first server as settings, without secrets."""
    runs = []
    for file in files:
        run, (command, *_) = LogRun(file, NAME), _commands(file)
        try:
            options = {option.name: option.value for option in read_options(command.words, lambda name: None, Path())}
        except InvalidInput:
            options = {}
        if "MODEL" in options:
            options["model"] = options.pop("MODEL")
        for name in [name for name, value in options.items() if name.startswith("--no-") and value == "true"]:
            options["--" + name.removeprefix("--no-")] = "false"
            del options[name]
        run.settings = flat_settings(options, f"the {command.engine} command")
        runs.append(run)
    return runs


FORMAT = LogFormat(NAME, "launch", "a script or manifest that starts the server", _recognises, read_launch)
