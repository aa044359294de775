"""Finds the engine's calls in a Python program, such as ``LLM(...)``; it is parsed and never run."""

from __future__ import annotations

import ast
import operator
import shlex
import warnings
from collections.abc import Iterable
from typing import Any

from kernelsight.files.bounded_files import Refuse
from kernelsight.files.shell_words import MOST_CHARACTERS

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.BitOr: operator.or_,
}
# most characters and values that folding may make, and the largest number
_LONGEST, _LARGEST = 10_000, 10**15
COMMANDS = ("vllm serve", "launch_server", "trtllm-serve", "sglang serve", "api_server", "dynamo.")


def read_python(text: str, refuse: Refuse) -> dict[str, Any] | None:
    """Return the calls of a program as ``{"calls": [{"vllm.LLM": arguments}, …]}``; None: it is no Python.

    The name of a call is its package and its last name. A value that is no constant is the text ``$name``. Server
    commands in texts and lists of words are ``{"command": {"shell": …}}``, if no call starts an engine.

    >>> read_python("from vllm import LLM\\nm = 'Qwen/Qwen3-8B'\\nllm = LLM(m, tensor_parallel_size=1 + 1)", str)
    {'calls': [{'vllm.LLM': {'model': 'Qwen/Qwen3-8B', 'tensor_parallel_size': 2, 'variable': 'llm'}}]}
    """
    if len(text) > MOST_CHARACTERS:
        raise refuse(f"is a program of more than {MOST_CHARACTERS:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes within texts
            program = _Program()
            program.visit(ast.parse(text))
    except (SyntaxError, ValueError):
        return None
    except (RecursionError, MemoryError):
        raise refuse("is a program that nests too deep") from None
    calls = [call for call in program.calls if next(iter(call)).partition(".")[0] in _PACKAGES]
    return {"calls": calls or [{"command": {"shell": command}} for command in dict.fromkeys(program.commands())]}


def folded(text: str, names: dict[str, Any]) -> Any:
    """Return the constant that an expression of names is; None: it is none.

    >>> folded("nodes * (8 + 1)", {"nodes": 2}), folded("other + 1", {}) is None
    (18, True)
    """
    program = _Program()
    program.names = names
    try:
        return program._folded(ast.parse(text, mode="eval").body)
    except (SyntaxError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


_PACKAGES = ("vllm", "sglang", "tensorrt_llm", "ray")
_CALLS = (
    "LLM",
    "EngineArgs",
    "AsyncEngineArgs",
    "Engine",
    "ServerArgs",
    "Runtime",
    "LLMConfig",
    "vLLMEngineProcessorConfig",
)


class _Program(ast.NodeVisitor):
    """Constants by name, and the calls and texts of a program, in its order."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.packages: dict[str, str] = {}
        self.calls: list[dict[str, Any]] = []
        self.texts: list[Any] = []

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.packages[alias.asname or alias.name.partition(".")[0]] = alias.name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.packages[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def visit_FunctionDef(self, node: Any) -> None:
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args]
        pairs = [*zip(named[len(named) - len(arguments.defaults) :], arguments.defaults, strict=True)]
        pairs += [pair for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if pair[1] is not None]
        for argument, default in pairs:
            self._set(argument.arg, self._value(default))
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring starts nothing
            self.generic_visit(node)

    def visit_Assign(self, node: Any) -> None:
        value = self._value(node.value) if node.value is not None else None
        for target in getattr(node, "targets", None) or [node.target]:
            if isinstance(target, ast.Tuple) and isinstance(value, list) and len(value) == len(target.elts):
                for name, item in zip(target.elts, value, strict=True):
                    if isinstance(name, ast.Name):
                        self._set(name.id, item)
            if isinstance(target, ast.Name):
                calls_before = len(self.calls)
                self.visit(node.value) if node.value is not None else None
                for call in self.calls[calls_before:]:
                    next(iter(call.values())).setdefault("variable", target.id)
                self._set(target.id, value)
                return
        self.generic_visit(node)

    visit_AnnAssign = visit_Assign

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            added = ast.BinOp(ast.Name(node.target.id), node.op, node.value)
            self.names[node.target.id] = self._value(added)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _dotted(node.func)
        head, _, last = name.rpartition(".")
        if last in ("append", "extend") and isinstance(self.names.get(head), list) and node.args:
            value = self._value(node.args[0])
            self.names[head] = [
                *self.names[head],
                *([value] if last == "append" or not isinstance(value, list) else value),
            ]
        elif last == "add_argument" and node.args:
            given = {keyword.arg: self._value(keyword.value) for keyword in node.keywords}
            option = self._value(node.args[-1])
            if "default" in given and isinstance(option, str):
                self._set(f".{option.lstrip('-').replace('-', '_')}", given["default"])
        elif last in _CALLS:
            first = self.packages.get(name.partition(".")[0], name)
            arguments = self._keywords((keyword.arg, keyword.value) for keyword in node.keywords)
            if node.args:
                arguments = {"model_path" if "sglang" in first else "model": self._value(node.args[0])} | arguments
            self.calls.append({f"{first.partition('.')[0]}.{last}": arguments})
        else:
            self.texts += [self._value(argument) for argument in node.args]
        self.generic_visit(node)

    def commands(self) -> list[str]:
        """Return the server commands among texts and lists of words."""
        found = []
        for value in [*self.texts, *self.names.values()]:
            text = " ".join(_word(str(word)) for word in value) if isinstance(value, list) else value
            if isinstance(text, str) and any(sign in text for sign in COMMANDS):
                found.append(text)
        return found

    def _set(self, name: str, value: Any) -> None:
        """Set a name; one that is set to two values is known as none of them."""
        before = self.names.get(name, value)
        self.names[name] = value if before == value and type(before) is type(value) else f"${name.lstrip('.')}"

    def _keywords(self, pairs: Iterable[tuple[Any, ast.expr]]) -> dict[Any, Any]:
        """Return the constants of keywords, or of a dictionary; a name None: those of another dictionary."""
        given: dict[Any, Any] = {}
        for name, node in pairs:
            value = self._value(node)
            if name is not None:
                given[name] = value
            elif isinstance(value, dict):
                given |= value
            else:
                given[f"**{ast.unparse(node)[:60]}"] = "$"
        return given

    def _value(self, node: ast.AST) -> Any:
        """Return the constant that an expression is, or ``$`` and its words."""
        try:
            value = self._folded(node)
        except (LookupError, TypeError, ValueError, ArithmeticError):
            return f"${ast.unparse(node)[:60]}"
        if isinstance(value, str | list | dict) and _size(value) > _LONGEST:
            return "$long"
        return "$large" if isinstance(value, int | float) and abs(value) > _LARGEST else value

    def _folded(self, node: Any) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
            return node.value
        if isinstance(node, ast.Name):
            return self.names[node.id]
        if isinstance(node, ast.Attribute):
            return self.names[f".{node.attr}"]
        if isinstance(node, ast.List | ast.Tuple):
            return [item for inner in node.elts for item in self._items(inner)]
        if isinstance(node, ast.Dict):
            return self._keywords(
                (self._folded(key) if key else None, value) for key, value in zip(node.keys, node.values, strict=True)
            )
        if isinstance(node, ast.JoinedStr):
            return "".join(str(self._folded(part)) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._folded(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._folded(node.operand)
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left), self._value(node.right)
            if isinstance(node.op, ast.Mult) and not all(isinstance(side, int | float) for side in (left, right)):
                raise ValueError("a text times a number")
            if any(isinstance(side, str) and side.startswith("$") for side in (left, right)):
                raise ValueError("no constant")
            return _OPERATORS[type(node.op)](left, right)
        if isinstance(node, ast.IfExp):
            return self._value(node.body if self._folded(node.test) else node.orelse)
        if isinstance(node, ast.Call):
            return self._called(node)
        raise ValueError("no constant")

    def _items(self, node: Any) -> list[Any]:
        if isinstance(node, ast.Starred):
            value = self._value(node.value)
            return value if isinstance(value, list) else [value]
        return [self._value(node)]

    def _called(self, node: ast.Call) -> Any:
        """Return the constant of a call: str(x), the default of a variable, words joined, or a record of settings."""
        name = _dotted(node.func)
        if name in ("os.environ.get", "os.getenv", "environ.get", "getenv") and len(node.args) == 2:
            return self._folded(node.args[1])
        if name in ("str", "int", "float") and len(node.args) == 1:
            return {"str": str, "int": int, "float": float}[name](self._folded(node.args[0]))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "join" and len(node.args) == 1:
            return self._folded(node.func.value).join(map(str, self._folded(node.args[0])))
        if name == "dict" or (not node.args and name.rpartition(".")[2][:1].isupper()):  # such as KvCacheConfig(...)
            return self._keywords([*((None, argument) for argument in node.args),
                                   *((keyword.arg, keyword.value) for keyword in node.keywords)])  # fmt: skip
        raise ValueError("no constant")


def _word(word: str) -> str:
    """Return a word for a shell text, in quotes where they are needed."""
    return word if " " not in word and word.isprintable() and not set(word) & set("'\"{};|&<>") else shlex.quote(word)


def _size(value: Any) -> int:
    """Return the characters of a value, with ten for each value in it; counting stops above _LONGEST."""
    waiting, size = [value], 0
    while waiting and size <= _LONGEST:
        inner = waiting.pop()
        size += 10 + (len(inner) if isinstance(inner, str) else 0)
        waiting += inner if isinstance(inner, list) else inner.values() if isinstance(inner, dict) else ()
    return size


def _dotted(node: Any) -> str:
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""
