"""Log folders: their files with format and role, those not read and why, and the server's script among them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.logs.files import HEAD_BYTES, LogFile, open_log, unusable
from kernelsight.logs.log_run import LogFormat, LogRun
from kernelsight.logs.registry import fields_shown, formats_of, recognise, with_known_fields
from kernelsight.logs.settings import flat_settings
from kernelsight.scenario.launch.command_options import read_options
from kernelsight.scenario.launch.server_commands import Command, commands_in

LOOKED_FOR = "Give a folder with the results of a benchmark client or the requests of a server."
MOST_NAMED = 4
ROLES = ("requests", "steps", "metrics", "kernels", "launch")
# a text without one of these starts no known server
_SERVER = re.compile(r"\bvllm\b|\bsglang\b|\btrtllm-serve\b|tensorrt")


class GivenFile(NamedTuple):
    """A log file with its format, its role (ROLES), and the folder it belongs to, if any."""

    file: LogFile
    format: LogFormat
    role: str
    folder: Path | None = None

    def row(self) -> dict[str, Any]:
        """Return its row of ``production_files``."""
        folder = None if self.folder is None else str(self.folder)
        return {"path": str(self.file.path), "folder": folder, "role": self.role, "format": self.format.name}


class Folder(NamedTuple):
    """A folder of log files: those that are read, by name, and the paths of others with the reason."""

    path: Path
    files: Sequence[GivenFile]
    not_read: Mapping[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of ``production_files`` for files that are not read."""
        return [{"path": path, "folder": str(self.path), "not_read": reason} for path, reason in self.not_read.items()]


def open_folder(path: str | os.PathLike[str], name: str = "auto") -> Folder:
    """Return a folder with the format of each file; ``name``: the format of requests to read, if there are several.

    Subfolders are not read: each is a log of its own. InvalidInput: no file, none of a known format, none with requests
    or their statistics, or requests in several formats, which may be the same ones.
    """
    folder = Path(path)
    try:
        entries = sorted(folder.iterdir())
    except OSError as problem:
        raise unusable(folder, f"cannot be listed ({problem.strerror})", "Give a folder that can be read.") from None
    if not entries:
        raise unusable(folder, "is an empty folder", LOOKED_FOR)
    files: list[GivenFile] = []
    not_read: dict[str, str] = {}
    for entry in entries:
        if entry.is_dir():
            not_read[str(entry)] = "it is a folder: give it by itself"
            continue
        if not entry.is_file():
            not_read[str(entry)] = "it is a pipe, a device or a broken link"
            continue
        try:
            file = with_known_fields(open_log(entry))
        except InvalidInput as problem:
            not_read[str(entry)] = str(problem).removeprefix(f"log {entry} ").partition(". ")[0].rstrip(".")
            continue
        log_format = _format(file, name)
        if log_format is None:
            not_read[str(entry)] = f"no known format: {fields_shown(file)}"
        elif name != "auto" and log_format.role == "requests" and log_format.name != name:
            not_read[str(entry)] = f"{log_format.name}, and not {name}"
        else:
            files.append(GivenFile(file, log_format, log_format.role, folder))
    _check_requests(folder, files, not_read)
    return Folder(folder, files, not_read)


def _format(file: LogFile, name: str) -> LogFormat | None:
    """Return the format of a file, None if unknown; InvalidInput: it fits several, and ``name`` is none of them."""
    candidates = formats_of(file) or ([LAUNCH] if LAUNCH.recognises(file) else [])
    if len(candidates) > 1:
        return next((log_format for log_format in candidates if log_format.name == name), None) or recognise(
            file, candidates[0].role
        )
    return candidates[0] if candidates else None


def _check_requests(folder: Path, files: Sequence[GivenFile], not_read: Mapping[str, str]) -> None:
    """Check that the files of a folder hold requests in one format; InvalidInput: they do not."""
    if not files:
        descriptions = [f"{Path(path).name} ({reason})" for path, reason in not_read.items()]
        shown = ", ".join(descriptions[:MOST_NAMED]) + (
            f" and {len(descriptions) - MOST_NAMED} more" if descriptions[MOST_NAMED:] else ""
        )
        raise unusable(folder, f"is a folder without a file of a known format: {shown}", LOOKED_FOR)
    requests: dict[str, list[str]] = {}
    for given in files:
        if given.role == "requests":
            requests.setdefault(given.format.name, []).append(given.file.path.name)
    if not requests:
        descriptions = [f"{given.file.path.name} is {given.format.written_by}" for given in files]
        raise unusable(folder, f"is a folder without requests: {'; '.join(descriptions[:MOST_NAMED])}", LOOKED_FOR)
    if len(requests) > 1:
        descriptions = [f"{name}: {', '.join(names[:MOST_NAMED])}" for name, names in requests.items()]
        raise unusable(
            folder,
            f"has requests of {len(requests)} formats, which may be the same ones ({'; '.join(descriptions)})",
            "Name one with --log-format.",
        )


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
        run, (command, *_) = LogRun(file, "launch"), _commands(file)
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


LAUNCH = LogFormat(
    "launch", "launch", "a script or manifest that starts the server", lambda file: bool(_commands(file)), read_launch
)
