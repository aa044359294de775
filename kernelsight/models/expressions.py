"""Expressions of architecture files: a closed grammar over whole numbers, words, true and false, and lists.

A name is a field of the config, or one of WORDS, which stands for itself. There are ``or``, ``and``, ``not``,
comparisons, ``in``, ``A if B else C``, ``+ - * // %``, ``/`` (exact: not a whole number is an error), ``list[layer]``,
and the functions of FUNCTIONS. Python's parser reads the text; only what is listed here runs. Both are bounded: the
length of the text, and the size of every number.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

LONGEST = 400
LARGEST = 2**62
# kinds of attention, feed-forward, norms, activations and RoPE, and what configs call a position embedding
WORDS = frozenset(
    "full sliding selected mla sparse compressed linear none dense moe shared head all silu gelu relu2 rope static "
    "dynamic".split()
)
CONSTANTS = {"null": None, "true": True, "false": False} | {word: word for word in WORDS}
FUNCTIONS = ("has", "count", "length", "yarn", "int", "min", "max")
Scope = Mapping[str, Any]

OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.floordiv,  # exact: checked before
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}
# nodes of Python's grammar that are allowed, beside names, constants and calls
FORMS = (ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.BinOp, ast.Subscript)


class Malformed(ValueError):
    """A text that is no expression of the grammar; its words say what is wrong."""


class Impossible(ValueError):
    """An expression without a value for this config: ``name`` is the field to blame, with what it must be."""

    def __init__(self, name: str, value: Any, expected: str) -> None:
        super().__init__(f"{name} is {value!r}, but must be {expected}")
        self.name, self.value, self.expected = name, value, expected


class Expression(NamedTuple):
    """An expression: its text, the names that it refers to in order, and its tree; None: the constant ``value``."""

    text: str
    names: tuple[str, ...] = ()
    tree: ast.expr | None = None
    value: Any = None

    def evaluate(self, scope: Scope) -> Any:
        """Return its value for the fields and functions of a scope; Impossible: it has none."""
        return self.value if self.tree is None else _value(self.tree, scope)


def read_expression(text: str) -> Expression:
    """Return a text as an expression; Malformed: it is none."""
    if len(text) > LONGEST:
        raise Malformed(f"it has {len(text)} characters; at most {LONGEST}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Malformed("it is not an expression") from None
    return Expression(text, tuple(dict.fromkeys(_names(tree))), tree)


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the fields that a node refers to; Malformed: it, or what it holds, is not of the grammar."""
    match node:
        case ast.Name(id=name):
            yield from () if name in CONSTANTS else (name,)
        case ast.Constant(value=value):
            if type(value) not in (int, float, str, bool) or (type(value) is int and value > LARGEST):
                raise Malformed(f"{ast.unparse(node)!r} is no number or text")
        case ast.Call():
            function = ast.unparse(node.func)
            if function not in FUNCTIONS:
                raise Malformed(f"there is no function {function!r}; functions: {', '.join(FUNCTIONS)}")
            if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
                raise Malformed(f"{function} takes values, without names or stars")
            if function == "has" and not (len(node.args) == 1 and isinstance(node.args[0], ast.Name)):
                raise Malformed("has takes the name of a field")
            for argument in node.args:
                yield from [argument.id] if function == "has" else _names(argument)
        case _:
            parts, known = list(ast.iter_child_nodes(node)), (ast.expr, ast.boolop, ast.expr_context, *OPERATIONS)
            if not isinstance(node, FORMS) or not all(isinstance(part, known) for part in parts):
                raise Malformed(f"{ast.unparse(node)!r} is not allowed in an expression")
            for part in parts:
                yield from _names(part) if isinstance(part, ast.expr) else ()


def _value(node: ast.expr, scope: Scope) -> Any:
    """Return the value of a node that :func:`_names` has let pass."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return CONSTANTS[name] if name in CONSTANTS else scope[name]
        case ast.IfExp():
            return _value(node.body if _value(node.test, scope) else node.orelse, scope)
        case ast.BoolOp():
            return (all if isinstance(node.op, ast.And) else any)(_value(part, scope) for part in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return not _value(node.operand, scope)
        case ast.UnaryOp():
            return -_number(node.operand, scope)
        case ast.Compare():
            return _comparison(node, scope)
        case ast.BinOp():
            return _arithmetic(node, scope)
        case ast.Subscript():
            return _item(node, scope)
        case ast.Call(args=[ast.Name(id=name)]) if node.func.id == "has":
            return scope["has"](name)
    # the functions are part of the scope: they know the config
    return scope[node.func.id](*(_value(argument, scope) for argument in node.args))


def _comparison(node: ast.Compare, scope: Scope) -> bool:
    values = [_value(part, scope) for part in (node.left, *node.comparators)]
    try:
        pairs = zip(node.ops, values, values[1:], strict=False)
        return all(OPERATIONS[type(operation)](left, right) for operation, left, right in pairs)
    except TypeError:
        raise Impossible(ast.unparse(node.left), values[0], f"comparable in {ast.unparse(node)}") from None


def _arithmetic(node: ast.BinOp, scope: Scope) -> int | float:
    first, second = _number(node.left, scope), _number(node.right, scope)
    if isinstance(node.op, (ast.Div, ast.FloorDiv, ast.Mod)) and not second:
        raise Impossible(ast.unparse(node.right), second, "another number than 0")
    if isinstance(node.op, ast.Div) and first % second:
        raise Impossible(ast.unparse(node.left), first, f"a multiple of {ast.unparse(node.right)} ({second})")
    result = OPERATIONS[type(node.op)](first, second)
    if abs(result) > LARGEST:
        raise Impossible(ast.unparse(node), result, f"at most {LARGEST}")
    return result


def _number(node: ast.expr, scope: Scope) -> int | float:
    value = _value(node, scope)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Impossible(ast.unparse(node), value, "a number")
    return value


def _item(node: ast.Subscript, scope: Scope) -> Any:
    values, number = _value(node.value, scope), _value(node.slice, scope)
    if not isinstance(values, list) or type(number) is not int or not 0 <= number < len(values):
        entries = len(values) if isinstance(values, list) else values
        raise Impossible(ast.unparse(node.value), entries, f"a list with an entry {number}")
    return values[number]
