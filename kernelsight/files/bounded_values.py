"""Parses untrusted JSON, YAML, TOML and Python literals within a budget of values and levels.

An alias of YAML counts at each use.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kernelsight.files.bounded_files import TOO_MUCH_MEMORY, Refuse, read_text
from kernelsight.files.budget import MANIFEST, OPTIONS, SETTINGS, Budget

# digits: no setting has a longer number, and YAML needs time quadratic in the length of some
LONGEST_NUMBER = 1000
# characters that count as one value: an alias repeats long texts too
TEXT_OF_A_VALUE = 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
# how a YAML parser quotes an unknown tag or alias, which may be a password that begins with & or *
_UNKNOWN = re.compile(r"\b(tag|alias|tag handle|duplicate anchor) ['\"].*", re.DOTALL)
_REASONS = {RecursionError: "it nests too deep", MemoryError: TOO_MUCH_MEMORY}
_NUMERIC = re.compile(r"[-+]?[0-9.][-+0-9a-fA-FxX_.:]*")


def read_json(path: str | os.PathLike[str], refuse: Refuse, budget: Budget = SETTINGS, *, piped: bool = False) -> Any:
    """Parse a JSON file; ``refuse`` makes the error that is raised, with the line of the fault."""
    return parse_json(read_text(path, refuse, budget, piped=piped), refuse, budget)


def parse_json(text: str, refuse: Refuse, budget: Budget = SETTINGS) -> Any:
    """Parse JSON text within a budget; an object with a repeated name is refused."""
    # an upper bound of the number of values, without parsing: signs within texts count too
    if 1 + text.count(",") + text.count("[") + text.count("{") > budget.values:
        raise refuse(_too_many(budget))
    try:
        value = json.loads(text, object_pairs_hook=without_repeats)
    except json.JSONDecodeError as problem:
        place = f"line {problem.lineno}, column {problem.colno}"
        raise refuse(f"is not JSON ({place}: {problem.msg})") from None
    except RecursionError:
        raise refuse(_too_deep(budget)) from None
    except MemoryError:
        raise refuse(TOO_MUCH_MEMORY) from None
    except ValueError as problem:
        is_repeated = isinstance(problem, RepeatedName)
        raise refuse(f"is not JSON ({problem if is_repeated else 'a number has thousands of digits'})") from None
    _check_levels(value, budget, refuse)
    return value


def json_values(text: str, position: int = 0, between: str = " \t\r\n") -> Iterator[tuple[Any, int]]:
    """Yield (value, position after it) of the JSON values in a text, which characters of ``between`` may separate.

    JSONDecodeError: what stands at its position is none.

    >>> list(json_values('{"a": 1} [2]'))
    [({'a': 1}, 8), ([2], 12)]
    """
    decoder, blank = json.JSONDecoder(), re.compile(f"[{between}]*")
    while (position := blank.match(text, position).end()) < len(text):  # type: ignore[union-attr]
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError, MemoryError) as problem:
            reason = _REASONS.get(type(problem)) or getattr(problem, "msg", "a number has thousands of digits")
            raise json.JSONDecodeError(reason, text, getattr(problem, "pos", position)) from None
        yield value, position


def is_object(text: str) -> bool:
    """Return whether a text, such as a line, is one JSON object.

    >>> is_object("{}"), is_object("[]"), is_object("{} {}"), is_object("")
    (True, False, False, False)
    """
    with contextlib.suppress(json.JSONDecodeError):
        return [type(value) for value, _ in json_values(text)] == [dict]
    return False


def parse_toml(text: str, refuse: Refuse, budget: Budget = MANIFEST) -> dict[str, Any]:
    """Parse TOML text within a budget.

    >>> from kernelsight.errors import InvalidInput
    >>> parse_toml("a = 1", InvalidInput)
    {'a': 1}
    """
    return _plain(tomllib.loads, "TOML", text, refuse, budget)


def parse_literal(text: str, refuse: Refuse, budget: Budget = OPTIONS) -> Any:
    """Parse a literal of Python within a budget.

    >>> from kernelsight.errors import InvalidInput
    >>> parse_literal("{'tp': 2}", InvalidInput)
    {'tp': 2}
    """
    return _plain(ast.literal_eval, "a literal of Python", text, refuse, budget)


def _plain(parse: Callable[[str], Any], form: str, text: str, refuse: Refuse, budget: Budget) -> Any:
    if len(text) > budget.bytes or text.count(",") + text.count("=") + text.count("[") > budget.values:
        raise refuse(_too_many(budget))
    try:
        value = parse(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise refuse(f"is not {form}") from None
    _check_levels(value, budget, refuse)
    return value


class RepeatedName(ValueError):
    """A JSON object has the same name twice."""


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, as an ``object_pairs_hook``; RepeatedName names what it has twice.

    >>> json.loads('{"a": 1, "b": 2}', object_pairs_hook=without_repeats)
    {'a': 1, 'b': 2}
    """
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedName(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice; keep one")
    return unique


def _check_levels(value: Any, budget: Budget, refuse: Refuse) -> None:
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        if depth > budget.levels:
            raise refuse(_too_deep(budget))
        level = [item for holder in level for item in (holder.values() if isinstance(holder, dict) else holder)]


def parse_yaml(text: str, refuse: Refuse, budget: Budget = MANIFEST) -> list[Any]:
    """Parse the documents of YAML text within a budget; an anchor that contains itself is refused."""
    import yaml

    loader = _loader()
    try:
        _check_events(yaml.parse(text, Loader=loader), budget, refuse)
        return list(yaml.load_all(text, Loader=loader))
    except yaml.MarkedYAMLError as problem:
        mark, message = problem.problem_mark or problem.context_mark, problem.problem or problem.context
        line = mark.line + 1 if mark else 1
        if message and "nesting depth" in message:  # libyaml reads ahead, and has its own limit of 1,000 levels
            raise refuse(f"{_too_deep(budget)} (line {line})") from None
        raise refuse(_not_yaml(line, message)) from None
    except yaml.reader.ReaderError as problem:
        line = text.encode()[: problem.position].count(b"\n") + 1
        raise refuse(_not_yaml(line, problem.reason)) from None
    except UnicodeEncodeError:  # bytes of a command line
        raise refuse("is not UTF-8") from None
    except MemoryError:
        raise refuse(TOO_MUCH_MEMORY) from None


@functools.cache
def _loader() -> Any:
    """Return a safe YAML loader (plain values only) whose errors name the line of an impossible value."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            # checked before << is merged, whose names may occur again
            names = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            names = [name for name in names if not name[0].endswith(":merge")]
            if len(set(names)) < len(names):
                raise yaml.constructor.ConstructorError(None, None, "a name occurs twice; keep one", node.start_mark)
            return super().construct_mapping(node, deep=deep)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=deep)
            except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError):
                kind = node.tag.rpartition(":")[2]
                raise yaml.constructor.ConstructorError(None, None, f"no valid {kind}", node.start_mark) from None

    return Loader


class _Holder:
    """An open YAML list or mapping: its anchor, and the number of values and levels in it so far."""

    def __init__(self, anchor: str | None) -> None:
        self.anchor, self.values, self.levels = anchor, 1, 0


def _check_events(events: Iterable[Any], budget: Budget, refuse: Refuse) -> None:
    """Refuse too many values or levels, with those of each alias where it is used, and anchors within themselves."""
    import yaml

    # number of values and levels of each anchor of the document
    anchored: dict[str, tuple[int, int]] = {}
    open_holders = [_Holder(None)]
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            anchored.clear()
        elif isinstance(event, yaml.CollectionStartEvent):
            open_holders.append(_Holder(event.anchor))
            _add(open_holders, 0, 0, event, budget, refuse)
        elif isinstance(event, yaml.AliasEvent):
            if any(holder.anchor == event.anchor for holder in open_holders):
                raise refuse(_not_yaml(event.start_mark.line + 1, f"the anchor {event.anchor[:40]!r} contains itself"))
            _add(open_holders, *anchored.get(event.anchor, (1, 1)), event, budget, refuse)
        elif isinstance(event, yaml.ScalarEvent):
            if len(event.value) > LONGEST_NUMBER and _is_number(event):
                line = event.start_mark.line + 1
                raise refuse(_not_yaml(line, f"a number has more than {LONGEST_NUMBER:,} digits"))
            size = 1 + len(event.value) // TEXT_OF_A_VALUE
            _add(open_holders, size, 1, event, budget, refuse)
            if event.anchor:
                anchored[event.anchor] = size, 1
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = open_holders.pop()
            _add(open_holders, ended.values, ended.levels + 1, event, budget, refuse)
            if ended.anchor:
                anchored[ended.anchor] = ended.values, ended.levels + 1


def _add(holders: list[_Holder], values: int, levels: int, event: Any, budget: Budget, refuse: Refuse) -> None:
    inner = holders[-1]
    inner.values += values
    inner.levels = max(inner.levels, levels)
    if inner.values > budget.values:
        raise refuse(f"{_too_many(budget)} (line {event.start_mark.line + 1})")
    if len(holders) + levels - 1 > budget.levels:
        raise refuse(f"{_too_deep(budget)} (line {event.start_mark.line + 1})")


def _is_number(event: Any) -> bool:
    return event.tag in _NUMBERS or (event.implicit[0] and _NUMERIC.fullmatch(event.value) is not None)


def _not_yaml(line: int, message: object) -> str:
    reason = _UNKNOWN.sub(r"\1", str(message))
    return f"is not YAML (line {line}: {reason:.120})"


def _too_many(budget: Budget) -> str:
    return f"holds more than {budget.values:,} values"


def _too_deep(budget: Budget) -> str:
    return f"nests deeper than {budget.levels} levels"
