"""Values of JSON as the types that a program wrote: named tuples, lists, numbers and text, checked to the leaves."""

from __future__ import annotations

import types
import typing
from typing import Any

from kernelsight.files.numbers import is_number

LARGEST = 1 << 63


class WrongType(ValueError):
    """A value of JSON is not of its type; the message names its place."""


def typed(value: Any, hint: Any, place: str = "it") -> Any:
    """Return a JSON value as the type of a hint, named tuples from lists; WrongType names the first place that is none.

    Hints: str, int (0 or more, below 2^63), float (finite), unions, list[T], dict[str, T] and classes of NamedTuple.

    >>> typed([1, 2], list[float])
    [1.0, 2.0]
    >>> typed({"a": [None, "x"]}, dict[str, list[int | None]])
    Traceback (most recent call last):
    kernelsight.dataflow.typed_json.WrongType: it['a'][1] is no whole number from 0
    """
    if hasattr(hint, "_fields"):
        hints = typing.get_type_hints(hint)
        if not isinstance(value, list) or len(value) != len(hints):
            raise WrongType(f"{place} is no list of {len(hints)} values")
        return hint(*(typed(item, hints[name], f"{place}.{name}") for item, name in zip(value, hints, strict=True)))
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind in (types.UnionType, typing.Union):
        return None if value is None else typed(value, next(each for each in inner if each is not type(None)), place)
    if kind is list and isinstance(value, list):
        return [typed(item, inner[0], f"{place}[{number}]") for number, item in enumerate(value)]
    if kind is dict and isinstance(value, dict):
        return {name: typed(item, inner[1], f"{place}[{name!r:.40}]") for name, item in value.items()}
    if hint is str and isinstance(value, str):
        return value
    if hint is int and is_number(value) and isinstance(value, int) and 0 <= value < LARGEST:
        return value
    if hint is float and is_number(value) and abs(value) < LARGEST:
        return float(value)
    words = {str: "text", int: "whole number from 0", float: "finite number"}
    raise WrongType(f"{place} is no {words.get(hint) or getattr(kind, '__name__', hint)}")
