"""Flags as Python keyword arguments: signatures and docstrings from their declarations, errors that name keywords."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, TypeVar

from kernelsight.errors import KernelSightError, speaks_flags
from kernelsight.scenario import flags
from kernelsight.scenario.flag import Flag, options_of
from kernelsight.scenario.flags import FLAGS

Asked = TypeVar("Asked", bound=Callable[..., Any])

DEPLOYMENT = (*flags.DEPLOYMENT, *flags.LIMITS, *flags.POLICIES, *flags.SPECULATION)
SCENARIO = tuple(FLAGS.values())
# flags of ``size``: without those that sizing sets itself
SIZED = tuple(
    flag
    for flag in SCENARIO
    if flag.name not in ("gpu", "request_rate", "max_concurrency", "trace", "replicas")
    and not flag.name.startswith(("ramp_up", "goodput"))
)
# flags of ``upgrade``: without the engine, which it states itself
UPGRADED = tuple(flag for flag in SCENARIO if flag.name not in ("engine", "engine_version"))
TYPES = {"whole": "int", "number": "float", "switch": "bool", "yes": "bool"}
# an option of the command line, with the placeholder of its value; text in quotes is a command or a user's value, and
# is not changed
_FLAG = (
    r"`[^`]*`|(?<!\w)'(?:[^'\\]|\\.)*'|(?<!\w)\"(?:[^\"\\]|\\.)*\"|kernelsight [a-z].*"
    r"|(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)(?: (?:FACTOR|FILE|[A-Z])\b)?"
)


def in_python(text: str, names: frozenset[str] = frozenset(), caller_texts: tuple[str, ...] = ()) -> str:
    """Return a message with command-line options written as keyword arguments.

    ``names``: keywords besides the flags of scenarios; ``caller_texts``: texts from the caller, which stay unchanged.
    """

    def keyword(match: re.Match[str]) -> str:
        name = (match["name"] or "").replace("-", "_")
        return name if name in names or name in FLAGS else match[0]

    return re.sub("|".join([*map(re.escape, caller_texts), _FLAG]), keyword, text)


def _texts(values: Any) -> set[str]:
    """Return the texts among a caller's arguments that look like options, also within lists and mappings."""
    if isinstance(values, str | PurePath):
        return {str(values)} if "--" in str(values) else set()
    if isinstance(values, Mapping):
        return _texts(list(values)) | _texts(list(values.values()))
    return set().union(*map(_texts, values)) if isinstance(values, list | tuple | set | frozenset) else set()


def type_of(flag: Flag) -> str:
    """Return the Python type of a flag's value, as text."""
    return TYPES.get(flag.kind, "str")


def takes_flags(*flags_taken: Flag, question: str = "") -> Callable[[Asked], Asked]:
    """Return a decorator that documents ``flags_taken`` as keyword arguments of a function.

    Its signature lists them with their types instead of ``**flags``, its docstring has their help, and its errors name
    keywords, not command-line options. ``question``: the table whose options are the function's own arguments.
    """
    options = [flag for group in options_of(question).values() for flag in group] if question else []

    def decorated(function: Asked) -> Asked:
        plain = inspect.signature(function)
        own_parameters = [
            parameter for parameter in plain.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        own_names = frozenset(parameter.name for parameter in own_parameters)
        listed = [flag for flag in flags_taken if flag.name not in own_names]

        @functools.wraps(function)
        def called(*words: Any, **keywords: Any) -> Any:
            try:
                return function(*words, **keywords)
            except KernelSightError as error:
                if not speaks_flags():
                    texts = tuple(sorted(_texts([*words, keywords]), key=len, reverse=True))
                    error.args = tuple(
                        in_python(text, own_names, texts) if isinstance(text, str) else text for text in error.args
                    )
                raise

        if listed:
            more = [
                inspect.Parameter(
                    flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=f"{type_of(flag)} | None"
                )
                for flag in listed
            ]
            called.__signature__ = plain.replace(parameters=[*own_parameters, *more])  # type: ignore[attr-defined]
        if listed or options:
            of_question = documented([flag for flag in options if flag.name in own_names], "Arguments:")
            called.__doc__ = f"{function.__doc__}\n\n{of_question}{documented(listed)}"
        return called  # type: ignore[return-value]

    return decorated


def documented(listed: list[Flag], heading: str = "Flags, None where unset:") -> str:
    """Return a line for each flag: its name, its type and its help; "" without flags."""
    lines = [f"        {heading}", *(f"        - ``{flag.name}`` ({type_of(flag)}): {_help(flag)}" for flag in listed)]
    return "\n".join(lines) + "\n" if listed else ""


def _help(flag: Flag) -> str:
    words = in_python(flag.help or flag.name.replace("_", " "))
    return f"{words}; one of {', '.join(flag.choices)}" if flag.choices else words
