"""From a family's call table to its latencies: gather the hardware, evaluate the expression, attach the evidence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.columns import evaluate, numeric
from kernelsight.dataflow.remembered import remembered
from kernelsight.errors import InvalidInput
from kernelsight.eta.correction import network_of
from kernelsight.eta.features import FEATURES, features
from kernelsight.eta.held_out import group_of, halves_for
from kernelsight.eta.intervals import KNOTS_US, spread
from kernelsight.eta.nearby import Nearby, nearby_delta, nearby_of
from kernelsight.eta.network import Network, correction, scaled
from kernelsight.eta.pack import correction_numbers
from kernelsight.eta.resolve import Facts, choose, constants_at, engine_that_ran, family_facts, lineage_of, rows_of_part
from kernelsight.roofline import collectives, streaming
from kernelsight.roofline.columns import combinations
from kernelsight.roofline.families import FORMS
from kernelsight.roofline.hardware import MATH, hardware_columns

BOUNDS = ("compute", "memory", "link")
# their arithmetic runs on the vector units, whatever the format of what they move
VECTOR_WORK = ("norm", "activation", "rope", "kv_write", "quantize", "embedding", "sampling")
# a forward pass touches far more bytes than L2 holds before it reads a weight or a cached key again
COLD_BYTES = 1e15
# what differs between a sweep and a served graph: no gap between two replays; quantisation, rotation and cache writes
# have calls of their own; prompts do not end at whole tiles
SERVED = {"gap_us": 0.0, "quantizes": 0.0, "query_passes": 0.0, "kv_passes": 0.0, "row_padding": 0.5}
# families whose kernel an engine chooses by the width of the heads
BY_HEAD_DIM = ("prefill_attention", "decode_attention")


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
    rows = calls.num_rows
    found = answers(family, calls, settings, gpus, fabrics, coefficients, implementations, backend=backend)
    roofline, latency = found.results["roofline_us"], found.latency_us
    width = spread(np, latency, _halves(family, found.kinds, coefficients)[found.kind_of_row])
    tiles = found.results.get("tiles")
    return pa.table(
        {
            "deployment_id": calls["deployment_id"],
            "step_shape_id": calls["step_shape_id"],
            "call": calls["call"],
            "family": pa.repeat(family, rows),
            "name": calls["name"],
            "count": calls["count"],
            "tiles": pa.array(tiles) if tiles is not None else pa.nulls(rows, pa.float64()),
            "roofline_us": roofline,
            "bound": _words(BOUNDS, found.results["bound"]),
            "eta": latency / roofline,
            "latency_us": latency,
            "latency_p05_us": np.maximum(latency / width, np.minimum(roofline, latency)),
            "latency_p95_us": latency * width,
            "tier": _words(TIERS, found.tier),
            "evidence": _words(found.evidence, found.kind_of_row),
        }
    )


def columns_read(family: str, there: Collection[str]) -> list[str]:
    """Return the columns of a family's call table that its latencies rest on, of those that are ``there``."""
    words = ("deployment_id", "gpu", "engine", "format", "math", *(("head_dim",) if family in BY_HEAD_DIM else ()))
    return list(dict.fromkeys(name for name in (*words, *FORMS[family].reads, "flops", "bytes") if name in there))


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
    form = FORMS[family]
    columns = numeric(calls, [*form.reads, "flops", "bytes"])
    columns["gpu"] = _positions(calls["gpu"], gpus["gpu"])
    if family not in VECTOR_WORK and "math" in calls.column_names:
        columns["math"] = _positions(calls["math"], pa.array(MATH))
    kinds, kind_of_row = _kinds(family, calls, settings)
    facts = family_facts(family, implementations, gpus)
    stands_for = dict(zip(gpus["gpu"].to_pylist(), gpus["measured_as"].to_pylist(), strict=True))
    at, evidence = _constants(family, kinds, facts, coefficients, stands_for)
    hardware = remembered((gpus, fabrics), "hardware", lambda: hardware_columns(gpus, fabrics))
    networks = {gpu: _network(coefficients, family, gpu) for gpu in {kind["corrected"] for kind in kinds} - {None}}
    results: dict[str, np.ndarray] = {}
    # a measured GPU has a correction of its own: its rows are evaluated together
    for gpu in dict.fromkeys(kind["corrected"] for kind in kinds) or [None]:
        mine = [number for number, kind in enumerate(kinds) if kind["corrected"] == gpu]
        chosen = slice(None) if len(mine) == len(kinds) else np.flatnonzero(np.isin(kind_of_row, mine))
        part = {name: values[chosen] for name, values in columns.items()}
        found = _evaluate(family, part, kind_of_row[chosen], kinds, at, hardware, networks.get(gpu), backend)
        if nearby := _nearby(coefficients, family, gpu) if gpu else {}:
            factor = _nearby_factor(family, part, kind_of_row[chosen], kinds, hardware, networks[gpu][0], nearby)
            least = found["roofline_us"] if "math" in part or family in collectives.LEAST_WIRE_SHARE else 0.0
            found["latency_us"] = np.maximum(found["latency_us"] * factor, least)
        for name, values in found.items():
            results.setdefault(name, np.empty(rows))[chosen] = values
    tier = np.array([TIERS.index(kind["answers"]) for kind in kinds], dtype=int)[kind_of_row]
    latency = np.where(tier == TIERS.index("roofline"), results["roofline_us"], results["latency_us"])
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


TIERS = ("cross-generation", "roofline", "target-measured", "hypothetical")
# tiers that answer from the fit of one GPU, with its correction
FITTED = ("target-measured", "hypothetical")


def _kinds(family: str, calls: pa.Table, settings: pa.Table) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return the different (tier, gpu, engine, dtype, head_dim, backend) of the calls, and the number of each row's."""
    tiers = settings["tier"].combine_chunks()
    if len(settings) != 1:
        tiers = tiers.take(pc.index_in(calls["deployment_id"], settings["deployment_id"].combine_chunks()))
    else:
        tiers = pa.repeat(tiers[0], calls.num_rows)
    named = {"tier": tiers, "gpu": calls["gpu"], "engine": calls["engine"]}
    for name in ("format", "math"):
        if name in calls.column_names:
            named[name] = calls[name]
    if family in BY_HEAD_DIM:
        named["head_dim"] = calls["head_dim"].cast(pa.string())
    if (
        family == "moe"
        and "moe_backend" in settings.column_names
        and settings["moe_backend"].null_count < len(settings)
    ):
        backends = pc.fill_null(settings["moe_backend"].combine_chunks(), "")
        place = pc.index_in(calls["deployment_id"], settings["deployment_id"].combine_chunks())
        named["moe_backend"] = backends.take(place) if len(settings) != 1 else pa.repeat(backends[0], calls.num_rows)
    kinds, kind_of_row = combinations(pa.table(named), list(named))
    return [{**kind, "dtype": dtype_of(family, kind)} for kind in kinds], kind_of_row


def dtype_of(family: str, kind: Mapping[str, str | None]) -> str:
    """Return the cell that a call's number formats belong to, as ``sweep_points.dtype`` names it."""
    if family.endswith("attention") or family.startswith("mla_"):
        return f"{kind.get('math')}/{kind.get('format') or kind.get('math')}"
    return kind.get("format") or "bf16"


def _constants(
    family: str,
    kinds: Sequence[dict[str, Any]],
    facts: Facts,
    coefficients: pa.Table,
    stands_for: Mapping[str, str | None],
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return each coefficient at each kind, and what the kind's numbers rest on; notes in the kind what answers.

    ``stands_for``: of a hypothetical GPU, the one whose fit is its own (``gpus.measured_as``).
    """
    form = FORMS[family]
    if not kinds:
        return {one.name: np.array([one.start]) for one in form.coefficients}, [""]
    measured, anywhere = _measured_gpus(family, coefficients), _gpus_of(coefficients)
    corrected = _gpus_of(rows_of_part(coefficients, family, "correction"))
    for kind in kinds:
        kind["fit"] = stands_for.get(kind["gpu"]) or kind["gpu"]
    for kind in kinds:
        kind["ran"] = engine_that_ran(coefficients, family, kind["engine"], kind["fit"])
    calls = [
        {
            "engine": kind["ran"],
            "gpu": kind["fit"],
            "dtype": kind["dtype"],
            "head_dim": int(kind.get("head_dim") or 0),
            "implementation": kind.get("moe_backend") or None,
        }
        for kind in kinds
    ]
    nodes = rows_of_part(coefficients, family, "constant").select(["without", "implementation"])
    fitted = {tuple(row.values()) for row in nodes.group_by(nodes.column_names).aggregate([]).to_pylist()}
    fits = {without for without, _ in fitted}
    chosen = choose(facts, coefficients, family, calls)
    values: dict[str, np.ndarray] = {}
    evidence = []
    for row, (kind, (implementation, seen)) in enumerate(zip(kinds, chosen, strict=True)):
        if kind["tier"] == "target-measured" and kind["fit"] not in anywhere:
            raise InvalidInput(
                f"the target-measured tier was asked for, but no sweep of {kind['fit']} is fitted; fit one by "
                "`kernelsight calibrate fit`, or use --tier auto, cross-generation or roofline."
            )
        kind["answers"] = _answering_tier(kind["tier"], kind["fit"], measured, bool(stands_for.get(kind["gpu"])))
        here = kind["answers"] in FITTED
        kind["corrected"] = kind["fit"] if here and kind["fit"] in corrected else None
        kind["kernel"] = "|".join((kind["ran"], implementation, kind["dtype"]))
        # asked not to use what was measured there, the head without its whole generation answers
        without = facts.generation.get(kind["fit"]) if kind["fit"] in measured and not here else None
        path = {
            **kind,
            "gpu": kind["fit"],
            "engine": kind["ran"],
            "implementation": implementation,
            "lineage": lineage_of(facts, implementation),
        }
        at = constants_at(
            facts, coefficients, family, form.coefficients, [path], without if without in fits else None, measured=here
        )
        kind["without"] = without if without in fits else None
        swept = kind["answers"] == "target-measured"
        kind["group"] = (
            kind["kernel"] if swept else group_of(kind["dtype"], (kind["without"], implementation) in fitted)
        )
        for name, value in at.items():
            values.setdefault(name, np.empty(len(kinds)))[row] = value[0]
        evidence.append(_evidence(kind, implementation, seen, measured))
    for name in SERVED.keys() & values.keys():
        values[name] = np.full(len(kinds), SERVED[name])
    return values, evidence


def _halves(family: str, kinds: Sequence[Mapping[str, Any]], coefficients: pa.Table) -> np.ndarray:
    """Return (kinds, knots): half widths of the logarithm of each kind's 90 % interval, at the knots of latency."""
    curves_of = rows_of_part(coefficients, family, "interval")
    rows = remembered((coefficients,), ("curves", family), curves_of.to_pylist)
    found = np.full((len(kinds), len(KNOTS_US)), np.log(FORMS[family].spread))
    for number, kind in enumerate(kinds):
        # what a sweep tells of its own GPU's errors says nothing of a GPU that nobody built
        gpu = kind["gpu"] if kind["answers"] == "target-measured" else None
        curves = {
            row["dtype"]: np.array(row["array"])
            for row in rows
            if row["gpu"] == gpu and row["without"] == (None if gpu else kind["without"])
        }
        if kind["answers"] == "roofline":
            found[number] = 0.0
        elif curves:
            found[number] = halves_for(curves, [kind["group"]])[0]
    return found


def _network(coefficients: pa.Table, family: str, gpu: str) -> tuple[Network, list[str]]:
    """Return the correction of a GPU that was measured, and the kernels that its sweep ran."""

    def read() -> tuple[Network, list[str]]:
        return network_of(correction_numbers(_rows_of(coefficients, "correction", family, gpu)))

    return remembered((coefficients,), ("network", family, gpu), read)


def _nearby(coefficients: pa.Table, family: str, gpu: str) -> dict[str, Nearby]:
    """Return by kernel the points of a small sweep of a GPU, where there are any."""
    return remembered(
        (coefficients,),
        ("nearby", family, gpu),
        lambda: nearby_of(_rows_of(coefficients, "nearby", family, gpu)),
    )


def _rows_of(coefficients: pa.Table, part: str, family: str, gpu: str) -> list[dict[str, Any]]:
    rows = rows_of_part(coefficients, family, part)
    return rows.filter(pc.fill_null(pc.equal(rows["gpu"], gpu), False)).to_pylist()


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
    call = FORMS[family].view(np, {"working_set_bytes": COLD_BYTES, **columns})
    seen = features(np, family, call, {"sm_count": hardware["sm_count"][columns["gpu"]]})
    kernels = np.array([kind["kernel"] for kind in kinds])[kind_of_row]
    return np.exp(nearby_delta(scaled(seen, network), kernels, nearby))


def _measured_gpus(family: str, coefficients: pa.Table) -> set[str]:
    def read() -> set[str]:
        return _gpus_of(coefficients.filter(pc.equal(coefficients["family"], family))) - {None}

    return remembered((coefficients,), ("measured", family), read)


def _gpus_of(coefficients: pa.Table) -> set[str | None]:
    return remembered((coefficients,), "gpus", lambda: set(pc.unique(coefficients["gpu"]).to_pylist()))


def _answering_tier(asked: str, gpu: str, measured: set[str], hypothetical: bool) -> str:
    if asked not in ("auto", "target-measured"):
        return asked
    if gpu not in measured:
        return "cross-generation"
    return "hypothetical" if hypothetical else "target-measured"


def _evidence(kind: Mapping[str, Any], implementation: str, seen: bool, measured: set[str]) -> str:
    if kind["answers"] == "roofline":
        return "lower bound"
    if not measured:
        return "analytic terms with assumed constants"
    if kind["answers"] == "target-measured":
        return f"sweep of {kind['gpu']}: {implementation}"
    if kind["answers"] == "hypothetical":
        return f"fit of {kind['fit']}, hypothetical: {implementation}"
    where = "" if seen else ", not seen on this generation"
    return f"sweeps of other GPUs: {implementation}{where}"


def _kernel(family: str) -> Callable[..., dict[str, Any]]:
    """The family's whole expression; families that compute the same share one, which JAX then compiles once."""
    form = FORMS[family]
    shared = family if family in FEATURES else None
    return _shared_kernel(form.expression, form.view, collectives.LEAST_WIRE_SHARE.get(family), shared)


@cache
def _shared_kernel(
    expression: Callable, view: Callable, wire_share: Callable | None, family: str | None
) -> Callable[..., dict[str, Any]]:
    """Gather hardware and constants, then roofline, bound, latency, its correction, and tiles."""

    def kernel(xp: Any, columns: dict, uniform: dict, hardware: dict, at: dict) -> dict[str, Any]:
        columns = {"working_set_bytes": COLD_BYTES, **columns, **uniform}
        index = columns["gpu"]
        gpu = {name: values[index] for name, values in hardware.items() if name != "math_flops_per_us"}
        tensor_work = "math" in columns
        rates = hardware["math_flops_per_us"][index, columns["math"]] if tensor_work else gpu["vector_flops_per_us"]
        gpu["math_flops_per_us"] = rates
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
        if "new_tokens" in columns or expression in (streaming.streaming, streaming.quantize):
            # queries, keys and values of a prompt, and activations, were written by the kernel before
            columns["working_set_bytes"] = columns["bytes"]
        call = view(xp, columns)
        latency, tiles = expression(xp, call, gpu, at)
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


def _positions(values: pa.ChunkedArray, among: pa.ChunkedArray | pa.Array) -> np.ndarray:
    among = among.combine_chunks() if isinstance(among, pa.ChunkedArray) else among
    return pc.index_in(values, among).to_numpy(zero_copy_only=False).astype(np.int64)


def _words(words: Sequence[str], codes: np.ndarray) -> pa.Array:
    if _is_uniform(codes):
        return pa.repeat(words[int(codes[0])], codes.size)
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(list(words))).cast(pa.string())
