"""Typed values of flags: conversion and range checks by the kind of a flag."""

from __future__ import annotations

import itertools
import math
import os
import re
import reprlib
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.files.numbers import is_number, read_number
from kernelsight.scenario.flag import LARGEST_WHOLE_NUMBER, Flag, options_of
from kernelsight.scenario.flags import FLAGS
from kernelsight.scenario.speculation import shares_text

SCORERS = ("prefix", "tier", "kv_use", "queue", "running", "load", "adapter")
FORM = "weights such as prefix=3,kv_use=2,queue=2"
MOST = 1e6


def parse_weights(text: str, flag: str = "router_weights") -> dict[str, float]:
    """Return weights by scorer; InvalidInput: an unknown scorer, a negative or no number, or all weights 0."""
    weights: dict[str, float] = {}
    for weight_text in str(text).split(","):
        name, _, value = (word.strip() for word in weight_text.partition("="))
        if name not in SCORERS or name in weights:
            why = f"has {name!r:.30} twice" if name in weights else f"names no scorer {name!r:.30}"
            raise InvalidInput(f"{flag} {why}; give {FORM}. Scorers: {', '.join(SCORERS)}.")
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = -1.0
        if not 0.0 <= weights[name] <= MOST:
            raise InvalidInput(f"{flag} has {name}={value!r:.30}; give a number from 0 to {MOST:g}.")
    if not any(value for name, value in weights.items() if name != "tier"):
        raise InvalidInput(f"{flag} is {str(text)!r:.60}, which scores nothing; give {FORM}.")
    return {name: weights[name] for name in SCORERS if name in weights}


def weights_text(weights: dict[str, float]) -> str:
    """Return weights in canonical spelling, independent of the order in which they were written.

    >>> weights_text(parse_weights("queue=2.0,prefix=3"))
    'prefix=3,queue=2'
    """
    return ",".join(f"{name}={value:g}" for name, value in weights.items())


# PEP 440 as engines use it: 0.11.1.dev12+g1a2b3c, 1.0.0rc3, 0.5.6.post2, v0.8.5-rc.1; each number fits 64 bits
VERSION = re.compile(
    r"v?\d{1,18}(\.\d{1,18})*([-._]?(alpha|beta|preview|pre|post|dev|rev|rc|a|b|c|r)[-._]?\d{0,18})*(\+[a-z0-9._-]+)?",
    re.I,
)


def typed_value(name: str, value: Any) -> Any:
    """Return a flag's value in its own type, so that 8 and 8.0 name the same scenario; InvalidInput gives the range."""
    # cached: a grid repeats numbers and words in thousands of rows; without 0, because -0.0 equals it
    return _checked(name, value) if type(value) in (int, float, str) and value else _typed_value(name, value)


@lru_cache(maxsize=4096, typed=True)
def _checked(name: str, value: float | str) -> Any:
    return _typed_value(name, value)


def _typed_value(name: str, value: Any) -> Any:
    """Return ``typed_value``, without a cache."""
    return checked_value(FLAGS[name], value, name)


def checked_value(flag: Flag, value: Any, name: str) -> Any:
    """Return a value of a flag in its own type; InvalidInput, which calls it ``name``, gives the range.

    >>> checked_value(FLAGS["max_num_seqs"], "16k", "max_num_seqs")
    16000
    """
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
    if flag.kind in ("whole", "number"):
        return _checked_number(flag, read_number(value) if isinstance(value, str) else value, name)
    if flag.kind == "tiers":
        from kernelsight.scenario.kv_tiers import parse_tiers, tiers_text

        return tiers_text(parse_tiers(value, name))
    if flag.kind == "shares":
        return shares_text(value, name)
    if flag.kind == "weights":
        return weights_text(parse_weights(value, name))
    if flag.kind == "version" and not (isinstance(value, str) and VERSION.fullmatch(value)):
        raise InvalidInput(f"{name} is {value!r}; give a version such as 0.11.0, or leave it unset.")
    if flag.kind == "text" and not flag.choices and not isinstance(value, str):
        raise InvalidInput(f"{name} is {value!r}; give a value of type string.")
    if flag.choices and value not in flag.choices:
        raise InvalidInput(f"{name} is {value!r}; give one of {', '.join(flag.choices)}.")
    return value


def _checked_number(flag: Flag, value: Any, name: str) -> float:
    inside = is_number(value) and not (
        (flag.least is not None and value < flag.least)
        or (flag.above is not None and value <= flag.above)
        or (flag.most is not None and value > flag.most)
        or (flag.below is not None and value >= flag.below)
    )
    if flag.kind == "number":
        if not inside:
            raise InvalidInput(f"{name} is {value!r}; give {_range_text(flag)}.")
        return float(value)
    if not inside or value != math.floor(value):
        bound = f"of at least {flag.least}"
        if flag.most < LARGEST_WHOLE_NUMBER or (is_number(value) and value > flag.most):
            bound = f"from {flag.least} to {flag.most}"
        raise InvalidInput(f"{name} is {value!r}; give a whole number {bound}.")
    return int(value)


def asked_values(table: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a question by its options in ``table``, defaults where None is given.

    InvalidInput: a number out of its range, or none of an option's words.

    >>> asked_values("choice_questions", {"gpu": "l4", "tolerance": 0})["tolerance"]
    0.0
    """
    values = {}
    for flag in itertools.chain.from_iterable(options_of(table).values()):
        value = given.get(flag.name)
        checked = value is not None and (has_range(flag) or flag.choices)
        typed = checked_value(flag, value, flag.name) if checked else value
        values[flag.name] = flag.default if typed is None else typed
    return values


def has_range(flag: Flag) -> bool:
    """Return whether the values of a flag are numbers of a range."""
    return any(bound is not None for bound in (flag.above, flag.least, flag.most, flag.below))


def _range_text(flag: Flag) -> str:
    if not has_range(flag):
        return "a finite number"
    if flag.least is not None and flag.most is not None:
        return f"a number from {flag.least:g} to {flag.most:g}"
    if flag.least is not None:
        return f"a finite number, {flag.least:g} or more"
    limit = f"at most {flag.most:g}" if flag.most is not None else f"below {flag.below:g}" if flag.below else ""
    return f"a number above {flag.above:g} and {limit}" if limit else f"a finite number above {flag.above:g}"
