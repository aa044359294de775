"""Flags as keyword arguments in Python: signatures and documentation by their declaration, errors that name them so."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, TypeVar

from kernelsight.errors import KernelSightError, speaks_flags
from kernelsight.scenario import flags
from kernelsight.scenario.flag import Flag
from kernelsight.scenario.flags import FLAGS

Asked = TypeVar("Asked", bound=Callable[..., Any])

DEPLOYMENT = (*flags.DEPLOYMENT, *flags.LIMITS, *flags.POLICIES, *flags.SPECULATION)
SCENARIO = tuple(FLAGS.values())
# what sizing varies itself
SIZED = tuple(
    flag
    for flag in SCENARIO
    if flag.name not in ("gpu", "request_rate", "max_concurrency", "trace", "replicas")
    and not flag.name.startswith(("ramp_up", "goodput"))
)
TYPES = {
    **{"whole": "int", "positive": "float", "share": "float", "share_or_none": "float", "not_negative": "float"},
    **{"span": "float", "switch": "bool", "yes": "bool"},
}
# a flag of the command line, with the placeholder of its value; what stands in quotes is a command, or a value that
# somebody gave, and is left as it is
_FLAG = (
    r"`[^`]*`|(?<!\w)'(?:[^'\\]|\\.)*'|(?<!\w)\"(?:[^\"\\]|\\.)*\"|kernelsight [a-z].*"
    r"|(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)(?: (?:FACTOR|FILE|[A-Z])\b)?"
)


def in_python(text: str, known: frozenset[str] = frozenset(), given: tuple[str, ...] = ()) -> str:
    """Return a message with the flags of the command line as keyword arguments.

    ``known``: names beside those of scenarios; ``given``: texts of the caller, which are left as they are.

    >>> in_python("--phase decode needs --context-len.", frozenset({"context_len"}))
    '--phase decode needs context_len.'
    >>> in_python("--tp 2 and `kernelsight cache --clear`")
    '--tp 2 and `kernelsight cache --clear`'
    >>> in_python("no file my --seed 3; give --seed", given=("my --seed 3",))
    'no file my --seed 3; give seed'
    """

    def named(match: re.Match[str]) -> str:
        name = (match["name"] or "").replace("-", "_")
        return name if name in known or name in FLAGS else match[0]

    return re.sub("|".join([*map(re.escape, given), _FLAG]), named, text)


def _texts(given: Any) -> set[str]:
    """Return the texts in what a caller gave that could be read as flags, those in lists and tables included."""
    if isinstance(given, str | PurePath):
        return {str(given)} if "--" in str(given) else set()
    if isinstance(given, Mapping):
        return _texts(list(given)) | _texts(list(given.values()))
    return set().union(*map(_texts, given)) if isinstance(given, list | tuple | set | frozenset) else set()


def type_of(flag: Flag) -> str:
    """Return the type of a flag's value as it is written.

    >>> type_of(FLAGS["max_num_seqs"]), type_of(FLAGS["engine"]), type_of(FLAGS["enforce_eager"])
    ('int', 'str', 'bool')
    """
    return TYPES.get(flag.kind, "str")


def takes_flags(*stated: Flag) -> Callable[[Asked], Asked]:
    """Return a decorator: keyword arguments of a function are ``stated`` flags, and its errors speak Python.

    The signature lists them with their types, in the place of ``**flags``; the documentation says what each is.
    """

    def decorated(function: Asked) -> Asked:
        plain = inspect.signature(function)
        own_parameters = [each for each in plain.parameters.values() if each.kind is not each.VAR_KEYWORD]
        taken = {each.name for each in own_parameters}
        listed = [flag for flag in stated if flag.name not in taken]
        known = frozenset(taken)

        @functools.wraps(function)
        def asked(*words: Any, **given: Any) -> Any:
            try:
                return function(*words, **given)
            except KernelSightError as error:
                if not speaks_flags():
                    texts = tuple(sorted(_texts([*words, given]), key=len, reverse=True))
                    error.args = tuple(
                        in_python(each, known, texts) if isinstance(each, str) else each for each in error.args
                    )
                raise

        if listed:
            more = [
                inspect.Parameter(
                    flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=f"{type_of(flag)} | None"
                )
                for flag in listed
            ]
            asked.__signature__ = plain.replace(parameters=[*own_parameters, *more])  # type: ignore[attr-defined]
            asked.__doc__ = f"{function.__doc__}\n\n{documented(listed)}"
        return asked  # type: ignore[return-value]

    return decorated


def documented(stated: list[Flag]) -> str:
    """Return a line for each flag: its name, its type and its help."""
    return "\n".join(
        [
            "        Flags, None where unset:",
            *(f"        - ``{flag.name}`` ({type_of(flag)}): {_help(flag)}" for flag in stated),
        ]
    )


def _help(flag: Flag) -> str:
    words = in_python(flag.help or flag.name.replace("_", " "))
    return f"{words}; one of {', '.join(flag.choices)}" if flag.choices else words
