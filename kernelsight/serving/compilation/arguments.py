"""Arguments of an entry point's machine code as words, by numba's calling convention.

An array is passed as no owner, size, item size, address, shape and strides; a record as its address; a tuple as its
items.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

# bits of an array's flags that machine code depends on: C-contiguous, and writable
FLAGS = 0x401
WORDS = {"q": ctypes.c_int64, "d": ctypes.c_double, "?": ctypes.c_int8}
SCALARS = (("?", (bool, np.bool_), int), ("q", (int, np.integer), int), ("d", (float, np.floating), float))


def take(value: Any, words: list[Any]) -> Any:
    """Return the kind of an argument, and append the words that it is passed as."""
    if type(value) is np.ndarray:
        words += (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
        return value.dtype, value.ndim, value.flags.num & FLAGS
    if isinstance(value, tuple):
        return tuple([take(each, words) for each in value])
    if isinstance(value, np.void):
        words.append(value.__array_interface__["data"][0])
        return value.dtype
    for kind, types, number in SCALARS:
        if isinstance(value, types):
            words.append(number(value))
            return kind
    raise TypeError(f"an entry point takes arrays, records, numbers and tuples of them, not {type(value).__name__}")


def text_of(kind: Any) -> str:
    """Return a kind of arguments as text, for keys."""
    if isinstance(kind, tuple):
        return f"({', '.join(map(text_of, kind))})"
    return _text_of_dtype(kind) if isinstance(kind, np.dtype) else repr(kind)


@cache
def _text_of_dtype(dtype: np.dtype) -> str:
    """Return a data type as text, which numpy writes field by field."""
    return repr(dtype)


def is_array(kind: Any) -> bool:
    """Return whether a kind is that of an array: data type, dimensions, flags."""
    return isinstance(kind, tuple) and len(kind) == 3 and isinstance(kind[0], np.dtype) and isinstance(kind[1], int)


def words_of(kind: Any) -> str:
    """Return the types of the words of an argument of a kind, as keys of WORDS."""
    if is_array(kind):
        return "q" * (5 + 2 * kind[1])
    if isinstance(kind, tuple):
        return "".join(map(words_of, kind))
    return kind if isinstance(kind, str) else "q"
