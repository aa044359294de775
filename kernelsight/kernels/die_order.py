"""Order of GPUs of one die: where every fact of a GPU is at least as good as a sibling's, no kernel of it is slower.

Two sweeps of one die may rest on other engine versions, shapes or kernels, so that their fits contradict the order.
What was measured better decides (``RANKS``): an answer is at most that of a lesser sibling and at least that of a
better one whose evidence ranks higher, and at most that of a lesser sibling of equal rank. Where both sweeps ran the
kernel, an answer falls by no more than the narrowest 90 % interval of its own sweep: a larger difference was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.caches.disk_cache import cached_for_program, content_digest, has_cache_folder
from kernelsight.caches.memory_cache import memoised
from kernelsight.catalog.tables import program
from kernelsight.kernels.call_kinds import TIERS, constants_of, dtype_of, interval_half_widths
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.gpu_distance import GpuDistances
from kernelsight.kernels.hardware import at_least_matrix, hardware_columns
from kernelsight.kernels.pack_contents import gpus_with_points_of, network_at, swept_gpus
from kernelsight.kernels.pricing_tables import PricingTables

# median difference between two measurements of one kernel on one GPU: matrix products through two engines, and experts
# in two versions of one (H100 and H200, published sweeps: 4.3 to 5.7 %). Answers that move by less keep their label
REPEAT_NOISE = 0.05
# evidence of an answer by its tier; any other: 0
RANKS = {"target-measured": 2, "gpu-measured": 1, "points-measured": 1}
MEASURED = RANKS["target-measured"]
RANK_OF_TIER = np.array([RANKS.get(tier, 0) for tier in TIERS])
# tiers that may use sweeps of siblings; the others forget a generation, or are bounds
TIERS_WITH_SIBLINGS = ("auto", "target-measured")
# keys of a kind that decide its constants, before it is resolved
_WORDS = ("tier", "gpu", "engine", "format", "math", "head_dim", "requested_kernel")


class Comparison(NamedTuple):
    """What the rows of one kind and rank are compared with; member 0 is their own GPU, the others its siblings."""

    kind: int
    rank: int
    gpus: tuple[str, ...]  # (members,)
    at_least: np.ndarray  # (members, members): whether the facts of the second are at least as good as the first's
    width: np.ndarray  # (members,) factor by which a measured answer may fall


class _Member(NamedTuple):
    """A GPU of a die, as one kind of calls."""

    gpu: str
    row: int  # in ``gpus``
    kind: dict[str, Any]
    rank: int
    fit: tuple[Any, ...]  # equal fits on two GPUs differ by their facts alone


def comparisons(family: str, kinds: Sequence[Mapping[str, Any]], tables: PricingTables) -> list[Comparison]:
    """Return the comparisons that calls of some kinds need, by kind and rank; empty where their GPUs have no siblings.

    ``kinds``: as ``constants_of`` extends them. Cached on disk by the contents of the tables: each kind asks for the
    constants of every GPU of a die, a third of what the step costs of a new deployment take.
    """
    about = (tables.gpus, tables.fabrics, tables.coefficients, tables.implementations, tables.dies)
    key = ("order of dies", family, tuple(tuple(kind.get(name) for name in _WORDS) for kind in kinds))

    def read() -> list[Comparison]:
        return [one for number, kind in enumerate(kinds) for one in _comparisons(family, number, kind, tables)]

    def cached() -> list[Comparison]:
        contents = [content_digest(table).hex() for table in about]
        return cached_for_program(program(), f"{key} {contents}", read) if has_cache_folder() else read()

    return memoised(about, key, cached)


def ranks(tier: np.ndarray) -> np.ndarray:
    """Return how well measured each row is, 0 to MEASURED, (rows,); ``tier``: positions in TIERS."""
    return RANK_OF_TIER[tier]


def in_order(raw: np.ndarray, rank: np.ndarray, at_least: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Return latencies of members in the order of their facts, (members, rows).

    ``raw``: of each member's own fit, ``rank``: its evidence, both (members, rows); the rest: see Comparison.
    """
    final, members = raw.copy(), range(len(raw))
    for level in range(MEASURED, -1, -1):
        for member in members:
            here = rank[member] == level
            if not here.any():
                continue
            lesser = [other for other in members if other != member and at_least[other, member]]
            better = [other for other in members if other != member and at_least[member, other]]
            latency, least = raw[member], raw[member] / width[member] if level == MEASURED else 0.0
            for other in lesser:
                bound = np.maximum(raw[other], least)
                latency = np.where(rank[other] == level, np.minimum(latency, bound), latency)
            for higher in range(level + 1, MEASURED + 1):
                for other in better:
                    latency = np.where(rank[other] == higher, np.maximum(latency, final[other]), latency)
                for other in lesser:
                    latency = np.where(rank[other] == higher, np.minimum(latency, final[other]), latency)
            final[member] = np.where(here, latency, final[member])
    return final


def _comparisons(family: str, number: int, kind: Mapping[str, Any], tables: PricingTables) -> list[Comparison]:
    """Return the comparisons of one kind: of rows that its sweep measured, and of rows at sizes beyond it."""
    names = _siblings(kind["gpu"], tables) if kind["tier"] in TIERS_WITH_SIBLINGS else []
    if kind["tier"] == "target-measured" or _rank(kind):
        # a GPU without a sweep bounds none that has one
        with_sweep = swept_gpus(tables.coefficients, family) | gpus_with_points_of(family, tables.coefficients)
        names = [name for name in names if name in with_sweep]
    if not names:
        return []
    own, *others = (_member(family, kind, name, tables) for name in (kind["gpu"], *names))
    is_collective, math = FAMILIES[family].wire_share is not None, kind.get("math")
    matrix = at_least_matrix(tables.gpus, tables.fabrics, is_collective, math)
    found = []
    for rank in (own.rank, 1) if own.rank == MEASURED else (own.rank,):
        may_rank_higher = others
        if rank < own.rank:
            # rows beyond its own sweep: measured on a sibling only where that one's sweep reaches further
            may_rank_higher = [one for one in others if _reaches_further(family, one, own, tables.coefficients)]
        if siblings := _needed(own, rank, others, may_rank_higher, matrix):
            members = [own, *siblings]
            rows = [member.row for member in members]
            halves = interval_half_widths(family, [member.kind for member in members], tables.coefficients)[:, 0]
            gpus = tuple(member.gpu for member in members)
            found.append(Comparison(number, rank, gpus, matrix[np.ix_(rows, rows)], np.exp(halves.min(axis=1))))
    return found


def _siblings(gpu: str, tables: PricingTables) -> list[str]:
    """Return the other GPUs of a GPU's die; a GPU of the user's own has the die of its ``measured_as``."""

    def read() -> dict[str, str | None]:
        dies = dict(zip(tables.dies["gpu"].to_pylist(), tables.dies["die"].to_pylist(), strict=True))
        pairs = zip(tables.gpus["gpu"].to_pylist(), tables.gpus["measured_as"].to_pylist(), strict=True)
        return {name: dies.get(name, dies.get(measured_as)) for name, measured_as in pairs}

    die_of_gpu = memoised((tables.gpus, tables.dies), "dies", read)
    die = die_of_gpu[gpu]
    return [name for name, other in die_of_gpu.items() if die is not None and other == die and name != gpu]


def _rank(kind: Mapping[str, Any]) -> int:
    """Return the highest rank of a kind's rows."""
    rank = RANKS.get(kind["answer_tier"], 0)
    return rank if rank < MEASURED or kind["kernel_swept"] else RANKS["gpu-measured"]


def _member(family: str, kind: Mapping[str, Any], gpu: str, tables: PricingTables) -> _Member:
    """Return a kind on a GPU of its die."""
    gpus, coefficients = tables.gpus, tables.coefficients
    hardware = memoised((gpus, tables.fabrics), "hardware", lambda: hardware_columns(gpus, tables.fabrics))
    distances = memoised((gpus, tables.fabrics), ("distances", family), lambda: GpuDistances(family, gpus, hardware))
    member = {name: kind[name] for name in _WORDS if name in kind} | {"gpu": gpu}
    member["dtype"] = dtype_of(family, member)
    # each GPU by itself: kept for calls of all its siblings
    at, _ = constants_of(family, [member], tables.implementations, gpus, coefficients, distances)
    member["octaves"] = 0.0
    fit = (member["answer_tier"] == "unmeasured-vendor", member["corrected"], member["point_count"] and member["fit"])
    fit += tuple(float(values[0]) for values in at.values())
    return _Member(gpu, gpus["gpu"].to_pylist().index(gpu), member, _rank(member), fit)


def _reaches_further(family: str, other: _Member, own: _Member, coefficients: pa.Table) -> bool:
    """Return whether a sibling's sweep holds sizes that the GPU's own does not."""
    if other.rank < MEASURED or None in (other.kind["corrected"], own.kind["corrected"]):
        return True
    further, nearer = (network_at(coefficients, family, one.kind["corrected"])[0] for one in (other, own))
    outside = (further.low < nearer.low) | (further.high > nearer.high)
    return bool((outside & (nearer.matter > 0)).any())


def _needed(
    own: _Member, rank: int, others: Sequence[_Member], may_rank_higher: Sequence[_Member], at_least: np.ndarray
) -> list[_Member]:
    """Return the siblings that can bound an answer of ``rank``, and those that bound these."""

    def bounds_above(lesser: _Member, member: _Member, level: int) -> bool:
        # one fit at better facts is never slower
        is_other_fit = lesser.rank > level or lesser.fit != member.fit
        return lesser.rank >= level and is_other_fit and bool(at_least[lesser.row, member.row])

    better = [one for one in may_rank_higher if one.rank > rank and at_least[own.row, one.row]]
    needed = [one for one in others if one in better or any(bounds_above(one, high, high.rank) for high in better)]
    lesser = [one for one in others if bounds_above(one, own, rank)]

    def is_nearest(one: _Member) -> bool:
        """Return whether no sibling of equal fit lies between ``one`` and the answer's GPU."""
        between = [
            other
            for other in lesser
            if other is not one and (other.rank, other.fit) == (one.rank, one.fit) and at_least[one.row, other.row]
        ]
        return all(at_least[other.row, one.row] and one.row < other.row for other in between)

    needed_names = {one.gpu for one in needed} | {one.gpu for one in lesser if is_nearest(one)}
    return [one for one in others if one.gpu in needed_names]


def calls_of_siblings(
    compared: Sequence[tuple[Comparison, np.ndarray]],
) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Return the calls to evaluate on siblings: rows of the call table, names of GPUs, and the GPU of each row.

    ``compared``: comparisons with their rows. Rows are in the order of comparisons, then of their siblings.
    """
    names = list(dict.fromkeys(gpu for one, _ in compared for gpu in one.gpus[1:]))
    rows = np.concatenate([np.tile(rows, len(one.gpus) - 1) for one, rows in compared])
    codes = [np.repeat([names.index(gpu) for gpu in one.gpus[1:]], rows.size) for one, rows in compared]
    return rows, names, np.concatenate(codes)


def sentence_of(evidence: str, sibling: str, is_lower: bool) -> str:
    """Return the evidence of an answer that moved to the order of its die, to that of ``sibling``."""
    return f"{evidence}; no {'slower' if is_lower else 'faster'} than {sibling}, of the same die"


def with_gpu(calls: pa.Table, gpu: pa.Array) -> pa.Table:
    """Return calls on other GPUs."""
    return calls.set_column(calls.column_names.index("gpu"), "gpu", gpu)
