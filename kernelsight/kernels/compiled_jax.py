"""Cache on disk of functions that JAX compiled, which saves other processes seconds of tracing and compiling.

An entry is machine code for these versions of program and libraries and for this processor, in a folder that its user
alone can write (:mod:`kernelsight.caches.private_folder`). A damaged entry is compiled again.
"""

from __future__ import annotations

import hashlib
import pickle
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from kernelsight.caches.disk_cache import program_digest, read_cached, write_cached

# these functions run once or twice: more optimisation takes longer than it saves
OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,  # their code takes two to four times as long to compile
}
_ready: dict[tuple, Callable[..., Any]] = {}


def compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``function(*arguments)``, of float64 pytrees, compiled once for their shapes.

    The name of ``function`` is its key in the cache: two functions of one name must be the same.
    """
    import jax

    leaves, tree = jax.tree.flatten(arguments)
    shapes = tuple((getattr(leaf, "shape", ()), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)
    key = (function.__name__, str(tree), shapes)
    with jax.enable_x64(True):
        if key not in _ready:
            _ready[key] = _loaded(key) or _compile(key, function, leaves, tree)
        return _ready[key](leaves)


def _compile(key: tuple, function: Callable[..., Any], leaves: list[Any], tree: Any) -> Callable[..., Any]:
    import jax
    from jax.experimental import serialize_executable

    flat = jax.jit(lambda values: function(*jax.tree.unflatten(tree, values)))
    executable = flat.lower(leaves).compile(OPTIONS)
    write_cached(_name(key), pickle.dumps(serialize_executable.serialize(executable)))
    return executable


def _loaded(key: tuple) -> Callable[..., Any] | None:
    from jax.experimental import serialize_executable

    def decode(content: bytes) -> Callable[..., Any]:
        return serialize_executable.deserialize_and_load(*pickle.loads(content))

    return read_cached(_name(key), decode)


def _name(key: tuple) -> str:
    import jax
    import jaxlib

    words = (_program(), jax.__version__, jaxlib.__version__, str(jax.devices()), _processor(), repr(key))
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


@cache
def _program() -> str:
    return program_digest(Path(__file__).parent)


@cache
def _processor() -> str:
    """Return the model and instruction sets of the processor, which machine code depends on."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else platform.processor()
    return "\n".join(
        sorted({line for line in text.splitlines() if line.startswith(("flags", "Features", "model name"))})
    )
