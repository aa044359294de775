"""Runs commands of a user: without a shell, in a group of their own, under limits of time and output."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from kernelsight.dataflow.redaction import redacted_text
from kernelsight.errors import InvalidInput

# how often the size of the output is looked at, seconds
LOOK = 0.05
# bytes of stderr that are kept
MOST_COMPLAINT = 2000


class Ended(NamedTuple):
    """How a command ended: exit status (None: killed at the time limit), the end of stdout, whether that is all.

    ``complaint``: the last line of stderr.
    """

    code: int | None
    output: str
    is_complete: bool
    complaint: str = ""


def split_words(command: str, flag: str, example: str) -> list[str]:
    """Return the words of a command; InvalidInput for none, or for quotes that do not close.

    >>> split_words("./bench --x {block_size_x} 'two words'", "--measure", "")
    ['./bench', '--x', '{block_size_x}', 'two words']
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidInput(
            f"{flag} {redacted_text(command)!r} cannot be split into words: {str(error).lower()}."
        ) from None
    if not words:
        raise InvalidInput(f"{flag} is empty; give {example}.")
    return words


def run_bounded(
    words: Sequence[str], flag: str, time_limit_s: float, most_bytes: int, text: str = "", ends_above: bool = False
) -> Ended:
    """Run a command that reads ``text``, and return how it ended; InvalidInput: it cannot be run.

    Of its output the last ``most_bytes`` are read; ``ends_above``: it is killed when it prints more.
    """
    with tempfile.TemporaryDirectory(prefix="kernelsight-") as folder:
        input_file, output_file = Path(folder) / "input", Path(folder) / "output"
        input_file.write_text(text, encoding="utf-8")
        try:
            with input_file.open("rb") as stdin, output_file.open("wb") as stdout:
                process = subprocess.Popen(
                    words, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, start_new_session=True
                )
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            raise InvalidInput(f"{flag} cannot run {words[0]!r}: {problem}.") from None
        errors = Tail(process.stderr)
        try:
            code = _waited(process, time_limit_s, output_file, most_bytes if ends_above else None)
        finally:
            # what the command started must not go on beside the next one
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        size = output_file.stat().st_size
        with output_file.open("rb") as written:
            written.seek(max(0, size - most_bytes))
            text = written.read(most_bytes).decode("utf-8", errors="replace")
            return Ended(code, text, size <= most_bytes, errors.last_line())


class Tail:
    """Reads a stream to its end in a thread, so that nobody who writes to it waits, and keeps its last bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._stream.fileno(), 65_536):
            self._kept = (self._kept + chunk)[-MOST_COMPLAINT:]
        self._stream.close()

    def last_line(self) -> str:
        """Return the last line that is not empty; what a child that went on holds open is not waited for."""
        self._thread.join(LOOK * 10)
        lines = [line.strip() for line in self._kept.decode("utf-8", errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""


def _waited(process: subprocess.Popen[bytes], time_limit_s: float, output: Path, most_bytes: int | None) -> int | None:
    """Return the exit status, or None where the process runs too long or prints too much."""
    try:
        if most_bytes is None:
            return process.wait(time_limit_s)
        end = time.monotonic() + time_limit_s
        while time.monotonic() < end and output.stat().st_size <= most_bytes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(LOOK)
    except subprocess.TimeoutExpired:
        pass
    return None
