"""Runs a user's command as a subprocess: without a shell, in its own process group, limited in time and output."""

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

from kernelsight.errors import InvalidInput
from kernelsight.files.redaction import redacted_text

# seconds between checks of the output's size
POLL_S = 0.05
# bytes kept from the end of stderr
STDERR_BYTES = 2000


class CommandResult(NamedTuple):
    """The result of a command: exit status (None: killed at a limit), the end of stdout, and whether that is all.

    ``last_error``: the last line of stderr.
    """

    code: int | None
    output: str
    is_complete: bool
    last_error: str = ""


def split_words(command: str, flag: str, example: str) -> list[str]:
    """Split a command into words; InvalidInput for none, or for quotes that do not close.

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
) -> CommandResult:
    """Run a command with ``text`` on its stdin, and return its result; InvalidInput: it cannot be run.

    ``flag``: the option that names it, for errors. The last ``most_bytes`` of its output are read; ``ends_above``: it
    is killed when it prints more.
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
            # processes that the command started must not outlive it
            with contextlib.suppress(ProcessLookupError):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:  # Windows: what the command started itself lives on
                    process.kill()
            process.wait()
        size = output_file.stat().st_size
        with output_file.open("rb") as written:
            written.seek(max(0, size - most_bytes))
            text = written.read(most_bytes).decode("utf-8", errors="replace")
            return CommandResult(code, text, size <= most_bytes, errors.last_line())


class Tail:
    """Reads a stream to its end in a thread, so that its writer never blocks, and keeps the last bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._last = stream, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._stream.fileno(), 65_536):
            self._last = (self._last + chunk)[-STDERR_BYTES:]
        self._stream.close()

    def last_line(self) -> str:
        """Return the last line that is not empty, without waiting for a child process that keeps the stream open."""
        self._thread.join(POLL_S * 10)
        lines = [line.strip() for line in self._last.decode("utf-8", errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""


def _waited(process: subprocess.Popen[bytes], time_limit_s: float, output: Path, most_bytes: int | None) -> int | None:
    """Wait for a process and return its exit status; None where it runs too long or prints too much."""
    try:
        if most_bytes is None:
            return process.wait(time_limit_s)
        end = time.monotonic() + time_limit_s
        while time.monotonic() < end and output.stat().st_size <= most_bytes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        pass
    return None
