"""Kernel times of many deployments: those that launch the same kernels are lowered once, and each GPU prices them.

Which kernels a step launches, and their sizes, follow from the model, how it is split, and the engine; what they take,
from the GPU. Calls that are equal in all that their time rests on are priced once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.kernels.latency import answers, columns_read

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# families that only such attention launches: what is launched nowhere is not asked for, planning a query takes 10 ms
ONLY_OF = {
    "batched_gemm": {"mla", "sparse"},
    "mla_prefill": {"mla"},
    "mla_decode": {"mla"},
    "sparse_attention": {"sparse"},
    "linear_attention": {"linear"},
}
# families whose time is told apart, and where
OWN = {"embedding": "embedding", "p2p": "transfer"}
# settings that a call's time rests on
PRICED_BY = ("tier", "moe_backend")
# a factor of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)
MIX = np.uint64(0xBF58476D1CE4E5B9)


class Costed(NamedTuple):
    """Picoseconds and kernel launches of each knot, shape [knots]; where nothing is launched there is no cost.

    Of the picoseconds, what is not done by the layers, which pipeline stages share: embedding and transfers.
    """

    picoseconds: np.ndarray
    launches: np.ndarray
    embedding: np.ndarray
    transfer: np.ndarray


class Groups(NamedTuple):
    """Deployments that launch the same kernels at the same knots: the first of each group, its knots and its GPUs."""

    firsts: list[str]
    knots: np.ndarray
    gpus: list[set[str]]
    of: dict[str, tuple[int, str]]  # of each deployment: its group and its GPU


def families(session: Session) -> dict[str, str]:
    """Return the families whose kernels add up to step costs, and their tables of latencies."""
    node = session.graph.node("kernel_latencies")
    return {name.removesuffix("_latencies"): name for name in node.inputs} if node else {}


def knot_costs(session: Session, threads: int | None = None) -> dict[str, Costed]:
    """Return by deployment what its ``step_shapes`` cost: what the query says, to the last bit.

    ``threads`` that price calls; as Python chooses, unless stated.
    """
    launched = _launched(session)
    groups = _groups(session, launched)
    costs = {unit: Costed(*np.zeros((4, groups.knots[unit[0]]))) for unit in set(groups.of.values())}
    with session.fork() as lowered, ThreadPoolExecutor(threads) as workers:
        _keep_only(lowered, groups.firsts)
        names = ("deployment_settings", "gpus", "fabrics", "eta_coefficients", "kernel_implementations")
        prices = [lowered.table(name) for name in names]
        waiting = []
        for family in launched:
            wanted = columns_read(family, session.graph.known(f"{family}_calls").column_names)
            asked = {*wanted, "deployment_id", "step_shape_id", "count"} - {"gpu", "engine"}
            calls = lowered.select(f"{family}_calls", asked)
            waiting.append((family, workers.submit(_price, family, calls, wanted, prices, groups)))
        for family, found in waiting:
            for unit, picoseconds, launches in found.result():
                sums = {"picoseconds": picoseconds, "launches": launches}
                if family in OWN:
                    sums[OWN[family]] = picoseconds
                for name, values in sums.items():
                    # whole numbers below 2^53: exact in any order
                    total = getattr(costs[unit], name)
                    total += values
    return {deployment: costs[unit] for deployment, unit in groups.of.items()}


# --- deployments that are alike ---------------------------------------------------------------------------------------


def _groups(session: Session, launched: Sequence[str]) -> Groups:
    """Group the deployments that have knots."""
    shapes = session.table("step_shapes")
    runs = pc.run_end_encode(shapes["deployment_id"].combine_chunks())
    stops = runs.run_ends.to_numpy()
    columns = [shapes[name].combine_chunks() for name in ("part", "x", "y")]
    columns[0] = columns[0].dictionary_encode().indices
    knots = [column.to_numpy() for column in columns]
    facts = _facts(session, launched)
    numbers: dict[Any, int] = {}
    found = Groups([], np.zeros(0, np.int64), [], {})
    sizes = []
    for name, start, stop in zip(runs.values.to_pylist(), [0, *stops], stops, strict=False):
        gpu, stated = facts[name]
        key = (stated, *(values[start:stop].tobytes() for values in knots))
        number = numbers.setdefault(key, len(numbers))
        if number == len(found.firsts):
            found.firsts.append(name)
            found.gpus.append(set())
            sizes.append(stop - start)
        found.gpus[number].add(gpu)
        found.of[name] = number, gpu
    return found._replace(knots=np.array(sizes, np.int64))


def _facts(session: Session, launched: Sequence[str]) -> dict[str, tuple[str, tuple]]:
    """Return by deployment its GPU, and all else that its calls are made of and priced by, but for its knots."""
    nodes = [node for family in launched if (node := session.graph.node(f"{family}_calls"))]
    read = set(re.findall(r"\w+", " ".join(node.text for node in nodes))) - {"deployment_id", "gpu"}
    settings = session.table("deployment_settings")
    # a column that no query names changes no call
    chosen = settings.select([name for name in settings.column_names if name in {*read, *PRICED_BY}])
    formats = _rows_by(session.table("gpu_formats"), "gpu") if "gpu_formats" in read else {}
    layers = [_rows_by(session.table(name), "deployment_id", {"gpu"}) for name in ("sharded_layers", "layer_weights")]
    rows = zip(settings["deployment_id"].to_pylist(), settings["gpu"].to_pylist(), chosen.to_pylist(), strict=True)
    return {
        name: (gpu, (tuple(row.values()), formats.get(gpu), *(each.get(name) for each in layers)))
        for name, gpu, row in rows
    }


def _rows_by(table: pa.Table, key: str, without: set[str] = frozenset()) -> dict[str, tuple]:
    """Return the other columns' rows by a column that names them."""
    found: dict[str, list[tuple]] = {}
    names = [name for name in table.column_names if name not in {key, *without}]
    for owner, *row in zip(*(table[name].to_pylist() for name in (key, *names)), strict=True):
        found.setdefault(owner, []).append(tuple(row))
    return {owner: tuple(rows) for owner, rows in found.items()}


def _keep_only(session: Session, deployments: Sequence[str]) -> None:
    """Leave a session the rows of some deployments alone, in the tables that calls are made of."""
    wanted = pa.array(deployments, pa.string())
    for name in ("deployment_settings", "sharded_layers", "layer_weights", "step_shapes"):
        table = session.table(name)
        session.put(name, table.filter(pc.is_in(table["deployment_id"], wanted)))


def _launched(session: Session) -> list[str]:
    """Return the families that some deployment launches, as far as its settings and layers tell."""
    settings = session.table("deployment_settings")
    attention = set(session.table("sharded_layers")["attention"].to_pylist())
    never = {family for family, kinds in ONLY_OF.items() if not kinds & attention}
    if pc.max(settings["pp"]).as_py() in (None, 1):
        never.add("p2p")
    if pc.max(settings["dp"]).as_py() in (None, 1):
        never |= {"all_to_all", "reduce_scatter"}
    if "moe" not in session.table("sharded_layers")["ffn"].to_pylist():
        never.add("moe")
    if not pc.any(session.table("layer_weights")["quantizes_activations"]).as_py():
        never.add("quantize")
    return [name for name in families(session) if name not in never]


# --- what calls take --------------------------------------------------------------------------------------------------


def _price(
    family: str, calls: pa.Table, wanted: Sequence[str], prices: Sequence[pa.Table], groups: Groups
) -> list[tuple[tuple[int, str], np.ndarray, np.ndarray]]:
    """Return (unit, picoseconds, launches) of a family's calls, for each group and GPU of it."""
    if not calls.num_rows:
        return []
    group = pc.index_in(calls["deployment_id"], pa.array(groups.firsts, pa.string())).to_numpy().astype(np.int64)
    ends = np.cumsum(groups.knots)
    knot = (ends - groups.knots)[group] + calls["step_shape_id"].to_numpy()
    count = calls["count"].to_numpy()
    launches = np.bincount(knot, count, ends[-1])
    calls, call = _distinct(calls, wanted, prices[0], groups.firsts, group)
    found = []
    for gpu in sorted(set().union(*groups.gpus)):
        there = np.array([gpu in gpus for gpus in groups.gpus])
        rows = slice(None) if there.all() else np.flatnonzero(there[group])
        asked, place = _used(call[rows], calls.num_rows)
        if not place.size:
            continue
        mine = calls if asked.size == calls.num_rows else calls.take(pa.array(asked))
        mine = mine.append_column("gpu", _words([gpu], np.zeros(asked.size)))
        # to the nearest whole number, halves up, as SQL rounds
        picoseconds = np.floor(answers(family, mine, *prices).latency_us * 1e6 + 0.5)
        total = np.bincount(knot[rows], picoseconds[place] * count[rows], ends[-1])
        for number in np.flatnonzero(there).tolist():
            own = slice(ends[number] - groups.knots[number], ends[number])
            found.append(((number, gpu), total[own], launches[own]))
    return found


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
            keys.append(pc.fill_null(values, -1).to_numpy().astype(float))
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
