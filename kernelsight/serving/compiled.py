"""How the scheduler's rules are compiled, and where numba keeps what it compiled.

numba's cache does not see edits in *other* files, so a rule that changes in one module would stay old in a loop that
was compiled before. Therefore the cache folder is named by the hash of all modules of this folder: any edit starts a
new one. It lies beside the code where that is ours alone to write, else in the user's cache folder, else in a new
temporary one (never in a shared place: what lies there is run).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from kernelsight.dataflow.durable import is_private
from kernelsight.serving.linking import EntryDispatcher, rule_of

FOLDER = Path(__file__).resolve().parent


def sources_digest(folder: Path) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a folder's Python files, names and contents."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cache_folder(folder: Path = FOLDER) -> Path:
    """Return the folder that compiled code of these sources is kept in; made where it is not there yet."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for parent in (folder / "__pycache__", home / "kernelsight"):
        place = parent / f"numba-{sources_digest(folder)}"
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if is_private(place):
            return place
    return Path(tempfile.mkdtemp(prefix="kernelsight-"))


numba.config.CACHE_DIR = str(cache_folder())
# no counts of references: rules make no array, and counting took half of the loop's time
OPTIONS = {"nopython": True, "nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a rule into the entry points that need it, as a call or inline as LLVM sees fit; Python cannot call it.

    A rule makes no array: numba refuses to compile one that does.
    """
    return rule_of(function, {**OPTIONS, "no_cpython_wrapper": True})


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a rule of the loop's common path into the rules that call it.

    A call hands over seven words an array, which took half of the time that was left. Rules for rare cases stay calls,
    so that what runs often stands close together.
    """
    return rule_of(function, {**OPTIONS, "no_cpython_wrapper": True, "forceinline": True})


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, with all its rules; cached on disk, without the interpreter's lock.

    Rules and other entry points may call it too: it is a rule there.
    """
    return EntryDispatcher(compiled(function), OPTIONS)


def loop_entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile an entry point that holds the whole scheduler, and log that this takes a while."""
    return EntryDispatcher(compiled(function), OPTIONS, notice="compiling the scheduler, once after an installation")
