"""Python nodes: public functions of one module, named like their table, with their inputs as parameters.

Parameters are input tables. Keyword-only parameters are services of the session: ``wanted`` (which of the node's tables
are needed), ``read`` (fetches columns and rows of the tables that ``reads`` declares), ``threads`` (how many it may
use; None: its own choice), ``fork`` (makes a copy of the session, in which the node may give other rows and compute
what ``reads`` declares) and ``report`` (prints progress). Nodes are read from the module's source, so that drawing the
graph imports nothing heavy.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput

SERVICES = ("wanted", "read", "threads", "fork", "report")


def produces(*tables: str) -> Callable[[Callable], Callable]:
    """Mark a function as the node of several tables: it returns a dict of them, of the ``wanted`` ones at least.

    A value may be a function without parameters, which makes the table when it is first fetched.

    >>> @produces("steps", "request_events")
    ... def simulation(scenarios): ...
    >>> simulation.produces
    ('steps', 'request_events')
    """

    def mark(function: Callable) -> Callable:
        function.produces = tables
        return function

    return mark


def reads(*tables: str) -> Callable[[Callable], Callable]:
    """Declare the tables of which a function fetches the columns and rows it needs, by its parameter ``read``.

    >>> @reads("steps")
    ... def totals(scenarios, *, read): ...
    >>> totals.reads
    ('steps',)
    """

    def mark(function: Callable) -> Callable:
        function.reads = tables
        return function

    return mark


@dataclass(frozen=True)
class PythonNode:
    """A node as its function's source declares it: tables made, taken and fetched, and the docstring's first line."""

    module: str
    function: str
    makes: tuple[str, ...]
    inputs: tuple[str, ...]
    doc: str
    path: Path
    fetches: tuple[str, ...] = ()
    services: tuple[str, ...] = ()

    def load(self) -> Callable[..., Any]:
        """Import the module and return the function."""
        return getattr(importlib.import_module(self.module), self.function)


def python_nodes(module: str) -> list[PythonNode]:
    """Return the nodes that a module defines, read from its source; an empty list where there is no such module."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.origin:
        return []
    path = Path(spec.origin)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    functions = [item for item in tree.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")]
    return [_read_function(module, path, function) for function in functions]


def _read_function(module: str, path: Path, function: ast.FunctionDef) -> PythonNode:
    arguments = function.args
    services = tuple(argument.arg for argument in arguments.kwonlyargs)
    unknown_services = [name for name in services if name not in SERVICES]
    if (
        *(arguments.vararg, arguments.kwarg, unknown_services),
        *(arguments.posonlyargs, arguments.defaults, [value for value in arguments.kw_defaults if value]),
    ) != (None, None, [], [], [], []):
        raise InvalidInput(
            f"{path.name}: {function.name} cannot be a node of the graph: its parameters are input tables, so none "
            f"may have a default, a star or be positional only, and keyword-only ones are {', '.join(SERVICES)} "
            "(prefix other functions with an underscore)."
        )
    inputs = tuple(argument.arg for argument in arguments.args)
    doc = (ast.get_docstring(function) or "").partition("\n")[0].strip()
    makes = _decorated(function, "produces") or (function.name,)
    return PythonNode(module, function.name, makes, inputs, doc, path, _decorated(function, "reads"), services)


def _decorated(function: ast.FunctionDef, name: str) -> tuple[str, ...]:
    """Return the tables that a function's decorator ``name`` lists; empty where it has no such decorator."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call):
            called = decorator.func
            if name == (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")):
                return tuple(table for argument in decorator.args for table in _literals(argument))
    return ()


def _literals(argument: ast.expr) -> tuple[str, ...]:
    """Return the strings of a decorator's argument: one, or those of an unpacked tuple."""
    if isinstance(argument, ast.Starred):
        return tuple(ast.literal_eval(argument.value))
    return (ast.literal_eval(argument),)
