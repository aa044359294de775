"""Evaluates expressions over columns: JAX over blocks of BLOCK_ROWS rows, numpy over tables that fill no block.

An expression is a function ``f(xp, *arguments) -> dict of arrays`` of elementwise operations of ``xp``: one text for
both. Both compute in float64 and round the results well above its noise, so that a row gives the same bytes with
either, and in any batch of rows. JAX compiles one executable for each variant of an expression (which columns there
are, and the shapes of what all rows read); it is kept on disk, as loading takes a twentieth of the time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from kernelsight.caches.disk_cache import cached_for_program
from kernelsight.catalog import tables as catalog
from kernelsight.dataflow.blas import one_blas_thread

# benches/speed.py: compiled code took 1.5 to 1.9 times as long on blocks of 65,536 rows
BLOCK_ROWS = 16_384
OFF_TIES = 1.0 + 2.0**-29
# compiled code by expression and variant; one thread compiles at a time
_executables: dict[tuple[str, str], Callable[..., dict[str, Any]]] = {}
_compiling = threading.Lock()


def to_grid(values: Any) -> Any:
    """Round to the 24 significant bits of float32 (6e-8 of the value).

    numpy and compiled code differ in the last bits of float64, some ten million times finer. Values exactly half way
    between two grid points, as round sizes over round rates give, are first moved to one side.
    """
    return (values * OFF_TIES).astype(np.float32)


def evaluate(
    name: str,
    expression: Callable[..., dict[str, Any]],
    rows: int,
    columns: Mapping[str, np.ndarray],
    *shared: Any,
) -> dict[str, np.ndarray]:
    """Run ``expression(xp, columns, *shared)`` over ``rows`` rows; return float64 arrays of shape (rows,), rounded.

    ``name``: of the expression, for its executables; ``columns``: arrays of length ``rows``; ``shared``: pytrees of
    arrays or numbers that every row reads. Rounding: :func:`to_grid`.
    """
    if rows < BLOCK_ROWS:
        with one_blas_thread():
            results = expression(np, columns, *shared)
        return {each: to_grid(np.broadcast_to(values, (rows,))).astype(float) for each, values in results.items()}
    return _by_blocks(name, expression, rows, columns, shared)


def _by_blocks(
    name: str, expression: Callable[..., Any], rows: int, columns: Mapping[str, np.ndarray], shared: tuple
) -> dict[str, np.ndarray]:
    """Return the results of JAX over blocks of rows, of which the last ends with the last row, on several threads."""
    import jax

    results: dict[str, np.ndarray] = {}
    starts = [*range(0, rows - BLOCK_ROWS, BLOCK_ROWS), rows - BLOCK_ROWS]
    with jax.enable_x64(True):
        every_block = jax.device_put(jax.tree.leaves(shared))
        arguments = ({each: values[:BLOCK_ROWS] for each, values in columns.items()}, *shared)
        executable = _executable(name, expression, arguments)

    def run(start: int) -> None:
        block = slice(start, start + BLOCK_ROWS)
        with jax.enable_x64(True):
            leaves = jax.tree.leaves({each: values[block] for each, values in columns.items()})
            for each, values in executable(*leaves, *every_block).items():
                results.setdefault(each, np.empty(rows))[block] = np.asarray(values)

    run(starts[0])
    with ThreadPoolExecutor(min(len(starts), os.cpu_count() or 1)) as pool:
        list(pool.map(run, starts[1:]))
    return results


def _executable(name: str, expression: Callable[..., Any], arguments: tuple) -> Callable[..., dict[str, Any]]:
    """Return an expression compiled for arguments of these shapes: of this process, from the disk, or compiled now.

    It takes the leaves of its arguments, and returns arrays (BLOCK_ROWS,) of float32.
    """
    import jax
    from jax.experimental import serialize_executable

    leaves, tree = jax.tree.flatten(arguments)
    shapes = [(np.shape(leaf), np.result_type(leaf).name) for leaf in leaves]
    variant = f"{jax.__version__} {jax.devices()[0].device_kind} {os.environ.get('XLA_FLAGS')} {tree} {shapes}"

    def blocks(*leaves: Any) -> dict[str, Any]:
        results = expression(jax.numpy, *jax.tree.unflatten(tree, leaves))
        return {each: to_grid(jax.numpy.broadcast_to(values, BLOCK_ROWS)) for each, values in results.items()}

    def compiled() -> tuple | None:
        _executables[name, variant] = jax.jit(blocks).lower(*leaves).compile()
        kept = serialize_executable.serialize(_executables[name, variant])
        # what JAX itself loaded from its cache is not whole when it is written again
        return kept if loaded(kept) else None

    def loaded(kept: tuple | None) -> Callable[..., dict[str, Any]] | None:
        with contextlib.suppress(Exception):  # whatever a library raises that cannot run what it wrote
            executable = serialize_executable.deserialize_and_load(*kept)
            jax.block_until_ready(executable(*leaves))
            return executable
        return None

    with _compiling:
        if (name, variant) not in _executables:
            kept = cached_for_program(catalog.program(), f"executable {name} {variant}", compiled)
            if (name, variant) not in _executables and (executable := loaded(kept)):
                _executables[name, variant] = executable
            elif (name, variant) not in _executables:
                compiled()
        return _executables[name, variant]
