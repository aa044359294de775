"""The table ``deployment_shapes``, values at paths, and the role: what documents state of a part of a deployment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from kernelsight.catalog.tables import facts
from kernelsight.scenario.launch.variables import expanded

_STEP = re.compile(r"\[([^\[\]]+)\]|([^.\[\]]+)")


class Row(NamedTuple):
    """One row of ``deployment_shapes``; ``steps``: its path as names."""

    form: str
    path: str
    field: str
    value: str | None
    written: bool | None
    steps: tuple[str, ...]

    @property
    def pairs(self) -> dict[str, str]:
        """The words a=b of its value."""
        return dict(word.partition("=")[::2] for word in (self.value or "").split())


class Role(NamedTuple):
    """What documents state of one part of a deployment, such as a container, a pool of replicas, or a script.

    ``facts``: by field of ``deployment_shapes``. ``names``: of the objects around it, the outermost first. ``scope``:
    the object whose servers on several nodes are one server. ``options``: (name, value) of the engine's settings.
    ``notes``: (words, effect, reason) of what is listed.
    """

    facts: dict[str, Any]
    names: tuple[str, ...] = ()
    scope: tuple[Any, ...] = ()
    environment: Mapping[str, str] = MappingProxyType({})
    variables: Mapping[str, str] = MappingProxyType({})
    options: tuple[tuple[str, Any], ...] = ()
    notes: tuple[tuple[str, str, str], ...] = ()
    texts: Mapping[str, str] = MappingProxyType({})

    @property
    def known(self) -> dict[str, str]:
        """All variables of the role."""
        return {**self.variables, **self.environment}

    def text(self, value: Any) -> str:
        """Return a value as text, with the variables of the role filled in."""
        return expanded(str(value), self.known)

    def noted(self, words: str, effect: str, reason: str) -> Role:
        """Return the role with one more note."""
        return self._replace(notes=(*self.notes, (words, effect, reason)))

    def named(self, name: str) -> Role:
        """Return the role with one more name."""
        return self._replace(names=tuple(dict.fromkeys((*self.names, name))))

    def after(self, first: Role) -> Role:
        """Return the role as a continuation of another one, whose arguments go before its own."""
        arguments = [*first.facts.get("arguments", ()), *self.facts.get("arguments", ())]
        own = {name: value for name, value in self.facts.items() if value is not None}
        return self._replace(
            facts={**first.facts, **own, "arguments": arguments},
            environment={**first.environment, **self.environment},
            options=(*first.options, *self.options),
            notes=(*first.notes, *self.notes),
        )

    def with_fact(self, **fact: Any) -> Role:
        """Return the role with one more fact."""
        return self._replace(facts=self.facts | fact)


@cache
def rows_of(form: str) -> tuple[Row, ...]:
    """Return the rows of a form."""
    return tuple(row for row in all_rows() if row.form == form)


@cache
def all_rows() -> tuple[Row, ...]:
    """Return the rows of all forms."""
    table = facts("deployment_shapes").to_pylist()
    fields = ("form", "path", "field", "value", "written")
    return tuple(Row(*(row[name] for name in fields), steps_of(row["path"])) for row in table)


def steps_of(path: str) -> tuple[str, ...]:
    """Return the names of a path.

    >>> steps_of("spec.labels[app.kubernetes.io/name].x"), steps_of(".")
    (('spec', 'labels', 'app.kubernetes.io/name', 'x'), ())
    """
    return tuple(bracketed or name for bracketed, name in _STEP.findall(path))


@cache
def forms() -> tuple[str, ...]:
    """Return the forms of documents, in the order of the table."""
    return tuple(dict.fromkeys(row.form for row in all_rows() if row.field == "is"))


def find(node: Any, steps: Sequence[str], place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (its path, value) for each value at a path; ``*`` is every item, ``**`` any depth."""
    if not steps:
        yield place, node
        return
    step, rest = steps[0], steps[1:]
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    if step == "**":
        yield from find(node, rest, place)
        for key, inner in items:
            yield from find(inner, steps, (*place, key))
    elif step == "*":
        for key, inner in items:
            yield from find(inner, rest, (*place, key))
    elif isinstance(node, Mapping) and step in node:
        yield from find(node[step], rest, (*place, step))
    elif isinstance(node, list) and step.isdigit() and int(step) < len(node):
        yield from find(node[int(step)], rest, (*place, int(step)))
