"""GPU time at each knot: the launches of its kernels added up, of every deployment, with no table of kernels.

Calls of deployments with one launch signature are lowered once; calls that are equal in all that their time rests on
are priced once for each GPU. Times are added up in whole picoseconds, so that no order of rows changes a bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.cache import remembered
from kernelsight.kernels.costed import RELIEF, Costed, Groups, Priced, Rest, Times
from kernelsight.kernels.families import FAMILIES, LOWERED
from kernelsight.kernels.kinds import TIERS
from kernelsight.kernels.latency import BOUNDS, Answers, answers, columns_read, interval
from kernelsight.kernels.launches import PRICED_BY, launched_families

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Reader

# a factor of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)
MIX = np.uint64(0xBF58476D1CE4E5B9)
# columns of gpus, by their endings, that a resource's relief raises
RATES = {
    "compute": ("_flops_per_s",),
    "memory": ("memory_bandwidth_bytes_per_s",),
    "link": ("link_bytes_per_s", "pcie_bytes_per_s"),
}
LATENCIES = ("latency_us", "latency_p05_us", "latency_p95_us")


def step_costs_of(
    step_shapes: pa.Table,
    signatures: pa.Table,
    settings: pa.Table,
    sharded_layers: pa.Table,
    layer_weights: pa.Table,
    facts: Sequence[pa.Table],
    corrections: pa.Table,
    read: Reader,
    threads: int | None,
    shares: bool = True,
) -> dict[str, pa.Table]:
    """Return ``step_costs`` of all knots that launch a kernel, in the order of ``step_shapes``; ``kernel_evidence``.

    ``facts``: gpus, fabrics, eta_coefficients, kernel_implementations; ``corrections``: of knots; ``read``: of calls
    by family, and of latencies where they are given; ``threads`` that price calls; ``shares``: ``step_cost_shares``
    too, for which every call is priced on GPUs with higher rates.
    """
    tables = (step_shapes, signatures, settings, sharded_layers, layer_weights)
    costs, tiers = _costs(*tables, facts, read, threads, shares)
    knots = step_shapes.filter(pc.not_equal(step_shapes["part"], "whole"))
    knots = knots.select(["deployment_id", "part", "step_shape_id", "x", "y"])
    found = _corrected(_at_knots(knots, costs), knots, corrections)
    there = np.flatnonzero(found.launches)
    kept = knots if there.size == knots.num_rows else knots.take(pa.array(there))
    kept = kept.append_column("gpu_us", pa.array(found.picoseconds[there] / 1e6))
    for name in ("p05", "p95"):
        kept = kept.append_column(f"gpu_{name}_us", pa.array(getattr(found, name)[there] / 1e6))
    kept = kept.append_column("launches", pa.array(found.launches[there].astype(np.int64)))
    for name in ("embedding", "transfer", "moe", "communication"):
        kept = kept.append_column(f"{name}_us", pa.array(getattr(found, name)[there] / 1e6))
    made = {"step_costs": kept, "kernel_evidence": tiers}
    if shares:
        by_rate = {f"{name}_us": pa.array(getattr(found, name)[there] / 1e6) for name in RATES}
        keys = {name: kept[name] for name in ("deployment_id", "step_shape_id")}
        made["step_cost_shares"] = pa.table({**keys, **by_rate})
    return made


def _corrected(costs: Costed, knots: pa.Table, corrections: pa.Table) -> Costed:
    """Return the costs of knots times the factors on their kernels, in whole picoseconds."""
    if not corrections.num_rows:
        return costs
    keys = ["deployment_id", "step_shape_id"]
    own = knots.select(keys).append_column("row", pa.array(np.arange(knots.num_rows)))
    factors = own.join(corrections, keys).sort_by("row")
    own, moe, communication = (
        pc.fill_null(factors[name], 1.0).to_numpy() for name in ("factor", "moe_factor", "communication_factor")
    )

    def scaled(picoseconds: np.ndarray, factor: np.ndarray) -> np.ndarray:
        return np.floor(picoseconds * factor + 0.5)

    experts, collectives = scaled(costs.moe, moe), scaled(costs.communication, communication)
    others = scaled(costs.picoseconds - costs.moe - costs.communication, own)
    stages = scaled(costs.embedding, own), scaled(costs.transfer, own)
    total = others + experts + collectives
    # what a log corrects does not say how far off the rest may be: the interval keeps its width
    ratio = total / np.maximum(costs.picoseconds, 1.0)
    shares = (scaled(each, ratio) for each in (costs.p05, costs.p95, costs.compute, costs.memory, costs.link))
    return Costed(total, *shares, costs.launches, *stages, experts, collectives)


def _at_knots(knots: pa.Table, costs: Mapping[str, Costed]) -> Costed:
    """Return the costs of step shapes of several deployments, those of each deployment together, in their order."""
    runs = pc.run_end_encode(knots["deployment_id"].combine_chunks())
    stops = runs.run_ends.to_numpy()
    ids = knots["step_shape_id"].to_numpy()
    spans = list(zip(runs.values.to_pylist(), [0, *stops], stops, strict=False))
    return Costed(
        *(
            np.concatenate([costs[name][field][ids[start:stop]] for name, start, stop in spans] or [np.zeros(0)])
            for field in range(len(Costed._fields))
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
) -> tuple[Mapping[str, Costed], pa.Table]:
    """Return by deployment what its step shapes cost, by their ids; and ``kernel_evidence``."""
    groups = _groups(step_shapes, signatures, settings)
    given = [name for name in ("kernel_latencies",) if read.is_given(name)]
    given = given or [f"{family}_latencies" for family in LOWERED if read.is_given(f"{family}_latencies")]
    # latencies of a person's own may differ between deployments of one signature
    units = {unit: [name for name in groups.of if groups.of[name] == unit] for unit in set(groups.of.values())}
    found: dict[str, Costed] = {}
    tiers: list[tuple] = []
    for (number, _), names in units.items():
        for own in [[name] for name in names] if given else [names]:
            found |= dict.fromkeys(own, Costed(*np.zeros((len(Costed._fields), groups.knots[number]))))
    priced = [] if "kernel_latencies" in given else launched_families(settings, sharded_layers, layer_weights)
    with ThreadPoolExecutor(threads) as workers:
        waiting = []
        for family in [family for family in priced if f"{family}_latencies" not in given]:
            wanted = columns_read(family, read.columns_of(f"{family}_calls"))
            asked = {*wanted, "deployment_id", "step_shape_id", "count"} - {"gpu", "engine"}
            calls = read(f"{family}_calls", sorted(asked), {"deployment_id": groups.firsts})
            waiting.append((family, workers.submit(_price, family, calls, wanted, (settings, *facts), groups, shares)))
        for family, each in waiting:
            for unit, times, launches, rests in each.result():
                for cost in {id(found[name]): found[name] for name in units[unit]}.values():
                    cost.add(family, times, launches)
                tiers += [(name, family, *rest) for name in units[unit] for rest in rests]
    for name in given:
        _add_given(
            read(name, ["deployment_id", "step_shape_id", "family", "count", *LATENCIES, "roofline_us", "bound"]), found
        )
    return found, _tier_rows(tiers)


def _tier_rows(rows: list[tuple]) -> pa.Table:
    """Return ``kernel_evidence``; latencies that were given rest on whoever gave them, and have no row."""
    names = ("deployment_id", "family", "tier", "evidence", "picoseconds")
    columns = zip(*rows, strict=True) if rows else [[]] * len(names)
    table = pa.table({name: list(values) for name, values in zip(names, columns, strict=True)})
    sums = table.group_by(list(names[:-1]), use_threads=False).aggregate([("picoseconds", "sum")])
    return sums.append_column("gpu_us", pc.divide(sums["picoseconds_sum"].cast(pa.float64()), 1e6)).drop_columns(
        "picoseconds_sum"
    )


def _groups(step_shapes: pa.Table, signatures: pa.Table, settings: pa.Table) -> Groups:
    """Group the deployments that have step shapes by their launch signature."""
    most = step_shapes.group_by("deployment_id").aggregate([("step_shape_id", "max")])
    sizes = {row["deployment_id"]: row["step_shape_id_max"] + 1 for row in most.to_pylist()}
    gpu_of = dict(zip(settings["deployment_id"].to_pylist(), settings["gpu"].to_pylist(), strict=True))
    found = Groups([], np.zeros(0, np.int64), [], {})
    numbers: dict[str, int] = {}
    for name, signature in zip(
        *(signatures[one].to_pylist() for one in ("deployment_id", "signature_id")), strict=True
    ):
        if name not in sizes:
            continue
        number = numbers.setdefault(signature, len(numbers))
        if number == len(found.firsts):
            found.firsts.append(signature)
            found.gpus.append(set())
        found.gpus[number].add(gpu_of[name])
        found.of[name] = number, gpu_of[name]
    return found._replace(knots=np.array([sizes[name] for name in found.firsts], np.int64))


def _add_given(latencies: pa.Table, costs: Mapping[str, Costed]) -> None:
    """Add kernels whose latencies were given."""
    names = latencies["deployment_id"].combine_chunks().dictionary_encode()
    families = latencies["family"].combine_chunks().dictionary_encode()
    knot, count = latencies["step_shape_id"].to_numpy(), latencies["count"].to_numpy()
    figures = [latencies[name].to_numpy() for name in LATENCIES]
    bound = pc.index_in(latencies["bound"], pa.array(BOUNDS)).to_numpy()
    # how they go with the rates is not stated: all of each with the one that bounds it
    bounded = [np.where(bound == number, figures[0], 0.0) for number in range(len(BOUNDS))]
    each = Times(*map(in_picoseconds, (*figures, *bounded)))
    for code, name in enumerate(names.dictionary.to_pylist()):
        for number, family in enumerate(families.dictionary.to_pylist()):
            rows = np.flatnonzero((names.indices.to_numpy() == code) & (families.indices.to_numpy() == number))
            if name in costs and rows.size:
                size = costs[name].launches.size
                times = each.at_knots(rows, count[rows], knot[rows], size)
                costs[name].add(family, times, np.bincount(knot[rows], count[rows], size))


def in_picoseconds(latency_us: np.ndarray) -> np.ndarray:
    """Return times as whole picoseconds, halves up."""
    return np.floor(latency_us * 1e6 + 0.5)


def _shrinks(
    family: str, calls: pa.Table, facts: Sequence[pa.Table], latency_us: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what of the latencies goes with the rates of arithmetic, of memory and of links, microseconds.

    What is left is the start of a kernel, and waves that wait for their last tile.
    """
    settings, gpus, *others = facts
    found = []
    for resource in RATES:
        # collectives wait for links alone, other kernels never do
        if (resource == "link") != bool(FAMILIES[family].wire_share):
            found.append(np.zeros_like(latency_us))
            continue
        quicker = answers(family, calls, settings, faster(gpus, resource), *others).latency_us
        found.append(np.clip((latency_us - quicker) / (1.0 - 1.0 / RELIEF), 0.0, latency_us))
    compute, memory, link = found
    # a kernel that both rates bound in part is not shorter than without either
    over = np.maximum((compute + memory) / np.maximum(latency_us, 1e-9), 1.0)
    return compute / over, memory / over, link


def faster(gpus: pa.Table, resource: str) -> pa.Table:
    """Return the GPUs with ``RELIEF`` times the rates of a resource of RATES."""

    def scaled() -> pa.Table:
        table = gpus
        for name in gpus.column_names:
            if name.endswith(RATES[resource]):
                more = pc.multiply(table[name], RELIEF)
                table = table.set_column(table.column_names.index(name), table.schema.field(name), more)
        return table

    return remembered((gpus,), f"faster {resource}", scaled)


def _price(
    family: str, calls: pa.Table, wanted: Sequence[str], facts: Sequence[pa.Table], groups: Groups, shares: bool
) -> list[Priced]:
    """Return a family's calls at knots, for each group and GPU of it.

    ``wanted``: columns that their time rests on; calls that are equal in these are priced once. ``facts``: the tables
    that ``answers`` reads beside calls, deployment_settings first.
    """
    if not calls.num_rows:
        return []
    group = pc.index_in(calls["deployment_id"], pa.array(groups.firsts, pa.string())).to_numpy().astype(np.int64)
    ends = np.cumsum(groups.knots)
    knot = (ends - groups.knots)[group] + calls["step_shape_id"].to_numpy()
    count = calls["count"].to_numpy()
    launches = np.bincount(knot, count, ends[-1])
    calls, call = _distinct(calls, wanted, facts[0], groups.firsts, group)
    found = []
    for gpu in sorted(set().union(*groups.gpus)):
        there = np.array([gpu in gpus for gpus in groups.gpus])
        rows = slice(None) if there.all() else np.flatnonzero(there[group])
        asked, place = _used(call[rows], calls.num_rows)
        if not place.size:
            continue
        mine = calls if asked.size == calls.num_rows else calls.take(pa.array(asked))
        mine = mine.append_column("gpu", _words([gpu], np.zeros(asked.size)))
        answered = answers(family, mine, *facts)
        latency, p05, p95 = interval(family, answered, facts[3])
        nothing = np.zeros_like(latency)
        rates = _shrinks(family, mine, facts, latency) if shares else (nothing, nothing, nothing)
        times = Times(*map(in_picoseconds, (latency, p05, p95, *rates)))
        total = times.at_knots(place, count[rows], knot[rows], ends[-1])
        spent = times.picoseconds[place] * count[rows]
        for number in np.flatnonzero(there).tolist():
            own = slice(ends[number] - groups.knots[number], ends[number])
            rests = _rests(answered, place, spent * (group[rows] == number))
            found.append(Priced((number, gpu), total.of(own), launches[own], rests))
    return found


def _rests(answered: Answers, place: np.ndarray, picoseconds: np.ndarray) -> list[Rest]:
    """Return what calls rest on, with the time of each; ``place``: of each launch among the calls."""
    kinds = len(answered.kinds)
    code = answered.tier * kinds + answered.kind_of_row
    sums = np.bincount(code[place], picoseconds, kinds * len(TIERS))
    spent = np.flatnonzero(sums)
    return [Rest(TIERS[one // kinds], answered.evidence[one % kinds], float(sums[one])) for one in spent.tolist()]


def _distinct(
    calls: pa.Table, wanted: Sequence[str], settings: pa.Table, firsts: Sequence[str], group: np.ndarray
) -> tuple[pa.Table, np.ndarray]:
    """Return the calls that differ in what their time rests on, but for the GPU, and the number of each row's.

    ``firsts``: the deployments whose calls they are, by ``group``.
    """
    settings = settings.take(pc.index_in(pa.array(firsts), settings["deployment_id"].combine_chunks()))
    engines = settings["engine"].combine_chunks().dictionary_encode()
    columns = {
        "deployment_id": calls["deployment_id"].combine_chunks(),
        "engine": _words(engines.dictionary, engines.indices.to_numpy()[group]),
    }
    for name in wanted:
        if name not in ("gpu", *columns):
            column = calls[name].combine_chunks()
            columns[name] = column.dictionary_encode() if pa.types.is_string(column.type) else column
    stated = zip(*(settings[name].to_pylist() for name in PRICED_BY if name in settings.column_names), strict=True)
    numbers: dict[tuple, int] = {}
    keys = [np.array([numbers.setdefault(row, len(numbers)) for row in stated])[group].astype(float)]
    for name, column in columns.items():
        if name != "deployment_id":
            values = column.indices if pa.types.is_dictionary(column.type) else column
            keys.append(pc.fill_null(values.cast(pa.float64()), -1.0).to_numpy())
    kept, number = distinct_rows(keys)
    table = pa.table(columns)
    return table if kept.size == table.num_rows else table.take(pa.array(kept)), number


def _words(words: pa.Array | Sequence[str], codes: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(codes.astype(np.int32), pa.array(words, pa.string()))


def _used(numbers: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of so many numbers are there, in order, and the place of each among them."""
    there = np.zeros(most, bool)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


def distinct_rows(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of rows that differ, and the number of each row's among them; columns of finite float64.

    >>> kept, number = distinct_rows([np.array([1.0, 2.0, 1.0]), np.array([5.0, 5.0, 5.0])])
    >>> kept.tolist(), number.tolist()
    ([0, 1], [0, 1, 0])
    """
    mixed = np.zeros(columns[0].size, np.uint64)
    for column in columns:
        mixed ^= column.view(np.uint64)
        mixed *= MIX
        mixed ^= mixed >> np.uint64(31)
    number = pc.dictionary_encode(pa.array(mixed)).indices.to_numpy()
    kept = np.empty(number.max(initial=-1) + 1, np.int64)
    # the first of equal rows is written last
    kept[number[::-1]] = np.arange(number.size)[::-1]
    if all(np.array_equal(column[kept][number], column) for column in columns):
        return kept, number
    everyone = np.arange(number.size)  # two different rows fell on one number
    return everyone, everyone
