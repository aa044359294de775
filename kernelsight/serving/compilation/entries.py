"""Entry points of the scheduler: functions that Python calls as machine code, by ctypes and without numba.

Code that the package carries is a shared object, which the system loads; cached machine code is loaded by llvmlite, and
numba is imported only to compile. A function's result and its exception are written through two pointers. Code is
cached by the digest of an entry point's sources, its bytecode and all rules and values that it refers to: comments,
docstrings, line numbers, and rules that it does not reach do not change it, so that an edit of these compiles nothing
again. Numba's own cache cannot do this: it names symbols by the order in which a process compiles.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import inspect
import itertools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from kernelsight.errors import RunFailed
from kernelsight.serving.compilation.arguments import WORDS, take, words_of
from kernelsight.serving.compilation.machine_code import (
    SHARED_OBJECT,
    SYMBOL,
    Code,
    EntryKey,
    announce_compiling,
    code_made_of,
    keep_code,
    machine,
    numba_version,
    read_code,
)
from kernelsight.serving.compilation.rules import Rule, WrittenOut

# how rules are compiled, linked and called
COMPILER = ("arguments.py", "compiled.py", "entries.py", "linking.py", "machine_code.py", "rules.py")
PLAIN = (bool, int, float, str, bytes, type(None), np.generic, np.dtype)


class Unstated(Exception):
    """A rule refers to a value of a type that the digest does not cover."""


def rules_digest(function: Callable[..., Any]) -> str | None:
    """Return a hash of everything that determines a function's machine code; None where it refers to other types."""
    digest = hashlib.sha256()
    for name in COMPILER:
        digest.update(Path(__file__).with_name(name).read_bytes())
    try:
        _add_function(function, digest, {})
    except Unstated:
        return None
    return digest.hexdigest()


def _add_function(function: Callable[..., Any], digest: Any, numbers: dict[int, int]) -> None:
    """Add a function and all that it refers to, each function once."""
    if id(function) in numbers:
        digest.update(b"again %d" % numbers[id(function)])
        return
    numbers[id(function)] = len(numbers)
    _add_code(function.__code__, function.__globals__, function.__doc__, digest, numbers)
    enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    for value in (*(function.__defaults__ or ()), *enclosed):
        _add_value(value, digest, numbers)


def _add_code(
    code: CodeType, module_names: dict[str, Any], doc: str | None, digest: Any, numbers: dict[int, int]
) -> None:
    shape = (code.co_argcount, code.co_flags, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    digest.update(repr((shape, code.co_exceptiontable)).encode() + code.co_code)
    for number, value in enumerate(code.co_consts):
        if isinstance(value, CodeType):
            _add_code(value, module_names, None, digest, numbers)
        elif number or value != doc:
            digest.update(repr(value).encode())
    for name in code.co_names:
        if name in module_names:
            digest.update(name.encode())
            _add_value(module_names[name], digest, numbers)


def _add_value(value: Any, digest: Any, numbers: dict[int, int]) -> None:
    """Add what compiled code may depend on in a value. Unstated: a type that is not covered."""
    digest.update(type(value).__name__.encode())
    if isinstance(value, Rule):
        digest.update(repr(sorted(value.options.items())).encode())
        _add_function(value.py_func, digest, numbers)
    elif isinstance(value, WrittenOut):
        _add_function(value.py_func, digest, numbers)
    elif isinstance(value, FunctionType):
        _add_function(value, digest, numbers)
    elif isinstance(value, PLAIN):
        digest.update(repr(value).encode())
    elif isinstance(value, tuple):
        for item in value:
            _add_value(item, digest, numbers)
    elif isinstance(value, type):
        digest.update(repr((value.__module__, value.__qualname__, getattr(value, "_fields", None))).encode())
    elif isinstance(value, BuiltinFunctionType | np.ufunc):
        digest.update(value.__name__.encode())
    elif isinstance(value, ModuleType) and value.__name__ == "numpy":
        digest.update(np.__version__.encode())
    else:
        raise Unstated(f"{value!r}")


Kinds = tuple[Any, ...]
# status of a successful call, with a result and without
ENDED, ENDED_WITHOUT = 0, -2
# types of results, as numba names them
ANSWERS = {"none": None, "int64": ctypes.c_int64, "float64": ctypes.c_double, "bool": ctypes.c_bool}
# LLVM compiles and loads for one thread at a time
_preparing = threading.RLock()
_libraries = itertools.count(1)


class Entry(Rule):
    """An entry point: Python calls its machine code, rules and other entry points call it as a rule.

    ``notice``: logged when it is compiled, not read from the cache.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], notice: str = "") -> None:
        super().__init__(function, options)
        self._notice = notice
        # by the sources as they were imported: files may change before they are compiled
        self.key = EntryKey(function, inspect.getfile(function))
        self._ready: dict[Kinds, Callable[[list[Any]], Any]] = {}

    def __call__(self, *args: Any) -> Any:
        return self.bound(*args)()

    def bound(self, *args: Any) -> Callable[[], Any]:
        """Return the call with these arguments, which may be repeated: it reads the arrays' current values."""
        words: list[Any] = []
        kinds = tuple([take(value, words) for value in args])
        call = self._ready.get(kinds)
        if call is None:
            with _preparing:
                call = self._ready[kinds] = self._ready.get(kinds) or self._prepared(kinds, words_of(kinds))

        def run(_held: tuple[Any, ...] = args) -> Any:
            return call(words)

        return run

    def _prepared(self, kinds: Kinds, words: str) -> Callable[[list[Any]], Any]:
        """Return the machine code for arguments of these kinds: from a cache, the installation, or compiled now."""
        key = self.key.of(kinds)
        kept_code = read_code(key, self.key.carried(kinds), lambda content: _loaded(Code.of(content), words))
        if kept_code is not None:
            return kept_code
        made_of = self._made_of(kinds)
        earlier = code_made_of(made_of) if made_of else None
        if earlier is not None:
            with contextlib.suppress(ValueError, RuntimeError):
                call = _loaded(earlier, words)
                keep_code(key, earlier)
                return call
        from kernelsight.serving.compilation.linking import compile_entry

        if self._notice:
            announce_compiling(self._notice)
        code, is_lasting = compile_entry(self, kinds)
        call = _loaded(code, words)
        if is_lasting:
            keep_code(key, code._replace(made_of=made_of))
        return call

    def _made_of(self, kinds: Kinds) -> str:
        """Return a hash of everything that machine code for these kinds depends on; empty: unknown."""
        digest = rules_digest(self.py_func)
        stated = repr((digest, kinds, machine(), numba_version(), sys.implementation.cache_tag))
        return hashlib.sha256(stated.encode()).hexdigest() if digest else ""


def _loaded(code: Code, words: str) -> Callable[[list[Any]], Any]:
    """Return a function that calls machine code with words. ValueError: it takes others, or is no machine code."""
    if code.words != words or code.answer not in ANSWERS:
        raise ValueError(f"machine code that takes {code.words} and answers {code.answer}, not {words}")
    address, held = _in_memory(code.content)
    pointers = [ctypes.c_void_p, ctypes.c_void_p]
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers, *(WORDS[word] for word in words))(address)
    kind = ANSWERS[code.answer]

    def call(words: list[Any], _held: Any = held) -> Any:
        answer, fault = (kind or ctypes.c_int64)(), ctypes.c_void_p()
        status = function(ctypes.byref(answer), ctypes.byref(fault), *words)
        if status not in (ENDED, ENDED_WITHOUT):
            raise RunFailed(f"the scheduler's machine code ended with status {status}.")
        return answer.value if kind else None

    return call


def _in_memory(content: bytes) -> tuple[int, Any]:
    """Return the address of the function in an object file, or in a shared object, and what keeps it in memory.

    RuntimeError: ``content`` is neither.
    """
    if content.startswith(SHARED_OBJECT):
        handle = os.memfd_create(SYMBOL)
        with os.fdopen(handle, "wb", buffering=0) as file:
            file.write(content)
            # a path that no other has: the system's loader takes equal ones for the same library
            library = ctypes.CDLL(f"/proc/self/fd{'/' * next(_libraries)}{handle}")
        return ctypes.cast(getattr(library, SYMBOL), ctypes.c_void_p).value or 0, library
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    object_file = llvm.ObjectFileRef.from_data(content)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(object_file)
    engine.finalize_object()
    return engine.get_function_address(SYMBOL), engine
