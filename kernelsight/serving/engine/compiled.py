"""How the scheduler's rules are compiled; `kernelsight/serving/engine/machine_code.py` keeps what was compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelsight.serving.engine.entries import Entry
from kernelsight.serving.engine.rules import Rule, WrittenOut

# no counts of references: rules make no array, and counting took half of the loop's time; Python calls no rule
OPTIONS = {"nopython": True, "nogil": True, "error_model": "numpy", "_nrt": False}
OPTIONS |= {"no_cfunc_wrapper": True, "no_cpython_wrapper": True, "forceinline": False}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a rule into the entry points that need it, as a call or inline as LLVM sees fit; Python cannot call it.

    A rule makes no array: numba refuses to compile one that does.
    """
    # stated, since numba compiles a rule with the options of the first one that calls it where they are not
    return Rule(function, OPTIONS)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a rule of the loop's common path into the rules that call it.

    A call hands over seven words an array, which took half of the time that was left. Rules for rare cases stay calls,
    so that what runs often stands close together.
    """
    return Rule(function, {**OPTIONS, "forceinline": True})


def written_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """Write a function's body into the rules that call it: numba's calls cannot return tuples that hold records."""
    return WrittenOut(function)


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, with all its rules; cached on disk, without the interpreter's lock.

    Rules and other entry points may call it too: it is a rule there.
    """
    return Entry(function, OPTIONS)


def loop_entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile an entry point that holds the whole scheduler, and log that this takes a while."""
    return Entry(function, OPTIONS, notice="compiling the scheduler, once after an installation")
