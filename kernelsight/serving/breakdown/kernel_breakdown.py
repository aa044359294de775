"""Kernel breakdown: GPU time and energy of each scenario by kernel, from the kernels of knots and the uses of knots.

Times and energies are added up as whole millionths, so that sums do not depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.python_nodes import produces
from kernelsight.dataflow.sums import WholeSums, rounded, rows_by_key
from kernelsight.kernels.string_columns import combinations, strings_of
from kernelsight.serving.breakdown.knot_kernels import COLLECTIVES

MILLIONTHS = 1e6
BLOCK = 1 << 18  # kernels of knots in memory at a time
# columns of knot_corrections, and the kernel families that each applies to; the first: to all others
FACTORS = {"factor": (), "moe_factor": ("moe",), "communication_factor": COLLECTIVES}


class Knots(NamedTuple):
    """The kernels of all knots, sorted by ``key``; shape [kernels of knots] each."""

    key: np.ndarray  # number of deployment and step shape
    kernel: np.ndarray  # number of family, name and bound
    count: np.ndarray  # launches in a step
    latency_us: np.ndarray  # of a launch
    correction: np.ndarray  # factor on it
    millionths_j: np.ndarray  # energy of a launch on all GPUs of a rank, 1e-6 J; nan: unknown


class Spent(NamedTuple):
    """Sums for each kernel in each phase of each scenario (a cell)."""

    calls: WholeSums  # launches, millionths
    time: WholeSums  # 1e-6 us
    energy: WholeSums  # 1e-6 J
    unknown: np.ndarray  # uses of knots without energy
    uses: np.ndarray  # uses of knots


@produces("kernel_breakdown")
def breakdown_of(
    step_cost_uses: pa.Table,
    kernel_latencies: pa.Table,
    deployment_settings: pa.Table,
    gpu_power: pa.Table,
    knot_corrections: pa.Table,
    scenario_energy: pa.Table,
) -> pa.Table:
    """GPU time and energy of each scenario by kernel: the kernels of every knot, weighted by the knot's uses.

    ``uses``: ``step_cost_uses``; ``latencies``: ``kernel_latencies``; ``corrections``: ``knot_corrections``.
    """
    owners = pc.unique(kernel_latencies["deployment_id"])
    ids = [table["step_shape_id"].to_numpy() for table in (step_cost_uses, kernel_latencies, knot_corrections)]
    size = max(int(shape_id.max(initial=0)) for shape_id in ids) + 1
    used_key, latency_key, corrected_key = (
        pc.fill_null(pc.index_in(table["deployment_id"], owners), len(owners)).to_numpy().astype(np.int64) * size
        + shape_id
        for table, shape_id in zip((step_cost_uses, kernel_latencies, knot_corrections), ids, strict=True)
    )
    kernels, kernel = combinations(kernel_latencies, ["family", "name", "bound"])
    phases, phase = combinations(step_cost_uses, ["scenario_id", "phase"])
    factors = _factors(kernel_latencies, latency_key, knot_corrections, corrected_key)
    knots = _knots(kernel_latencies, kernel, latency_key, factors, deployment_settings, gpu_power)
    cells = len(phases) * len(kernels)
    spent = Spent(WholeSums(cells), WholeSums(cells), WholeSums(cells), np.zeros(cells), np.zeros(cells))
    weight = step_cost_uses["weight"].to_numpy()
    for use, row in launched_pairs(used_key, knots.key):
        _add(spent, phase[use] * len(kernels) + knots.kernel[row], weight[use], knots, row)
    return _rows(phases, kernels, spent, scenario_energy)


def _factors(
    latencies: pa.Table, latency_key: np.ndarray, corrections: pa.Table, corrected_key: np.ndarray
) -> np.ndarray:
    """Return the factor on the latency of each kernel at its knot; 1 without a correction."""
    factors_of = np.ones(latency_key.size)
    if not corrected_key.size:
        return factors_of
    order = np.argsort(corrected_key)
    corrected_row = order[np.minimum(np.searchsorted(corrected_key, latency_key, sorter=order), order.size - 1)]
    is_corrected = corrected_key[corrected_row] == latency_key
    family_number = np.zeros(latency_key.size, np.int64)
    for number, families in enumerate(FACTORS.values()):
        family_number[pc.is_in(latencies["family"], pa.array(families, pa.string())).to_numpy()] = number
    factors = np.array([corrections[name].to_numpy() for name in FACTORS])
    factors_of[is_corrected] = factors[family_number, corrected_row][is_corrected]
    return factors_of


def _knots(
    latencies: pa.Table,
    kernel: np.ndarray,
    key: np.ndarray,
    correction: np.ndarray,
    settings: pa.Table,
    gpu_power: pa.Table,
) -> Knots:
    """Return the kernels of all knots, sorted by knot, with corrected energies."""
    settings_of_each = rows_by_key(
        settings.select(["deployment_id", "gpu", "tp"]), "deployment_id", latencies["deployment_id"]
    )
    power = rows_by_key(gpu_power.select(["gpu", "idle_w", "active_w"]), "gpu", settings_of_each["gpu"])
    active_w = power["idle_w"].to_numpy() + power["active_w"].to_numpy()
    latency_us = latencies["latency_us"].to_numpy()
    energy_j = np.asarray(latencies["energy_j"].to_numpy(), float)
    # a correction changes the time, and with it the energy that an active GPU draws whatever it computes
    energy = settings_of_each["tp"].to_numpy() * (energy_j * MILLIONTHS + (correction - 1) * latency_us * active_w)
    order = np.argsort(key, kind="stable")
    columns = (key, kernel, latencies["count"].to_numpy(), latency_us, correction, energy)
    return Knots(*(values[order] for values in columns))


def launched_pairs(used: np.ndarray, keys: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (rows of uses, rows of kernels), block by block: a pair for each kernel that a used knot launches.

    ``used``: the knot of each use; ``keys``: that of each kernel, sorted.
    """
    first = np.searchsorted(keys, used)
    count = np.searchsorted(keys, used, side="right") - first
    ends = np.cumsum(count)
    start, launches = 0, int(ends[-1]) if ends.size else 0
    while start < used.size:
        yielded = int(ends[start - 1]) if start else 0
        if yielded == launches:
            return
        stop = max(int(np.searchsorted(ends, yielded + BLOCK, side="right")), start + 1)
        counts = count[start:stop]
        use = np.repeat(np.arange(start, stop), counts)
        yield use, first[use] + np.arange(use.size) - np.repeat(np.cumsum(counts) - counts, counts)
        start = stop


def _add(spent: Spent, cell: np.ndarray, weight: np.ndarray, knots: Knots, row: np.ndarray) -> None:
    """Add ``weight`` uses of kernels (rows of ``knots``) to their cells."""
    calls = weight * knots.count[row]
    spent.calls.add(rounded(calls * MILLIONTHS), cell)
    spent.time.add(rounded(calls * knots.latency_us[row] * MILLIONTHS * knots.correction[row]), cell)
    energy = rounded(calls * knots.millionths_j[row])
    spent.energy.add(np.nan_to_num(energy), cell)
    spent.unknown[:] += np.bincount(cell, np.isnan(energy), spent.unknown.size)
    spent.uses[:] += np.bincount(cell, minlength=spent.uses.size)


def _rows(
    phases: list[dict[str, Any]], kernels: list[dict[str, Any]], spent: Spent, scenario_energy: pa.Table
) -> pa.Table:
    """Return a row for each kernel of each phase, the longest time first."""
    if not spent.uses.any():
        phases, kernels, spent = [], [], Spent(*(WholeSums(0) for _ in range(3)), np.zeros(0), np.zeros(0))
    numbers, owners = dict[tuple[str, str], int](), dict[str, int]()
    name = [numbers.setdefault((row["family"], row["name"]), len(numbers)) for row in kernels]
    owner = [owners.setdefault(row["scenario_id"], len(owners)) for row in phases]
    phase, kernel = np.divmod(np.arange(spent.uses.size), max(len(kernels), 1))
    group, size = phase * len(numbers) + np.array(name, np.int64)[kernel], len(phases) * len(numbers)
    calls, time, energy = (sums.by(group, size).total() for sums in (spent.calls, spent.time, spent.energy))
    unknown = np.bincount(group, spent.unknown, size) > 0
    scenario_time = spent.time.by(np.array(owner, np.int64)[phase], len(owners)).total()
    # a kernel's bound may differ between knots: the one with the most time is written last
    used = np.flatnonzero(spent.uses)
    used = used[np.argsort(spent.time.total()[used], kind="stable")]
    bound = np.zeros(size, np.int64)
    bound[group[used]] = kernel[used]
    rows = np.unique(group[used])
    phase, number = np.divmod(rows, max(len(numbers), 1))
    words = np.array([word for _, word in numbers], str)
    order = np.lexsort((words[number], -time[rows], phase))
    rows, phase, number = rows[order], phase[order], number[order]
    of_phase = {column: [row[column] for row in phases] for column in ("scenario_id", "phase")}
    of_kernel = {column: [row[column] for row in kernels] for column in ("family", "name", "bound")}
    scenarios = strings_of(of_phase["scenario_id"], phase)
    # share of the energy that is left under the power limit
    power_limit_share = rows_by_key(scenario_energy, "scenario_id", scenarios)["held_share"]
    return pa.table(
        {
            "scenario_id": scenarios,
            "phase": strings_of(of_phase["phase"], phase),
            "family": strings_of(of_kernel["family"], bound[rows]),
            "name": strings_of(of_kernel["name"], bound[rows]),
            "calls": calls[rows] / MILLIONTHS,
            "total_us": time[rows] / MILLIONTHS,
            "share": time[rows] / scenario_time[np.array(owner, np.int64)[phase]],
            "bound": strings_of(of_kernel["bound"], bound[rows]),
            "energy_j": pc.multiply(pa.array(energy[rows] / MILLIONTHS, mask=unknown[rows]), power_limit_share),
        }
    )
