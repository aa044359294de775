"""A folder as one log: its files by role, and those of no known format with the reason."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.logs import launch
from kernelsight.logs.files import LogFile, open_log, unusable
from kernelsight.logs.log_run import LogFormat
from kernelsight.logs.registry import fields_shown, formats_of, recognise, with_known_fields

LOOKED_FOR = "Give a folder with the results of a benchmark client or the requests of a server."
MOST_NAMED = 4
ROLES = ("requests", "steps", "metrics", "kernels", "launch")


class GivenFile(NamedTuple):
    """A file with its format, its role, and the folder that it was found in."""

    file: LogFile
    format: LogFormat
    role: str
    folder: Path | None = None

    def row(self) -> dict[str, Any]:
        """Return its row of ``production_files``."""
        folder = None if self.folder is None else str(self.folder)
        return {"path": str(self.file.path), "folder": folder, "role": self.role, "format": self.format.name}


class Folder(NamedTuple):
    """The files of a folder, in order of their names, and those that are not read, each with the reason."""

    path: Path
    files: Sequence[GivenFile]
    not_read: Mapping[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of ``production_files`` of what is not read."""
        return [{"path": path, "folder": str(self.path), "not_read": reason} for path, reason in self.not_read.items()]


def open_folder(path: str | os.PathLike[str], name: str = "auto") -> Folder:
    """Look at every file of a folder; ``name``: the format of its requests, where they are there in several.

    Folders in it are not looked into: each is a log of its own. InvalidInput: no file, none of a known format, none
    with requests or statistics of them, or requests of several formats, which may be the same ones twice.
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
    _refuse_others(folder, files, not_read)
    return Folder(folder, files, not_read)


def _format(file: LogFile, name: str) -> LogFormat | None:
    """Return the one format of a file; InvalidInput: it has the fields of several, and none of them is named."""
    fitting = formats_of(file) or ([launch.FORMAT] if launch.FORMAT.recognises(file) else [])
    if len(fitting) > 1:
        return next((log_format for log_format in fitting if log_format.name == name), None) or recognise(
            file, fitting[0].role
        )
    return fitting[0] if fitting else None


def _refuse_others(folder: Path, files: Sequence[GivenFile], not_read: Mapping[str, str]) -> None:
    if not files:
        listed = [f"{Path(path).name} ({reason})" for path, reason in not_read.items()]
        shown = ", ".join(listed[:MOST_NAMED]) + (
            f" and {len(listed) - MOST_NAMED} more" if listed[MOST_NAMED:] else ""
        )
        raise unusable(folder, f"is a folder without a file of a known format: {shown}", LOOKED_FOR)
    requests: dict[str, list[str]] = {}
    for given in files:
        if given.role == "requests":
            requests.setdefault(given.format.name, []).append(given.file.path.name)
    if not requests:
        listed = [f"{given.file.path.name} is {given.format.written_by}" for given in files]
        raise unusable(folder, f"is a folder without requests: {'; '.join(listed[:MOST_NAMED])}", LOOKED_FOR)
    if len(requests) > 1:
        listed = [f"{name}: {', '.join(names[:MOST_NAMED])}" for name, names in requests.items()]
        raise unusable(
            folder,
            f"has requests of {len(requests)} formats, which may be the same ones ({'; '.join(listed)})",
            "Name one with --log-format.",
        )
