"""Digest of an entry point's sources: a hash of its bytecode and of all rules and values that it refers to.

Comments, docstrings, line numbers, and rules that it does not reach do not change it, so that an edit of these compiles
nothing again. Numba's own cache cannot do this: it names symbols by the order in which a process compiles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

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
