"""Reads the roles of a deployment out of documents, by the table ``deployment_shapes``; a role may start a server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from kernelsight.files.bounded_files import Refuse
from kernelsight.files.redaction import redacted_words
from kernelsight.scenario.launch.documents import read_documents
from kernelsight.scenario.launch.shape_fields import OPERATIONS, At
from kernelsight.scenario.launch.shape_table import Role, Row, all_rows, find, forms, rows_of

# most documents within documents, and services that extend each other
MOST_NESTED, MOST_EXTENDED = 4, 20
# fields that fill in what others hold, and fields that no operation reads
_FIRST, _STRUCTURE = ("environment", "variables", "nodes"), ("is", "shape", "document", "base")
# forms whose objects run one server on several nodes
_WITH_NODES = ("leader_worker_set", "rbg_role", "inference_service")
_OPTION = re.compile(r"(?:^|\s)--?[A-Za-z]")


def read_roles(text: str, refuse: Refuse, options_engine: Callable[[Mapping], str | None]) -> list[Role]:
    """Return the roles of a launch text; ``refuse`` makes the error for what cannot be read.

    ``options_engine``: the engine whose options a mapping holds, or None.
    """
    reader = _Reader(refuse, options_engine)
    roles = [role for document in read_documents(text, refuse) for role in reader.document(document, Role({}))]
    return [role._replace(texts=reader.texts) for role in _with_templates(roles)]


def _with_templates(roles: Sequence[Role]) -> list[Role]:
    """Return the roles with what the templates that they name state before them; those start nothing themselves."""
    templates = {(role.facts["template"], role.facts.get("role")): role for role in roles if "template" in role.facts}
    used, found = [], []
    for role in roles:
        own = role
        for name in reversed(role.facts.get("like", ())):
            template = templates.get((name, role.facts.get("role")))
            if template is not None:
                own, used = own.after(template), [*used, template]
        found.append(own)
    return [own for role, own in zip(roles, found, strict=True) if not any(role is template for template in used)]


class _Reader:
    """Walks documents form by form. ``texts``: of files that the documents hold, by name."""

    def __init__(self, refuse: Refuse, options_engine: Callable[[Mapping], str | None]) -> None:
        self.refuse, self.options_engine = refuse, options_engine
        self.texts: dict[str, str] = {}
        self.documents = 0

    def document(self, tree: Any, role: Role, depth: int = 0) -> Iterator[Role]:
        """Yield the roles of a document."""
        self.documents += 1
        form = next((form for form in forms() if _is(form, tree)), None)
        if form is None and isinstance(tree, Mapping):
            engine = self.options_engine(tree)
            form = "options" if engine else None
            role = role.with_fact(engine=engine)
        if form is not None:
            yield from self.object(form, tree, role._replace(scope=(self.documents,)), depth)

    def object(self, form: str, node: Any, role: Role, depth: int, outer: Any = None) -> Iterator[Role]:
        """Yield the roles of an object of a form; ``role``: what the objects around it state."""
        rows = rows_of(form)
        if isinstance(node, Mapping):
            node = self._with_base(node, [row for row in rows if row.field == "base"], outer)
        for row in sorted(rows, key=lambda row: row.field not in _FIRST):
            for place, value in find(node, row.steps) if row.field not in _STRUCTURE else ():
                if value is not None:
                    at = At(row, ".".join(map(str, place)), self.refuse, self.texts)
                    role = OPERATIONS[row.field](role, at, value)
        shapes = [row for row in rows if row.field in ("shape", "document")]
        read = [row.steps for row in rows if row.steps or row.field == "options"]
        inside = [(row, place, inner) for row in shapes for place, inner in find(node, row.steps)]
        misplaced = {
            ".".join(map(str, place)): inner
            for row, place, inner in inside
            if row.field == "shape" and not isinstance(inner, dict)
        }
        for words in [*_sizes(node, read), *_sizes(misplaced, ())]:
            role = role.noted(words, "not_modelled", "a size at a place that is not read")
        if not shapes or (not inside and role.facts.keys() & {"like", "model"}):
            yield role
        for row, place, inner in inside:
            if row.field == "document":
                yield from self._inner(inner, role, depth)
            elif isinstance(inner, dict) and not (form == "any_object" and not _has_image(inner)):
                name, *words = row.value.split()
                stated = dict(word.partition("=")[::2] for word in words)
                named = (place[-1],) if row.steps[-1] == "*" and isinstance(place[-1], str) else ()
                around = role._replace(names=(*role.names, *named), facts=role.facts | stated)
                if "place" in stated or form in _WITH_NODES:
                    around = around._replace(scope=(*role.scope[:1], *map(str, role.names)))
                yield from self.object(name, inner, around, depth, (node, place))

    def _inner(self, value: Any, role: Role, depth: int) -> Iterator[Role]:
        """Yield the roles of a document within a document."""
        if depth >= MOST_NESTED:
            raise self.refuse(f"has documents within documents, more than {MOST_NESTED} deep")
        trees = read_documents(value, self.refuse) if isinstance(value, str) else [value]
        for tree in trees:
            yield from self.document(tree, role, depth + 1)

    def _with_base(self, node: Mapping[str, Any], rows: Sequence[Row], outer: Any) -> Mapping[str, Any]:
        """Return an object with what it extends, as Compose merges them; its own fields have precedence."""
        seen: list[Any] = []
        stated = node.get(rows[0].steps[0]) if rows else None
        while stated is not None:
            name = stated.get("service") if isinstance(stated, Mapping) else stated
            if isinstance(stated, Mapping) and stated.get("file"):
                raise self.refuse("has a service that extends one of another file; take `docker compose config`")
            siblings = outer[0].get(rows[0].value)
            base = siblings.get(name) if isinstance(siblings, Mapping) and isinstance(name, str) else None
            if name in seen or len(seen) == MOST_EXTENDED or not isinstance(base, Mapping):
                raise self.refuse(f"has a service that extends {str(name)[:60]!r}, which is no other service of it")
            seen.append(name)
            node, stated = _merged(base, node), base.get(rows[0].steps[0])
        return node


def _is(form: str, tree: Any) -> bool:
    """Return whether a document has a form: each of its rows ``is`` holds."""

    def holds(row: Row) -> bool:
        values = [value for _, value in find(tree, row.steps) if value is not None]
        if row.value:
            return any(value in row.value.split() for value in values if isinstance(value, str))
        return any(isinstance(value, str | list | dict) for value in values)

    return all(holds(row) for row in rows_of(form) if row.field == "is")


def _has_image(node: Any) -> bool:
    return isinstance(node, Mapping) and isinstance(node.get("image"), str)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in own.items():
        both = isinstance(value, Mapping) and isinstance(base.get(name), Mapping)
        merged[name] = _merged(base[name], value) if both else value
    return merged


def _sizes(node: Any, known: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield what an object says of sizes at places that are not read: numbers by name, and options of commands."""
    pattern = _size_pattern()

    def is_read(place: tuple[Any, ...]) -> bool:
        return any(_reaches(steps, place) for steps in known) or any(str(key).startswith("x-") for key in place)

    for place, value in find(node, ("**",)):
        words = value if isinstance(value, list) else [value]
        if not place or isinstance(place[-1], int) or any(isinstance(word, list | dict) for word in words):
            continue
        text = " ".join(map(str, words))
        is_number = not isinstance(value, bool | list) and text.isdigit() and pattern.search(str(place[-1]))
        is_command = _OPTION.search(text) and pattern.search(text)
        if (is_number or is_command) and not is_read(place):
            yield f"{'.'.join(map(str, place))}: {' '.join(redacted_words(text.split()))[:200]}"


def _reaches(steps: Sequence[str], place: Sequence[Any]) -> bool:
    """Return whether what stands at a place is read by a path: at its end, or below it."""
    fixed = steps[: steps.index("**")] if "**" in steps else steps
    same = all(step in ("*", str(key)) for step, key in zip(fixed, place, strict=False))
    named = {step for step in steps[len(fixed) + 1 :] if step != "*"}
    return len(fixed) <= len(place) and same and named <= set(map(str, place))


@cache
def _size_pattern() -> re.Pattern[str]:
    return re.compile("|".join(row.path for row in all_rows() if row.field == "size"))
