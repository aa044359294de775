"""Atomic, durable file writes (draft, fsync, rename), and a lock file against a second writing process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kernelsight.errors import InvalidInput, RunFailed


@contextlib.contextmanager
def draft_of(path: Path, *, keep: bool = True) -> Iterator[Path]:
    """Yield the path of a draft, which atomically replaces ``path`` when the block ends; an error removes the draft.

    Where ``path`` is a symbolic link, the file that it points to is replaced. Without ``keep`` the draft is removed in
    any case, which tests whether one could be written.

    OSError: it cannot be written; ``path`` is unchanged.
    """
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    draft.unlink(missing_ok=True)
    try:
        yield draft
        if not keep:
            return
        synchronise(draft)
        os.replace(draft, path)
        synchronise(path.parent)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def durable_file(path: Path) -> Iterator[Path]:
    """Yield the path of a draft as :func:`draft_of` does; RunFailed says why the file cannot be written."""
    try:
        with draft_of(path) as draft:
            yield draft
    except OSError as error:
        raise RunFailed(f"{path} could not be written: {reason(error)}.") from None


def reason(error: OSError) -> str:
    """Return the system's reason for an error, which Arrow's errors hold in their text alone."""
    return error.strerror or str(error).splitlines()[0].rpartition("] ")[2].rstrip(".")


def synchronise(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold an exclusive lock (flock) on a file or folder; InvalidInput if another process holds it.

    The lock ends with its process; on systems without file locks nothing is locked.
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
            if os.name == "nt":  # where no open file can be removed
                file.close()
            path.unlink(missing_ok=True)


def _lock(file: IO[bytes], path: Path) -> bool:
    """Take the lock and return True; False if another process holds it, or has just removed its file."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except (ImportError, OSError):
        return True
