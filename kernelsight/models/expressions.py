"""Expressions of architecture files: a closed grammar over whole numbers, words, true and false, and lists.

A name is a field of the config, or one of WORDS, which stands for itself. There are ``or``, ``and``, ``not``,
comparisons, ``in``, ``A if B else C``, ``+ - * // %``, ``/`` (exact: not a whole number is an error), ``list[layer]``,
and the functions of FUNCTIONS. Python's parser reads the text; only what is listed here runs. Both are bounded: the
length of the text, and the size of every number.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

LONGEST = 400
LARGEST = 2**62
CONSTANTS = {"null": None, "true": True, "false": False}
# kinds of attention, feed-forward, norms, activations and RoPE, and what configs call a position embedding
WORDS = frozenset(
    "full sliding selected mla sparse compressed linear none dense moe shared head all silu gelu relu2 rope static "
    "dynamic".split()
)
FUNCTIONS = ("has", "count", "length", "yarn", "int", "min", "max")
Scope = Mapping[str, Any]
Evaluate = Callable[[Scope], Any]

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.floordiv,  # exact: checked before
}


class Malformed(ValueError):
    """A text that is no expression of the grammar; its words say what is wrong."""


class Impossible(ValueError):
    """An expression without a value for this config: ``name`` is the field to blame, with what it must be."""

    def __init__(self, name: str, value: Any, expected: str) -> None:
        super().__init__(f"{name} is {value!r}, but must be {expected}")
        self.name, self.value, self.expected = name, value, expected


class Expression(NamedTuple):
    """An expression: its text, the names that it refers to in order, and the function that evaluates it."""

    text: str
    names: tuple[str, ...]
    evaluate: Evaluate


def read_expression(text: str) -> Expression:
    """Return a text as an expression; Malformed: it is none."""
    if len(text) > LONGEST:
        raise Malformed(f"it has {len(text)} characters; at most {LONGEST}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Malformed("it is not an expression") from None
    names: dict[str, None] = {}
    return Expression(text, (evaluate := _compiled(tree, names)) and tuple(names), evaluate)


def _compiled(node: ast.expr, names: dict[str, None]) -> Evaluate:
    """Return the function of a node; ``names`` takes the names that it refers to."""
    read = READERS.get(type(node))
    if read is None:
        raise Malformed(f"{ast.unparse(node)!r} is not allowed in an expression")
    return read(node, names)


def _constant(node: ast.Constant, names: dict[str, None]) -> Evaluate:
    value = node.value
    if type(value) not in (int, float, str, bool) or (type(value) is int and value > LARGEST):
        raise Malformed(f"{ast.unparse(node)!r} is no number or text")
    return lambda scope: value


def _name(node: ast.Name, names: dict[str, None]) -> Evaluate:
    name = node.id
    if name in CONSTANTS or name in WORDS:
        value = CONSTANTS.get(name, name if name in WORDS else None)
        return lambda scope: value
    names[name] = None
    return lambda scope: scope[name]


def _choice(node: ast.IfExp, names: dict[str, None]) -> Evaluate:
    first, condition, second = (_compiled(part, names) for part in (node.body, node.test, node.orelse))
    return lambda scope: first(scope) if condition(scope) else second(scope)


def _logic(node: ast.BoolOp, names: dict[str, None]) -> Evaluate:
    parts = [_compiled(part, names) for part in node.values]
    joined = all if isinstance(node.op, ast.And) else any
    return lambda scope: joined(part(scope) for part in parts)


def _unary(node: ast.UnaryOp, names: dict[str, None]) -> Evaluate:
    operand = _compiled(node.operand, names)
    if isinstance(node.op, ast.Not):
        return lambda scope: not operand(scope)
    if isinstance(node.op, ast.USub):
        return lambda scope: -_number(operand(scope), node.operand)
    raise Malformed(f"{ast.unparse(node)!r} is not allowed in an expression")


def _comparison(node: ast.Compare, names: dict[str, None]) -> Evaluate:
    operands = [_compiled(part, names) for part in (node.left, *node.comparators)]
    if any(type(operation) not in COMPARISONS for operation in node.ops):
        raise Malformed(f"{ast.unparse(node)!r} is not allowed in an expression")
    operations = [COMPARISONS[type(operation)] for operation in node.ops]

    def compare(scope: Scope) -> bool:
        values = [operand(scope) for operand in operands]
        try:
            return all(
                operation(left, right) for operation, left, right in zip(operations, values, values[1:], strict=False)
            )
        except TypeError:
            raise Impossible(ast.unparse(node.left), values[0], f"comparable in {ast.unparse(node)}") from None

    return compare


def _arithmetic(node: ast.BinOp, names: dict[str, None]) -> Evaluate:
    if type(node.op) not in OPERATIONS:
        raise Malformed(f"{ast.unparse(node)!r} is not allowed in an expression")
    left, right = _compiled(node.left, names), _compiled(node.right, names)
    operation, divides = OPERATIONS[type(node.op)], isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod))

    def calculate(scope: Scope) -> int | float:
        first, second = _number(left(scope), node.left), _number(right(scope), node.right)
        if divides and not second:
            raise Impossible(ast.unparse(node.right), second, "another number than 0")
        if isinstance(node.op, ast.Div) and first % second:
            expected = f"a multiple of {ast.unparse(node.right)} ({second})"
            raise Impossible(ast.unparse(node.left), first, expected)
        result = operation(first, second)
        if abs(result) > LARGEST:
            raise Impossible(ast.unparse(node), result, f"at most {LARGEST}")
        return result

    return calculate


def _number(value: Any, node: ast.expr) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Impossible(ast.unparse(node), value, "a number")
    return value


def _item(node: ast.Subscript, names: dict[str, None]) -> Evaluate:
    listed, index = _compiled(node.value, names), _compiled(node.slice, names)

    def item(scope: Scope) -> Any:
        values, number = listed(scope), index(scope)
        if not isinstance(values, list) or type(number) is not int or not 0 <= number < len(values):
            entries = len(values) if isinstance(values, list) else values
            raise Impossible(ast.unparse(node.value), entries, f"a list with an entry {number}")
        return values[number]

    return item


def _call(node: ast.Call, names: dict[str, None]) -> Evaluate:
    """Return the function of a call; the functions themselves are part of the scope: they know the config."""
    function = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    if function not in FUNCTIONS:
        raise Malformed(f"there is no function {function!r}; functions: {', '.join(FUNCTIONS)}")
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        raise Malformed(f"{function} takes values, without names or stars")
    if function == "has":
        if len(node.args) != 1 or not isinstance(node.args[0], ast.Name):
            raise Malformed("has takes the name of a field")
        name = node.args[0].id
        names[name] = None
        return lambda scope: scope["has"](name)
    arguments = [_compiled(argument, names) for argument in node.args]
    return lambda scope: scope[function](*(argument(scope) for argument in arguments))


READERS: dict[type[ast.expr], Callable[[Any, dict[str, None]], Evaluate]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.IfExp: _choice,
    ast.BoolOp: _logic,
    ast.UnaryOp: _unary,
    ast.Compare: _comparison,
    ast.BinOp: _arithmetic,
    ast.Subscript: _item,
    ast.Call: _call,
}
