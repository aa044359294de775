"""Pinned worlds: what a random-world test drew when it failed, as a file that every run of the tests replays.

``python benches/worlds.py`` writes them to ``tests/pinned/``. A file holds the values themselves, not the random
choices that led to them: what is drawn may change, the world stays.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis.errors import HypothesisDeprecationWarning

FOLDER = Path(__file__).resolve().parent / "pinned"
# where the classes of worlds come from: no file names another one
OURS = ("kernelsight.", "tests.")


class PinnedWorld(NamedTuple):
    """``test``: its module and name; ``reason``: how it failed; ``arguments``: what it was given, as JSON spells it."""

    test: str
    reason: str
    arguments: dict[str, Any]


def spelled(value: Any) -> Any:
    """Return a value as JSON holds it: numbers, words, arrays, tuples with and without names, lists and dicts.

    >>> spelled((1, np.array([[2.0]])))
    {'tuple': [1, {'array': 'float64', 'shape': [1, 1], 'values': [2.0]}]}
    """
    if isinstance(value, np.ndarray):
        return {"array": value.dtype.str if value.dtype.names else value.dtype.name, "shape": list(value.shape)} | {
            "values": value.ravel().tolist()
        }
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = {name: spelled(getattr(value, name)) for name in value._fields}
        return {"class": f"{type(value).__module__}:{type(value).__qualname__}", "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [spelled(each) for each in value]}
    if isinstance(value, list):
        return [spelled(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[spelled(key), spelled(each)] for key, each in value.items()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be pinned")


def value_of(spelling: Any) -> Any:
    """Return the value that ``spelled`` wrote; a field that its class has since is as by default.

    >>> value_of(spelled({"gaps": (1.5, None)}))
    {'gaps': (1.5, None)}
    """
    match spelling:
        case {"array": dtype, "shape": shape, "values": values}:
            return np.array(values, dtype).reshape(shape)
        case {"class": name, "fields": fields}:
            module, qualname = name.split(":")
            if not module.startswith(OURS):
                raise ValueError(f"{name} is no class of a world")
            return getattr(importlib.import_module(module), qualname)(
                **{field: value_of(each) for field, each in fields.items()}
            )
        case {"tuple": values}:
            return tuple(value_of(each) for each in values)
        case {"dict": pairs}:
            return {value_of(key): value_of(each) for key, each in pairs}
        case list():
            return [value_of(each) for each in spelling]
    return spelling


def pin(world: PinnedWorld, folder: Path) -> Path:
    """Write a world to a file named by its test and content, and return it."""
    digest = hashlib.sha256(json.dumps([world.test, world.arguments]).encode()).hexdigest()[:8]
    path = folder / f"{world.test.rpartition(':')[2].removeprefix('test_')}-{digest}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(world._asdict()) + "\n", encoding="utf-8")
    return path


def read_world(path: Path) -> PinnedWorld:
    """Return the world of a file."""
    return PinnedWorld(**json.loads(path.read_text(encoding="utf-8")))


def function_of(name: str) -> Callable[..., None]:
    """Return a test by its module and name, as hypothesis made it."""
    module, function = name.split(":")
    if not module.startswith(OURS):
        raise ValueError(f"{name} is no test of ours")
    return getattr(importlib.import_module(module), function)


def replay(world: PinnedWorld) -> None:
    """Run a test on its pinned world; raises what the test raises."""
    inner: Callable[..., None] = function_of(world.test).hypothesis.inner_test  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        # `assume` warns outside hypothesis
        warnings.simplefilter("ignore", HypothesisDeprecationWarning)
        inner(**{name: value_of(each) for name, each in world.arguments.items()})
