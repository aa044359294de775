"""Typed values of flags: conversion and range checks by the kind of a flag."""

from __future__ import annotations

import math
import numbers
import os
import re
import reprlib
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.files.numbers import read_number
from kernelsight.scenario.flag import LARGEST_WHOLE_NUMBER, LONGEST_LOAD_S
from kernelsight.scenario.flags import FLAGS

# PEP 440 as engines use it: 0.11.1.dev12+g1a2b3c, 1.0.0rc3, 0.5.6.post2, v0.8.5-rc.1; each number fits 64 bits
VERSION = re.compile(
    r"v?\d{1,18}(\.\d{1,18})*([-._]?(alpha|beta|preview|pre|post|dev|rev|rc|a|b|c|r)[-._]?\d{0,18})*(\+[a-z0-9._-]+)?",
    re.I,
)
# by kind: (function that checks the range, function that describes it)
RANGES: Mapping[str, tuple] = {
    "positive": (lambda value, flag: value > 0, lambda flag: "a finite number above 0"),
    "share": (lambda value, flag: 0 < value <= 1, lambda flag: "a number above 0 and at most 1"),
    "share_or_none": (lambda value, flag: 0 <= value <= 1, lambda flag: "a number from 0 to 1"),
    "not_negative": (lambda value, flag: value >= 0, lambda flag: "a finite number, 0 or more"),
    "span": (
        lambda value, flag: flag.least <= value <= LONGEST_LOAD_S,
        lambda flag: f"a number from {flag.least:g} to {LONGEST_LOAD_S:g}",
    ),
}


def typed_value(name: str, value: Any) -> Any:
    """Return a flag's value in its own type, so that 8 and 8.0 name the same scenario; InvalidInput gives the range."""
    # cached: a grid repeats numbers and words in thousands of rows; without 0, because -0.0 equals it
    return _checked(name, value) if type(value) in (int, float, str) and value else _typed_value(name, value)


@lru_cache(maxsize=4096, typed=True)
def _checked(name: str, value: float | str) -> Any:
    return _typed_value(name, value)


def _typed_value(name: str, value: Any) -> Any:
    """Return ``typed_value``, without a cache."""
    flag = FLAGS[name]
    if isinstance(value, Decimal) and value.is_finite():  # SQL's sums and literals: 64 as HUGEINT, 0.5
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if hasattr(value, "__len__") and not isinstance(value, str):
        raise InvalidInput(
            f"{name} is {reprlib.repr(value)}; one scenario takes one value, a grid of what_if takes lists."
        )
    if value == "":
        raise InvalidInput(f"{name} is empty; give a value, or leave it unset.")
    if isinstance(value, str) and (flag.kind == "whole" or flag.kind in RANGES):
        value = read_number(value)  # such as 16k; a CSV column with one non-number is read as text
    if flag.kind == "whole":
        if not _is_number(value) or value != math.floor(value) or not flag.least <= value <= flag.most:
            bound = f"of at least {flag.least}"
            if flag.most < LARGEST_WHOLE_NUMBER or (_is_number(value) and value > flag.most):
                bound = f"from {flag.least} to {flag.most}"
            raise InvalidInput(f"{name} is {value!r}; give a whole number {bound}.")
        return int(value)
    if flag.kind in RANGES:
        inside, range_text = RANGES[flag.kind]
        if not _is_number(value) or not inside(value, flag):
            raise InvalidInput(f"{name} is {value!r}; give {range_text(flag)}.")
        return float(value)
    if flag.kind == "tiers":
        from kernelsight.scenario.kv_tiers import parse_tiers, tiers_text

        return tiers_text(parse_tiers(value, name))
    if flag.kind == "weights":
        from kernelsight.scenario.router_weights import parse_weights, weights_text

        return weights_text(parse_weights(value, name))
    if flag.kind == "version" and not (isinstance(value, str) and VERSION.fullmatch(value)):
        raise InvalidInput(f"{name} is {value!r}; give a version such as 0.11.0, or leave it unset.")
    if flag.kind == "text" and not flag.choices and not isinstance(value, str):
        raise InvalidInput(f"{name} is {value!r}; give a value of type string.")
    if flag.choices and value not in flag.choices:
        raise InvalidInput(f"{name} is {value!r}; give one of {', '.join(flag.choices)}.")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
