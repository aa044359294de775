"""What a family's expression is evaluated with: calls, their kinds, constants and hardware; and what bounds the result.

The rules that follow an expression (points of a GPU, bounds of a tier) take ``xp``, so that latencies and their
derivatives follow the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.cache import remembered
from kernelsight.dataflow.columns import numeric
from kernelsight.kernels.columns import positions
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.features import features
from kernelsight.kernels.hardware import MATH, hardware_columns
from kernelsight.kernels.kinds import TIERS, constants_of, kinds_of, nearby_at, network_at, points_at, words_of
from kernelsight.kernels.likeness import Likeness
from kernelsight.kernels.nearby import Nearby, nearby_delta
from kernelsight.kernels.network import Network, scaled
from kernelsight.kernels.points import mean_of, places, sizes_of
from kernelsight.kernels.resolve import family_facts, fitted_gpus, siblings

# general constants count in units and clocks of NVIDIA GPUs: on hardware that is built otherwise, no call of a vendor
# without measurements is taken to be slower than this
SLOWEST_US, SLOWEST_ETA = 50.0, 8.0
# a forward pass touches far more bytes than L2 holds before it reads a weight or a cached key again
COLD_BYTES = 1e15


class Limits(NamedTuple):
    """What holds a call's latency whatever its expression says, row by row."""

    is_roofline: np.ndarray  # its tier answers with the roofline itself
    is_unmeasured: np.ndarray  # of a vendor without measurements: no slower than so much
    beside: np.ndarray  # hidden behind the kernel on the other stream, from which it takes bandwidth


class Prepared(NamedTuple):
    """What a family's expression is evaluated with: its calls, their kinds with constants, the hardware by GPU."""

    family: str
    columns: dict[str, np.ndarray]
    kinds: list[dict[str, Any]]
    kind_of_row: np.ndarray
    evidence: list[str]
    at: dict[str, np.ndarray]
    hardware: dict[str, np.ndarray]
    networks: dict[str, tuple[Network, list[str]]]
    tier: np.ndarray
    limits: Limits


class Part(NamedTuple):
    """Rows whose GPU shares a correction (``corrected``), or has none."""

    corrected: str | None
    rows: Any  # a slice, or places
    columns: dict[str, np.ndarray]
    kind_of_row: np.ndarray


def prepared(
    family: str,
    calls: pa.Table,
    settings: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    coefficients: pa.Table,
    implementations: pa.Table,
) -> Prepared:
    """Gather what a family's calls are evaluated with; arguments as of ``answers``."""
    declared = FAMILIES[family]
    columns = numeric(calls, [*declared.form.reads, "flops", "bytes"])
    columns["gpu"] = positions(calls["gpu"], gpus["gpu"])
    if not declared.vector_work and "math" in calls.column_names:
        columns["math"] = positions(calls["math"], pa.array(MATH))
    kinds, kind_of_row = kinds_of(family, calls, settings)
    hardware = remembered((gpus, fabrics), "hardware", lambda: hardware_columns(gpus, fabrics))
    alike = remembered((gpus, fabrics), ("alike", family), lambda: Likeness(family, gpus, hardware))
    at, evidence = constants_of(family, kinds, implementations, gpus, coefficients, alike)
    facts = family_facts(family, implementations, gpus)
    for kind in kinds:
        others = fitted_gpus(coefficients, family, kind["without"], kind["vendor"])
        others = set() if kind["answers"] == "target-measured" else others
        kind["octaves"] = alike.octaves(kind["gpu"], siblings(facts, kind["gpu"], others) or others)
    networks = {gpu: network_at(coefficients, family, gpu) for gpu in {kind["corrected"] for kind in kinds} - {None}}
    tier = np.array([TIERS.index(kind["answers"]) for kind in kinds], dtype=int)[kind_of_row]
    beside = np.zeros(calls.num_rows, bool)
    if "beside" in calls.column_names:
        beside = pc.fill_null(calls["beside"], False).to_numpy(zero_copy_only=False)
    limits = Limits(tier == TIERS.index("roofline"), tier == TIERS.index("unmeasured-vendor"), beside)
    return Prepared(family, columns, kinds, kind_of_row, evidence, at, hardware, networks, tier, limits)


def parts_of(ready: Prepared) -> Iterator[Part]:
    """Yield the rows of each measured GPU, which has a correction of its own, and of those without one together."""
    for gpu in dict.fromkeys(kind["corrected"] for kind in ready.kinds) or [None]:
        mine = [number for number, kind in enumerate(ready.kinds) if kind["corrected"] == gpu]
        is_every_kind = len(mine) == len(ready.kinds)
        rows = slice(None) if is_every_kind else np.flatnonzero(np.isin(ready.kind_of_row, mine))
        yield Part(gpu, rows, {name: values[rows] for name, values in ready.columns.items()}, ready.kind_of_row[rows])


def factors_of(ready: Prepared, part: Part, coefficients: pa.Table) -> Iterator[np.ndarray]:
    """Yield by which factors the points of a small sweep, and a few points of a GPU, change latencies of calls near."""
    common = (ready.family, part.columns, part.kind_of_row, ready.kinds, ready.hardware)
    if nearby := nearby_at(coefficients, ready.family, part.corrected) if part.corrected else {}:
        yield _nearby_factor(*common, ready.networks[part.corrected][0], nearby)
    if any(kind["points"] is not None for kind in ready.kinds):
        yield _points_factor(*common, coefficients)


def is_cold(ready: Prepared) -> bool:
    """Whether calls read cold data, which cannot beat the roofline; what moves activations may, out of L2."""
    return "math" in ready.columns or FAMILIES[ready.family].wire_share is not None


def raised(xp: Any, cold: bool, latency_us: Any, roofline_us: Any, factor: Any) -> Any:
    """Return latencies times a factor, within the bound of ``cold`` data."""
    return xp.maximum(latency_us * factor, roofline_us if cold else 0.0)


def limited(xp: Any, latency_us: Any, roofline_us: Any, limits: Limits) -> Any:
    """Return latencies within what their tier and the other stream allow."""
    slowest = xp.where(limits.is_unmeasured, SLOWEST_US + SLOWEST_ETA * roofline_us, xp.inf)
    latency_us = xp.where(limits.is_roofline, roofline_us, xp.minimum(latency_us, slowest))
    return xp.where(limits.beside, xp.minimum(latency_us, roofline_us), latency_us)


def nodes_of_rows(ready: Prepared, part: Part) -> np.ndarray:
    """Return the kernel of each row among those that the correction of its GPU knows, -1 where it knows it not."""
    network_nodes = ready.networks[part.corrected][1]
    nodes = [network_nodes.index(kind["kernel"]) if kind["kernel"] in network_nodes else -1 for kind in ready.kinds]
    return np.array(nodes, dtype=np.int64)[part.kind_of_row]


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
    coefficients: pa.Table,
) -> np.ndarray:
    """Return what a few points of a GPU make of the latencies that its moved constants give its calls."""
    factor = np.ones(kind_of_row.size)
    for number, kind in enumerate(kinds):
        rows = np.flatnonzero(kind_of_row == number)
        if kind["points"] is None or not rows.size:
            continue
        part = {name: values[rows] for name, values in columns.items()}
        call = FAMILIES[family].form.view(np, {"working_set_bytes": COLD_BYTES, **part})
        seen = features(np, family, call, {"sm_count": hardware["sm_count"][part["gpu"]]})
        where = places(words_of(kind["kernel"]), sizes_of(family, seen))
        factor[rows] = np.exp(mean_of(where, points_at(coefficients, family, kind["fit"])))
    return factor
