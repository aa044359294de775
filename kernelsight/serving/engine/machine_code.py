"""Machine code of entry points, kept on disk: one file for each entry point and the kinds of its arguments.

The folder is named by the hash of all modules of this folder: any edit starts a new one, since rules of several modules
are in one machine code. It lies beside the code where that is ours alone to write, else in the user's cache folder
(never in a shared place: what lies there is run). A file that is damaged is removed, its entry point compiled again.

An installation may carry machine code for any processor of a kind (``.ci/carried_code.py`` makes it): it counts where
it was compiled from these very sources by this version of numba, for this version of Python and kind of processor.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kernelsight.dataflow.private_folder import Damaged, PrivateFolder, checked, user_cache

log = logging.getLogger(__name__)
Read = TypeVar("Read")
ENDING = ".obj"
# the name of the function in every object file
SYMBOL = "kernelsight_entry"
# numba's words for code that uses no more than every processor of its kind has, and the variables that state it
ANY_PROCESSOR = ("generic", "")
PROCESSOR_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
LARGEST_FOLDER = 256 * 2**20
DAMAGED = "compiled code of the scheduler was damaged; compiling it again"
NOT_KEPT = "compiling the scheduler, again in each process: no folder is fit to keep it (`kernelsight cache` shows why)"
# what was said once is not said for the next entry point
_noticed: set[str] = set()


class Code(NamedTuple):
    """An object file with one function: the words that it takes, what it answers (as numba names it), its bytes."""

    words: str
    answer: str
    content: bytes

    def kept(self) -> bytes:
        """Return the bytes of a file."""
        return json.dumps([self.words, self.answer]).encode() + b"\n" + self.content

    @classmethod
    def of(cls, content: bytes) -> Code:
        """Return what a file holds; ValueError: it holds something else."""
        header, _, rest = content.partition(b"\n")
        words, answer = json.loads(header)
        return cls(words, answer, rest)


class EntryKey:
    """What decides about the machine code of an entry point, beside the sources that name the folder."""

    def __init__(self, function: Callable[..., Any], path: str) -> None:
        self._function, self._source = function, _file_digest(path)

    def of(self, kinds: tuple) -> Callable[[tuple[str, ...]], str]:
        """Return the hash for a machine (its triple, processor and features) of arguments of these kinds."""
        function, code = self._function, self._function.__code__
        function_name = (function.__module__, self._source, function.__qualname__)
        made_from = repr(
            (function_name, code.co_code, list(code.co_positions()), kinds, sys.implementation.cache_tag)
        ).encode()
        made_from += _enclosed(function)
        return lambda machine: hashlib.sha256(repr(machine).encode() + made_from).hexdigest()


def _enclosed(function: Callable[..., Any]) -> bytes:
    """Return the values that a function encloses: those of a module's own functions enclose none."""
    if not function.__closure__:
        return b""
    from numba.core.serialize import dumps

    return dumps(tuple(cell.cell_contents for cell in function.__closure__))


@cache
def machine() -> tuple[str, str, str]:
    """Return the triple of this machine, its processor, and the features of that, as code is compiled for it."""
    from llvmlite import binding as llvm

    name, features = (os.environ.get(variable) for variable in PROCESSOR_VARIABLES)
    features = llvm.get_host_cpu_features().flatten() if features is None else features
    return llvm.get_process_triple(), name or llvm.get_host_cpu_name(), features


def read_code(key: Callable[[tuple[str, ...]], str], decode: Callable[[bytes], Read]) -> Read | None:
    """Return what is kept under a key, else what this installation carries, decoded; None where neither is there."""
    own = machine()
    folder = code_folder()
    try:
        own_code = folder and folder.read(key(own), decode)
    except Damaged:
        _notice(DAMAGED)
        return None
    return own_code or read_carried(key((own[0], *ANY_PROCESSOR)), decode)


def keep_code(key: Callable[[tuple[str, ...]], str], code: Code) -> None:
    """Keep machine code of this machine, where a folder is fit for it."""
    if (folder := code_folder()) is not None:
        folder.write(key(machine()), code.kept())


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
    """Return 16 hexadecimal digits of the SHA-256 of numba's version and a folder's Python files, with names."""
    digest = hashlib.sha256(numba_version())
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def numba_version() -> bytes:
    """Return numba's statement of its version, without importing it."""
    numba_spec = importlib.util.find_spec("numba")
    with contextlib.suppress(OSError):
        if numba_spec and numba_spec.origin:
            return Path(numba_spec.origin).with_name("_version.py").read_bytes()
    from importlib.metadata import version

    return version("numba").encode()


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
    return [path for base in PLACES for path in sorted(base.parent.glob("numba-" + 16 * "[0-9a-f]"))]


def opened(place: Path) -> PrivateFolder:
    """Return a folder of machine code, opened. OSError: it cannot be ours alone."""
    return PrivateFolder(place, LARGEST_FOLDER, ENDING)


@cache
def code_folder() -> PrivateFolder | None:
    """Return the opened folder that keeps machine code of these sources; None where no folder is fit for it."""
    for base in PLACES:
        with contextlib.suppress(OSError):
            return opened(base)
    return None
