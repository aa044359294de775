"""Kernel latencies of one family's call table: expression, roofline, bound, 90 % interval, tier, evidence, energy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.array_expressions import bucket, padded
from kernelsight.dataflow.generated_nodes import for_each
from kernelsight.kernels.blocks import evaluate
from kernelsight.kernels.call_kinds import TIERS, interval_half_widths
from kernelsight.kernels.die_order import (
    REPEAT_NOISE,
    Comparison,
    calls_of_siblings,
    comparisons,
    in_order,
    ranks,
    sentence_of,
    with_gpu,
)
from kernelsight.kernels.energy import DRAWN_AT_REST, dynamic_j
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.features import features
from kernelsight.kernels.hardware import BY_MATH, MICROSECONDS_PER_SECOND
from kernelsight.kernels.intervals import spread
from kernelsight.kernels.kernel_constants import LAUNCHING
from kernelsight.kernels.network import BY_NODE, FADE_OCTAVES, correction, outside
from kernelsight.kernels.prepared_calls import (
    COLD_BYTES,
    CallGroup,
    PreparedCalls,
    prepare_calls,
    times_factor,
    within_bounds,
)
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.kernels.string_columns import decoded, dictionary_of, encoded, positions
from kernelsight.number_format import number

# columns of kernel_latencies, in their order
COLUMNS = ["deployment_id", "step_shape_id", "call", "family", "name", "count", "tiles", "roofline_us", "bound", "eta"]
COLUMNS += [
    "latency_us",
    "latency_p05_us",
    "latency_p95_us",
    "tier",
    "implementation",
    "measured_version",
    "evidence",
    "energy_j",
]
BOUNDS = ("compute", "memory", "link", "launch")


class EvaluatedCalls(NamedTuple):
    """Latencies of a call table, with what they rest on; rows in the table's order."""

    kinds: list[dict[str, Any]]  # distinct configurations of calls, see ``call_kinds``
    kind_of_row: np.ndarray  # (rows,)
    # of each kind; then at sizes beyond its sweep; then in groups larger than any that ran there; of siblings' bounds
    evidence: list[str]
    evidence_of_row: np.ndarray  # (rows,)
    # of the expression: roofline_us, bound, where it has some tiles, and launch_us that its hardware saves; (rows,)
    results: dict[str, np.ndarray]
    tier: np.ndarray  # (rows,) positions in TIERS
    latency_us: np.ndarray  # (rows,)


def latencies(family: str, calls: pa.Table, tables: PricingTables) -> pa.Table:
    """Return ``kernel_latencies`` rows of one family's ``<family>_calls`` table, in its order.

    The tier of ``deployment_settings`` decides what the constants may rest on. InvalidInput: a tier needs a sweep or
    points that the GPU does not have.
    """
    call_names = calls.select(["deployment_id", "step_shape_id", "call", "name", "count"])
    call_names = call_names.append_column("family", pa.repeat(family, calls.num_rows))
    return with_call_names(
        call_names, latency_columns(family, calls.select(columns_read(family, calls.column_names)), tables)
    )


@for_each("family")
def family_latencies(
    family_calls: pa.Table,
    deployment_settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
    dies: pa.Table,
    gpu_power: pa.Table,
    *,
    family: str,
) -> pa.Table:
    """Latencies of {family}."""
    facts = (gpus, fabrics, eta_coefficients, kernel_implementations, dies, gpu_power)
    return latencies(family, family_calls, PricingTables(deployment_settings, *facts))


def with_call_names(call_names: pa.Table, computed: pa.Table) -> pa.Table:
    """Return ``kernel_latencies`` of the columns that name calls and the :func:`latency_columns` of the same rows."""
    columns = {name: table[name] for table in (call_names, computed) for name in table.column_names}
    return pa.table({name: decoded(columns[name]) for name in COLUMNS})


def latency_columns(family: str, calls: pa.Table, tables: PricingTables) -> pa.Table:
    """Return the computed columns of :func:`latencies`, strings dictionary-encoded.

    ``calls`` needs the columns of :func:`columns_read` alone.
    """
    # each string column is read several times: its codes once
    calls = pa.table({name: encoded(calls[name]) for name in calls.column_names})
    evaluated = evaluate_calls(family, calls, tables)
    roofline, rows = evaluated.results["roofline_us"], calls.num_rows
    evaluated, dynamic_energy_j = under_power_limits(family, calls, evaluated, tables)
    latency, p05, p95 = interval(family, evaluated, tables.coefficients)
    gpu_power = tables.gpu_power
    rest_w = pc.add(*(gpu_power[name] for name in DRAWN_AT_REST)).to_numpy()[positions(calls["gpu"], gpu_power["gpu"])]
    return pa.table(
        {
            "tiles": pa.array(evaluated.results["tiles"])
            if "tiles" in evaluated.results
            else pa.nulls(rows, pa.float64()),
            "roofline_us": roofline,
            "bound": dictionary_of(BOUNDS, evaluated.results["bound"].astype(np.int64)),
            "eta": latency / roofline,
            "latency_us": latency,
            "latency_p05_us": p05,
            "latency_p95_us": p95,
            "tier": dictionary_of(TIERS, evaluated.tier),
            "implementation": dictionary_of(
                [kind["implementation"] for kind in evaluated.kinds], evaluated.kind_of_row
            ),
            "measured_version": dictionary_of(
                [kind["version"].version for kind in evaluated.kinds], evaluated.kind_of_row
            ),
            "evidence": dictionary_of(evaluated.evidence, evaluated.evidence_of_row),
            "energy_j": dynamic_energy_j + rest_w * latency / MICROSECONDS_PER_SECOND,
        }
    )


def under_power_limits(
    family: str, calls: pa.Table, evaluated: EvaluatedCalls, tables: PricingTables
) -> tuple[EvaluatedCalls, np.ndarray]:
    """Return the calls with latencies under the power limits of their deployments, and dynamic energy, J, (rows,)."""
    latency_us, dynamic_energy_j = dynamic_j(family, calls, evaluated.latency_us, tables)
    return evaluated._replace(latency_us=latency_us), dynamic_energy_j


def interval(
    family: str, evaluated: EvaluatedCalls, coefficients: pa.Table
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return latency, p05 and p95 of each row, microseconds; no p05 lies below the roofline.

    Where kernels have no launch, what one starts with was not measured: p95 holds a GPU's floor all the same.
    """
    roofline, latency = evaluated.results["roofline_us"], evaluated.latency_us
    half_widths = interval_half_widths(family, evaluated.kinds, coefficients)
    is_beyond = (evaluated.evidence_of_row >= len(evaluated.kinds)).astype(np.int64)
    # one kind within its sweep, the common case, is a row: no gather for each call
    is_one = len(evaluated.kinds) == 1 and not is_beyond.any()
    width = spread(np, latency, half_widths[0, 0] if is_one else half_widths[evaluated.kind_of_row, is_beyond])
    return (
        latency,
        np.maximum(latency / width, np.minimum(roofline, latency)),
        (latency + evaluated.results.get("launch_us", 0.0)) * width,
    )


def columns_read(family: str, available: Collection[str]) -> list[str]:
    """Return the columns of a family's call table that its latencies rest on, of those that are ``available``."""
    row = FAMILIES[family]
    words = ["deployment_id", "gpu", "engine", "format", "math", row.kernel_column, "implementation", "beside"]
    words += ["head_dim"] if row.by_head_dim else []
    return list(
        dict.fromkeys(name for name in (*words, *row.latency_model.reads, "flops", "bytes") if name in available)
    )


def evaluate_calls(family: str, calls: pa.Table, tables: PricingTables) -> EvaluatedCalls:
    """Return the latencies of a family's calls before power limits; ``calls``: the columns of :func:`columns_read`.

    They keep the order of GPUs of one die (:mod:`kernelsight.kernels.die_order`).
    """
    evaluated = _of_own_fits(family, calls, tables)
    row_ranks = ranks(evaluated.tier)
    compared = [
        (one, rows)
        for one in comparisons(family, evaluated.kinds, tables)
        if (rows := np.flatnonzero((evaluated.kind_of_row == one.kind) & (row_ranks == one.rank))).size
    ]
    if not compared:
        return evaluated
    rows, gpus, gpu_of_row = calls_of_siblings(compared)
    sibling_calls = with_gpu(calls.take(pa.array(rows)), dictionary_of(gpus, gpu_of_row))
    return _in_order(evaluated, compared, _of_own_fits(family, sibling_calls, tables))


def _in_order(
    evaluated: EvaluatedCalls, compared: Sequence[tuple[Comparison, np.ndarray]], of_siblings: EvaluatedCalls
) -> EvaluatedCalls:
    """Return answers in the order of their die; one that moves by more than REPEAT_NOISE is not target-measured.

    ``of_siblings``: answers to ``calls_of_siblings(compared)``.
    """
    latency, tier, evidence_of_row = (
        values.copy() for values in (evaluated.latency_us, evaluated.tier, evaluated.evidence_of_row)
    )
    evidence, start = list(evaluated.evidence), 0
    for one, rows in compared:
        size = (len(one.gpus) - 1) * rows.size
        siblings = slice(start, start := start + size)
        shape = (-1, rows.size)
        raw = np.vstack([latency[rows], of_siblings.latency_us[siblings].reshape(shape)])
        row_ranks = np.vstack([ranks(tier[rows]), ranks(of_siblings.tier[siblings]).reshape(shape)])
        final = in_order(raw, row_ranks, one.at_least, one.width)
        latency[rows] = final[0]
        moved = np.flatnonzero(np.abs(np.log(final[0] / raw[0])) > REPEAT_NOISE)
        nearest = 1 + np.abs(np.log(final[1:, moved] / final[0, moved])).argmin(axis=0)
        codes = np.stack([evidence_of_row[rows[moved]], nearest, final[0, moved] < raw[0, moved]])
        distinct, code_of_row = np.unique(codes, axis=1, return_inverse=True)
        evidence_of_row[rows[moved]] = len(evidence) + code_of_row.reshape(-1)
        evidence += [sentence_of(evidence[said], one.gpus[member], bool(lower)) for said, member, lower in distinct.T]
        is_measured = tier[rows[moved]] == TIERS.index("target-measured")
        tier[rows[moved][is_measured]] = TIERS.index("gpu-measured")
    return evaluated._replace(evidence=evidence, evidence_of_row=evidence_of_row, tier=tier, latency_us=latency)


def _of_own_fits(family: str, calls: pa.Table, tables: PricingTables) -> EvaluatedCalls:
    """Return the latencies of a family's calls, each by the fit of its own GPU."""
    ready = prepare_calls(family, calls, tables)
    results: dict[str, np.ndarray] = {}
    beyond_sizes = np.zeros(calls.num_rows, bool)
    for group in ready.groups():
        group_results = _evaluate_group(ready, group)
        if "outside_octaves" in group_results:
            beyond_sizes[group.rows] = group_results.pop("outside_octaves") > FADE_OCTAVES
        latency_us, roofline_us = group_results["latency_us"], group_results["roofline_us"]
        for factor in ready.factors(group, tables.coefficients):
            latency_us = times_factor(ready.is_cold, latency_us, roofline_us, factor)
        if ready.has_versions:
            factor = ready.version_factor(group, latency_us)
            latency_us = times_factor(ready.is_cold, latency_us, roofline_us, factor)
        group_results["latency_us"] = latency_us
        for name, values in group_results.items():
            results.setdefault(name, np.empty(calls.num_rows))[group.rows] = values
    floor_us, pays_launch = results.pop("floor_us"), ~(ready.bounds.is_roofline | ready.bounds.beside)
    unlaunched = [place for place, kind in enumerate(ready.kinds) if kind["hardware"] != LAUNCHING]
    if unlaunched and FAMILIES[family].wire_share is None:  # collectives begin when their ranks have met
        is_unlaunched = np.isin(ready.kind_of_row, unlaunched) & pays_launch
        results["launch_us"] = np.where(is_unlaunched, floor_us, 0.0)
        without_us = np.maximum(results["latency_us"] - results["launch_us"], results["roofline_us"])
        results["latency_us"] = np.where(is_unlaunched, without_us, results["latency_us"])
        pays_launch &= ~is_unlaunched
    latency = within_bounds(results["latency_us"], results["roofline_us"], ready.bounds)
    results["bound"][pays_launch & (floor_us > results["roofline_us"])] = BOUNDS.index("launch")
    most_gpus = ready.most_gpus(tables.coefficients)
    tier, evidence_of_row = _tier_and_evidence(ready, beyond_sizes, most_gpus)
    evidence = [*ready.evidence, *(f"{sentence}, at sizes beyond its own" for sentence in ready.evidence)]
    evidence += [
        f"{sentence}, in groups of up to {number(most)} GPUs"
        for sentence, most in zip(ready.evidence, most_gpus.tolist(), strict=False)  # without calls there is no kind
    ]
    return EvaluatedCalls(ready.kinds, ready.kind_of_row, evidence, evidence_of_row, results, tier, latency)


def _tier_and_evidence(
    ready: PreparedCalls, beyond_sizes: np.ndarray, most_gpus: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return tier and evidence of each row, (rows,).

    ``beyond_sizes``: whether its GPU's sweep reaches no such sizes, (rows,); ``most_gpus``: the largest group in which
    the sweep ran each kind's collective, (kinds,): a larger one may span nodes, or another switch. On a measured GPU,
    target-measured are the kernels that its sweep ran, at sizes and in groups like these; others are gpu-measured.
    """
    measured = ready.tier == TIERS.index("target-measured")
    kernel_swept = np.array([kind["kernel_swept"] for kind in ready.kinds], bool)[ready.kind_of_row]
    beyond = np.where(beyond_sizes, 1, 0)
    if "group_size" in ready.columns:
        beyond[ready.columns["group_size"] > most_gpus[ready.kind_of_row]] = 2
    beyond[~measured] = 0
    tier = np.where(measured & ((beyond > 0) | ~kernel_swept), TIERS.index("gpu-measured"), ready.tier)
    return tier, ready.kind_of_row + len(ready.evidence) * beyond


def _evaluate_group(ready: PreparedCalls, group: CallGroup) -> dict[str, np.ndarray]:
    """Return the results of the family's expression for calls that share a correction, (rows of the group,)."""
    columns, kind_of_row = dict(group.columns), group.kind_of_row
    # one GPU, arithmetic and kernel, the common case, are numbers: no gather per row
    uniform = {name: columns.pop(name)[0] for name in ("gpu", "math") if name in columns and _is_uniform(columns[name])}
    if kind_of_row.size == 0 or _is_uniform(kind_of_row):
        kind = int(kind_of_row[0]) if kind_of_row.size else 0
        values: dict[str, Any] = {name: float(values[kind]) for name, values in ready.at.items()}
    else:
        values = {name: _of_few_lengths(each) for name, each in ready.at.items()}
        columns["kind"] = kind_of_row
    if group.corrected in ready.networks:
        network = ready.networks[group.corrected][0]
        of_nodes = {name: _of_few_lengths(getattr(network, name)) for name in BY_NODE}
        values["network"] = network._replace(**of_nodes)
        nodes = ready.nodes_of_rows(group)
        if "kind" in columns or not nodes.size:
            columns["node"] = nodes
        else:  # of one kind
            uniform["node"] = nodes[0]
    kernel = kernel_of(ready.family)
    return evaluate(ready.family, kernel, kind_of_row.size, columns, uniform, ready.hardware, values)


def _of_few_lengths(values: np.ndarray) -> np.ndarray:
    """Return constants of kinds or nodes, padded with rows that no call reads: JAX compiles for each length."""
    return padded(values, bucket(len(values)))


@cache
def kernel_of(family: str) -> Callable[..., dict[str, Any]]:
    """Return a family's whole expression, ``kernel(xp, columns, uniform, hardware, at)``, of numpy or JAX arrays.

    It gathers hardware and constants by row and returns ``roofline_us``, ``bound`` (of the roofline, position in
    BOUNDS), ``latency_us``, ``floor_us`` (of it, launch and drain) and, where the family has them, ``tiles``; with a
    correction ``outside_octaves``, the distance from its sweep.
    """
    declared = FAMILIES[family]
    latency_model, wire_share = declared.latency_model, declared.wire_share

    def kernel(xp: Any, columns: dict, uniform: dict, hardware: dict, at: dict) -> dict[str, Any]:
        columns = {"working_set_bytes": COLD_BYTES, **columns, **uniform}
        index = columns["gpu"]
        gpu = {name: values[index] for name, values in hardware.items() if name not in BY_MATH}
        tensor_work = "math" in columns
        for name in BY_MATH:
            gpu[name] = hardware[name][index, columns["math"]] if tensor_work else gpu["vector_flops_per_us"]
        at = dict(at)
        network = at.pop("network", None)
        if "kind" in columns:
            at = {name: values[columns["kind"]] for name, values in at.items()}
        roofline, bound = roofline_and_bound(xp, wire_share, columns, gpu)
        if "new_tokens" in columns or declared.vector_work:
            # queries, keys and values of a prompt, and activations, were written by the kernel before: warm in L2
            columns["working_set_bytes"] = columns["bytes"]
        call = latency_model.view(xp, columns)
        latency, tiles, floor_us = latency_model.expression(xp, call, gpu, at)
        distance = {}
        if network is not None:
            call_features = features(xp, family, call, gpu)
            latency = latency * xp.exp(correction(xp, call_features, columns["node"], network))
            distance = {"outside_octaves": outside(xp, call_features, network)}
        if tensor_work or wire_share:
            # cold data cannot beat the roofline; kernels that move activations may, from L2
            latency = xp.maximum(latency, roofline)
        # a call without work gets a roofline above 0: its eta stays finite
        results = {"roofline_us": xp.maximum(roofline, 2.0**-20), "bound": bound, "latency_us": latency}
        results |= {"floor_us": floor_us, **distance}
        return results if tiles is None else {**results, "tiles": tiles}

    return kernel


def roofline_and_bound(xp: Any, wire_share: Callable[..., Any] | None, columns: Any, gpu: Any) -> tuple[Any, Any]:
    """Return the rooflines of calls, us, and what bounds them (positions in BOUNDS); shape (rows,) each.

    ``columns``: flops, bytes and, for a collective, group_size; ``wire_share``: of its family; ``gpu``: of each row.
    """
    if wire_share:
        roofline = columns["bytes"] * wire_share(columns["group_size"]) / gpu["peak_link_bytes_per_us"]
        return roofline, xp.full_like(roofline, 2.0)
    compute, memory = columns["flops"] / gpu["math_flops_per_us"], columns["bytes"] / gpu["memory_bytes_per_us"]
    return xp.maximum(compute, memory), xp.where(compute > memory, 0.0, 1.0)


def _is_uniform(values: np.ndarray) -> bool:
    return values.size > 0 and bool((values == values[0]).all())
