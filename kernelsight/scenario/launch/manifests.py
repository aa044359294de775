"""Reads YAML manifests of containers (Kubernetes, Docker Compose) and checks the types of the fields that matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kernelsight.files.bounded_files import Refuse
from kernelsight.files.bounded_values import parse_yaml


def read_manifest(text: str, refuse: Refuse) -> list[Any]:
    """Return the documents of a manifest; raise the error of ``refuse`` for invalid YAML or a field of a wrong type.

    >>> from kernelsight.errors import InvalidInput
    >>> read_manifest("{image: vllm/vllm-openai, args: 5}", lambda problem: InvalidInput(f"the launch text {problem}."))
    Traceback (most recent call last):
    kernelsight.errors.InvalidInput: the launch text has a container whose args is no text and no list of texts.
    """
    documents = parse_yaml(text, refuse)
    for container in _containers(documents):
        for name, value in _fields(container):
            is_sound, expected = _EXPECTED[name]
            if value is not None and not is_sound(value):
                raise refuse(f"has a container whose {name} is {expected}")
    return documents


def _containers(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects with an image."""
    if isinstance(node, Mapping) and isinstance(node.get("image"), str):
        yield node
    elif isinstance(node, list | Mapping):
        for inner in node if isinstance(node, list) else node.values():
            yield from _containers(inner)


def _fields(container: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a container that are read, and the limits within its resources."""
    yield from ((name, container.get(name)) for name in _EXPECTED if name != "limits")
    resources = container.get("resources")
    if isinstance(resources, Mapping):
        yield "limits", resources.get("limits")


def _are_words(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and not any(isinstance(item, list | dict) for item in value)
    )


def _are_variables(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and all(isinstance(item, str | Mapping) for item in value)
    )


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


_WORDS = (_are_words, "no text and no list of texts")
_VARIABLES = (_are_variables, "no list of variables and no mapping of names and values")
_MAPPING = (_is_mapping, "no mapping")
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{"command": _WORDS, "args": _WORDS, "env": _VARIABLES, "environment": _VARIABLES},
    **{"resources": _MAPPING, "limits": _MAPPING},
}
