"""Elasticities of kernel latencies by the facts of a GPU, d log latency / d log fact: forward-mode JAX derivatives.

A fact is a column of ``gpus``. Each (call, fact) pair is evaluated on its GPU at the fact, 1 % above and 1 % below it,
in one compiled call for all pairs of an expression. JAX differentiates at the fact; the values on both sides show
kinks, where another limit takes over.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.kernels.compiled_jax import compiled
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.hardware import BY_MATH, MATH, hardware_columns, is_read
from kernelsight.kernels.latency import columns_read, kernel_of
from kernelsight.kernels.launch_signatures import launched_families
from kernelsight.kernels.limited_power import CallFacts, PowerLimits, power_limits
from kernelsight.kernels.network import BY_NODE
from kernelsight.kernels.prepared_calls import (
    CallGroup,
    LatencyBounds,
    PreparedCalls,
    prepare_calls,
    times_factor,
    within_bounds,
)
from kernelsight.kernels.pricing import distinct_rows
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.kernels.string_columns import strings_of

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

# columns of gpus
FACTS = (
    "memory_bandwidth_bytes_per_s",
    *(f"{math}_flops_per_s" for math in MATH),
    *("sm_clock_hz", "l2_bytes", "tdp_w", "link_bytes_per_s", "pcie_bytes_per_s"),
)
# share of a fact within which kinks are searched, above and below it
STEP = 0.01
# a kink: the elasticity of a side differs by more from that at the fact
SMOOTH = 0.02
KINKS = (None, "above", "below", "both")
# hardware columns are products of powers of facts: a step this small shows the powers to eight digits
TINY = 1e-6
SIDES = 3  # at the fact, above it, below it
# rows of one compiled call, the fewest and the most; between them eightfold steps, so that few lengths are compiled
LENGTHS = (4096, 262_144)

_WORDS = ("deployment_id", "call", "fact", "kink")
NO_ROWS = pa.table(
    {name: pa.array([], pa.string()) for name in _WORDS}
    | {"step_shape_id": pa.array([], pa.int64())}
    | {name: pa.array([], pa.float64()) for name in ("elasticity", "central_elasticity")}
)


class MovedHardware(NamedTuple):
    """Hardware columns of each GPU with each fact at each side, rows ordered by GPU, fact, side; and their derivatives.

    ``columns``, ``tangents``: shape (GPUs x facts x SIDES,), of BY_MATH with an axis of maths.
    """

    columns: dict[str, np.ndarray]
    tangents: dict[str, np.ndarray]  # d column / d log fact, of the row's fact; columns that no fact moves are left out
    powers: dict[str, np.ndarray]  # d log column / d log fact, (GPUs x facts,) or (GPUs x facts, maths)
    has_fact: np.ndarray  # (GPUs, facts): whether the GPU states the fact


@reads("family_calls")
@produces("kernel_sensitivities")
def sensitivities_of_families(
    deployment_settings: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
    dies: pa.Table,
    gpu_power: pa.Table,
    *,
    read: Reader,
) -> pa.Table:
    """Elasticity of each kernel's latency by the facts of its GPU: derivatives of the kernel model, by JAX."""
    facts = (gpus, fabrics, eta_coefficients, kernel_implementations, dies, gpu_power)
    tables, tables_of_families = PricingTables(deployment_settings, *facts), []
    for family in launched_families(deployment_settings, sharded_layers, layer_weights):
        columns = read.columns_of(f"{family}_calls")
        wanted = {*columns_read(family, columns), "step_shape_id", "call"} - {"gpu", "engine"}
        calls = read(f"{family}_calls", sorted(wanted))
        if calls.num_rows:
            owners = deployment_settings["deployment_id"].combine_chunks()
            setting_row = pc.index_in(calls["deployment_id"], owners)
            for name in ("gpu", "engine"):
                calls = calls.append_column(name, deployment_settings[name].take(setting_row))
            tables_of_families.append(kernel_sensitivities_of(family, calls, tables))
    return pa.concat_tables(tables_of_families) if tables_of_families else NO_ROWS


def kernel_sensitivities_of(family: str, calls: pa.Table, tables: PricingTables) -> pa.Table:
    """Return ``kernel_sensitivities`` of one family's calls: a row for each fact that the GPU of a call states."""
    settings, gpus, fabrics, coefficients, _, _, gpu_power = tables
    every_call = prepare_calls(family, calls, tables)
    used_gpus = gpus.take(pa.array(np.unique(every_call.columns["gpu"]).astype(np.int64)))
    power = power_limits(family, calls, settings, used_gpus, gpu_power, FACTS)
    key = [*map(_as_float, (every_call.kind_of_row, every_call.bounds.beside)), *every_call.columns.values()]
    kept, number = distinct_rows([*key, *(power.key() if power else ())])
    ready, power = _at_calls(every_call, kept), power.take(kept) if power else None
    gpu_number = np.unique(every_call.columns["gpu"], return_inverse=True)[1][kept]
    moved = moved_hardware(used_gpus, fabrics)
    elasticity, central, kink = _elasticities(ready, gpu_number, moved, coefficients, power)
    row, fact = np.nonzero(moved.has_fact[gpu_number][number])
    call_keys = calls.select(["deployment_id", "step_shape_id", "call"]).take(pa.array(row))
    return pa.table(
        {
            **{name: call_keys[name] for name in call_keys.column_names},
            "fact": strings_of(FACTS, fact),
            "elasticity": elasticity[number[row], fact],
            "central_elasticity": central[number[row], fact],
            "kink": strings_of(KINKS, kink[number[row], fact]),
        }
    )


def moved_hardware(gpus: pa.Table, fabrics: pa.Table) -> MovedHardware:
    """Return the hardware columns of GPUs with each of FACTS as it is, STEP above and STEP below.

    A fact at which two limits meet, such as the tensor rate of a GPU that was not cut, has the tangent of its upper
    side.
    """
    has_fact = np.stack([pc.is_valid(gpus[name]).to_numpy(zero_copy_only=False) for name in FACTS], axis=1)
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
    return MovedHardware(columns, tangents, powers, has_fact)


def _elasticities(
    ready: PreparedCalls, gpu: np.ndarray, moved: MovedHardware, coefficients: pa.Table, power: PowerLimits | None
) -> tuple[np.ndarray, ...]:
    """Return elasticities at the fact, those from 1 % below to 1 % above, and positions in KINKS; (calls, FACTS) each.

    0 where an expression does not read the fact. ``gpu``: position of each call's GPU in ``moved``, (calls,);
    ``power``: the calls' power limits, None where there are none.
    """
    size = ready.kind_of_row.size
    (elasticity, central), kink = np.zeros((2, size, len(FACTS))), np.zeros((size, len(FACTS)), np.int64)
    for group in ready.groups():
        rows = np.arange(size)[group.rows]
        if not rows.size:
            continue
        reads_fact = _reads_fact(ready, group, gpu[rows], moved)
        if power is not None:
            reads_fact[np.isfinite(power.limit_w[rows])] = True
        call, fact = np.nonzero(moved.has_fact[gpu[rows]] & reads_fact)
        gpu_fact = gpu[rows][call] * len(FACTS) + fact
        latency, slope = _latency_and_slope(ready, group, (call, gpu_fact), moved, coefficients)
        at_fact, ratios = slope[:, 0] / latency[:, 0], latency[:, 1:] / latency[:, :1]
        if power is not None:
            hardware_row = gpu_fact[:, None] * SIDES + np.arange(SIDES)
            pairs = CallFacts(rows[call], fact, latency, np.nan_to_num(at_fact), hardware_row)
            at_fact, ratios = power.elasticities(pairs, moved.columns, moved.tangents, STEP)
        sides = np.log(ratios) / np.log([1.0 + STEP, 1.0 - STEP])
        # where an expression has no derivative: the mean of both sides
        at_fact = np.where(np.isfinite(at_fact), at_fact, sides.mean(axis=1))
        differs = np.abs(sides - at_fact[:, None]) > SMOOTH
        elasticity[rows[call], fact] = at_fact
        central[rows[call], fact] = -np.diff(np.log(ratios), axis=1)[:, 0] / np.log((1.0 + STEP) / (1.0 - STEP))
        kink[rows[call], fact] = differs @ [1, 2]
    return elasticity, central, kink


def _reads_fact(ready: PreparedCalls, group: CallGroup, gpu: np.ndarray, moved: MovedHardware) -> np.ndarray:
    """Return whether a fact moves a hardware column that the expression of a call may read, (calls, FACTS)."""
    is_collective, tensor_work = FAMILIES[ready.family].wire_share is not None, "math" in group.columns
    reads_fact = np.zeros((gpu.size, len(FACTS)), bool)
    for name, powers in moved.powers.items():
        if not is_read(name, is_collective, tensor_work):
            continue
        moves = np.abs(powers.reshape(-1, len(FACTS), *powers.shape[1:])) > 0.5 * TINY
        reads_fact |= moves[gpu, :, group.columns["math"]] if name in BY_MATH else moves[gpu]
    return reads_fact


def _latency_and_slope(
    ready: PreparedCalls,
    group: CallGroup,
    pairs: tuple[np.ndarray, np.ndarray],
    moved: MovedHardware,
    coefficients: pa.Table,
) -> tuple[np.ndarray, np.ndarray]:
    """Return latencies, microseconds, and their derivatives by the logarithm of the fact, (pairs, SIDES) each.

    ``pairs``: row of the call in the group, and position of the (GPU, fact) in ``moved``; (pairs,) each.
    """
    call, gpu_number = pairs
    factors = list(ready.factors(group, coefficients))
    by_row: dict[str, Any] = {name: values for name, values in group.columns.items() if name != "gpu"}
    bounds = tuple(values[group.rows] for values in ready.bounds)
    by_row |= {"kind": group.kind_of_row, "bounds": bounds, "factors": factors}
    at: dict[str, Any] = {name: _filled(values) for name, values in ready.at.items()}
    if group.corrected in ready.networks:
        network = ready.networks[group.corrected][0]
        at["network"] = network._replace(**{name: _filled(getattr(network, name)) for name in BY_NODE})
        by_row["node"] = ready.nodes_of_rows(group)
    rows = np.repeat(call, SIDES)
    hardware_row = (gpu_number[:, None] * SIDES + np.arange(SIDES)).ravel()
    hardware = {name: _filled(values) for name, values in moved.columns.items()}
    tangents = {name: _filled(values) for name, values in moved.tangents.items()}
    fixed = {name: values for name, values in hardware.items() if name not in tangents}
    changed = {name: hardware[name] for name in tangents}
    derivative = _derivative(_family_to_compile(ready.family, "network" in at), ready.is_cold)
    results = []
    for start in range(0, rows.size, LENGTHS[-1]):
        count = rows[start : start + LENGTHS[-1]].size
        filled = _filled(np.arange(start, start + count), LENGTHS[0])
        columns = _at_rows(by_row, rows[filled]) | {"gpu": hardware_row[filled]}
        values = compiled(derivative, columns, fixed, changed, tangents, at)
        results.append([np.asarray(array)[:count] for array in values])
    return tuple(np.concatenate(blocks).reshape(-1, SIDES) for blocks in zip(*results, strict=True))


@cache
def _derivative(family: str, is_cold: bool) -> Any:
    """Return the function of a family's latency and its derivative along the tangents of the hardware, for JAX."""
    kernel = kernel_of(family)

    def derivative(columns: dict, fixed: dict, changed: dict, tangents: dict, at: dict) -> tuple[Any, Any]:
        import jax
        import jax.numpy as jnp

        columns = dict(columns)
        bounds, factors = LatencyBounds(*columns.pop("bounds")), columns.pop("factors")

        def latency_of(hardware: dict) -> Any:
            results = kernel(jnp, columns, {}, fixed | hardware, at)
            latency, roofline = results["latency_us"], results["roofline_us"]
            for factor in factors:
                latency = times_factor(jnp, is_cold, latency, roofline, factor)
            return within_bounds(jnp, latency, roofline, bounds)

        return jax.jvp(latency_of, (changed,), (tangents,))

    derivative.__name__ = f"{family}_derivative"
    return derivative


@cache
def _family_to_compile(family: str, corrected: bool) -> str:
    """Return the first family with the same expression, compiled once for all of them; with a correction, itself."""

    def expression(name: str) -> tuple:
        declared = FAMILIES[name]
        latency_model = declared.latency_model
        return (
            latency_model.expression,
            latency_model.view,
            latency_model.reads,
            declared.wire_share,
            declared.vector_work,
        )

    return family if corrected else next(name for name in FAMILIES if expression(name) == expression(family))


def _at_rows(values: Any, rows: np.ndarray) -> Any:
    """Return a pytree of arrays (dicts, tuples, lists) at some rows."""
    if isinstance(values, Mapping):
        return {name: _at_rows(inner, rows) for name, inner in values.items()}
    if isinstance(values, tuple | list):
        return type(values)(_at_rows(inner, rows) for inner in values)
    return values[rows]


def _filled(values: np.ndarray, least: int = 8) -> np.ndarray:
    """Return an array padded with its last row to the next length that is compiled: ``least`` times a power of 8.

    >>> [_filled(np.zeros(size)).size for size in (1, 8, 9)]
    [8, 8, 64]
    """
    length = least
    while length < len(values):
        length *= 8
    return np.concatenate([values, np.repeat(values[-1:], length - len(values), axis=0)])


def _at_calls(ready: PreparedCalls, rows: np.ndarray) -> PreparedCalls:
    """Return some of the prepared calls."""
    bounds = LatencyBounds(*(values[rows] for values in ready.bounds))
    columns = {name: values[rows] for name, values in ready.columns.items()}
    return ready._replace(columns=columns, kind_of_row=ready.kind_of_row[rows], tier=ready.tier[rows], bounds=bounds)


def _as_float(values: np.ndarray) -> np.ndarray:
    return values.astype(float)
