"""Prices a family's kernel calls at the knots of step costs: equal calls once per GPU, summed by launch signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import memoised
from kernelsight.kernels.call_kinds import TIERS
from kernelsight.kernels.energy import has_limit
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.knot_costs import RELIEF, EvidenceTime, KernelTimes, LaunchGroups, PricedFamily
from kernelsight.kernels.labels import MEASURED
from kernelsight.kernels.latency import EvaluatedCalls, evaluate_calls, interval, under_power_limits
from kernelsight.kernels.launch_signatures import PRICED_BY
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.kernels.string_columns import dictionary_of

# a factor of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)
MIX = np.uint64(0xBF58476D1CE4E5B9)
# calls that are priced in one batch: some 200 bytes each
MOST_ROWS = 500_000
# columns of gpus, by their endings, that are RELIEF times higher for the share of a resource
RATES = {
    "compute": ("_flops_per_s",),
    "memory": ("memory_bandwidth_bytes_per_s",),
    "link": ("link_bytes_per_s", "pcie_bytes_per_s"),
}


def priced(
    family: str, calls: pa.Table, wanted: Sequence[str], tables: PricingTables, groups: LaunchGroups, shares: bool
) -> list[PricedFamily]:
    """Return a family's times at knots, for each launch signature and each GPU of its deployments.

    ``wanted``: columns that a call's time rests on; calls that are equal in these are priced once. ``shares``: also
    how much of the times scales with the rates of compute, memory and links.
    """
    if not calls.num_rows:
        return []
    group = pc.index_in(calls["deployment_id"], pa.array(groups.names, pa.string())).to_numpy().astype(np.int64)
    ends = np.cumsum(groups.knots)
    knot = (ends - groups.knots)[group] + calls["step_shape_id"].to_numpy()
    count = calls["count"].to_numpy()
    launches = np.bincount(knot, count, ends[-1])
    calls, call = _distinct(calls, wanted, tables.settings, groups.names, group)
    priced_units = []
    for gpus in _batches(sorted(set().union(*groups.gpus)), calls.num_rows):
        rows_by_gpu, spans = _calls_by_gpu(gpus, groups, group, call, calls.num_rows)
        if not spans:
            continue
        gpu = np.repeat(np.arange(len(spans)), [rows.size for rows in rows_by_gpu])
        batch = calls.take(pa.array(np.concatenate(rows_by_gpu)))
        batch = batch.append_column("gpu", dictionary_of([span.gpu for span in spans], gpu))
        evaluated, joules = under_power_limits(family, batch, evaluate_calls(family, batch, tables), tables)
        latency, p05, p95 = interval(family, evaluated, tables.coefficients)
        zeros = np.zeros_like(latency)
        rates = _rate_shares(family, batch, tables, latency) if shares else (zeros, zeros, zeros)
        measured = np.where(evaluated.tier == TIERS.index(MEASURED), latency, 0.0)
        times = KernelTimes(*map(in_picoseconds, (latency, p05, p95, measured, *rates)), in_nanojoules(joules))
        for span in spans:
            rows, latency_row = span.rows, span.latency_row
            total = times.at_knots(latency_row, count[rows], knot[rows], ends[-1])
            picoseconds = times.picoseconds[latency_row] * count[rows]
            rests = _rests(evaluated, latency_row, picoseconds, knot[rows], ends[-1])
            for number in span.groups:
                knots = slice(ends[number] - groups.knots[number], ends[number])
                own = [rest._replace(picoseconds=rest.picoseconds[knots]) for rest in rests]
                own = [rest for rest in own if rest.picoseconds.any()]
                priced_units.append(PricedFamily((number, span.gpu), total.of(knots), launches[knots], own))
    return priced_units


class _Span(NamedTuple):
    """The calls of one GPU within a batch."""

    gpu: str
    groups: list[int]  # launch signatures with a deployment on the GPU
    rows: slice | np.ndarray  # their rows in the call table
    latency_row: np.ndarray  # of each such row, its row in the batch


def _calls_by_gpu(
    gpus: Sequence[str], groups: LaunchGroups, group: np.ndarray, call: np.ndarray, calls: int
) -> tuple[list[np.ndarray], list[_Span]]:
    """Return the numbers of the distinct calls of each GPU that has some, and their spans in the batch.

    ``group``, ``call``: launch signature and distinct call of each row of the call table; ``calls``: number of distinct
    calls.
    """
    calls_by_gpu, spans, before = [], [], 0
    for gpu in gpus:
        has_gpu = np.array([gpu in gpus_of_group for gpus_of_group in groups.gpus])
        rows = slice(None) if has_gpu.all() else np.flatnonzero(has_gpu[group])
        used, latency_rows = _used(call[rows], calls)
        if latency_rows.size:
            calls_by_gpu.append(used)
            spans.append(_Span(gpu, np.flatnonzero(has_gpu).tolist(), rows, latency_rows + before))
            before += used.size
    return calls_by_gpu, spans


def _batches(gpus: list[str], rows: int) -> list[list[str]]:
    """Split GPUs into batches of at most MOST_ROWS rows, but at least one GPU each; ``rows``: distinct calls."""
    most = max(1, MOST_ROWS // max(rows, 1))
    return [gpus[start : start + most] for start in range(0, len(gpus), most)]


def in_picoseconds(latency_us: np.ndarray) -> np.ndarray:
    """Return microseconds as whole picoseconds, halves rounded up."""
    return np.floor(latency_us * 1e6 + 0.5)


def in_nanojoules(joules: np.ndarray) -> np.ndarray:
    """Return joules as whole nanojoules, halves rounded up."""
    return np.floor(joules * 1e9 + 0.5)


def _rate_shares(
    family: str, calls: pa.Table, tables: PricingTables, latency_us: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how much of each latency scales with the rates of compute, memory and links, microseconds, (calls,) each.

    The rest is the start of a kernel, and waves that wait for their last tile.
    """
    shares_us = []
    for resource in RATES:
        # collectives wait for links alone, other kernels never do
        if (resource == "link") != bool(FAMILIES[family].wire_share):
            shares_us.append(np.zeros_like(latency_us))
            continue
        faster_tables = tables._replace(gpus=faster(tables.gpus, resource))
        relieved = evaluate_calls(family, calls, faster_tables)
        if has_limit(tables.settings):
            relieved, _ = under_power_limits(family, calls, relieved, faster_tables)
        shares_us.append(np.clip((latency_us - relieved.latency_us) / (1.0 - 1.0 / RELIEF), 0.0, latency_us))
    compute, memory, link = shares_us
    # shares of a kernel that compute and memory both bound in part add up to at most its latency
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

    return memoised((gpus,), f"faster {resource}", scaled)


def _rests(
    evaluated: EvaluatedCalls, latency_row: np.ndarray, picoseconds: np.ndarray, knot: np.ndarray, knots: int
) -> list[EvidenceTime]:
    """Return the picoseconds of launches at ``knots`` knots by tier and evidence.

    ``latency_row``: row of each launch in ``evaluated``; ``knot``: its knot; (launches,) each.
    """
    evidence, sentences = evaluated.evidence, len(evaluated.evidence)
    used, place = _used((evaluated.tier * sentences + evaluated.evidence_of_row)[latency_row], sentences * len(TIERS))
    sums = np.bincount(place * knots + knot, picoseconds, used.size * knots).reshape(used.size, knots)
    return [
        EvidenceTime(TIERS[code // sentences], evidence[code % sentences], sums_of_code)
        for code, sums_of_code in zip(used.tolist(), sums, strict=True)
    ]


def _distinct(
    calls: pa.Table, wanted: Sequence[str], settings: pa.Table, names: Sequence[str], group: np.ndarray
) -> tuple[pa.Table, np.ndarray]:
    """Return the calls that differ in what their time rests on, the GPU aside, and the number of each row's, (rows,).

    ``names``: the deployment that names each launch signature; ``group``: launch signature of each row.
    """
    settings = settings.take(pc.index_in(pa.array(names), settings["deployment_id"].combine_chunks()))
    engines = settings["engine"].combine_chunks().dictionary_encode()
    columns = {
        "deployment_id": calls["deployment_id"].combine_chunks(),
        "engine": dictionary_of(engines.dictionary, engines.indices.to_numpy()[group]),
    }
    for name in wanted:
        if name not in ("gpu", *columns):
            column = calls[name].combine_chunks()
            columns[name] = column.dictionary_encode() if pa.types.is_string(column.type) else column
    price_keys = zip(*(settings[name].to_pylist() for name in PRICED_BY if name in settings.column_names), strict=True)
    numbers: dict[tuple, int] = {}
    keys = [np.array([numbers.setdefault(row, len(numbers)) for row in price_keys])[group].astype(float)]
    for name, column in columns.items():
        if name != "deployment_id":
            values = column.indices if pa.types.is_dictionary(column.type) else column
            keys.append(pc.fill_null(values.cast(pa.float64()), -1.0).to_numpy())
    kept, number = distinct_rows(keys)
    table = pa.table(columns)
    return table if kept.size == table.num_rows else table.take(pa.array(kept)), number


def _used(numbers: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ``numbers``, all below ``most``, in ascending order, and the position of each among them."""
    is_used = np.zeros(most, bool)
    is_used[numbers] = True
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[numbers]


def distinct_rows(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each distinct combination of float64 values, and which of them each row equals."""
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
    every_row = np.arange(number.size)  # a hash collision: no rows are merged
    return every_row, every_row
