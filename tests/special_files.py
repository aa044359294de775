"""What stands where a file should: a pipe without a writer, devices, a folder, a socket."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

SPECIAL = {
    "pipe": "is a pipe",
    "/dev/zero": "is a device",
    "folder": "is a folder",
    "socket": "is a socket",
}


def special_file(path: Path, kind: str) -> Path:
    """Make one under a path, and return the path."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            folder = os.open(path.parent, os.O_RDONLY)
            try:  # the address of a socket is short, the folders of tests are not
                bound.bind(f"/proc/self/fd/{folder}/{path.name}")
            finally:
                os.close(folder)
    else:
        path.symlink_to(kind)
    return path


def interrupted(seconds: int = 60) -> Iterator[None]:
    """Stop what waits for ever, or reads without end: it would not end by itself."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"still reading after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
