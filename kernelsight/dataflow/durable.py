"""Files that appear whole and on the disk, or not at all, and that one process writes at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kernelsight.errors import InvalidInput, RunFailed


@contextlib.contextmanager
def draft_of(path: Path, *, keep: bool = True) -> Iterator[Path]:
    """Yield the path of a draft, which replaces ``path`` when the block ends; an error in the block removes it.

    Without ``keep`` the draft is removed in any case: to see whether one could be written.

    OSError: the disk refuses; ``path`` is as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "answer.txt"
    ...     with draft_of(file) as draft:
    ...         _ = draft.write_text("42")
    ...     [each.name for each in Path(folder).iterdir()], file.read_text()
    (['answer.txt'], '42')
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    draft.unlink(missing_ok=True)
    try:
        yield draft
        if not keep:
            return
        synchronise(draft)
        os.replace(draft, path)
        synchronise(path.resolve().parent)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def durable_file(path: Path) -> Iterator[Path]:
    """Yield the path of a draft as :func:`draft_of` does; RunFailed, in one sentence, where the disk refuses."""
    try:
        with draft_of(path) as draft:
            yield draft
    except OSError as error:
        raise RunFailed(f"{path} could not be written: {reason(error)}.") from None


def reason(error: OSError) -> str:
    """Return why the system refuses; Arrow's errors name it only in their text.

    >>> reason(OSError(28, "No space left on device"))
    'No space left on device'
    >>> reason(OSError("Error writing bytes to file. Detail: [errno 28] No space left on device"))
    'No space left on device'
    """
    return error.strerror or str(error).splitlines()[0].rpartition("] ")[2].rstrip(".")


def synchronise(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Lock a file or folder against other processes; InvalidInput if another one is writing it.

    The lock ends with its process; without file locks on the system, nothing is locked.
    """
    path = target.with_name(f".{target.name}.lock")
    try:
        file = path.open("ab")
    except OSError as error:
        raise InvalidInput(f"{target} cannot be written: {error.strerror or error}; use another place.") from None
    with file:
        if not _lock(file, path):
            raise InvalidInput(f"another process is writing {target}; wait until it finishes, or use another -o FILE.")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _lock(file: IO[bytes], path: Path) -> bool:
    """Return False if another process holds the lock, or has just removed its file."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except (ImportError, OSError):
        return True
