"""Cache on disk of the machine code of entry points: a file for each entry point and the kinds of its arguments.

A cache folder is named by the hash of all modules of this package and of the scheduler: any edit starts a new one,
because machine code
contains rules of several modules. Code that an edit does not affect is copied from the folders of earlier versions
(``rule_digest``). A folder is beside the sources where only the user may write there, otherwise in the user's cache
folder (never in a shared place, because its files are executed). A damaged file is removed, and its entry point
compiled again.

The package carries machine code for processors of a feature level (``carried/``, made by ``.ci/carried_code.py``). It
depends on neither Python's nor numba's version, and is used where it was compiled from these very sources and the
processor has the features.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kernelsight.caches.private_folder import Damaged, PrivateFolder, checked, user_cache
from kernelsight.serving.compilation.arguments import text_of

log = logging.getLogger(__name__)
Read = TypeVar("Read")
ENDING = ".obj"
# the name of the function in every object file
SYMBOL = "kernelsight_entry"
# system and feature level of carried code, with Linux's names of what it needs of a processor (abm: lzcnt)
SYSTEM, LEVEL = ("linux", "x86_64"), "x86-64-v3"
NEEDED = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
FLAGS = Path("/proc/cpuinfo")
# how a shared object for that system begins, up to its kind and the architecture
SHARED_OBJECT = b"\x7fELF\2\1\1" + bytes(9) + b"\3\0>\0"
# environment variables of numba that select a processor
PROCESSOR_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
LARGEST_FOLDER = 256 * 2**20
DAMAGED = "compiled code of the scheduler was damaged; compiling it again"
NOT_KEPT = "compiling the scheduler, again in each process: no folder is fit to keep it (`kernelsight cache` shows why)"
# messages that were logged: each is logged once
_noticed: set[str] = set()


class Code(NamedTuple):
    """An object file with one function: the words that it takes, the type of its result, its bytes.

    ``made_of``: a hash of everything that it was compiled from and for; empty: unknown.
    """

    words: str
    answer: str
    content: bytes
    made_of: str = ""

    def kept(self) -> bytes:
        """Return the content of a cache file."""
        return json.dumps([self.words, self.answer, self.made_of]).encode() + b"\n" + self.content

    @classmethod
    def of(cls, content: bytes) -> Code:
        """Return the code in a cache file's content; ValueError: it is something else."""
        header, _, rest = content.partition(b"\n")
        words, answer, made_of = json.loads(header)
        return cls(words, answer, rest, made_of)


class EntryKey:
    """Cache key of an entry point's machine code, besides the sources, which name the folder."""

    def __init__(self, function: Callable[..., Any], path: str) -> None:
        self._function, self._source = function, _file_digest(path)

    def of(self, kinds: tuple) -> Callable[[tuple[str, ...]], str]:
        """Return a function from a machine (triple, processor, features) to the key for arguments of these kinds."""
        function, code = self._function, self._function.__code__

        def key(machine: tuple[str, ...]) -> str:
            name = (function.__module__, self._source, function.__qualname__)
            made_from = (name, code.co_code, list(code.co_positions()), text_of(kinds), sys.implementation.cache_tag)
            return hashlib.sha256(repr((machine, made_from)).encode() + _enclosed(function)).hexdigest()

        return key

    def carried(self, kinds: tuple) -> str:
        """Return the key of carried code for arguments of these kinds; a function with a closure has none there."""
        function = self._function
        return hashlib.sha256(repr((function.__module__, function.__qualname__, text_of(kinds))).encode()).hexdigest()[
            :32
        ]


def _enclosed(function: Callable[..., Any]) -> bytes:
    """Return the values in a function's closure, serialised; functions of a module have none."""
    if not function.__closure__:
        return b""
    from numba.core.serialize import dumps

    return dumps(tuple(cell.cell_contents for cell in function.__closure__))


@cache
def machine() -> tuple[str, str, str]:
    """Return (triple, processor, processor features) of this machine, for which code is compiled."""
    from llvmlite import binding as llvm

    name, features = (os.environ.get(variable) for variable in PROCESSOR_VARIABLES)
    features = llvm.get_host_cpu_features().flatten() if features is None else features
    return llvm.get_process_triple(), name or llvm.get_host_cpu_name(), features


def read_code(key: Callable[[tuple[str, ...]], str], carried_key: str, decode: Callable[[bytes], Read]) -> Read | None:
    """Return the code that the package carries, or the cached code of a key, decoded; None: neither."""
    carried_code = read_carried(carried_key, decode)
    if carried_code is not None:
        return carried_code
    folder = code_folder()
    try:
        return folder and folder.read(key(machine()), decode)
    except Damaged:
        _notice(DAMAGED)
        return None


def code_made_of(made_of: str) -> Code | None:
    """Return code with this ``made_of`` from the cache of an earlier version of the sources; None: there is none."""

    def decode(content: bytes) -> Code | None:
        with contextlib.suppress(ValueError, TypeError):  # a file in another format
            return Code.of(content)
        return None

    for place in folders_there():
        with contextlib.suppress(OSError):
            folder = opened(place)
            for path in place.glob(f"*{ENDING}"):
                with contextlib.suppress(Damaged):
                    code = folder.read(path.stem, decode)
                    if code is not None and code.made_of == made_of:
                        return code
    return None


def keep_code(key: Callable[[tuple[str, ...]], str], code: Code) -> None:
    """Cache machine code for this machine, where a folder may be used."""
    if (folder := code_folder()) is not None:
        folder.write(key(machine()), code.kept())


def announce_compiling(notice: str) -> None:
    """Log once that a long compilation begins, unless a damaged file, which is logged, is the reason."""
    if DAMAGED not in _noticed:
        _notice(notice if code_folder() else NOT_KEPT)


def _notice(text: str) -> None:
    if text not in _noticed:
        _noticed.add(text)
        log.info(text)


@cache
def _file_digest(path: str) -> bytes:
    """Return the SHA-256 of a source file; empty without a file, as for a function typed in a shell."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(path).read_bytes()).digest()
    return b""


def sources_digest(folders: tuple[Path, ...], compiler: bytes = b"") -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a compiler's version and the folders' Python files, with names."""
    digest = hashlib.sha256(compiler)
    for path in (path for folder in folders for path in sorted(folder.glob("*.py"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def numba_version() -> bytes:
    """Return the content of numba's version file, without importing numba."""
    numba_spec = importlib.util.find_spec("numba")
    with contextlib.suppress(OSError):
        if numba_spec and numba_spec.origin:
            return Path(numba_spec.origin).with_name("_version.py").read_bytes()
    from importlib.metadata import version

    return version("numba").encode()


def code_places(sources: tuple[Path, ...]) -> list[Path]:
    """Return the candidate cache folders for the sources in these folders; the first usable one is used."""
    parents = [sources[0] / "__pycache__"]
    with contextlib.suppress(OSError):
        parents.append(user_cache() / "kernelsight")
    return [parent / f"numba-{sources_digest(sources, numba_version())}" for parent in parents]


# by the sources as they were imported: files may change before they are compiled
HERE = Path(__file__).resolve().parent
SOURCES = (HERE, HERE.with_name("engine"))
PLACES = code_places(SOURCES)
# carried code is beside the sources, and as trusted as they are; same name: same sources
CARRIED = HERE / "carried" / f"{LEVEL}-{sources_digest(SOURCES)}"


def read_carried(key: str, decode: Callable[[bytes], Read]) -> Read | None:
    """Return the code that the package carries for a key, decoded; None: none for this processor, or it is damaged."""
    with contextlib.suppress(OSError, Damaged):
        content = (CARRIED / f"{key}{ENDING}").read_bytes()
        if runs_here():
            return checked(key, content, decode)
    return None


@cache
def runs_here() -> bool:
    """Return whether this machine's system and processor run carried code."""
    with contextlib.suppress(OSError):
        with FLAGS.open(encoding="utf-8", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
        return (sys.platform, platform.machine()) == SYSTEM and set(flags.split()) >= NEEDED
    return False


def folders_there() -> list[Path]:
    """Return every existing cache folder, also those of earlier versions and other installations."""
    return [path for base in PLACES for path in sorted(base.parent.glob("numba-" + 16 * "[0-9a-f]"))]


def opened(place: Path) -> PrivateFolder:
    """Return an opened cache folder. OSError: others may write to it."""
    return PrivateFolder(place, LARGEST_FOLDER, ENDING)


@cache
def code_folder() -> PrivateFolder | None:
    """Return the opened cache folder for these sources; None: no candidate is usable."""
    for base in PLACES:
        with contextlib.suppress(OSError):
            return opened(base)
    return None
