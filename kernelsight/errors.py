"""Error classes, and builders of the error messages that several modules share.

Two kinds: InvalidInput, faults of what was given, and RunFailed. A message states the input, the problem, and what to
do.
"""

from __future__ import annotations

import itertools
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from kernelsight.escape import visible

# characters of a user's value in a message, and of a message
SHOWN, MOST_MESSAGE = 60, 4000


class KernelSightError(Exception):
    """Base of all errors raised on purpose. ``exit_code`` is the exit status of the command line."""

    exit_code = 2
    details = ""  # what --verbose adds on the command line

    def __str__(self) -> str:
        """Return the message on one line: names from files may have line ends and control characters, or be long."""
        message = super().__str__()
        if len(message) > MOST_MESSAGE:
            message = f"{message[: MOST_MESSAGE // 2]} … {message[-MOST_MESSAGE // 2 :]}"
        return visible(" ".join(message.splitlines()))


class InvalidInput(KernelSightError):
    """Arguments, values or files that cannot be used; every other fault of an input is one of its subclasses.

    Whoever passes over an unusable input, such as a row or a file of many, catches this class.
    """


class UnknownName(InvalidInput):
    """A table, column, GPU, model or flag value that does not exist."""


class MissingTable(InvalidInput):
    """A required input table is missing."""


class ContractBroken(InvalidInput):
    """A table whose columns or rows violate its contract."""


class RunFailed(KernelSightError):
    """The input was valid, but the run could not finish."""

    exit_code = 1


class LimitPassed(RunFailed):
    """The question was answered, and the answer lies beyond a stated limit."""

    exit_code = 3


_SPEAKS_FLAGS: ContextVar[bool] = ContextVar("errors name flags as the command line does", default=False)


@contextmanager
def flags_in_errors(spoken: bool = True) -> Iterator[None]:
    """Context in which errors name flags as the command line does: --input-len; ``spoken`` False: input_len."""
    token = _SPEAKS_FLAGS.set(spoken)
    try:
        yield
    finally:
        _SPEAKS_FLAGS.reset(token)


def speaks_flags() -> bool:
    """Return whether errors name flags as the command line does."""
    return _SPEAKS_FLAGS.get()


def shown(value: object) -> str:
    """Return the representation of a user's value for messages, truncated to SHOWN characters.

    >>> shown("abc"), shown("x" * 80)[-3:], len(shown([["x" * 80] * 80] * 80)) <= SHOWN
    ("'abc'", 'xx…', True)
    """
    text = repr(value[: SHOWN + 1]) if isinstance(value, str | bytes) else reprlib.repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def nearest(name: str, known: Iterable[str], limit: int = 4) -> list[str]:
    """Return the known names most similar to ``name``, best first; first those that begin or end with it.

    >>> nearest("h100", ["mi100", "h100_sxm", "gh200"]), nearest("rate", ["trace", "request_rate"])
    (['h100_sxm', 'mi100', 'gh200'], ['request_rate', 'trace'])
    """
    import difflib

    names = sorted(set(known))
    by_lowercase = {n.lower(): n for n in names}
    close = [by_lowercase[n] for n in difflib.get_close_matches(name.lower(), by_lowercase, n=limit, cutoff=0.5)]
    containing = [n for n in names if name and (name.lower() in n.lower() or n.lower() in name.lower())]
    beginning = [n for n in close if n.lower().startswith(name.lower())]
    ending = [n for n in close + containing if n.lower().endswith(f"_{name.lower()}")]
    return list(dict.fromkeys(beginning + ending + close + containing))[:limit]


def fields_found(names: Collection[str], known: Iterable[str]) -> str:
    """Return how many fields a file of no known format has, and which of them resemble known ones."""
    found = ", ".join(map(repr, familiar(names, known))) or "none with the name of a known one"
    return f"{len(names)} field{'s' * (len(names) > 1)}: {found}"


def name_shown(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a name of a file that resembles a known one, else ``otherwise``.

    >>> name_shown("gpus", ["gpu"], "one of its names"), name_shown("hunter2", ["gpu"], "one of its names")
    ('gpus', 'one of its names')
    """
    return next(iter(familiar([name], known)), otherwise)


def familiar(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return those of a file's names that resemble known ones, at most 12.

    Others are not for messages: where a file is not what it is taken for, they are its content.

    >>> familiar(["Arrival_time", "db.example:5432:prod:admin:secret", "x" * 10**6], ["arrival_s"])
    ['Arrival_time']
    """
    import difflib

    by_lowercase = {name.lower() for name in known}
    short = dict.fromkeys(name for name in itertools.islice(names, 1000) if len(name) <= SHOWN)
    near = (name for name in short if difflib.get_close_matches(name.lower(), by_lowercase, n=1, cutoff=0.7))
    return list(itertools.islice(near, 12))


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownName:
    """Build "unknown <kind> <name>" with the nearest names."""
    close = nearest(str(name)[:SHOWN], known)
    if len(close) > 1:
        tail = f"Did you mean {', '.join(close[:-1])} or {close[-1]}?"
    elif close:
        tail = f"Did you mean {close[0]}?"
    else:
        tail = ""
    sentence = f"unknown {kind} {shown(name)}. {tail}".rstrip()
    return UnknownName(f"{sentence} {hint}".rstrip())


def extra_missing(what: str, package: str, extra: str, otherwise: str = "") -> InvalidInput:
    """Build the error for a package of an optional extra that is not installed; ``otherwise``: an alternative."""
    alternative = f", or {otherwise}" if otherwise else ""
    return InvalidInput(f"{what} needs {package}, which is not installed; run {install_command(extra)}{alternative}.")


def install_command(extra: str) -> str:
    """Return the command that installs an extra: that of the checkout, or of a wheel its packages by their names."""
    if (Path(__file__).resolve().parents[1] / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]' in the checkout"
    from importlib import metadata

    needed = [line.partition(";") for line in metadata.requires("kernelsight") or ()]
    names = [name.strip() for name, _, marker in needed if re.search(rf"extra == ['\"]{extra}['\"]", marker)]
    return "pip install " + " ".join(f"'{name}'" for name in names)


# --- reading a Hugging Face config.json ---


def config_field_missing(label: str, field: str) -> InvalidInput:
    """Build the error for a config without a required field.

    >>> str(config_field_missing("my-model", "hidden_size"))
    "config of my-model has no field 'hidden_size'. Use the complete config.json of the model's repository."
    """
    return InvalidInput(
        f"config of {label} has no field {field!r}. Use the complete config.json of the model's repository."
    )


def config_field_wrong(label: str, field: str, value: object, expected: str) -> InvalidInput:
    """Build the error for a config field with an unusable value."""
    return InvalidInput(f"config of {label}: field {field!r} is {reprlib.repr(value)}, but must be {expected}.")


def config_unsupported(label: str, what: str, value: object, supported: Iterable[str]) -> InvalidInput:
    """Build the error for a config value that is not supported."""
    shown = repr(value) if isinstance(value, str) else reprlib.repr(value)
    return InvalidInput(f"config of {label}: {what} {shown} is not supported. Supported: {', '.join(supported)}.")


def config_unreadable(path: object, reason: str) -> InvalidInput:
    """Build the error for a config file that is absent or not a JSON object.

    >>> str(config_unreadable("my-model", "there is no config.json in this folder"))
    'cannot read the model config my-model: there is no config.json in this folder.'
    """
    return InvalidInput(f"cannot read the model config {path}: {reason}.")


# --- recorded and synthetic loads (serving/load) ---


def trace_unusable(path: object, problem: str, advice: str) -> InvalidInput:
    """Build the error for a trace file that cannot be used."""
    return InvalidInput(f"trace {path}: {problem}. {advice}")


def trace_place_unusable(path: object, place: str, problem: str, advice: str) -> InvalidInput:
    """Build the error for one place in a trace: a line of text or a row of Parquet, counted from 1."""
    return InvalidInput(f"trace {path}, {place}: {problem}. {advice}")


def load_unclear(scenario_id: str, problem: str, advice: str) -> InvalidInput:
    """Build the error for a scenario with an incomplete or contradictory workload.

    >>> str(load_unclear("chat", "a synthetic workload needs output_len", "Set it, or give a trace."))
    "scenario 'chat': a synthetic workload needs output_len. Set it, or give a trace."
    """
    return InvalidInput(f"scenario {scenario_id!r}: {problem}. {advice}")


def dependency_unusable(scenario_id: str, request: int, problem: str) -> InvalidInput:
    """Build the error for a request that waits for one that never finishes.

    >>> str(dependency_unusable("chat", 3, "after 9 is no request of this scenario"))
    "scenario 'chat', request 3: after 9 is no request of this scenario. Correct table request_dependencies."
    """
    return InvalidInput(f"scenario {scenario_id!r}, request {request}: {problem}. Correct table request_dependencies.")


# --- dataflow and session ---------------------------------------------------------------------------------------------


def breaks_contract(table: str, faults: Iterable[str], origin: str = "") -> ContractBroken:
    """Build the error that lists every violation in a table; ``origin`` is where its rows come from."""
    source = f" (from {origin})" if origin else ""
    return ContractBroken(f"table {table!r}{source} violates its contract: {'; '.join(faults)}.")


def mixed_column(table: str, error: Exception) -> InvalidInput:
    """Build the error for a table with a column that Arrow cannot hold; ``error``: why, as Arrow says it."""
    problem = "; ".join(str(argument).splitlines()[0] for argument in error.args)
    advice = "give each column values of one type, such as numbers or text."
    return InvalidInput(f"table {table!r} cannot be read ({problem}); {advice}")


def missing_table(table: str, needed_by: str, hint: str = "") -> MissingTable:
    """Build the error for an input table without rows: its name, the table that needs it, and a hint."""
    needed_text = f" (needed by {needed_by!r})" if needed_by != table else ""
    return MissingTable(f"missing input table {table!r}{needed_text}{f'; {hint}' if hint else ''}.")


def dangling_reference(column: str, value: object, reference: str, known: Iterable[str], more: int = 0) -> UnknownName:
    """Build the error for a value that the referenced table lacks, with the nearest names."""
    close = nearest(str(value), known)
    more_text = f" ({more} more values are not either)" if more else ""
    tail = f" Did you mean {' or '.join(close)}?" if close else ""
    return UnknownName(f"{column} is {value!r}, which is not in {reference}{more_text}.{tail}")
