"""From a family's call table to its latencies: gather the hardware, evaluate the expression, attach the evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.cache import remembered
from kernelsight.dataflow.columns import evaluate, numeric
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.features import features
from kernelsight.kernels.hardware import BY_MATH, MATH, hardware_columns
from kernelsight.kernels.intervals import spread
from kernelsight.kernels.kinds import (
    TIERS,
    constants_of,
    interval_half_widths,
    kinds_of,
    nearby_at,
    network_at,
    points_at,
)
from kernelsight.kernels.likeness import Likeness
from kernelsight.kernels.nearby import Nearby, nearby_delta
from kernelsight.kernels.network import Network, correction, scaled
from kernelsight.kernels.points import mean_of, places, sizes_of
from kernelsight.kernels.resolve import family_facts, fitted_gpus, siblings

# of kernel_latencies
COLUMNS = ["deployment_id", "step_shape_id", "call", "family", "name", "count", "tiles", "roofline_us", "bound", "eta"]
COLUMNS += ["latency_us", "latency_p05_us", "latency_p95_us", "tier", "evidence"]
BOUNDS = ("compute", "memory", "link")
# general constants count in units and clocks of NVIDIA GPUs: on hardware that is built otherwise, no call of a vendor
# without measurements is taken to be slower than this
SLOWEST_US, SLOWEST_ETA = 50.0, 8.0
# a forward pass touches far more bytes than L2 holds before it reads a weight or a cached key again
COLD_BYTES = 1e15


class Answers(NamedTuple):
    """What the expressions say of a call table, row by row, and of the kinds of calls in it."""

    kinds: list[dict[str, Any]]
    kind_of_row: np.ndarray
    evidence: list[str]
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
    *,
    backend: str = "auto",
) -> pa.Table:
    """Return ``kernel_latencies`` rows of one family's call table, in its order.

    ``settings`` is ``deployment_settings``: its tier decides what the constants may rest on. Refuses the
    target-measured tier on a GPU of which ``eta_coefficients`` holds no fit.
    """
    found = figures(family, calls, settings, gpus, fabrics, coefficients, implementations, backend=backend)
    stated = calls.select(["deployment_id", "step_shape_id", "call", "name", "count"])
    stated = stated.append_column("family", pa.repeat(family, calls.num_rows))
    return joined(stated, found)


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
    *,
    backend: str = "auto",
) -> pa.Table:
    """Return the columns of ``latencies`` that are computed, those of words as dictionaries.

    ``calls`` needs the columns of ``columns_read`` alone.
    """
    found = answers(family, calls, settings, gpus, fabrics, coefficients, implementations, backend=backend)
    roofline, rows = found.results["roofline_us"], calls.num_rows
    latency, p05, p95 = interval(family, found, coefficients)
    return pa.table(
        {
            "tiles": pa.array(found.results["tiles"]) if "tiles" in found.results else pa.nulls(rows, pa.float64()),
            "roofline_us": roofline,
            "bound": _words(BOUNDS, found.results["bound"].astype(np.int64)),
            "eta": latency / roofline,
            "latency_us": latency,
            "latency_p05_us": p05,
            "latency_p95_us": p95,
            "tier": _words(TIERS, found.tier),
            "evidence": _words(found.evidence, found.kind_of_row),
        }
    )


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
    rows = calls.num_rows
    declared = FAMILIES[family]
    columns = numeric(calls, [*declared.form.reads, "flops", "bytes"])
    columns["gpu"] = _positions(calls["gpu"], gpus["gpu"])
    if not declared.vector_work and "math" in calls.column_names:
        columns["math"] = _positions(calls["math"], pa.array(MATH))
    kinds, kind_of_row = kinds_of(family, calls, settings)
    hardware = remembered((gpus, fabrics), "hardware", lambda: hardware_columns(gpus, fabrics))
    alike = remembered((gpus, fabrics), ("alike", family), lambda: Likeness(family, gpus, hardware))
    at, evidence = constants_of(family, kinds, implementations, gpus, coefficients, alike)
    known = family_facts(family, implementations, gpus)
    for kind in kinds:
        others = fitted_gpus(coefficients, family, kind["without"], kind["vendor"])
        others = set() if kind["answers"] == "target-measured" else others
        kind["octaves"] = alike.octaves(kind["gpu"], siblings(known, kind["gpu"], others) or others)
    networks = {gpu: network_at(coefficients, family, gpu) for gpu in {kind["corrected"] for kind in kinds} - {None}}
    results: dict[str, np.ndarray] = {}
    # a measured GPU has a correction of its own: its rows are evaluated together
    for gpu in dict.fromkeys(kind["corrected"] for kind in kinds) or [None]:
        mine = [number for number, kind in enumerate(kinds) if kind["corrected"] == gpu]
        chosen = slice(None) if len(mine) == len(kinds) else np.flatnonzero(np.isin(kind_of_row, mine))
        part = {name: values[chosen] for name, values in columns.items()}
        found = _evaluate(family, part, kind_of_row[chosen], kinds, at, hardware, networks.get(gpu), backend)
        if nearby := nearby_at(coefficients, family, gpu) if gpu else {}:
            factor = _nearby_factor(family, part, kind_of_row[chosen], kinds, hardware, networks[gpu][0], nearby)
            least = found["roofline_us"] if "math" in part or declared.wire_share else 0.0
            found["latency_us"] = np.maximum(found["latency_us"] * factor, least)
        if any(kind["points"] is not None for kind in kinds):
            factor = _points_factor(
                family, part, kind_of_row[chosen], kinds, hardware, found["latency_us"], coefficients
            )
            least = found["roofline_us"] if "math" in part or declared.wire_share else 0.0
            found["latency_us"] = np.maximum(found["latency_us"] * factor, least)
        for name, values in found.items():
            results.setdefault(name, np.empty(rows))[chosen] = values
    tier = np.array([TIERS.index(kind["answers"]) for kind in kinds], dtype=int)[kind_of_row]
    roofline, latency = results["roofline_us"], results["latency_us"]
    slowest = np.where(tier == TIERS.index("unmeasured-vendor"), SLOWEST_US + SLOWEST_ETA * roofline, np.inf)
    latency = np.where(tier == TIERS.index("roofline"), roofline, np.minimum(latency, slowest))
    if "beside" in calls.column_names:
        # hidden behind the kernel on the other stream, from which it takes bandwidth
        beside = pc.fill_null(calls["beside"], False).to_numpy(zero_copy_only=False)
        latency = np.where(beside, np.minimum(latency, roofline), latency)
    return Answers(kinds, kind_of_row, evidence, results, tier, latency)


def _evaluate(
    family: str,
    columns: dict[str, np.ndarray],
    kind_of_row: np.ndarray,
    kinds: Sequence[Mapping[str, Any]],
    at: Mapping[str, np.ndarray],
    hardware: Mapping[str, np.ndarray],
    network: tuple[Network, list[str]] | None,
    backend: str,
) -> dict[str, np.ndarray]:
    """Run the family's expression over rows that share a correction, or have none."""
    columns = dict(columns)
    # one GPU, arithmetic and kernel, the common case, are numbers: no gather per row
    uniform = {name: columns.pop(name)[0] for name in ("gpu", "math") if name in columns and _is_uniform(columns[name])}
    if kind_of_row.size == 0 or _is_uniform(kind_of_row):
        kind = int(kind_of_row[0]) if kind_of_row.size else 0
        values: dict[str, Any] = {name: float(values[kind]) for name, values in at.items()}
    else:
        values = dict(at)
        columns["kind"] = kind_of_row
    if network:
        values["network"] = network[0]
        nodes = [network[1].index(kind["kernel"]) if kind["kernel"] in network[1] else -1 for kind in kinds]
        columns["node"] = np.array(nodes, dtype=np.int64)[kind_of_row]
    return evaluate(_kernel(family), kind_of_row.size, columns, uniform, hardware, values, backend=backend)


def _nearby_factor(
    family: str,
    columns: Mapping[str, np.ndarray],
    kind_of_row: np.ndarray,
    kinds: Sequence[Mapping[str, Any]],
    hardware: Mapping[str, np.ndarray],
    network: Network,
    nearby: Mapping[str, Nearby],
) -> np.ndarray:
    """Return what the points of a small sweep make of calls near them."""
    call = FAMILIES[family].form.view(np, {"working_set_bytes": COLD_BYTES, **columns})
    seen = features(np, family, call, {"sm_count": hardware["sm_count"][columns["gpu"]]})
    kernels = np.array([kind["kernel"] for kind in kinds])[kind_of_row]
    return np.exp(nearby_delta(scaled(seen, network), kernels, nearby))


def _points_factor(
    family: str,
    columns: Mapping[str, np.ndarray],
    kind_of_row: np.ndarray,
    kinds: Sequence[Mapping[str, Any]],
    hardware: Mapping[str, np.ndarray],
    latency_us: np.ndarray,
    coefficients: pa.Table,
) -> np.ndarray:
    """Return what a few points of a GPU make of the latencies that the fit across generations gives its calls."""
    factor = np.ones(latency_us.size)
    for number, kind in enumerate(kinds):
        rows = np.flatnonzero(kind_of_row == number)
        if kind["points"] is None or not rows.size:
            continue
        part = {name: values[rows] for name, values in columns.items()}
        call = FAMILIES[family].form.view(np, {"working_set_bytes": COLD_BYTES, **part})
        seen = features(np, family, call, {"sm_count": hardware["sm_count"][part["gpu"]]})
        words = dict(zip(("engine", "implementation", "dtype"), kind["kernel"].split("|"), strict=True))
        where = places({"family": family, **words}, np.log(latency_us[rows]), sizes_of(family, seen))
        factor[rows] = np.exp(mean_of(where, points_at(coefficients, family, kind["fit"])))
    return factor


@cache
def _kernel(family: str) -> Callable[..., dict[str, Any]]:
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
        if network is not None:
            seen = features(xp, family, call, gpu)
            latency = latency * xp.exp(correction(xp, seen, columns["node"], network))
        if tensor_work or wire_share:
            # cold data cannot beat the bound; what moves activations may, out of L2
            latency = xp.maximum(latency, roofline)
        # a call without work has a roofline too, or its eta would be infinite
        found = {"roofline_us": xp.maximum(roofline, 2.0**-20), "bound": bound, "latency_us": latency}
        return found if tiles is None else {**found, "tiles": tiles}

    return kernel


def _is_uniform(values: np.ndarray) -> bool:
    return values.size > 0 and bool((values == values[0]).all())


def _positions(values: pa.ChunkedArray | pa.Array, among: pa.ChunkedArray | pa.Array) -> np.ndarray:
    among = among.combine_chunks() if isinstance(among, pa.ChunkedArray) else among
    if pa.types.is_dictionary(values.type):
        values = values.combine_chunks()
        return _positions(values.dictionary, among)[values.indices.to_numpy()]
    return pc.index_in(values, among).to_numpy(zero_copy_only=False).astype(np.int64)


def _words(words: Sequence[str], codes: np.ndarray) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(words, pa.string()))


def _spelled(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
