"""What calls take at knots: calls that are equal in all that their time rests on are priced once for each GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.cache import remembered
from kernelsight.kernels.costed import RELIEF, Groups, Priced, Rest, Times
from kernelsight.kernels.energy import has_limit
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.kinds import TIERS
from kernelsight.kernels.latency import Answers, answers, interval, powered
from kernelsight.kernels.launches import PRICED_BY

# a factor of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)
MIX = np.uint64(0xBF58476D1CE4E5B9)
# calls that are priced together: some 200 bytes each
MOST_ROWS = 500_000
# columns of gpus, by their endings, that a resource's relief raises
RATES = {
    "compute": ("_flops_per_s",),
    "memory": ("memory_bandwidth_bytes_per_s",),
    "link": ("link_bytes_per_s", "pcie_bytes_per_s"),
}


def priced(
    family: str, calls: pa.Table, wanted: Sequence[str], facts: Sequence[pa.Table], groups: Groups, shares: bool
) -> list[Priced]:
    """Return a family's calls at knots, for each group and GPU of it.

    ``wanted``: columns that their time rests on; calls that are equal in these are priced once. ``facts``: the tables
    that ``answers`` reads beside calls, deployment_settings first, and gpu_power last.
    """
    if not calls.num_rows:
        return []
    group = pc.index_in(calls["deployment_id"], pa.array(groups.firsts, pa.string())).to_numpy().astype(np.int64)
    ends = np.cumsum(groups.knots)
    knot = (ends - groups.knots)[group] + calls["step_shape_id"].to_numpy()
    count = calls["count"].to_numpy()
    launches = np.bincount(knot, count, ends[-1])
    calls, call = _distinct(calls, wanted, facts[0], groups.firsts, group)
    priced_units = []
    for gpus in _together(sorted(set().union(*groups.gpus)), calls.num_rows):
        places, spans = _asked(gpus, groups, group, call, calls.num_rows)
        if not spans:
            continue
        gpu = np.repeat(np.arange(len(spans)), [each.size for each in places])
        mine = calls.take(pa.array(np.concatenate(places)))
        mine = mine.append_column("gpu", _words([span.gpu for span in spans], gpu))
        answered, joules = powered(family, mine, answers(family, mine, *facts[:-1]), facts)
        latency, p05, p95 = interval(family, answered, facts[3])
        nothing = np.zeros_like(latency)
        rates = _shrinks(family, mine, facts, latency) if shares else (nothing, nothing, nothing)
        times = Times(*map(in_picoseconds, (latency, p05, p95, *rates)), in_nanojoules(joules))
        for span in spans:
            own, latency_row = span.rows, span.place
            total = times.at_knots(latency_row, count[own], knot[own], ends[-1])
            spent = times.picoseconds[latency_row] * count[own]
            for number in span.groups:
                knots = slice(ends[number] - groups.knots[number], ends[number])
                rests = _rests(answered, latency_row, spent * (group[own] == number))
                priced_units.append(Priced((number, span.gpu), total.of(knots), launches[knots], rests))
    return priced_units


class _Span(NamedTuple):
    """A GPU: the groups that it is priced for, their rows, and the place of each among the calls that are priced."""

    gpu: str
    groups: list[int]
    rows: slice | np.ndarray
    place: np.ndarray


def _asked(
    gpus: Sequence[str], groups: Groups, group: np.ndarray, call: np.ndarray, calls: int
) -> tuple[list[np.ndarray], list[_Span]]:
    """Return the calls of each GPU that has some, and what is made of their times; ``call``: of each row."""
    places, spans, before = [], [], 0
    for gpu in gpus:
        there = np.array([gpu in each for each in groups.gpus])
        rows = slice(None) if there.all() else np.flatnonzero(there[group])
        used, latency_rows = _used(call[rows], calls)
        if latency_rows.size:
            places.append(used)
            spans.append(_Span(gpu, np.flatnonzero(there).tolist(), rows, latency_rows + before))
            before += used.size
    return places, spans


def _together(gpus: list[str], rows: int) -> list[list[str]]:
    """Return GPUs that are priced together: no more of them than keep the rows in a few hundred megabytes."""
    most = max(1, MOST_ROWS // max(rows, 1))
    return [gpus[start : start + most] for start in range(0, len(gpus), most)]


def in_picoseconds(latency_us: np.ndarray) -> np.ndarray:
    """Return times as whole picoseconds, halves up."""
    return np.floor(latency_us * 1e6 + 0.5)


def in_nanojoules(joules: np.ndarray) -> np.ndarray:
    """Return energies as whole nanojoules, halves up."""
    return np.floor(joules * 1e9 + 0.5)


def _shrinks(
    family: str, calls: pa.Table, facts: Sequence[pa.Table], latency_us: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what of the latencies goes with the rates of arithmetic, of memory and of links, microseconds.

    What is left is the start of a kernel, and waves that wait for their last tile.
    """
    settings, gpus, *others, _ = facts
    shrinks_us = []
    for resource in RATES:
        # collectives wait for links alone, other kernels never do
        if (resource == "link") != bool(FAMILIES[family].wire_share):
            shrinks_us.append(np.zeros_like(latency_us))
            continue
        there = (settings, faster(gpus, resource), *others)
        quicker = answers(family, calls, *there)
        if has_limit(settings):
            quicker, _ = powered(family, calls, quicker, (*there, facts[-1]))
        shrinks_us.append(np.clip((latency_us - quicker.latency_us) / (1.0 - 1.0 / RELIEF), 0.0, latency_us))
    compute, memory, link = shrinks_us
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


def _rests(answered: Answers, latency_row: np.ndarray, picoseconds: np.ndarray) -> list[Rest]:
    """Return what calls rest on, with the time of each; ``latency_row``: of each launch among the calls."""
    words = len(answered.evidence)
    code = answered.tier * words + answered.evidence_of_row
    sums = np.bincount(code[latency_row], picoseconds, words * len(TIERS))
    spent = np.flatnonzero(sums)
    return [Rest(TIERS[one // words], answered.evidence[one % words], float(sums[one])) for one in spent.tolist()]


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
