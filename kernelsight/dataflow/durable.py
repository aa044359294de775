"""Files that appear whole and on the disk, or not at all: a draft beside the place, synchronised, then moved there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from kernelsight.errors import RunFailed


@contextlib.contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Yield the path of a draft, which replaces ``path`` when the block ends; an error in the block removes it.

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
        raise RunFailed(f"{path} could not be written: {error.strerror or str(error).splitlines()[0]}.") from None


def synchronise(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
