"""Decorators that compile the scheduler's rules with numba; ``machine_code`` caches the machine code on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernelsight.serving.compilation.entries import Entry
from kernelsight.serving.compilation.rules import Rule, WrittenOut

# without reference counting: rules create no array, and counting took half of the loop's time; Python calls no rule
OPTIONS = {"nopython": True, "nogil": True, "error_model": "numpy", "_nrt": False}
OPTIONS |= {"no_cfunc_wrapper": True, "no_cpython_wrapper": True, "forceinline": False}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a rule into the entry points that need it, called or inlined as LLVM decides; Python cannot call it.

    A rule creates no array: numba refuses to compile one that does.
    """
    # options are explicit, because numba otherwise takes those of the first rule that calls it
    return Rule(function, OPTIONS)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a rule of the loop's common path into the rules that call it.

    A call passes seven words an array, which took half of the remaining time. Rules for rare cases stay calls, so that
    code which runs often is close together in memory.
    """
    return Rule(function, {**OPTIONS, "forceinline": True})


def written_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """Inline a function's body into the rules that call it: numba's calls cannot return tuples of records."""
    return WrittenOut(function)


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that Python calls, with all its rules; cached on disk, and run without the GIL.

    Rules and other entry points may call it too, as a rule.
    """
    return Entry(function, OPTIONS)


def loop_entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile an entry point that contains the whole scheduler, with a log message that this takes a while."""
    return Entry(function, OPTIONS, notice="compiling the scheduler, once after an installation")
