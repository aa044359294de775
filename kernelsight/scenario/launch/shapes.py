"""Reads the roles of a deployment out of documents, by the table ``deployment_shapes``; a role may start a server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from kernelsight.catalog.tables import facts
from kernelsight.files.bounded_files import Refuse
from kernelsight.files.redaction import redacted_text, redacted_tree, redacted_variable, redacted_words
from kernelsight.files.shell_words import split_commands
from kernelsight.scenario.launch.documents import read_documents
from kernelsight.scenario.launch.variables import expanded, expanded_words

# most documents within documents
MOST_NESTED = 4
GPUS_FOLLOW = "the number of GPUs follows from the parallel sizes"
_STEP = re.compile(r"\[([^\[\]]+)\]|([^.\[\]]+)")
_OPTION = re.compile(r"(?:^|\s)--?[A-Za-z]")
_SCHEME = re.compile(r"^(?:hf|hf-hub|huggingface|ollama|modelscope)://")


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

    def text(self, value: Any) -> str:
        """Return a value as text, with the variables of the role filled in."""
        return expanded(str(value), {**self.variables, **self.environment})

    def noted(self, words: str, effect: str, reason: str) -> Role:
        """Return the role with one more note."""
        return self._replace(notes=(*self.notes, (words, effect, reason)))

    def with_fact(self, **fact: Any) -> Role:
        """Return the role with one more fact."""
        return self._replace(facts=self.facts | fact)


@cache
def rows_of(form: str) -> tuple[Row, ...]:
    """Return the rows of a form."""
    return tuple(row for row in _rows() if row.form == form)


@cache
def _rows() -> tuple[Row, ...]:
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
    return tuple(dict.fromkeys(row.form for row in _rows() if row.field == "is"))


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


def read_roles(text: str, refuse: Refuse, options_engine: Callable[[Mapping], str | None]) -> list[Role]:
    """Return the roles of a launch text; ``refuse`` makes the error for what cannot be read.

    ``options_engine``: the engine whose options a mapping holds, or None.
    """
    reader = _Reader(refuse, options_engine)
    roles = [role for document in read_documents(text, refuse) for role in reader.document(document, Role({}))]
    return [role._replace(texts=reader.texts) for role in roles]


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
        shapes = [row for row in rows_of(form) if row.field in ("shape", "document")]
        base = next((row for row in rows_of(form) if row.field == "base"), None)
        if base and isinstance(node, Mapping) and base.steps[0] in node:
            role, node = self._with_base(role, node, base, outer)
        # variables and the environment first: they fill in what the other fields hold
        order = sorted(rows_of(form), key=lambda row: row.field not in ("environment", "variables", "nodes"))
        for row in order:
            if row.field in ("is", "shape", "document", "base"):
                continue
            for place, value in find(node, row.steps):
                if value is not None:
                    role = OPERATIONS[row.field](self, role, row, place, value)
        read = [row.steps for row in rows_of(form) if row.steps or row.field == "options"]
        inside = [(row, place, inner) for row in shapes for place, inner in find(node, row.steps)]
        misplaced = {
            str(place[-1]): inner
            for row, place, inner in inside
            if row.field == "shape" and not isinstance(inner, dict)
        }
        for words in [*_sizes(node, read), *_sizes(misplaced, ())]:
            role = role.noted(words, "not_modelled", "a size at a place that is not read")
        if not shapes:
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

    def _with_base(self, role: Role, node: Any, row: Row, outer: Any) -> tuple[Role, Any]:
        """Return an object with what it extends, as Compose merges them; its own fields have precedence."""
        siblings, seen = outer[0].get(row.value, {}), []
        chain = [node]
        while isinstance(chain[0], Mapping) and row.steps[0] in chain[0]:
            stated = chain[0][row.steps[0]]
            name = stated.get("service") if isinstance(stated, Mapping) else stated
            if isinstance(stated, Mapping) and stated.get("file"):
                raise self.refuse(
                    "has a service that extends one of another file: give the output of docker compose config"
                )
            if name in seen or not isinstance(siblings.get(name), Mapping):
                raise self.refuse(
                    f"has a service that extends {str(name)[:60]!r}, which is no other service of the file"
                )
            seen.append(name)
            chain.insert(0, siblings[name])
            node = _merged(siblings[name], node)
        return role, node


_WITH_NODES = {"leader_worker_set", "rbg_role", "inference_service"}


def _is(form: str, tree: Any) -> bool:
    """Return whether a document has a form: each of its rows ``is`` holds."""

    def holds(row: Row) -> bool:
        values = [value for _, value in find(tree, row.steps) if value is not None]
        if row.value:
            return any(value in row.value.split() for value in values if isinstance(value, str))
        return bool(values)

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
        is_number = not isinstance(value, bool | list) and text.isdigit() and pattern.search(place[-1])
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
    return re.compile("|".join(row.path for row in _rows() if row.field == "size"))


# --- one function for each field of the table: (reader, role, row, place, value) → role ---


def _words_of(reader: _Reader, role: Role, row: Row, value: Any) -> list[str]:
    if isinstance(value, str):
        text = expanded(value.replace("$$", "$"), {**role.variables, **role.environment})
        return [word for words in split_commands(text) for word in words]
    if not isinstance(value, list) or any(isinstance(item, list | dict) for item in value):
        raise reader.refuse(f"has a container whose {row.steps[-1]} is no text and no list of texts")
    words = [str(word).lower() if isinstance(word, bool) else str(word).replace("$$", "$") for word in value]
    return expanded_words(words, {**role.variables, **role.environment})


def _entrypoint(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    return role.with_fact(entrypoint=_words_of(reader, role, row, value))


def _arguments(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    return role.with_fact(arguments=[*role.facts.get("arguments", []), *_words_of(reader, role, row, value)])


def _shell(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    lines = [str(line) for line in value] if isinstance(value, list) else [value]
    return role.with_fact(shell="\n".join(map(str, lines)))


def _environment(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    """Kubernetes's list of names and values, or Compose's mapping or list of a=b."""
    found: dict[str, Any] = {}
    if isinstance(value, str):
        value = [word for words in split_commands(value) for word in words]
    elif isinstance(value, list) and place and str(place[0]) in ("Service", "Container"):
        value = [word for line in value for words in split_commands(line) for word in words]
    if isinstance(value, Mapping):
        found, value = dict(value), []
    elif not isinstance(value, list) or not all(isinstance(item, str | Mapping) for item in value):
        raise reader.refuse(
            f"has a container whose {row.steps[-1]} is no list of variables and no mapping of names and values"
        )
    for item in value:
        if isinstance(item, Mapping) and item.get("value") is not None:
            found[str(item.get("name"))] = item["value"]
        elif isinstance(item, str):
            name, equals, setting = item.partition("=")
            found[name] = setting if equals else None
    known = {**role.variables, **role.environment}
    for name, setting in found.items():
        if setting is not None:
            text = str(setting).lower() if isinstance(setting, bool) else str(setting)
            known[str(name)] = redacted_variable(str(name), expanded(text, known))
    return role._replace(environment={name: known[name] for name in known if name not in role.variables})


def _variables(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    """Variables that the platform sets: name=value, or names of what stands at the path."""
    numbers = re.findall(r"\d+", str(value).rpartition(":")[2]) if isinstance(value, int | str) else []
    pairs = {name: text for name, text in row.pairs.items() if text}
    names = [name for name in (row.value or "").split() if "=" not in name] if numbers else []
    return role._replace(variables={**role.variables, **pairs, **dict.fromkeys(names, numbers[0] if numbers else "")})


def _image(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    if isinstance(value, Mapping):
        role = role.with_fact(tag=role.text(value["tag"])) if value.get("tag") else role
        value = value.get("repository") or ""
    return role.with_fact(image=redacted_text(role.text(value)))


def _options(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    """A mapping whose names are options of the engine, in any spelling."""
    if not isinstance(value, Mapping):
        raise reader.refuse(f"has {'.'.join(map(str, place))}, which is no mapping of options")
    depth = len(row.steps)
    others = [other.steps for other in rows_of(row.form) if len(other.steps) > depth]
    inner = {steps[depth] for steps in others if steps[:depth] == row.steps}
    found = {str(name): item for name, item in redacted_tree(value).items() if name not in inner}
    filled = [(name, role.text(item) if isinstance(item, str) else item) for name, item in found.items()]
    return role._replace(options=(*role.options, *filled))


def _option(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    return role._replace(options=(*role.options, (row.value, role.text(value) if isinstance(value, str) else value)))


def _model(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    text = redacted_text(role.text(value))
    if _SCHEME.match(text):
        text = _SCHEME.sub("", text).partition(":")[0].partition("@")[0].partition("?")[0]
    return role.with_fact(**{row.field: text})


def _gpu(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    prefix, names = row.value or "", []
    if isinstance(value, Mapping):
        names = [str(name) for name in value]
    elif isinstance(value, str | int):
        text = role.text(value)
        names = [text.removeprefix(prefix)] if text.startswith(prefix) else []
    label, before = next((step for step in row.steps if step != "**"), ""), role.facts.get("gpu", ())
    return role.with_fact(gpu=tuple(dict.fromkeys((*before, *((label, name) for name in names)))))


def _replicas(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    text = role.text(value) if isinstance(value, str) else value
    return role.with_fact(replicas=text) if isinstance(text, int | str) and not isinstance(text, bool) else role


def _nodes(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    number = role.text(value)
    role = role._replace(variables={**role.variables, **dict.fromkeys((row.value or "").split(), number)})
    words = f"{'.'.join(map(str, place))}: {number}"
    return role.with_fact(nodes=number).noted(words, "none", f"nodes of each replica: {GPUS_FOLLOW}")


def _resources(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    """Resources of a container: each limit is listed."""
    label = ".".join(map(str, place))
    if row.steps == ("resources",):
        if not isinstance(value, Mapping):
            raise reader.refuse("has a container whose resources is no mapping")
        value = value.get("limits") if value.get("limits") is not None else {}
        if not isinstance(value, Mapping):
            raise reader.refuse("has a container whose limits is no mapping")
        for name, number in value.items():
            role = role.noted(redacted_text(f"{name}: {number}"), "none", GPUS_FOLLOW)
        return role
    return role.noted(redacted_text(f"{label}: {str(value)[:80]}"), "none", GPUS_FOLLOW)


def _elsewhere(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    return role.noted(redacted_text(f"{'.'.join(map(str, place))}: {str(value)[:80]}"), "not_modelled", row.value)


def _name(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    text = redacted_text(role.text(value))
    return role._replace(names=tuple(dict.fromkeys((*role.names, text))))


def _profile(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    return role.with_fact(profile=(*role.facts.get("profile", ()), str(value)))


def _engine(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    if not row.steps:
        return role.with_fact(engine=row.value)
    text = str(value).lower().replace("-", "").replace("_", "")
    named = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrtllm": "trtllm"} | row.pairs
    engine = next((engine for name, engine in named.items() if name in text), None)
    return role.with_fact(engine=engine) if engine else role.with_fact(other_engine=str(value))


def _role(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    text = str(value).lower()
    known = next((name for name in ("prefill", "decode") if name in text), None)
    return role.with_fact(role=known) if known and not ("prefill" in text and "decode" in text) else role


def _enabled(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    return role.with_fact(enabled=value not in (False, "false"))


def _tag(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    return role.with_fact(tag=role.text(value), tag_is_engine=row.form == "dynamo_service")


def _words(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    """Variables whose value is words of the command."""
    known = _environment(reader, role, row, place, value).environment
    words = [word for name in row.value.split() for word in _words_of(reader, role, row, known.get(name, ""))]
    return role.with_fact(arguments=[*role.facts.get("arguments", []), *words])


def _renamed(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    return role.with_fact(renamed=row.pairs)


def _text(reader: _Reader, role: Role, row: Row, place: tuple, value: Any) -> Role:
    """A file within a document: commands may name it."""
    if isinstance(value, str) and not row.written:
        reader.texts[str(place[-1])] = value
    return role


OPERATIONS: dict[str, Callable[[_Reader, Role, Row, tuple, Any], Role]] = {
    "name": _name,
    "role": _role,
    "engine": _engine,
    "image": _image,
    "tag": _tag,
    "words": _words,
    "entrypoint": _entrypoint,
    "arguments": _arguments,
    "shell": _shell,
    "environment": _environment,
    "variables": _variables,
    "options": _options,
    "option": _option,
    "renamed": _renamed,
    "model": _model,
    "served_model": _model,
    "gpu": _gpu,
    "replicas": _replicas,
    "nodes": _nodes,
    "enabled": _enabled,
    "profile": _profile,
    "resources": _resources,
    "elsewhere": _elsewhere,
    "text": _text,
}
