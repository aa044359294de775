"""One operation for each field of ``deployment_shapes``: what a value at a row's path adds to a role."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kernelsight.files.bounded_files import Refuse
from kernelsight.files.redaction import redacted_text, redacted_tree, redacted_variable
from kernelsight.files.shell_words import split_commands
from kernelsight.scenario.launch.shape_table import Role, Row, rows_of
from kernelsight.scenario.launch.variables import expanded, expanded_words

GPUS_FOLLOW = "the number of GPUs follows from the parallel sizes"
_SCHEME = re.compile(r"^(?:hf|hf-hub|huggingface|ollama|modelscope)://")
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrtllm": "trtllm"}


class At(NamedTuple):
    """Where a value stands: its row, its path as text, what makes errors, and the files that its documents hold."""

    row: Row
    place: str
    refuse: Refuse
    texts: dict[str, str]


Operation = Callable[[Role, At, Any], Role]


def _split(value: Any) -> list[str]:
    return [word for words in split_commands(str(value)) for word in words]


def _words_of(role: Role, at: At, value: Any) -> list[str]:
    if isinstance(value, str):
        return _split(expanded(value.replace("$$", "$"), role.known))
    if not isinstance(value, list) or any(isinstance(item, list | dict) for item in value):
        raise at.refuse(f"has a container whose {at.row.steps[-1]} is no text and no list of texts")
    words = [str(word).lower() if isinstance(word, bool) else str(word).replace("$$", "$") for word in value]
    return expanded_words(words, role.known)


def _with_words(role: Role, words: list[str]) -> Role:
    return role.with_fact(arguments=[*role.facts.get("arguments", []), *words])


def _environment(role: Role, at: At, value: Any) -> Role:
    """Kubernetes's list of names and values, Compose's mapping or list of a=b, or the words of a unit file."""
    if isinstance(value, str):
        value = _split(value)
    elif isinstance(value, list) and at.row.form in ("unit", "quadlet", "supervisor_program"):
        value = [word for line in value for word in _split(str(line).replace('",', '" '))]
    found: dict[Any, Any] = dict(value) if isinstance(value, Mapping) else {}
    if not isinstance(value, list | Mapping) or not all(isinstance(item, str | Mapping) for item in value):
        raise at.refuse(
            f"has a container whose {at.row.steps[-1]} is no list of variables and no mapping of names and values"
        )
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            found[str(item.get("name"))] = item.get("value")
        else:
            name, equals, setting = item.partition("=")
            found[name] = setting if equals else None
    known = role.known
    for name, setting in found.items():
        if setting is not None:
            text = str(setting).lower() if isinstance(setting, bool) else str(setting)
            known[str(name)] = redacted_variable(str(name), expanded(text, known))
    return role._replace(environment={name: known[name] for name in known if name not in role.variables})


def _words(role: Role, at: At, value: Any) -> Role:
    """Variables whose value is words of the command."""
    known = _environment(role, at, value).environment
    return _with_words(role, [word for name in at.row.value.split() for word in _split(known.get(name, ""))])


def _variables(role: Role, at: At, value: Any) -> Role:
    """Variables that the platform sets: name=value, or names of the number at the path (``gpu:h100:8``)."""
    number = re.search(r"\d+", str(value).rpartition(":")[2]) if isinstance(value, int | str) else None
    pairs = {name: text or number[0] for name, text in at.row.pairs.items() if text or number}
    return role._replace(variables={**role.variables, **pairs})


def _image(role: Role, at: At, value: Any) -> Role:
    if isinstance(value, Mapping):
        role = role.with_fact(tag=role.text(value["tag"])) if value.get("tag") else role
        value = value.get("repository") or ""
    text = role.text(value)
    text = text.rpartition("FROM ")[2].split()[0] if "FROM " in text else text  # a Dockerfile within the file
    return role.with_fact(image=redacted_text(text))


def _options(role: Role, at: At, value: Any) -> Role:
    """A mapping whose names are options of the engine, in any spelling."""
    if not isinstance(value, Mapping):
        raise at.refuse(f"has {at.place}, which is no mapping of options")
    depth = len(at.row.steps)
    others = [other.steps for other in rows_of(at.row.form) if len(other.steps) > depth]
    read_elsewhere = {steps[depth] for steps in others if steps[:depth] == at.row.steps}
    found = {str(name): item for name, item in redacted_tree(value).items() if name not in read_elsewhere}
    return role._replace(options=(*role.options, *((name, _filled(role, item)) for name, item in found.items())))


def _filled(role: Role, value: Any) -> Any:
    return role.text(value) if isinstance(value, str) else value


def _model(role: Role, at: At, value: Any) -> Role:
    text = redacted_text(role.text(value))
    if _SCHEME.match(text):
        text = re.split("[:@?]", _SCHEME.sub("", text))[0]
    return role.with_fact(**{at.row.field: text})


def _gpu(role: Role, at: At, value: Any) -> Role:
    prefix = at.row.value or ""
    names = list(value) if isinstance(value, Mapping) else [value] if isinstance(value, str | int) else []
    texts = [role.text(name) for name in names]
    label = next((step for step in at.row.steps if step != "**"), "")
    found = [(label, text.removeprefix(prefix)) for text in texts if text.startswith(prefix)]
    return role.with_fact(gpu=tuple(dict.fromkeys((*role.facts.get("gpu", ()), *found))))


def _replicas(role: Role, at: At, value: Any) -> Role:
    is_number = isinstance(value, int | str) and not isinstance(value, bool)
    return role.with_fact(replicas=_filled(role, value)) if is_number else role


def _nodes(role: Role, at: At, value: Any) -> Role:
    number = role.text(value)
    role = role._replace(variables={**role.variables, **dict.fromkeys((at.row.value or "").split(), number)})
    return role.with_fact(nodes=number).noted(f"{at.place}: {number}", "none", f"nodes of each replica: {GPUS_FOLLOW}")


def _resources(role: Role, at: At, value: Any) -> Role:
    """Resources of a container: each limit is listed."""
    listed = {at.place: str(value)[:80]}
    if at.row.steps == ("resources",):
        if not isinstance(value, Mapping):
            raise at.refuse("has a container whose resources is no mapping")
        listed = value.get("limits") if value.get("limits") is not None else {}
        if not isinstance(listed, Mapping):
            raise at.refuse("has a container whose limits is no mapping")
    for name, number in listed.items():
        role = role.noted(redacted_text(f"{name}: {number}"), "none", GPUS_FOLLOW)
    return role


def _engine(role: Role, at: At, value: Any) -> Role:
    if not at.row.steps:
        return role.with_fact(engine=at.row.value)
    text = re.sub("[-_]", "", str(value).lower())
    return role.with_fact(engine=next((own for name, own in (_ENGINES | at.row.pairs).items() if name in text), None))


def _role(role: Role, at: At, value: Any) -> Role:
    named = [name for name in ("prefill", "decode") if name in str(value).lower()]
    return role.with_fact(role=named[0]) if len(named) == 1 else role


def _text(role: Role, at: At, value: Any) -> Role:
    """A file within a document: commands may name it."""
    if isinstance(value, str) and not at.row.written:
        at.texts[at.place.partition(".")[2].removesuffix(".content")] = value
    return role


def _mounted(role: Role, at: At, value: Any) -> Role:
    """A file of the document under the name at which the container has it."""
    if isinstance(value, Mapping) and value.get("source") in at.texts and isinstance(value.get("target"), str):
        at.texts[value["target"].rpartition("/")[2]] = at.texts[value["source"]]
    return role


# forms whose tag is the engine's version
OF_ENGINE = ("dynamo_service", "options")
OPERATIONS: dict[str, Operation] = {
    "name": lambda role, at, value: role.named(redacted_text(role.text(value))),
    "role": _role,
    "engine": _engine,
    "image": _image,
    "tag": lambda role, at, value: role.with_fact(tag=role.text(value), tag_is_engine=at.row.form in OF_ENGINE),
    "words": _words,
    "entrypoint": lambda role, at, value: role.with_fact(entrypoint=_words_of(role, at, value)),
    "arguments": lambda role, at, value: _with_words(role, _words_of(role, at, value)),
    "shell": lambda role, at, value: role.with_fact(
        shell="\n".join(map(str, value)) if isinstance(value, list) else str(value)
    ),
    "environment": _environment,
    "variables": _variables,
    "options": _options,
    "option": lambda role, at, value: role._replace(options=(*role.options, (at.row.value, _filled(role, value)))),
    "renamed": lambda role, at, value: role.with_fact(renamed=at.row.pairs),
    "model": _model,
    "served_model": _model,
    "gpu": _gpu,
    "replicas": _replicas,
    "nodes": _nodes,
    "enabled": lambda role, at, value: role.with_fact(enabled=value not in (False, "false")),
    "profile": lambda role, at, value: role.with_fact(profile=(*role.facts.get("profile", ()), str(value))),
    "resources": _resources,
    "elsewhere": lambda role, at, value: role.noted(
        redacted_text(f"{at.place}: {str(value)[:80]}"), "not_modelled", at.row.value
    ),
    "text": _text,
    "mounted": _mounted,
    "template": lambda role, at, value: role.with_fact(template=str(value)),
    "like": lambda role, at, value: role.with_fact(like=(*role.facts.get("like", ()), str(value))),
}
