"""Step costs: GPU time of every deployment at its knots (step shapes), the sum over the kernels that each launches.

Deployments with one launch signature are lowered once, equal calls are priced once per GPU, and no table of kernels is
made. Times are summed in whole picoseconds, so that no order of rows changes a bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import LruCache, memoised
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.kernels.families import LOWERED
from kernelsight.kernels.knot_costs import KernelTimes, KnotCosts, LaunchGroups
from kernelsight.kernels.labels import MEASURED
from kernelsight.kernels.latency import BOUNDS, columns_read
from kernelsight.kernels.launch_signatures import launched_families
from kernelsight.kernels.pricing import RATES, in_nanojoules, in_picoseconds, priced
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.kernels.string_columns import strings_of

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader

# launch signatures on a GPU whose costs stay in memory: some 20 kB each
MOST_KNOWN = 256
LATENCIES = ("latency_us", "latency_p05_us", "latency_p95_us")
# times of a knot that corrections change, and the columns of knot_corrections with the factors
TIMED = ("picoseconds", "embedding", "transfer", "moe", "communication")
FACTORS = ("factor", "moe_factor", "communication_factor")


class SignatureCosts(NamedTuple):
    """Costs of a launch signature on a GPU, and what they rest on."""

    costs: KnotCosts
    rests: list[tuple[str, str, str, np.ndarray]]  # family, tier, evidence, picoseconds at knots


@reads("kernel_latencies", "family_latencies", "family_calls")
@produces("step_costs", "step_cost_shares", "knot_evidence")
def step_costs_of(
    step_shapes: pa.Table,
    launch_signatures: pa.Table,
    deployment_settings: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    eta_coefficients: pa.Table,
    kernel_implementations: pa.Table,
    dies: pa.Table,
    gpu_power: pa.Table,
    knot_corrections: pa.Table,
    *,
    read: Reader,
    wanted: frozenset[str],
    threads: int | None,
) -> dict[str, pa.Table]:
    """GPU time of each step shape (knot): its kernels' latencies added up; and the evidence for them.

    ``read``: reads call tables by family, and latencies where they are given; ``threads``: number of threads that price
    calls; ``wanted``: further tables: ``step_cost_shares``, for which calls are priced on faster GPUs too, and
    ``knot_evidence``.
    """
    facts = (gpus, fabrics, eta_coefficients, kernel_implementations, dies, gpu_power)
    deployment_tables = (step_shapes, launch_signatures, deployment_settings, sharded_layers, layer_weights)
    shares = "step_cost_shares" in wanted
    costs, rests = _costs(*deployment_tables, facts, read, threads, shares)
    knots = step_shapes.filter(pc.not_equal(step_shapes["part"], "whole"))
    knots = knots.select(["deployment_id", "part", "step_shape_id", "x", "y"])
    knot_costs = _corrected(_at_knots(knots, costs), knots, knot_corrections)
    launching = np.flatnonzero(knot_costs.launches)
    kept = knots if launching.size == knots.num_rows else knots.take(pa.array(launching))
    kept = kept.append_column("gpu_us", pa.array(knot_costs.picoseconds[launching] / 1e6))
    for name in ("p05", "p95"):
        kept = kept.append_column(f"gpu_{name}_us", pa.array(getattr(knot_costs, name)[launching] / 1e6))
    kept = kept.append_column("measured_us", pa.array(knot_costs.measured[launching] / 1e6))
    kept = kept.append_column("launches", pa.array(knot_costs.launches[launching].astype(np.int64)))
    joules = knot_costs.nanojoules[launching] / 1e9
    kept = kept.append_column("dynamic_energy_j", pa.array(joules, mask=np.isnan(joules)))
    for name in ("embedding", "transfer", "moe", "communication"):
        kept = kept.append_column(f"{name}_us", pa.array(getattr(knot_costs, name)[launching] / 1e6))
    made = {"step_costs": kept}
    if "knot_evidence" in wanted:
        made["knot_evidence"] = _knot_evidence(rests)
    if shares:
        by_rate = {f"{name}_us": pa.array(getattr(knot_costs, name)[launching] / 1e6) for name in RATES}
        keys = {name: kept[name] for name in ("deployment_id", "step_shape_id")}
        made["step_cost_shares"] = pa.table({**keys, **by_rate})
    return made


def _corrected(costs: KnotCosts, knots: pa.Table, corrections: pa.Table) -> KnotCosts:
    """Return the costs of knots times the factors of ``knot_corrections`` on their kernels, in whole picoseconds."""
    if not corrections.num_rows:
        return costs
    keys = ["deployment_id", "step_shape_id"]
    numbered = knots.select(keys).append_column("row", pa.array(np.arange(knots.num_rows)))
    factors = numbered.join(corrections, keys).sort_by("row")
    made = corrected({name: getattr(costs, name) for name in TIMED}, *(factors[name] for name in FACTORS))
    # a log's correction says nothing about the remaining error: the interval keeps its width. The work is the same:
    # energy changes only by what an active GPU draws in the time
    ratio = made["picoseconds"] / np.maximum(costs.picoseconds, 1.0)
    shares = {name: _scaled(getattr(costs, name), ratio) for name in ("p05", "p95", "measured", *RATES)}
    return costs._replace(**made, **shares)


def corrected(
    times: Mapping[str, np.ndarray], other: pa.Array, moe: pa.Array, communication: pa.Array
) -> dict[str, np.ndarray]:
    """Return picoseconds of knots by TIMED, (knots,) each, times the FACTORS on their kernels; a null factor is 1.

    >>> times = {name: np.array([10.0]) for name in TIMED} | {"picoseconds": np.array([100.0])}
    >>> corrected(times, *(pa.array([factor], pa.float64()) for factor in (1.5, None, 3.0)))["picoseconds"].tolist()
    [160.0]
    """
    factors = [pc.fill_null(factor, 1.0).to_numpy() for factor in (other, moe, communication)]
    experts, collectives = _scaled(times["moe"], factors[1]), _scaled(times["communication"], factors[2])
    others = _scaled(times["picoseconds"] - times["moe"] - times["communication"], factors[0])
    stages = {name: _scaled(times[name], factors[0]) for name in ("embedding", "transfer")}
    return {"picoseconds": others + experts + collectives, **stages, "moe": experts, "communication": collectives}


def _scaled(picoseconds: np.ndarray, factor: np.ndarray) -> np.ndarray:
    return np.floor(picoseconds * factor + 0.5)


def _at_knots(knots: pa.Table, costs: Mapping[str, KnotCosts]) -> KnotCosts:
    """Return the costs of ``knots``, in their order; rows of a deployment are adjacent. ``costs``: by deployment."""
    runs = pc.run_end_encode(knots["deployment_id"].combine_chunks())
    stops = runs.run_ends.to_numpy()
    ids = knots["step_shape_id"].to_numpy()
    spans = list(zip(runs.values.to_pylist(), [0, *stops], stops, strict=False))
    return KnotCosts(
        *(
            np.concatenate([costs[name][field][ids[start:stop]] for name, start, stop in spans] or [np.zeros(0)])
            for field in range(len(KnotCosts._fields))
        )
    )


def _costs(
    step_shapes: pa.Table,
    signatures: pa.Table,
    settings: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    facts: Sequence[pa.Table],
    read: Reader,
    threads: int | None,
    shares: bool,
) -> tuple[Mapping[str, KnotCosts], list[tuple]]:
    """Return the costs of step shapes by deployment, each in the order of their ids, and what they rest on.

    That is, for each deployment, the rows of :class:`SignatureCosts`.

    A launch signature that was priced for a GPU before, from the same tables, is not priced again.
    """
    given_latencies = [name for name in ("kernel_latencies",) if read.is_given(name)]
    given_latencies = given_latencies or [
        f"{family}_latencies" for family in LOWERED if read.is_given(f"{family}_latencies")
    ]
    sizes = _sizes(step_shapes)
    gpus = dict(zip(*(settings[name].to_pylist() for name in ("deployment_id", "gpu")), strict=True))
    rows = [row for row in signatures.to_pylist() if row["deployment_id"] in sizes]
    # given latencies may differ between deployments of one signature
    contents = {row["deployment_id"]: None if given_latencies else row["content"] for row in rows}
    known_keys = {name: (content, gpus[name], shares) for name, content in contents.items() if content}
    # gpu_power is computed in every session anew: its inputs identify it
    given_facts = facts if read.is_given("gpu_power") else facts[:-1]
    roots = (*given_facts, *read.roots_of(["gpu_power", *(f"{family}_calls" for family in LOWERED)]))
    recent: LruCache[SignatureCosts] = memoised(roots, "costs of launch signatures", lambda: LruCache(MOST_KNOWN))
    cost_of_deployment = {name: known for name, key in known_keys.items() if (known := recent.get(key))}
    groups = _groups([row for row in rows if row["deployment_id"] not in cost_of_deployment], sizes, gpus)
    units = {
        unit: [name for name in groups.unit_of if groups.unit_of[name] == unit] for unit in set(groups.unit_of.values())
    }
    for (number, _), names in units.items():
        for sharing in [[name] for name in names] if given_latencies else [names]:
            cost_of_deployment |= dict.fromkeys(
                sharing, SignatureCosts(KnotCosts(*np.zeros((len(KnotCosts._fields), groups.knots[number]))), [])
            )
    if units and "kernel_latencies" not in given_latencies:
        launched = launched_families(settings, sharded_layers, layer_weights)
        families = [family for family in launched if f"{family}_latencies" not in given_latencies]
        unit_costs = {
            unit: list({id(cost_of_deployment[name]): cost_of_deployment[name] for name in names}.values())
            for unit, names in units.items()
        }
        _add_launched(families, PricingTables(settings, *facts), groups, unit_costs, read, threads, shares)
    costs = {name: known.costs for name, known in cost_of_deployment.items()}
    for name in given_latencies:
        columns = ["deployment_id", "step_shape_id", "family", "count", *LATENCIES, "bound", "tier", "energy_j"]
        _add_given(read(name, columns), costs, _at_rest_w(gpus, facts[-1]))
    for name in groups.unit_of.keys() & known_keys.keys():
        recent.put(known_keys[name], cost_of_deployment[name])
    return costs, [
        (row["deployment_id"], *rest) for row in rows for rest in cost_of_deployment[row["deployment_id"]].rests
    ]


def _add_launched(
    families: Sequence[str],
    tables: PricingTables,
    groups: LaunchGroups,
    unit_costs: Mapping[tuple[int, str], Sequence[SignatureCosts]],
    read: Reader,
    threads: int | None,
    shares: bool,
) -> None:
    """Lower and price the calls of families, and add them to ``unit_costs``, by launch signature and GPU."""
    with ThreadPoolExecutor(threads) as workers:
        submitted = []
        for family in families:
            wanted = columns_read(family, read.columns_of(f"{family}_calls"))
            columns = {*wanted, "deployment_id", "step_shape_id", "count"} - {"gpu", "engine"}
            calls = read(f"{family}_calls", sorted(columns), {"deployment_id": groups.names})
            submitted.append((family, workers.submit(priced, family, calls, wanted, tables, groups, shares)))
        for family, future in submitted:
            for unit, times, launches, rests in future.result():
                for known in unit_costs[unit]:
                    known.costs.add(family, times, launches)
                    known.rests.extend((family, *rest) for rest in rests)


def _knot_evidence(rows: Sequence[tuple]) -> pa.Table:
    """Return ``knot_evidence``; ``rows``: deployment, family, tier, evidence, picoseconds. Given latencies: none."""
    names = ("deployment_id", "family", "tier", "evidence")
    knots = [np.flatnonzero(picoseconds) for *_, picoseconds in rows]
    owner = np.repeat(np.arange(len(rows)), [each.size for each in knots])
    table = pa.table({name: strings_of([row[place] for row in rows], owner) for place, name in enumerate(names)})
    times = [picoseconds[each] / 1e6 for (*_, picoseconds), each in zip(rows, knots, strict=True)]
    table = table.append_column("step_shape_id", pa.array(np.concatenate([*knots, np.zeros(0, np.int64)])))
    return table.append_column("gpu_us", pa.array(np.concatenate([*times, np.zeros(0)])))


def _sizes(step_shapes: pa.Table) -> dict[str, int]:
    """Return the number of step shapes by deployment; deployments without one are left out."""
    # rows of a deployment are adjacent; group_by would load Arrow's data sets, and with them sockets and ssl
    runs = pc.run_end_encode(step_shapes["deployment_id"].combine_chunks())
    starts = np.concatenate([[0], runs.run_ends.to_numpy()[:-1]]) if len(step_shapes) else []
    ids = step_shapes["step_shape_id"].to_numpy()
    most = np.maximum.reduceat(ids, starts) if len(step_shapes) else ids
    return dict(zip(runs.values.to_pylist(), (most + 1).tolist(), strict=True))


def _groups(signatures: Sequence[Mapping[str, str]], sizes: Mapping[str, int], gpus: Mapping[str, str]) -> LaunchGroups:
    """Group deployments by launch signature; ``signatures``: of ``launch_signatures``; ``sizes``: numbers of knots."""
    groups = LaunchGroups([], np.zeros(0, np.int64), [], {})
    numbers: dict[str, int] = {}
    for row in signatures:
        name = row["deployment_id"]
        number = numbers.setdefault(row["signature_id"], len(numbers))
        if number == len(groups.names):
            groups.names.append(name)
            groups.gpus.append(set())
        groups.gpus[number].add(gpus[name])
        groups.unit_of[name] = number, gpus[name]
    return groups._replace(knots=np.array([sizes[name] for name in groups.names], np.int64))


def _at_rest_w(gpus: Mapping[str, str], gpu_power: pa.Table) -> dict[str, float]:
    """Return by deployment the power of its GPU when active, without the work of kernels, watts."""
    drawn = {row["gpu"]: row["idle_w"] + row["active_w"] for row in gpu_power.to_pylist()}
    return {name: drawn[gpu] for name, gpu in gpus.items()}


def _add_given(latencies: pa.Table, costs: Mapping[str, KnotCosts], at_rest_w: Mapping[str, float]) -> None:
    """Add given latencies to ``costs`` by deployment; one without an energy makes its knot's energy unknown (NaN)."""
    names = latencies["deployment_id"].combine_chunks().dictionary_encode()
    families = latencies["family"].combine_chunks().dictionary_encode()
    knot, count = latencies["step_shape_id"].to_numpy(), latencies["count"].to_numpy()
    figures = [latencies[name].to_numpy() for name in LATENCIES]
    bound = pc.index_in(latencies["bound"], pa.array(BOUNDS)).to_numpy()
    # how given latencies scale with rates is not known: all of each with the rate that bounds it, if one does
    bounded = [np.where(bound == BOUNDS.index(name), figures[0], 0.0) for name in RATES]
    rest_w = np.array([at_rest_w[name] for name in names.dictionary.to_pylist()])[names.indices.to_numpy()]
    joules = np.asarray(latencies["energy_j"].to_numpy(), dtype=float) - rest_w * figures[0] / 1e6
    measured = np.where(pc.equal(latencies["tier"], MEASURED).to_numpy(), figures[0], 0.0)
    launch_times = KernelTimes(*map(in_picoseconds, (*figures, measured, *bounded)), in_nanojoules(joules))
    for code, name in enumerate(names.dictionary.to_pylist()):
        for number, family in enumerate(families.dictionary.to_pylist()):
            rows = np.flatnonzero((names.indices.to_numpy() == code) & (families.indices.to_numpy() == number))
            if name in costs and rows.size:
                size = costs[name].launches.size
                times = launch_times.at_knots(rows, count[rows], knot[rows], size)
                costs[name].add(family, times, np.bincount(knot[rows], count[rows], size))
