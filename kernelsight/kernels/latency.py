"""From a family's call table to its latencies: gather the hardware, evaluate the expression, attach the evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.columns import evaluate
from kernelsight.kernels.columns import positions
from kernelsight.kernels.energy import DRAWN_AT_REST, dynamic_j
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.features import features
from kernelsight.kernels.hardware import BY_MATH, MICROSECONDS_PER_SECOND
from kernelsight.kernels.intervals import spread
from kernelsight.kernels.kinds import TIERS, interval_half_widths
from kernelsight.kernels.network import FADE_OCTAVES, correction, outside
from kernelsight.kernels.prepared import (
    COLD_BYTES,
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

# of kernel_latencies
COLUMNS = ["deployment_id", "step_shape_id", "call", "family", "name", "count", "tiles", "roofline_us", "bound", "eta"]
COLUMNS += ["latency_us", "latency_p05_us", "latency_p95_us", "tier", "evidence", "energy_j"]
BOUNDS = ("compute", "memory", "link")


class Answers(NamedTuple):
    """What the expressions say of a call table, row by row, and of the kinds of calls in it."""

    kinds: list[dict[str, Any]]
    kind_of_row: np.ndarray
    evidence: list[str]  # of each kind; then of each kind, at sizes that its sweep does not reach
    evidence_of_row: np.ndarray
    results: dict[str, np.ndarray]
    tier: np.ndarray
    latency_us: np.ndarray


def latencies(
    family: str,
    calls: pa.Table,
    settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    coefficients: pa.Table,
    implementations: pa.Table,
    gpu_power: pa.Table,
    *,
    backend: str = "auto",
) -> pa.Table:
    """Return ``kernel_latencies`` rows of one family's call table, in its order.

    ``settings`` is ``deployment_settings``: its tier decides what the constants may rest on. Refuses the
    target-measured tier on a GPU of which ``eta_coefficients`` holds no fit.
    """
    priced_columns = figures(
        family, calls, settings, gpus, fabrics, coefficients, implementations, gpu_power, backend=backend
    )
    names_of_calls = calls.select(["deployment_id", "step_shape_id", "call", "name", "count"])
    names_of_calls = names_of_calls.append_column("family", pa.repeat(family, calls.num_rows))
    return joined(names_of_calls, priced_columns)


def joined(stated: pa.Table, found: pa.Table) -> pa.Table:
    """Return ``kernel_latencies`` of the columns that are stated and those that ``figures`` found for the same rows."""
    columns = {name: table[name] for table in (stated, found) for name in table.column_names}
    return pa.table({name: _spelled(columns[name]) for name in COLUMNS})


def figures(
    family: str,
    calls: pa.Table,
    settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    coefficients: pa.Table,
    implementations: pa.Table,
    gpu_power: pa.Table,
    *,
    backend: str = "auto",
) -> pa.Table:
    """Return the columns of ``latencies`` that are computed, those of words as dictionaries.

    ``calls`` needs the columns of ``columns_read`` alone.
    """
    answered = answers(family, calls, settings, gpus, fabrics, coefficients, implementations, backend=backend)
    roofline, rows = answered.results["roofline_us"], calls.num_rows
    facts = (settings, gpus, fabrics, coefficients, implementations, gpu_power)
    answered, dynamic = powered(family, calls, answered, facts)
    latency, p05, p95 = interval(family, answered, coefficients)
    rest_w = pc.add(*(gpu_power[name] for name in DRAWN_AT_REST)).to_numpy()[positions(calls["gpu"], gpu_power["gpu"])]
    return pa.table(
        {
            "tiles": pa.array(answered.results["tiles"])
            if "tiles" in answered.results
            else pa.nulls(rows, pa.float64()),
            "roofline_us": roofline,
            "bound": _words(BOUNDS, answered.results["bound"].astype(np.int64)),
            "eta": latency / roofline,
            "latency_us": latency,
            "latency_p05_us": p05,
            "latency_p95_us": p95,
            "tier": _words(TIERS, answered.tier),
            "evidence": _words(answered.evidence, answered.evidence_of_row),
            "energy_j": dynamic + rest_w * latency / MICROSECONDS_PER_SECOND,
        }
    )


def powered(family: str, calls: pa.Table, found: Answers, facts: Sequence[pa.Table]) -> tuple[Answers, np.ndarray]:
    """Return the answers under the power limits of their deployments, and the dynamic energy of each call in joules.

    ``facts``: the tables that ``answers`` reads beside calls, and ``gpu_power``.
    """
    latency, joules = dynamic_j(family, calls, found.latency_us, facts)
    return found._replace(latency_us=latency), joules


def interval(family: str, found: Answers, coefficients: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each row's latency and the ends of its 90 % interval, microseconds; none lies below the roofline."""
    roofline, latency = found.results["roofline_us"], found.latency_us
    width = spread(np, latency, interval_half_widths(family, found.kinds, coefficients)[found.kind_of_row])
    return latency, np.maximum(latency / width, np.minimum(roofline, latency)), latency * width


def columns_read(family: str, there: Collection[str]) -> list[str]:
    """Return the columns of a family's call table that its latencies rest on, of those that are ``there``."""
    row = FAMILIES[family]
    words = ["deployment_id", "gpu", "engine", "format", "math", row.kernel_column, "implementation", "beside"]
    words += ["head_dim"] if row.by_head_dim else []
    return list(dict.fromkeys(name for name in (*words, *row.form.reads, "flops", "bytes") if name in there))


def answers(
    family: str,
    calls: pa.Table,
    settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    coefficients: pa.Table,
    implementations: pa.Table,
    *,
    backend: str = "auto",
) -> Answers:
    """Return what ``latencies`` makes its table of; ``calls`` needs the columns of ``columns_read`` alone."""
    ready = prepared(family, calls, settings, gpus, fabrics, coefficients, implementations)
    results: dict[str, np.ndarray] = {}
    beyond = np.zeros(calls.num_rows, bool)
    for one in parts_of(ready):
        found = evaluated(ready, one, backend)
        if "outside_octaves" in found:
            beyond[one.rows] = found.pop("outside_octaves") > FADE_OCTAVES
        for factor in factors_of(ready, one, coefficients):
            found["latency_us"] = raised(np, is_cold(ready), found["latency_us"], found["roofline_us"], factor)
        for name, values in found.items():
            results.setdefault(name, np.empty(calls.num_rows))[one.rows] = values
    latency = limited(np, results["latency_us"], results["roofline_us"], ready.limits)
    tier, evidence_of_row = _shown(ready, beyond)
    evidence = [*ready.evidence, *(f"{one}, at sizes beyond its own" for one in ready.evidence)]
    return Answers(ready.kinds, ready.kind_of_row, evidence, evidence_of_row, results, tier, latency)


def _shown(ready: Prepared, beyond: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tier of each row, and which evidence it has; ``beyond``: at sizes that its GPU's sweep does not reach.

    Of a measured GPU, target-measured are the kernels that its sweep ran, at sizes like these; gpu-measured the others.
    """
    measured = ready.tier == TIERS.index("target-measured")
    swept = np.array([kind["kernel_swept"] for kind in ready.kinds], bool)[ready.kind_of_row]
    beyond = beyond & measured
    tier = np.where(measured & (beyond | ~swept), TIERS.index("gpu-measured"), ready.tier)
    return tier, ready.kind_of_row + len(ready.evidence) * beyond


def evaluated(ready: Prepared, part: Part, backend: str) -> dict[str, np.ndarray]:
    """Run the family's expression over rows that share a correction, or have none."""
    columns, kind_of_row = dict(part.columns), part.kind_of_row
    # one GPU, arithmetic and kernel, the common case, are numbers: no gather per row
    uniform = {name: columns.pop(name)[0] for name in ("gpu", "math") if name in columns and _is_uniform(columns[name])}
    if kind_of_row.size == 0 or _is_uniform(kind_of_row):
        kind = int(kind_of_row[0]) if kind_of_row.size else 0
        values: dict[str, Any] = {name: float(values[kind]) for name, values in ready.at.items()}
    else:
        values = dict(ready.at)
        columns["kind"] = kind_of_row
    if part.corrected in ready.networks:
        values["network"] = ready.networks[part.corrected][0]
        columns["node"] = nodes_of_rows(ready, part)
    kernel = kernel_of(ready.family)
    return evaluate(kernel, kind_of_row.size, columns, uniform, ready.hardware, values, backend=backend)


@cache
def kernel_of(family: str) -> Callable[..., dict[str, Any]]:
    """The family's whole expression: gather hardware and constants; roofline, bound, latency, correction, tiles."""
    declared = FAMILIES[family]
    form, wire_share = declared.form, declared.wire_share

    def kernel(xp: Any, columns: dict, uniform: dict, hardware: dict, at: dict) -> dict[str, Any]:
        columns = {"working_set_bytes": COLD_BYTES, **columns, **uniform}
        index = columns["gpu"]
        gpu = {name: values[index] for name, values in hardware.items() if name not in BY_MATH}
        tensor_work = "math" in columns
        for name in BY_MATH:
            gpu[name] = hardware[name][index, columns["math"]] if tensor_work else gpu["vector_flops_per_us"]
        rates = gpu["math_flops_per_us"]
        at = dict(at)
        network = at.pop("network", None)
        if "kind" in columns:
            at = {name: values[columns["kind"]] for name, values in at.items()}
        if wire_share:
            roofline = columns["bytes"] * wire_share(columns["group_size"]) / gpu["peak_link_bytes_per_us"]
            bound = xp.full_like(roofline, 2.0)
        else:
            compute, memory = columns["flops"] / rates, columns["bytes"] / gpu["memory_bytes_per_us"]
            roofline = xp.maximum(compute, memory)
            bound = xp.where(compute > memory, 0.0, 1.0)
        if "new_tokens" in columns or declared.vector_work:
            # queries, keys and values of a prompt, and activations, were written by the kernel before
            columns["working_set_bytes"] = columns["bytes"]
        call = form.view(xp, columns)
        latency, tiles = form.expression(xp, call, gpu, at)
        beyond = {}
        if network is not None:
            seen = features(xp, family, call, gpu)
            latency = latency * xp.exp(correction(xp, seen, columns["node"], network))
            beyond = {"outside_octaves": outside(xp, seen, network)}
        if tensor_work or wire_share:
            # cold data cannot beat the bound; what moves activations may, out of L2
            latency = xp.maximum(latency, roofline)
        # a call without work has a roofline too, or its eta would be infinite
        results = {"roofline_us": xp.maximum(roofline, 2.0**-20), "bound": bound, "latency_us": latency, **beyond}
        return results if tiles is None else {**results, "tiles": tiles}

    return kernel


def _is_uniform(values: np.ndarray) -> bool:
    return values.size > 0 and bool((values == values[0]).all())


def _words(words: Sequence[str], codes: np.ndarray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(words, pa.string()))


def _spelled(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
