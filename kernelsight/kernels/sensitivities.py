"""How latencies go with the facts of a GPU: elasticities, by forward-mode differentiation of the expressions with JAX.

A fact is a column of ``gpus``. Every call is a row for each fact that its expression may read, evaluated on its GPU
with that fact as it is, a little less and a little more: one compiled call for all rows of an expression. At the fact
as it is, JAX carries the derivative along; on both sides of it, values show where another limit takes over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.kernels.compiled_jax import compiled
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.hardware import BY_MATH, MATH, hardware_columns
from kernelsight.kernels.latency import columns_read, kernel_of
from kernelsight.kernels.limited_power import PowerLimits, Sides, power_limits
from kernelsight.kernels.network import BY_NODE
from kernelsight.kernels.prepared import (
    Limits,
    Part,
    Prepared,
    factors_of,
    is_cold,
    limited,
    nodes_of_rows,
    parts_of,
    prepared,
    raised,
)
from kernelsight.kernels.pricing import distinct_rows

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

# columns of gpus
FACTS = (
    "memory_bandwidth_bytes_per_s",
    *(f"{math}_flops_per_s" for math in MATH),
    *("sm_clock_hz", "l2_bytes", "tdp_w", "link_bytes_per_s", "pcie_bytes_per_s"),
)
# share of a fact within which a kink is looked for, on both sides of it
STEP = 0.01
# elasticities of the two sides that differ by more are those of different limits
SMOOTH = 0.02
KINKS = (None, "above", "below", "both")
# hardware columns are products of powers of facts: a step this small shows the powers to eight digits
TINY = 1e-6
# of hardware columns: what messages between GPUs read, beside the clock, and no other kernel
LINKS = ("link_", "peak_link_", "pcie_")
CLOCK = "clock_per_us"
SIDES = 3  # at the fact, above it, below it
# rows of one compiled call, the fewest and the most; between them eightfold steps, so that few lengths are compiled
LENGTHS = (4096, 262_144)

_WORDS = ("deployment_id", "call", "fact", "kink")
NO_ROWS = pa.table(
    {name: pa.array([], pa.string()) for name in _WORDS}
    | {"step_shape_id": pa.array([], pa.int64()), "elasticity": pa.array([], pa.float64())}
)


class Moved(NamedTuple):
    """The hardware of each GPU (g) with each fact (f) at each side (s), rows in the order g, f, s; and its tangents.

    ``powers``: d log column / d log fact, shape (GPUs x facts) or (GPUs x facts, maths).
    """

    columns: dict[str, np.ndarray]
    tangents: dict[str, np.ndarray]
    powers: dict[str, np.ndarray]
    states: np.ndarray  # (GPUs, facts): whether the GPU states the fact


def sensitivities_of_families(families: Sequence[str], facts: Sequence[pa.Table], read: Reader) -> pa.Table:
    """Return ``kernel_sensitivities`` of the calls of families; ``facts`` as of ``kernel_sensitivities_of``."""
    tables_of_families = []
    for family in families:
        columns = read.columns_of(f"{family}_calls")
        wanted = {*columns_read(family, columns), "step_shape_id", "call"} - {"gpu", "engine"}
        calls = read(f"{family}_calls", sorted(wanted))
        if calls.num_rows:
            settings = facts[0]
            setting_row = pc.index_in(calls["deployment_id"], settings["deployment_id"].combine_chunks())
            for name in ("gpu", "engine"):
                calls = calls.append_column(name, settings[name].take(setting_row))
            tables_of_families.append(kernel_sensitivities_of(family, calls, facts))
    return pa.concat_tables(tables_of_families) if tables_of_families else NO_ROWS


def kernel_sensitivities_of(family: str, calls: pa.Table, facts: Sequence[pa.Table]) -> pa.Table:
    """Return ``kernel_sensitivities`` of one family's calls: a row for each fact that the GPU of a call states.

    ``facts``: deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations, gpu_power.
    """
    settings, gpus, fabrics, coefficients, implementations, gpu_power = facts
    every_call = prepared(family, calls, settings, gpus, fabrics, coefficients, implementations)
    used = gpus.take(pa.array(np.unique(every_call.columns["gpu"]).astype(np.int64)))
    power = power_limits(family, calls, settings, used, gpu_power, FACTS)
    key = [*map(_as_float, (every_call.kind_of_row, every_call.limits.beside)), *every_call.columns.values()]
    kept, number = distinct_rows([*key, *(power.key() if power else ())])
    ready, power = _taken(every_call, kept), power.take(kept) if power else None
    gpu_number = np.unique(every_call.columns["gpu"], return_inverse=True)[1][kept]
    moved = moved_hardware(used, fabrics)
    elasticity, kink = _elasticities(ready, gpu_number, moved, coefficients, power)
    states = moved.states[gpu_number][number]
    row, fact = np.nonzero(states)
    call_keys = calls.select(["deployment_id", "step_shape_id", "call"]).take(pa.array(row))
    return pa.table(
        {
            **{name: call_keys[name] for name in call_keys.column_names},
            "fact": _words(FACTS, fact),
            "elasticity": elasticity[number[row], fact],
            "kink": _words(KINKS, kink[number[row], fact]),
        }
    )


def moved_hardware(gpus: pa.Table, fabrics: pa.Table) -> Moved:
    """Return the hardware columns of GPUs with each of FACTS a little less and a little more.

    A fact on which two limits meet, such as a tensor rate that nobody cut, has the tangent of its upper side.
    """
    states = np.stack([pc.is_valid(gpus[name]).to_numpy(zero_copy_only=False) for name in FACTS], axis=1)
    base = np.repeat(np.arange(gpus.num_rows), len(FACTS) * SIDES)
    fact = np.tile(np.repeat(np.arange(len(FACTS)), SIDES), gpus.num_rows)
    side = np.tile([1.0, 1.0 + STEP, 1.0 - STEP], gpus.num_rows * len(FACTS))
    rows = gpus.take(pa.array(base))

    def hardware(factor: np.ndarray) -> dict[str, np.ndarray]:
        table = rows
        for number, name in enumerate(FACTS):
            values = pc.multiply(table[name].cast(pa.float64()), pa.array(np.where(fact == number, factor, 1.0)))
            table = table.set_column(table.column_names.index(name), name, values)
        return hardware_columns(table, fabrics)

    columns, nudged = hardware(side), hardware(side * (1.0 + TINY))
    tangents = {name: (nudged[name] - values) / np.log1p(TINY) for name, values in columns.items()}
    tangents = {name: values for name, values in tangents.items() if (np.abs(values) > 0.0).any()}
    powers = {
        name: np.divide(values, columns[name], out=np.zeros_like(values), where=columns[name] > 0.0)[::SIDES]
        for name, values in tangents.items()
    }
    return Moved(columns, tangents, powers, states)


def _elasticities(
    ready: Prepared, gpu: np.ndarray, moved: Moved, coefficients: pa.Table, power: PowerLimits | None
) -> tuple[np.ndarray, ...]:
    """Return elasticities and numbers of KINKS, shape (calls, FACTS); 0 where an expression does not read the fact.

    ``gpu``: of each call, the place of its GPU among those of ``moved``; ``power``: limits of the calls, if any.
    """
    size = ready.kind_of_row.size
    elasticity, kink = np.zeros((size, len(FACTS))), np.zeros((size, len(FACTS)), np.int64)
    for part in parts_of(ready):
        rows = np.arange(size)[part.rows]
        if not rows.size:
            continue
        read = _is_read(ready, part, gpu[rows], moved)
        if power is not None:
            read[np.isfinite(power.limit_w[rows])] = True
        call, fact = np.nonzero(moved.states[gpu[rows]] & read)
        latency, slope = _differentiated(ready, part, (call, gpu[rows][call] * len(FACTS) + fact), moved, coefficients)
        own, ratios = slope[:, 0] / latency[:, 0], latency[:, 1:] / latency[:, :1]
        if power is not None:
            first = (gpu[rows][call] * len(FACTS) + fact)[:, None] * SIDES
            each = Sides(rows[call], fact, latency, np.nan_to_num(own), first + np.arange(SIDES))
            own, ratios = power.elasticities(each, moved.columns, moved.tangents, STEP)
        sides = np.log(ratios) / np.log([1.0 + STEP, 1.0 - STEP])
        # where an expression has no derivative: the mean of both sides
        own = np.where(np.isfinite(own), own, sides.mean(axis=1))
        differs = np.abs(sides - own[:, None]) > SMOOTH
        elasticity[rows[call], fact] = own
        kink[rows[call], fact] = differs @ [1, 2]
    return elasticity, kink


def _is_read(ready: Prepared, part: Part, gpu: np.ndarray, moved: Moved) -> np.ndarray:
    """Return (calls, FACTS): whether a fact moves a hardware column that the expression of a call may read."""
    messages = FAMILIES[ready.family].wire_share is not None
    is_read = np.zeros((gpu.size, len(FACTS)), bool)
    for name, powers in moved.powers.items():
        if name != CLOCK and name.startswith(LINKS) != messages:
            continue
        moves = np.abs(powers.reshape(-1, len(FACTS), *powers.shape[1:])) > 0.5 * TINY
        if name not in BY_MATH:
            is_rate = "flops" in name
            if not is_rate or ("math" in part.columns) != (name == "vector_flops_per_us"):
                is_read |= moves[gpu]
        elif "math" in part.columns:
            is_read |= moves[gpu, :, part.columns["math"]]
    return is_read


def _differentiated(
    ready: Prepared, part: Part, pairs: tuple[np.ndarray, np.ndarray], moved: Moved, coefficients: pa.Table
) -> tuple[np.ndarray, np.ndarray]:
    """Return latencies and their derivatives by the logarithm of the fact, shape (pairs, SIDES).

    ``pairs``: of each, the call and the (GPU, fact) of ``moved``.
    """
    call, gpu_number = pairs
    factors = list(factors_of(ready, part, coefficients))
    by_row: dict[str, Any] = {name: values for name, values in part.columns.items() if name != "gpu"}
    by_row |= {"kind": part.kind_of_row, "limits": tuple(each[part.rows] for each in ready.limits), "factors": factors}
    at: dict[str, Any] = {name: _filled(values) for name, values in ready.at.items()}
    if part.corrected in ready.networks:
        network = ready.networks[part.corrected][0]
        at["network"] = network._replace(**{name: _filled(getattr(network, name)) for name in BY_NODE})
        by_row["node"] = nodes_of_rows(ready, part)
    rows = np.repeat(call, SIDES)
    hardware_row = (gpu_number[:, None] * SIDES + np.arange(SIDES)).ravel()
    hardware = {name: _filled(values) for name, values in moved.columns.items()}
    tangents = {name: _filled(values) for name, values in moved.tangents.items()}
    fixed = {name: values for name, values in hardware.items() if name not in tangents}
    changed = {name: hardware[name] for name in tangents}
    derivative = _derivative(_first_alike(ready.family, "network" in at), is_cold(ready))
    results = []
    for start in range(0, rows.size, LENGTHS[-1]):
        own = slice(start, start + LENGTHS[-1])
        count = rows[own].size
        filled = _filled(np.arange(start, start + count), LENGTHS[0])
        columns = _at_rows(by_row, rows[filled]) | {"gpu": hardware_row[filled]}
        values = compiled(derivative, columns, fixed, changed, tangents, at)
        results.append([np.asarray(each)[:count] for each in values])
    return tuple(np.concatenate(each).reshape(-1, SIDES) for each in zip(*results, strict=True))


@cache
def _derivative(family: str, cold: bool) -> Any:
    """Return the function of a family's latency and of its derivative along the tangents of the hardware."""
    kernel = kernel_of(family)

    def derivative(columns: dict, fixed: dict, changed: dict, tangents: dict, at: dict) -> tuple[Any, Any]:
        import jax
        import jax.numpy as jnp

        columns = dict(columns)
        limits, factors = Limits(*columns.pop("limits")), columns.pop("factors")

        def latency_of(hardware: dict) -> Any:
            results = kernel(jnp, columns, {}, fixed | hardware, at)
            latency, roofline = results["latency_us"], results["roofline_us"]
            for factor in factors:
                latency = raised(jnp, cold, latency, roofline, factor)
            return limited(jnp, latency, roofline, limits)

        return jax.jvp(latency_of, (changed,), (tangents,))

    derivative.__name__ = f"{family}_derivative"
    return derivative


@cache
def _first_alike(family: str, corrected: bool) -> str:
    """Return the first family with the same expression, which is compiled for all of them; corrections differ."""

    def shape(name: str) -> tuple:
        one = FAMILIES[name]
        return one.form.expression, one.form.view, one.form.reads, one.wire_share, one.vector_work

    return family if corrected else next(name for name in FAMILIES if shape(name) == shape(family))


def _at_rows(values: Any, rows: np.ndarray) -> Any:
    """Return arrays, in dicts, tuples and lists, at some of their rows."""
    if isinstance(values, Mapping):
        return {name: _at_rows(each, rows) for name, each in values.items()}
    if isinstance(values, tuple | list):
        return type(values)(_at_rows(each, rows) for each in values)
    return values[rows]


def _filled(values: np.ndarray, least: int = 8) -> np.ndarray:
    """Return an array with its last row repeated up to the next length that is compiled: eightfold steps of ``least``.

    >>> [_filled(np.zeros(size)).size for size in (1, 8, 9)]
    [8, 8, 64]
    """
    length = least
    while length < len(values):
        length *= 8
    return np.concatenate([values, np.repeat(values[-1:], length - len(values), axis=0)])


def _taken(ready: Prepared, rows: np.ndarray) -> Prepared:
    limits = Limits(*(each[rows] for each in ready.limits))
    columns = {name: values[rows] for name, values in ready.columns.items()}
    return ready._replace(columns=columns, kind_of_row=ready.kind_of_row[rows], tier=ready.tier[rows], limits=limits)


def _as_float(values: np.ndarray) -> np.ndarray:
    return values.astype(float)


def _words(words: Sequence[str | None], codes: np.ndarray) -> pa.Array:
    return pa.array(words, pa.string()).take(pa.array(codes))
