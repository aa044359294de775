"""Kernel calls prepared for their latency expression: columns, hardware, fitted constants, corrections, and bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import memoised
from kernelsight.dataflow.array_expressions import numeric
from kernelsight.kernels.call_kinds import TIERS, constants_of, kinds_of
from kernelsight.kernels.engine_versions import version_factor
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.features import features
from kernelsight.kernels.few_shot import call_inputs, expected_residual, sizes_of
from kernelsight.kernels.gpu_distance import GpuDistances
from kernelsight.kernels.hardware import MATH, hardware_columns
from kernelsight.kernels.intervals import UNMEASURED_HALF
from kernelsight.kernels.kernel_constants import ON_CHIP, family_facts, fitted_gpus, siblings
from kernelsight.kernels.nearby import Nearby, nearby_delta
from kernelsight.kernels.network import Network, scaled
from kernelsight.kernels.pack_contents import largest_groups, nearby_at, network_at, points_at, words_of
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.kernels.string_columns import positions

# general constants are in units and clocks of NVIDIA GPUs and may be far off on other hardware: the latency of a vendor
# without measurements is at most SLOWEST_US + SLOWEST_ETA x roofline
SLOWEST_US, SLOWEST_ETA = 50.0, 8.0
# a forward pass touches far more bytes than L2 holds before it reads a weight or a cached key again
COLD_BYTES = 1e15


class LatencyBounds(NamedTuple):
    """What bounds a call's latency whatever its expression returns; boolean arrays, one value a row."""

    is_roofline: np.ndarray  # tier roofline: the latency is the roofline itself
    is_unmeasured: np.ndarray  # a vendor without measurements: never above SLOWEST_US + SLOWEST_ETA x roofline
    on_chip: np.ndarray  # no kernel model describes it: from the roofline to a factor of UNMEASURED_HALF either way
    beside: np.ndarray  # hidden behind a kernel on the other stream: at most its roofline, the bandwidth that it takes


class CallGroup(NamedTuple):
    """Calls whose GPUs share one correction (``corrected``: the GPU that it was fitted to), or have none."""

    corrected: str | None
    rows: Any  # a slice, or row numbers
    columns: dict[str, np.ndarray]
    kind_of_row: np.ndarray


class PreparedCalls(NamedTuple):
    """Calls of one family with all that its expression reads; a *kind* is a distinct configuration among the calls."""

    family: str
    columns: dict[str, np.ndarray]  # sizes, FLOP and bytes; gpu and math as positions; shape (rows,)
    kinds: list[dict[str, Any]]  # as ``kinds_of`` returns and ``constants_of`` extends them
    kind_of_row: np.ndarray  # (rows,)
    evidence: list[str]  # one sentence a kind
    at: dict[str, np.ndarray]  # constants by coefficient, shape (kinds,)
    hardware: dict[str, np.ndarray]  # hardware columns, shape (GPUs,) or (GPUs, maths)
    networks: dict[str, tuple[Network, list[str]]]  # by measured GPU: its correction, and the kernels that it knows
    tier: np.ndarray  # (rows,) positions in TIERS
    bounds: LatencyBounds

    @property
    def is_cold(self) -> bool:
        """Whether calls read cold data, which cannot beat the roofline; activations may be read from L2, and can."""
        return "math" in self.columns or FAMILIES[self.family].wire_share is not None

    def groups(self) -> Iterator[CallGroup]:
        """Yield the calls of each GPU that has a correction, and all calls without a correction together."""
        for gpu in dict.fromkeys(kind["corrected"] for kind in self.kinds) or [None]:
            numbers = [number for number, kind in enumerate(self.kinds) if kind["corrected"] == gpu]
            is_every_kind = len(numbers) == len(self.kinds)
            rows = slice(None) if is_every_kind else np.flatnonzero(np.isin(self.kind_of_row, numbers))
            columns = {name: values[rows] for name, values in self.columns.items()}
            yield CallGroup(gpu, rows, columns, self.kind_of_row[rows])

    def factors(self, group: CallGroup, coefficients: pa.Table) -> Iterator[np.ndarray]:
        """Yield factors on the latencies of a group, (rows,): from a small sweep's points, from a few points of a GPU.

        ``coefficients``: ``eta_coefficients``.
        """
        common = (self.family, group.columns, group.kind_of_row, self.kinds, self.hardware)
        if nearby := nearby_at(coefficients, self.family, group.corrected) if group.corrected else {}:
            yield _nearby_factor(*common, self.networks[group.corrected][0], nearby)
        if any(kind["point_count"] is not None for kind in self.kinds):
            yield _points_factor(*common, coefficients)

    @property
    def has_versions(self) -> bool:
        """Whether the version of an engine changes any of the calls."""
        return any(kind["version"].logs.any() for kind in self.kinds)

    def version_factor(self, group: CallGroup, latency_us: np.ndarray) -> np.ndarray:
        """Return the factor of the engine's version on each latency of a group, (rows,); latencies in microseconds."""
        logs = np.array([kind["version"].logs for kind in self.kinds])
        return version_factor(latency_us, logs, group.kind_of_row)

    def most_gpus(self, coefficients: pa.Table) -> np.ndarray:
        """Return the largest group in which a sweep ran each kind's collective, (kinds,); inf: not known, or none.

        ``coefficients``: ``eta_coefficients``.
        """
        if "group_size" not in FAMILIES[self.family].features.sizes:
            return np.full(len(self.kinds), np.inf)
        largest = {gpu: largest_groups(coefficients, self.family, gpu) for gpu in self.networks}
        return np.array([largest.get(kind["corrected"], {}).get(kind["kernel"], np.inf) for kind in self.kinds])

    def nodes_of_rows(self, group: CallGroup) -> np.ndarray:
        """Return the node of each row's kernel in the correction of its GPU, (rows,); -1: the sweep did not run it."""
        network_nodes = self.networks[group.corrected][1]
        nodes = [network_nodes.index(kind["kernel"]) if kind["kernel"] in network_nodes else -1 for kind in self.kinds]
        return np.array(nodes, dtype=np.int64)[group.kind_of_row]


def prepare_calls(family: str, calls: pa.Table, tables: PricingTables) -> PreparedCalls:
    """Return a family's calls with hardware, constants and corrections; ``calls``: columns of ``columns_read``.

    InvalidInput: a deployment's tier needs a sweep or points that its GPU does not have.
    """
    settings, gpus, fabrics, coefficients, implementations, *_ = tables
    declared = FAMILIES[family]
    columns = numeric(calls, [*declared.latency_model.reads, "flops", "bytes"])
    columns["gpu"] = positions(calls["gpu"], gpus["gpu"])
    if not declared.vector_work and "math" in calls.column_names:
        columns["math"] = positions(calls["math"], pa.array(MATH))
    kinds, kind_of_row = kinds_of(family, calls, settings)
    hardware = memoised((gpus, fabrics), "hardware", lambda: hardware_columns(gpus, fabrics))
    distances = memoised((gpus, fabrics), ("distances", family), lambda: GpuDistances(family, gpus, hardware))
    at, evidence = constants_of(family, kinds, implementations, gpus, coefficients, distances)
    facts = family_facts(family, implementations, gpus)
    for kind in kinds:
        others = fitted_gpus(coefficients, family, kind["without"], kind["vendor"])
        others = set() if kind["answer_tier"] == "target-measured" else others
        kind["octaves"] = distances.octaves(kind["gpu"], siblings(facts, kind["gpu"], others) or others)
    networks = {gpu: network_at(coefficients, family, gpu) for gpu in {kind["corrected"] for kind in kinds} - {None}}
    tier = np.array([TIERS.index(kind["answer_tier"]) for kind in kinds], dtype=int)[kind_of_row]
    beside = np.zeros(calls.num_rows, bool)
    if "beside" in calls.column_names:
        beside = pc.fill_null(calls["beside"], False).to_numpy(zero_copy_only=False)
    is_unmeasured = tier == TIERS.index("unmeasured-vendor")
    on_chip = is_unmeasured & np.array([kind["hardware"] == ON_CHIP for kind in kinds], bool)[kind_of_row]
    bounds = LatencyBounds(tier == TIERS.index("roofline"), is_unmeasured, on_chip, beside)
    return PreparedCalls(family, columns, kinds, kind_of_row, evidence, at, hardware, networks, tier, bounds)


def times_factor(is_cold: bool, latency_us: np.ndarray, roofline_us: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return latencies times a factor, microseconds; those of cold data never below the roofline."""
    return np.maximum(latency_us * factor, roofline_us if is_cold else 0.0)


def within_bounds(latency_us: np.ndarray, roofline_us: np.ndarray, bounds: LatencyBounds) -> np.ndarray:
    """Return latencies within the bounds of their tier and of the other stream, microseconds."""
    if not any(np.any(bound) for bound in bounds):
        return latency_us
    slowest_us = np.where(bounds.is_unmeasured, SLOWEST_US + SLOWEST_ETA * roofline_us, np.inf)
    latency_us = np.where(bounds.is_roofline, roofline_us, np.minimum(latency_us, slowest_us))
    latency_us = np.where(bounds.on_chip, roofline_us * np.exp(UNMEASURED_HALF), latency_us)
    return np.where(bounds.beside, np.minimum(latency_us, roofline_us), latency_us)


def _nearby_factor(
    family: str,
    columns: Mapping[str, np.ndarray],
    kind_of_row: np.ndarray,
    kinds: Sequence[Mapping[str, Any]],
    hardware: Mapping[str, np.ndarray],
    network: Network,
    nearby: Mapping[str, Nearby],
) -> np.ndarray:
    """Return the factor of each call, (rows,), from the points of a small sweep that lie near it."""
    call = FAMILIES[family].latency_model.view(np, {"working_set_bytes": COLD_BYTES, **columns})
    call_features = features(np, family, call, {"sm_count": hardware["sm_count"][columns["gpu"]]})
    kernels = np.array([kind["kernel"] for kind in kinds])[kind_of_row]
    return np.exp(nearby_delta(scaled(call_features, network), kernels, nearby))


def _points_factor(
    family: str,
    columns: Mapping[str, np.ndarray],
    kind_of_row: np.ndarray,
    kinds: Sequence[Mapping[str, Any]],
    hardware: Mapping[str, np.ndarray],
    coefficients: pa.Table,
) -> np.ndarray:
    """Return the factor of each call, (rows,), from a few points of its GPU, beside the constants that these moved."""
    factor = np.ones(kind_of_row.size)
    for number, kind in enumerate(kinds):
        rows = np.flatnonzero(kind_of_row == number)
        if kind["point_count"] is None or not rows.size:
            continue
        kind_columns = {name: values[rows] for name, values in columns.items()}
        call = FAMILIES[family].latency_model.view(np, {"working_set_bytes": COLD_BYTES, **kind_columns})
        call_features = features(np, family, call, {"sm_count": hardware["sm_count"][kind_columns["gpu"]]})
        inputs = call_inputs(words_of(kind["kernel"]), sizes_of(family, call_features))
        factor[rows] = np.exp(expected_residual(inputs, points_at(coefficients, family, kind["fit"])))
    return factor
