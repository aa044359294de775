"""SQL ``check`` conditions of contracts, parsed and evaluated over Arrow columns in SQL's three-valued logic.

The grammar: columns (in double quotes too), numbers and strings in single quotes; ``or``, ``and``, ``not``,
``= <> < <= > >=``, ``is [not] null``, ``in (...)``, ``between``, ``+ - * %``, ``isfinite(x)``,
``case when ... then ... else ... end`` and ``regexp_full_match(x, 'pattern')``. No database evaluates them: to start
one takes as long as a whole prediction.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# a parsed condition: an operation and its operands
Condition = tuple[Any, ...]

_TOKEN = re.compile(
    r"""\s*(?:(\d+(?:\.\d*)?(?:e[+-]?\d+)?)|'((?:[^']|'')*)'|"(\w+)"|([a-z_][a-z0-9_]*)|(<=|>=|<>|[-+*%<>=(),]))"""
)
_COMPARED = {
    "=": "equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_COMPUTED = {"+": "add", "-": "subtract", "*": "multiply"}
_CALLED = {"isfinite": 1, "regexp_full_match": 2}


class _Parser:
    """A recursive-descent parser of one condition, the operator that binds weakest first."""

    def __init__(self, text: str) -> None:
        self._tokens, self._at = list(_tokens(text)), 0

    def whole(self) -> Condition:
        condition = self._either()
        if self._at < len(self._tokens):
            raise ValueError(f"{self._tokens[self._at][1]!r} is not expected there")
        return condition

    def _next(self, *words: str) -> str:
        """Return the next token where it is one of these words, and pass it; empty otherwise."""
        if self._at < len(self._tokens):
            kind, word = self._tokens[self._at]
            if kind == "word" and word in words:
                self._at += 1
                return word
        return ""

    def _need(self, word: str) -> None:
        if not self._next(word):
            raise ValueError(f"{word!r} is missing")

    def _either(self) -> Condition:
        condition = self._both()
        while self._next("or"):
            condition = ("or_kleene", condition, self._both())
        return condition

    def _both(self) -> Condition:
        condition = self._negated()
        while self._next("and"):
            condition = ("and_kleene", condition, self._negated())
        return condition

    def _negated(self) -> Condition:
        return ("invert", self._negated()) if self._next("not") else self._compared()

    def _compared(self) -> Condition:
        first = self._sum()
        if operator := self._next(*_COMPARED):
            return (_COMPARED[operator], first, self._sum())
        if self._next("is"):
            kind = "is_valid" if self._next("not") else "is_null"
            self._need("null")
            return (kind, first)
        if self._next("between"):
            low = self._sum()
            self._need("and")
            return ("and_kleene", ("greater_equal", first, low), ("less_equal", first, self._sum()))
        if self._next("in"):
            any_of: Condition | None = None
            for value in self._bracketed():
                any_of = ("equal", first, value) if any_of is None else ("or_kleene", any_of, ("equal", first, value))
            return any_of or ("constant", False)
        return first

    def _sum(self) -> Condition:
        total = self._product()
        while operator := self._next("+", "-"):
            total = (_COMPUTED[operator], total, self._product())
        return total

    def _product(self) -> Condition:
        product = self._value()
        while operator := self._next("*", "%"):
            right = self._value()
            product = ("remainder", product, right) if operator == "%" else (_COMPUTED[operator], product, right)
        return product

    def _value(self) -> Condition:
        if self._next("("):
            condition = self._either()
            self._need(")")
            return condition
        if self._next("-"):
            return ("negate", self._value())
        if self._next("case"):
            return self._case()
        if self._at == len(self._tokens):
            raise ValueError("it ends too early")
        kind, word = self._tokens[self._at]
        self._at += 1
        if kind != "word":
            return (kind, word)
        if word in _CALLED:
            arguments = self._bracketed()
            if len(arguments) != _CALLED[word]:
                raise ValueError(f"{word} takes {_CALLED[word]} values")
            return (word, *arguments)
        if word in ("true", "false"):
            return ("constant", word == "true")
        if not word[0].isalpha() and word[0] != "_":
            raise ValueError(f"{word!r} is not expected there")
        return ("column", word)

    def _case(self) -> Condition:
        self._need("when")
        condition = self._either()
        self._need("then")
        chosen = self._either()
        self._need("else")
        other = self._either()
        self._need("end")
        return ("case", condition, chosen, other)

    def _bracketed(self) -> list[Condition]:
        self._need("(")
        conditions = [self._either()]
        while self._next(","):
            conditions.append(self._either())
        self._need(")")
        return conditions


def _tokens(text: str) -> list[tuple[str, Any]]:
    tokens: list[tuple[str, Any]] = []
    at = 0
    while at < len(text.rstrip()):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"{text[at:].strip()[:20]!r} is not known")
        number, quoted, name, word, sign = token.groups()
        if number is not None:
            tokens.append(("constant", float(number) if set(number) & set(".e") else int(number)))
        elif quoted is not None:
            tokens.append(("constant", quoted.replace("''", "'")))
        elif name is not None:
            tokens.append(("column", name))
        else:
            tokens.append(("word", word or sign))
        at = token.end()
    return tokens


@lru_cache(maxsize=4096)
def parse(text: str) -> Condition:
    """Parse a condition into nested operations; ValueError names what cannot be parsed.

    >>> parse("x is null or x >= 0")
    ('or_kleene', ('is_null', ('column', 'x')), ('greater_equal', ('column', 'x'), ('constant', 0)))
    """
    return _Parser(text).whole()


def columns_of(condition: Condition) -> set[str]:
    """Return the columns that a condition reads.

    >>> sorted(columns_of(parse("top_k >= 0 and top_k <= experts")))
    ['experts', 'top_k']
    """
    if condition[0] == "column":
        return {condition[1]}
    return {name for operand in condition[1:] if isinstance(operand, tuple) for name in columns_of(operand)}


def holds(text: str, table: pa.Table) -> pa.ChunkedArray:
    """Evaluate a condition for each row of a table: one boolean a row, false where the condition is null.

    >>> holds("x between 1 and size", pa.table({"x": [1, 2, None], "size": [1, 1, 1]})).to_pylist()
    [True, False, False]
    """
    return pc.fill_null(_evaluated(parse(text), table), _constant(False))


@lru_cache(maxsize=1024, typed=True)
def _constant(value: bool | float | str) -> pa.Scalar:
    """Return a Python value as an Arrow scalar, without ``pa.scalar``, which imports pandas where it is installed."""
    if isinstance(value, str):
        text = value.encode()
        buffers, arrow_type = [struct.pack("=ii", 0, len(text)), text], pa.string()
    elif isinstance(value, bool):
        buffers, arrow_type = [bytes([value])], pa.bool_()
    else:
        buffers, arrow_type = (
            ([struct.pack("=q", value)], pa.int64())
            if isinstance(value, int)
            else ([struct.pack("=d", value)], pa.float64())
        )
    return pa.Array.from_buffers(arrow_type, 1, [None, *map(pa.py_buffer, buffers)])[0]


def _evaluated(condition: Condition, table: pa.Table) -> Any:
    operation, *operands = condition
    if operation == "column":
        return table.column(operands[0])
    if operation == "constant":
        return _constant(operands[0])
    values = [_evaluated(operand, table) for operand in operands]
    if operation == "case":
        return pc.if_else(pc.fill_null(values[0], _constant(False)), *values[1:])
    if operation == "isfinite":
        return pc.is_finite(values[0])
    if operation == "regexp_full_match":
        return pc.match_substring_regex(values[0], f"^(?:{values[1].as_py()})$")
    if operation == "remainder":
        first, right = values[0], pc.if_else(pc.equal(values[1], _constant(0)), None, values[1])
        return pc.subtract(first, pc.multiply(pc.divide(first, right), right))
    return pc.call_function(operation, values)
