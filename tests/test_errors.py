"""Two kinds of errors: what was given is at fault, or the run failed; handlers of bad inputs miss no kind of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from kernelsight.errors import InvalidInput, KernelSightError, LimitPassed, RunFailed

PACKAGE = Path(__file__).parents[1] / "kernelsight"
# handlers of one fault of an input alone, and why the others are none of theirs
NARROW = {
    "cli/sql.py::run": "adds where tables come from",
    "dataflow/node_runs.py::_cache_key": "a table without its inputs has no key",
    "dataflow/node_runs.py::_compute": "names the saved run that lacks the table",
    "dataflow/session.py::_can_compute": "a table without its inputs cannot be computed",
    "forward/call_files.py::read_calls": "adds where the columns are listed",
    "scenario/objectives.py::parse_slo": "an unknown metric has its own advice",
    "scenario/scenario_rows.py::resolve_model": "an unknown name may be that of a variant",
    "scenario/scenario_rows.py::give_head": "a head whose config is not known is estimated from its model",
}


def kinds(error: type[Exception]) -> Iterator[type[Exception]]:
    for kind in error.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_every_error_is_of_one_of_two_kinds() -> None:
    """A new class beside them would be missed by all who catch InvalidInput, as ContractBroken was."""
    assert set(KernelSightError.__subclasses__()) == {InvalidInput, RunFailed}
    codes = {LimitPassed: 3}
    of_kind = {kind: 1 if issubclass(kind, RunFailed) else 2 for kind in kinds(KernelSightError)} | codes
    assert all(kind.exit_code == code for kind, code in of_kind.items())


def handlers() -> Iterator[str]:
    """Yield the functions that catch a subclass of InvalidInput without InvalidInput itself."""
    names = {kind.__name__ for kind in kinds(InvalidInput)}
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.type is not None:
                    caught = {each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)}
                    if caught & names:
                        yield f"{path.relative_to(PACKAGE)}::{function.name}"


def test_a_handler_of_one_fault_of_an_input_says_why_the_others_are_none_of_its() -> None:
    assert set(handlers()) == NARROW.keys()
