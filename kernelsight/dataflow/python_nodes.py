"""Python nodes: functions marked with the tables that they make (``produces``), in the module that holds the work.

Parameters are input tables by name; many are named by ``takes``, for the parameter ``tables``. Keyword-only parameters
are services of the session: ``wanted`` (which of the node's tables are needed), ``read`` (fetches columns and rows of
the tables that ``reads`` declares), ``threads`` (how many it may use; None: its own choice), ``fork`` (makes a copy of
the session, in which the node may give other rows and compute what ``reads`` declares) and ``report`` (prints
progress). Nodes are read from the source of a package's modules, so that drawing the graph imports nothing heavy.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernelsight.files.own import own_text

# a decorated function in the source of a module: parsing whole modules would take five times as long
DECORATED = re.compile(r"^(?:@.*\n(?:[ )].*\n)*)+def .*\n(?:(?:[ )].*)?\n)*", re.MULTILINE)
MARKS = ("\n@produces(", "\n@for_each(", "\n@inside(")


def produces(*tables: str) -> Callable[[Callable], Callable]:
    """Mark a function as the node of a table, which it returns as a table or as rows (a list of dicts).

    Of several tables it returns a dict, of the ``wanted`` ones at least; a value may also be a function without
    parameters, which makes the table when it is first fetched.

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


def takes(*tables: str) -> Callable[[Callable], Callable]:
    """Declare the input tables of a function that takes them together, by name, as its only parameter ``tables``.

    >>> @takes("scenarios", "requests")
    ... def counted(*, tables): ...
    """
    return lambda function: function


def inside(node: str, *tables: str) -> Callable[[Callable], Callable]:
    """Mark a function as a step inside of a node with ``fork``: the tables that it contributes rows to.

    ``node``: the first table of that node, which also fetches what its steps declare by ``reads``.
    """
    return lambda function: function


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


def sources_with_nodes(package: str) -> Iterator[tuple[str, Path, list[ast.FunctionDef]]]:
    """Yield name, path and decorated functions of the modules in which one is marked as a node; imports none.

    ``package``: a package, with its folders, or a single module; none where it does not exist.
    """
    spec = importlib.util.find_spec(package)
    paths = {package: Path(spec.origin)} if spec and spec.origin else {}
    for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
        for path in sorted(folder.rglob("*.py")):
            paths[".".join([package, *path.relative_to(folder).with_suffix("").parts])] = path
    for module, path in paths.items():
        text = own_text(path)
        if any(mark in text for mark in MARKS):
            tree = ast.parse("".join(DECORATED.findall(text)), filename=str(path))
            yield module, path, [item for item in tree.body if isinstance(item, ast.FunctionDef)]


def python_nodes(module: str, path: Path, functions: Iterable[ast.FunctionDef]) -> list[PythonNode]:
    """Return the nodes among the functions of a module: those that are marked with the tables they make."""
    return [
        _read_function(module, path, function, makes)
        for function in functions
        if (makes := decorated(function, "produces"))
    ]


def steps_inside(module: str, path: Path, functions: Iterable[ast.FunctionDef]) -> Iterator[tuple[str, PythonNode]]:
    """Yield the functions of a module that are steps inside of nodes, each with the first table of its node."""
    for function in functions:
        if marked := decorated(function, "inside"):
            step = _read_function(module, path, function, marked[1:])
            yield marked[0], replace(step, inputs=decorated(function, "takes"))


def _read_function(module: str, path: Path, function: ast.FunctionDef, makes: tuple[str, ...]) -> PythonNode:
    services = tuple(argument.arg for argument in function.args.kwonlyargs)
    inputs = (*(argument.arg for argument in function.args.args), *decorated(function, "takes"))
    doc = (ast.get_docstring(function) or "").partition("\n")[0].strip()
    return PythonNode(module, function.name, makes, inputs, doc, path, decorated(function, "reads"), services)


def decorated(function: ast.FunctionDef, name: str) -> tuple[str, ...]:
    """Return the words that a function's decorator ``name`` lists; empty where it has no such decorator."""
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
