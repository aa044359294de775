"""Reads tuning parameters with restrictions, and enumerates the configurations that these allow, none measured."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_values import parse_literal, read_json
from kernelsight.files.numbers import is_number
from kernelsight.searching.tuner_files import COLUMNS, TunerFile

# most configurations, since a search forecasts them in every round, and most before restrictions
MOST_CONFIGURATIONS, MOST_TRIED = 200_000, 5_000_000
FORM = '{"name": "gemm", "tune_params": {"tile": [16, 32]}, "restrictions": ["tile <= 32"]}'
ARITHMETIC = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.Pow: np.power}
ARITHMETIC |= {ast.FloorDiv: np.floor_divide, ast.Mod: np.mod}
DIVIDING = (ast.Div, ast.FloorDiv, ast.Mod)
COMPARISONS = {ast.Eq: np.equal, ast.NotEq: np.not_equal, ast.Lt: np.less, ast.LtE: np.less_equal}
COMPARISONS |= {ast.Gt: np.greater, ast.GtE: np.greater_equal}
FUNCTIONS = {"min": np.minimum, "max": np.maximum, "abs": np.abs}


class Restriction(NamedTuple):
    """A restriction: an expression over tuning parameters that must be true, as Kernel Tuner and T1 files write it."""

    text: str
    body: ast.expr
    names: frozenset[str]


def read_parameters(path: Path, space: str | None = None) -> TunerFile:
    """Read tuning parameters and restrictions; return rows of all allowed configurations, none measured.

    A JSON object with ``tune_params`` (values by name) and ``restrictions``, or the T1 form of autotuners
    (``ConfigurationSpace`` with ``TuningParameters`` and ``Conditions``). InvalidInput: neither, a restriction that
    cannot be read, or too many configurations.
    """
    fields = _read_object(path)
    values, texts = _of_t1(fields, path) if "ConfigurationSpace" in fields else _of_tuner(fields, path)
    restrictions = [restriction(text, values, path.name) for text in texts]
    columns = allowed(values, restrictions, path.name)
    count = len(next(iter(columns.values())))
    general = fields.get("General")
    benchmark = general.get("BenchmarkName") if isinstance(general, dict) else fields.get("name")
    name = space or (benchmark if isinstance(benchmark, str) and benchmark else path.name.partition(".")[0])
    shared = dict.fromkeys(COLUMNS) | {"space": name, "status": "unmeasured", "source": path.name}
    lists = {parameter: column.tolist() for parameter, column in columns.items()}
    rows = [
        shared | {"parameters": json.dumps({parameter: lists[parameter][n] for parameter in lists})}
        for n in range(count)
    ]
    rejected = math.prod(map(len, values.values())) - count
    return TunerFile(rows, {"not allowed by the restrictions": rejected} if rejected else {}, [])


def _read_object(path: Path) -> dict[str, Any]:

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{path} {problem}; give a JSON object such as {FORM}.")

    fields = read_json(path, refuse)
    if not isinstance(fields, dict):
        raise InvalidInput(f"{path.name} is no JSON object; give one such as {FORM}.")
    return fields


def _of_tuner(fields: Mapping[str, Any], path: Path) -> tuple[dict[str, list[Any]], list[str]]:
    values, texts = fields.get("tune_params"), fields.get("restrictions", [])
    if not isinstance(values, dict):
        raise InvalidInput(f"{path.name} has no tune_params and no ConfigurationSpace; give an object such as {FORM}.")
    if not isinstance(texts, list):
        raise InvalidInput(f"{path.name}: restrictions must be a list of expressions, not {str(texts)[:60]!r}.")
    return {name: _values(name, listed, path.name) for name, listed in values.items()}, texts


def _of_t1(fields: Mapping[str, Any], path: Path) -> tuple[dict[str, list[Any]], list[str]]:
    try:
        space = fields["ConfigurationSpace"]
        values = {row["Name"]: _values(row["Name"], row["Values"], path.name) for row in space["TuningParameters"]}
        return values, [row["Expression"] for row in space.get("Conditions") or []]
    except (KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f"{path.name}: a ConfigurationSpace has TuningParameters (Name and Values) and Conditions (Expression); "
            "correct it."
        ) from None


def _values(name: str, listed: Any, origin: str) -> list[Any]:
    """Return the distinct values of a parameter; T1 files write the list as a text."""
    if isinstance(listed, str):
        try:
            listed = parse_literal(listed, InvalidInput)
        except InvalidInput:
            listed = None
    values = list(dict.fromkeys(listed)) if isinstance(listed, list | tuple) and all(map(_is_plain, listed)) else []
    if not values or not name.isidentifier():
        raise InvalidInput(
            f"{origin}: tuning parameter {name[:40]!r} needs a name of letters, digits and _, and a list of numbers or "
            "words; correct it."
        )
    return values


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | bool) or (is_number(value) and abs(value) < 2**53)


def restriction(text: Any, parameters: Mapping[str, Any], origin: str) -> Restriction:
    """Parse a restriction, which may have only parameters, values, arithmetic and comparisons; else InvalidInput."""
    try:
        body = ast.parse(str(text).replace("&&", " and ").replace("||", " or ").strip(), mode="eval").body
        forbidden = next((node for node in ast.walk(body) if not _is_allowed(node)), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        body, forbidden = None, text
    if body is None or forbidden is not None or not isinstance(text, str):
        raise InvalidInput(
            f"{origin}: restriction {str(text)[:80]!r} cannot be read; it may hold tuning parameters, numbers, words, "
            "+ - * / // % **, comparisons, and, or, not, in, min, max and abs."
        )
    called = {id(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)}
    names = {node.id for node in ast.walk(body) if isinstance(node, ast.Name) and id(node) not in called}
    if unknown := sorted(names - set(parameters)):
        raise InvalidInput(
            f"{origin}: restriction {text[:80]!r} names {unknown[0]}, which is no tuning parameter; there are "
            f"{', '.join(list(parameters)[:12])}."
        )
    return Restriction(text, body, frozenset(names))


def _is_allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        arity = 1 if isinstance(node.func, ast.Name) and node.func.id == "abs" else 2
        known_call = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        return known_call and (len(node.args) == 1 if arity == 1 else len(node.args) >= 2)
    if isinstance(node, ast.Constant):
        return _is_plain(node.value)
    allowed_nodes = (
        ast.Name,
        ast.Load,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.List,
        ast.Tuple,
        ast.And,
        ast.Or,
    )
    return isinstance(node, (*allowed_nodes, ast.Not, ast.USub, ast.UAdd, ast.In, ast.NotIn, *ARITHMETIC, *COMPARISONS))


def allowed(
    values: Mapping[str, Sequence[Any]], restrictions: Sequence[Restriction], origin: str
) -> dict[str, np.ndarray]:
    """Enumerate the configurations that all restrictions allow, as one array per parameter.

    Each restriction is applied as soon as its parameters are there.
    """
    columns: dict[str, np.ndarray] = {}
    count, applied = 1, set[Restriction]()
    for name, column_values in values.items():
        if count * len(column_values) > MOST_TRIED:
            raise _too_many(count * len(column_values), origin)
        columns = {parameter: np.repeat(column, len(column_values)) for parameter, column in columns.items()}
        columns[name] = np.tile(_array(column_values), count)
        count *= len(column_values)
        for condition in [new for new in restrictions if new not in applied and new.names <= columns.keys()]:
            applied.add(condition)
            passes = _satisfied(condition, columns, count, origin)
            columns = {parameter: column[passes] for parameter, column in columns.items()}
            count = int(passes.sum())
    if not count:
        raise InvalidInput(f"{origin}: no configuration satisfies all restrictions; correct them.")
    if count > MOST_CONFIGURATIONS or not columns:
        raise _too_many(count, origin)
    return columns


def _too_many(count: int, origin: str) -> InvalidInput:
    return InvalidInput(
        f"{origin}: {count:,} configurations are more than a search can forecast ({MOST_CONFIGURATIONS:,}, and "
        f"{MOST_TRIED:,} before restrictions); leave values out, or add restrictions."
        if count > 1
        else f"{origin} has no tuning parameter; give an object such as {FORM}."
    )


def _array(values: Sequence[Any]) -> np.ndarray:
    """Return values as an array; numbers and words together make one of objects, so that numbers stay numbers."""
    types = {bool if isinstance(value, bool) else str if isinstance(value, str) else float for value in values}
    return np.array(values) if len(types) == 1 else np.array(values, object)


def _satisfied(condition: Restriction, columns: Mapping[str, np.ndarray], count: int, origin: str) -> np.ndarray:
    try:
        with np.errstate(all="ignore"):
            return np.broadcast_to(_truth(_evaluated(condition.body, columns)), (count,))
    except (TypeError, ValueError, RecursionError, np.exceptions.DTypePromotionError):
        raise InvalidInput(
            f"{origin}: restriction {condition.text[:80]!r} calculates with words; compare them by == or in."
        ) from None


def _evaluated(node: ast.expr, columns: Mapping[str, np.ndarray]) -> Any:
    """Evaluate an expression for every configuration; a division by zero gives NaN, which is not true."""
    if isinstance(node, ast.Name):
        return columns[node.id]
    if isinstance(node, ast.Constant):
        return np.asarray(node.value)
    if isinstance(node, ast.BoolOp):
        combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return reduce(combine, (_truth(_evaluated(operand, columns)) for operand in node.values))
    if isinstance(node, ast.UnaryOp):
        inside = _evaluated(node.operand, columns)
        return ~_truth(inside) if isinstance(node.op, ast.Not) else _signed(node.op, inside)
    if isinstance(node, ast.BinOp):
        left, right = (np.asarray(_evaluated(operand, columns)).astype(float) for operand in (node.left, node.right))
        result = ARITHMETIC[type(node.op)](left, right)
        return np.where(right == 0.0, np.nan, result) if isinstance(node.op, DIVIDING) else result
    if isinstance(node, ast.Call):
        arguments = [np.asarray(_evaluated(operand, columns)).astype(float) for operand in node.args]
        function = FUNCTIONS[node.func.id]
        return reduce(function, arguments) if len(arguments) > 1 else function(arguments[0])
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        return reduce(np.logical_and, (_compared(left, operator, right, columns) for left, operator, right in pairs))
    raise TypeError  # a list that is not behind `in`


def _truth(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return (array != 0) & ~np.isnan(array) if array.dtype.kind == "f" else array.astype(bool)


def _signed(sign: ast.unaryop, inside: Any) -> np.ndarray:
    return np.negative(np.asarray(inside).astype(float)) if isinstance(sign, ast.USub) else np.asarray(inside)


def _compared(left: ast.expr, operator: ast.cmpop, right: ast.expr, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    value = _evaluated(left, columns)
    if isinstance(operator, ast.In | ast.NotIn):
        if not isinstance(right, ast.List | ast.Tuple):
            raise TypeError
        equal = [np.equal(value, _evaluated(element, columns)) for element in right.elts]
        is_in = reduce(np.logical_or, equal) if equal else np.zeros(1, bool)
        return ~is_in if isinstance(operator, ast.NotIn) else is_in
    return COMPARISONS[type(operator)](value, _evaluated(right, columns))
