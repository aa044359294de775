"""Machine code of entry points, kept on disk: one file for each entry point and the types of its arguments.

numba's own files would not see edits in *other* files, so a rule that changes in one module would stay old in a loop
that was compiled before. Here the folder is named by the hash of all modules of this folder: any edit starts a new
one. It lies beside the code where that is ours alone to write, else in the user's cache folder (never in a shared
place: what lies there is run). A file that is damaged is removed, and its entry point compiled again.

An installation may carry machine code for any processor of a kind (``.ci/carried_code.py`` makes it): it counts where
it was compiled from these very sources by this version of numba, for this version of Python and kind of processor.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import pickle
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from kernelsight.dataflow.private_folder import Damaged, PrivateFolder, checked, user_cache

log = logging.getLogger(__name__)
Read = TypeVar("Read")
ENDING = ".nbc"
# numba's words for code that uses no more than every processor of its kind has
ANY_PROCESSOR = ("generic", "")
LARGEST_FOLDER = 256 * 2**20
DAMAGED = "compiled code of the scheduler was damaged; compiling it again"
NOT_KEPT = "compiling the scheduler, again in each process: no folder is fit to keep it (`kernelsight cache` shows why)"
# what was said once is not said for the next entry point
_noticed: set[str] = set()


class EntryCache(NullCache):
    """What numba compiled for one entry point, found again by the entry point, its types and the machine.

    ``lean``: it is read without the rules of typing and lowering. Machine code needs none of them, and to import and
    register them takes longer than to read it.
    """

    def __init__(self, function: Any, lean: bool) -> None:
        self._function, self._lean = function, lean
        # now, as it was read: it may change before it is compiled
        self._source = _file_digest(inspect.getfile(function))

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        """Return what was compiled for a signature, or None."""
        if not self._lean:
            target_context.refresh()

        def rebuild(content: bytes) -> CompileResult:
            return CompileResult._rebuild(target_context, *pickle.loads(content))

        machine = target_context.codegen().magic_tuple()
        try:
            folder = code_folder()
            found = folder and folder.read(self._key(sig, machine), rebuild)
        except Damaged:
            _notice(DAMAGED)
            return None
        return found or read_carried(self._key(sig, (machine[0], *ANY_PROCESSOR)), rebuild)

    def save_overload(self, sig: Any, data: CompileResult) -> None:
        """Keep what was compiled for a signature, unless it holds addresses of this process."""
        folder = code_folder()
        if folder is not None and not data.library.has_dynamic_globals:
            folder.write(self._key(sig, data.codegen.magic_tuple()), dumps(data._reduce()))

    def _key(self, sig: Any, machine: tuple[str, ...]) -> str:
        """Return the hash of what decides about machine code, beside the sources that name the folder.

        ``machine``: the triple, and the processor with its features.
        """
        function, code = self._function, self._function.__code__
        cells = dumps(tuple(cell.cell_contents for cell in function.__closure__ or ()))
        place = (function.__module__, self._source, function.__qualname__)
        machine = (sys.implementation.cache_tag, *machine)
        made_from = (place, code.co_code, list(code.co_positions()), str(sig), machine)
        return hashlib.sha256(repr(made_from).encode() + cells).hexdigest()


def announce_compiling(notice: str) -> None:
    """Log once that a compilation begins which takes a while, unless damage was the reason for it."""
    if DAMAGED not in _noticed:
        _notice(notice if code_folder() else NOT_KEPT)


def _notice(text: str) -> None:
    if text not in _noticed:
        _noticed.add(text)
        log.info(text)


@cache
def _file_digest(path: str) -> bytes:
    """Return the SHA-256 of a source file; nothing where there is no such file, as for a function typed in a shell."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(path).read_bytes()).digest()
    return b""


def sources_digest(folder: Path) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a folder's Python files, names and contents."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def code_places(sources: Path) -> list[Path]:
    """Return the folders that may keep machine code of these sources; the first one that is fit does."""
    parents = [sources / "__pycache__"]
    with contextlib.suppress(OSError):
        parents.append(user_cache() / "kernelsight")
    return [parent / f"numba-{sources_digest(sources)}" for parent in parents]


# of the sources as they were imported: they may change before they are compiled
PLACES = code_places(Path(__file__).resolve().parent)
# what an installation carries lies beside the code, and is as safe as that; the same name: of the same sources
CARRIED = PLACES[0].parent.parent / "carried" / PLACES[0].name


def read_carried(key: str, decode: Callable[[bytes], Read]) -> Read | None:
    """Return what this installation carries under a key, decoded; None where it does not, or where it is damaged."""
    with contextlib.suppress(OSError, Damaged):
        return checked(key, (CARRIED / f"{key}{ENDING}").read_bytes(), decode)
    return None


def folders_there() -> list[Path]:
    """Return every folder of machine code that is there, those of earlier versions and other installations included."""
    return [path for place in PLACES for path in sorted(place.parent.glob("numba-" + 16 * "[0-9a-f]"))]


def opened(place: Path) -> PrivateFolder:
    """Return a folder of machine code, opened. OSError: it cannot be ours alone."""
    return PrivateFolder(place, LARGEST_FOLDER, ENDING)


@cache
def code_folder() -> PrivateFolder | None:
    """Return the opened folder that keeps machine code of these sources; None where no folder is fit for it."""
    for place in PLACES:
        with contextlib.suppress(OSError):
            return opened(place)
    return None
