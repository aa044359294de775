"""Measures candidates on the local GPU by CuPy: compiles their source, launches, times, and checks the result.

The launch is a JSON file: kernel, problem_size, arguments; optionally source, grid_divisors, shared_bytes, options,
expected, samples. A candidate's parameters are macros for the compiler, and give the block (block_size_x, _y, _z).
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import check_file, read_text
from kernelsight.files.bounded_values import read_json
from kernelsight.files.own import own_json
from kernelsight.searching.measurers import measurement_rows

FIELDS = {
    "kernel": str,
    "problem_size": list,
    "arguments": list,
    "source": str,
    "grid_divisors": list,
    "shared_bytes": int,
    "options": list,
    "expected": dict,
    "samples": int,
}
REQUIRED = ("kernel", "problem_size", "arguments")
BLOCK = ("block_size_x", "block_size_y", "block_size_z")
SAMPLES, WARM_UPS = 32, 3
DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class Launch(NamedTuple):
    """The launch of a search space's kernel; ``expected``: index of the output argument, its values, tolerance."""

    kernel: str
    problem_size: tuple[int, ...]
    grid_divisors: tuple[tuple[str, ...], ...]
    arguments: tuple[Mapping[str, Any], ...]
    source: str | None
    shared_bytes: int
    options: tuple[str, ...]
    expected: tuple[int, np.ndarray, float] | None
    samples: int


def read_launch(path: Path) -> Launch:
    """Read a launch from a JSON file; InvalidInput: it cannot be read, or a field is missing or invalid."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"--launch {path} {problem}; --measure cupy needs a JSON file that says how to launch.")

    fields = read_json(path, refuse)
    if not isinstance(fields, dict):
        raise InvalidInput(f"--launch {path} is no object; give one with {', '.join(REQUIRED)}.")
    missing = [name for name in REQUIRED if name not in fields]
    wrong = [name for name, field_type in FIELDS.items() if name in fields and not isinstance(fields[name], field_type)]
    extra = sorted(set(fields) - set(FIELDS))
    for names, text in ((missing, "lacks"), (extra, "has unknown fields:"), (wrong, "has the wrong type in")):
        if names:
            raise InvalidInput(f"--launch {path} {text} {', '.join(names)}; its fields are {', '.join(FIELDS)}.")
    sizes = fields["problem_size"]
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InvalidInput(f"--launch {path}: problem_size is {sizes!r}; give one to three whole numbers above 0.")
    for argument in fields["arguments"]:
        _check_argument(argument, path)
    expected = fields.get("expected")
    return Launch(
        fields["kernel"],
        tuple(sizes),
        tuple(map(tuple, fields.get("grid_divisors", [[name] for name in BLOCK[: len(sizes)]]))),
        tuple(fields["arguments"]),
        _source(path, fields["source"]) if "source" in fields else None,
        fields.get("shared_bytes", 0),
        tuple(fields.get("options", ())),
        None if expected is None else _expected(expected, len(fields["arguments"]), path),
        max(1, fields.get("samples", SAMPLES)),
    )


def _source(path: Path, name: str) -> str:
    file = path.parent / name
    return read_text(file, lambda problem: InvalidInput(f"--launch {path}: the source {file} {problem}."))


def _check_argument(argument: Any, path: Path) -> None:
    has_dtype = isinstance(argument, dict) and argument.get("dtype") in DTYPES
    if not has_dtype or ("value" not in argument and not isinstance(argument.get("size"), int)):
        raise InvalidInput(
            f"--launch {path}: the argument {json.dumps(argument)} needs a dtype ({', '.join(DTYPES[:3])}, ...) and a "
            "value, or the size of an array."
        )


def _expected(expected: Mapping[str, Any], arguments: int, path: Path) -> tuple[int, np.ndarray, float]:
    argument = expected.get("argument")
    if not isinstance(argument, int) or not 0 <= argument < arguments or not isinstance(expected.get("file"), str):
        raise InvalidInput(f"--launch {path}: expected needs argument (0 to {arguments - 1}) and file, a .npy array.")
    file = path.parent / expected["file"]

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"--launch {path}: the file of expected values {file} {problem}.")

    check_file(file, refuse)
    try:
        return argument, np.load(file, allow_pickle=False), float(expected.get("tolerance", 1e-3))
    except (ValueError, TypeError, EOFError, OSError, MemoryError) as error:
        raise refuse(f"cannot be read ({error})") from None


def measure_with_cupy(candidates: pa.Table, launch: Launch) -> pa.Table:
    """Measure rows of ``kernel_candidates`` on the local GPU; return rows of ``kernel_measurements``.

    InvalidInput: no CuPy, no source to compile, or a parameter that the grid needs is missing.
    """
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        raise InvalidInput("--measure cupy needs CuPy; install cupy-cuda12x on a machine with a GPU.") from None
    arrays = [_array(cupy, argument) for argument in launch.arguments]
    rows = [_measured(cupy, row, launch, arrays) for row in candidates.to_pylist()]
    return measurement_rows(rows, "cupy")


def _array(cupy: Any, argument: Mapping[str, Any]) -> Any:
    """Return a kernel argument: a scalar, or an array of zeros or of reproducible random values."""
    if "value" in argument:
        return getattr(np, argument["dtype"])(argument["value"])
    values = np.zeros(argument["size"])
    if argument.get("fill") == "random":
        values = np.random.default_rng(0).random(argument["size"])
    return cupy.asarray(values.astype(argument["dtype"]))


def _measured(cupy: Any, row: Mapping[str, Any], launch: Launch, arrays: Sequence[Any]) -> dict[str, Any]:
    parameters = own_json(row["parameters"])
    key = {"space": row["space"], "candidate_id": row["candidate_id"]}
    text = row["source_text"] if row["source_text"] is not None else launch.source
    if text is None:
        raise InvalidInput(
            f"candidate {row['candidate_id']} has no source_text; name the kernel's file as source in --launch."
        )
    grid, block = shapes_of(launch, parameters, row["candidate_id"])
    started = time.perf_counter()
    try:
        options = (*launch.options, *(f"-D{name}={define(value)}" for name, value in parameters.items()))
        kernel = cupy.RawModule(code=text, options=options, backend="nvrtc").get_function(launch.kernel)
    except cupy.cuda.compiler.CompileException:
        return {**key, "status": "compile_failed", "compile_s": time.perf_counter() - started}
    compiled = time.perf_counter()
    inputs = [value.copy() if hasattr(value, "copy") and value.ndim else value for value in arrays]
    try:
        kernel(grid, block, tuple(inputs), shared_mem=launch.shared_bytes)
        cupy.cuda.Device().synchronize()
        wrong = launch.expected is not None and not _as_expected(cupy, inputs[launch.expected[0]], launch.expected)
        times = [] if wrong else _times(cupy, kernel, grid, block, inputs, launch)
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError):
        return {**key, "status": "runtime_failed", "compile_s": compiled - started}
    seconds = {"compile_s": compiled - started, "benchmark_s": time.perf_counter() - compiled}
    if wrong:
        return {**key, "status": "wrong_result", **seconds}
    spread = statistics.stdev(times) / statistics.mean(times) if len(times) > 1 else None
    return {
        **key,
        **seconds,
        "status": "ok",
        "latency_us": statistics.median(times),
        "cv": spread,
        "samples": len(times),
    }


def shapes_of(launch: Launch, parameters: Mapping[str, Any], candidate: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (grid, block): the grid is each side of the problem over the product of its divisors, rounded up.

    InvalidInput: the candidate lacks a parameter that is a divisor.
    """
    missing = [name for names in launch.grid_divisors for name in names if name not in parameters]
    if missing:
        raise InvalidInput(f"--launch divides the grid by {missing[0]}, which candidate {candidate} does not have.")
    products = [math.prod(int(parameters[name]) for name in names) for names in launch.grid_divisors]
    grid = [math.ceil(size / divisor) for size, divisor in zip(launch.problem_size, products, strict=False)]
    grid += list(launch.problem_size[len(grid) :])
    block = tuple(int(parameters.get(name, 1)) for name in BLOCK)
    return (*grid, *(1,) * (3 - len(grid))), block


def define(value: Any) -> str:
    """Return a parameter's value as a macro of the compiler.

    >>> define(True), define(32), define("float4")
    ('1', '32', 'float4')
    """
    return (
        str(int(value))
        if isinstance(value, bool | int) or (isinstance(value, float) and value == int(value))
        else str(value)
    )


def _as_expected(cupy: Any, values: Any, expected: tuple[int, np.ndarray, float]) -> bool:
    return bool(np.allclose(cupy.asnumpy(values), expected[1], rtol=expected[2], atol=expected[2]))


def _times(cupy: Any, kernel: Any, grid: Any, block: Any, inputs: Sequence[Any], launch: Launch) -> list[float]:
    """Return the time of each launch in us, between two events."""
    times_us = []
    for number in range(WARM_UPS + launch.samples):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        kernel(grid, block, tuple(inputs), shared_mem=launch.shared_bytes)
        end.record()
        end.synchronize()
        if number >= WARM_UPS:
            times_us.append(1e3 * float(cupy.cuda.get_elapsed_time(start, end)))
    return times_us
