"""Checks of Python arguments: a value of a wrong type raises InvalidInput with one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.scenario.objectives import parse_objectives


def one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise InvalidInput for a value that is none of the choices.

    >>> one_of("fit", "host", ("none", "host"))
    """
    if value not in choices:
        raise InvalidInput(f"{name} is {value!r}; give one of {', '.join(choices)}.")


def mapping_of(name: str, value: Any, example: str) -> dict[str, Any]:
    """Return a mapping as a dict, None as an empty one; InvalidInput for anything else.

    >>> mapping_of("stated", None, "{'request_rate': 4}"), mapping_of("search", {"quantization": None}, "")
    ({}, {'quantization': None})
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} is {value!r}; give a mapping such as {example}.")
    return dict(value)


def values_of(search: Any) -> dict[str, list[Any]]:
    """Return the values to search, as a list for each flag; InvalidInput: no mapping.

    >>> values_of({"quantization": "fp8", "max_num_seqs": [64, 128]})
    {'quantization': ['fp8'], 'max_num_seqs': [64, 128]}
    """
    mapping = mapping_of("search", search, "{'quantization': [None, 'fp8']}")
    return {name: list(value) if isinstance(value, list | tuple) else [value] for name, value in mapping.items()}


def goodput_of(goodput: Any) -> dict[str, float]:
    """Return goodput objectives per request from a mapping, or from text as --goodput takes it, in ms.

    >>> goodput_of("ttft:500 tpot:40"), goodput_of({"goodput_ttft_ms": 500.0})
    ({'goodput_ttft_ms': 500.0, 'goodput_tpot_ms': 40.0}, {'goodput_ttft_ms': 500.0})
    """
    if isinstance(goodput, str):
        return parse_objectives(goodput.split())
    return mapping_of("goodput", goodput, "{'goodput_ttft_ms': 500.0}")
