"""Points of a pack, fitted to a few measured calls of a GPU: moved constants, and a Gaussian process of the residual.

The base is the fit without that GPU's generation; the fit of one family is :mod:`kernelsight.fitting.point_fit`. A pack
holds the moves, and for each kernel its points with the weights of the residual that moved constants leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput
from kernelsight.fitting.expressions import Calls, calls_of, joined_calls
from kernelsight.fitting.kernel_choices import choice_rows
from kernelsight.fitting.measured import features_of
from kernelsight.fitting.point_fit import Measured, fit_points
from kernelsight.fitting.sweep_files import launches_us, measured_families
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.call_kinds import ALONE, AT_SUSTAINED_CLOCK
from kernelsight.kernels.families import FAMILIES, LOWERED, MEASURED
from kernelsight.kernels.few_shot import (
    CallInputs,
    FewShotCalibration,
    call_inputs,
    prior_for,
    size_count,
    sizes_of,
)
from kernelsight.kernels.floors import (
    EXPECTED_US,
    IN_A_GRAPH,
    LAUNCH,
    POSSIBLE_US,
    floor_at,
    floor_row,
    with_floors,
)
from kernelsight.kernels.kernel_constants import Facts, family_facts, fitted_vendors, rows_of_part, vendors_of
from kernelsight.kernels.pack import pack_table, with_assumed
from kernelsight.number_format import number

# points of one GPU: more are a sweep, which `calibrate fit` learns from without --few
MOST_POINTS = 3000
# source of rows by `calibrate measure`, which times a kernel alone and subtracts the gap between replays
OWN_SOURCE = "kernelsight calibrate measure"
Tables = tuple[pa.Table, pa.Table, pa.Table]


def inputs_of(family: str, table: pa.Table, calls: Calls, tables: Tables) -> CallInputs:
    """Return the inputs of training rows to the Gaussian process (kernel, sizes, slopes); no latency is read."""
    words = {name: table[name].to_pylist() for name in ("engine", "implementation", "dtype")}
    row_features = features_of(family, calls.latency_model, table, *tables)
    return call_inputs(words, sizes_of(family, row_features), calls.slopes())


def point_rows(family: str, gpu: str, points: FewShotCalibration, source: str) -> list[dict]:
    """Return the points of a family as ``eta_coefficients`` rows: one per moved constant, and one per array."""
    row_keys = {"family": family, "part": "points", "gpu": gpu, "unit": "1", "source": source}
    rows = []
    for words, moves in points.moves.items():
        engine, implementation, dtype = words if len(words) == 3 else (None, words[0] if words else None, None)
        level = ("family", "implementation", "engine")[len(words) - len(words) // 3]
        path = {"level": level, "engine": engine, "implementation": implementation, "dtype": dtype}
        rows += [
            {**row_keys, **path, "coefficient": name, "value": float(np.exp(move))}
            for name, move in moves.items()
            if move
        ]
    kernels, width = points.inputs.kernels(), size_count(family)
    for kernel in dict.fromkeys(kernels.tolist()):
        members = np.flatnonzero(kernels == kernel)
        engine, implementation, dtype = kernel.split("|")
        arrays = {"features": points.inputs.features[members, :width], "weights": points.weights[members]}
        path = {"level": "gpu", "engine": engine, "implementation": implementation, "dtype": dtype}
        rows += [
            {
                **row_keys, **path, "coefficient": name,
                "array": np.ravel(values).astype(np.float32).astype(float).tolist(),
            }
            for name, values in arrays.items()
        ]  # fmt: skip
    return rows


def fit_few(
    sweeps: Sequence[Path],
    gpus_wanted: Sequence[str],
    base: pa.Table,
    gpus: pa.Table,
    fabrics: pa.Table,
    implementations: pa.Table,
    *,
    families: Iterable[str] | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> pa.Table:
    """Fit a few measured calls of some GPUs; return the pack ``base`` with their points, which replace earlier ones."""
    tables, rows = (implementations, gpus, fabrics), []
    base = without_points(base, gpus_wanted)
    if families is None:
        floors = floor_rows(sweeps, gpus_wanted, base, vendors_of(gpus), log)
        base = pa.concat_tables([base, pack_table(floors)])
    pack = with_assumed(base)
    for gpu in gpus_wanted:
        vendor = vendors_of(gpus)[gpu]
        by_family = _calls_by_family(sweeps, gpu, MEASURED if families is None else families, vendor, pack, tables, log)
        rows += [
            row
            for family in by_family
            if gpu not in swept_gpus(base, family)
            for row in choice_rows(sweeps, family, [gpu], implementations)
        ]
        if not by_family:
            continue
        count = sum(measured.inputs.size for measured in by_family.values())
        kernels = sum(len(set(measured.inputs.kernels().tolist())) for measured in by_family.values())
        log(f"{gpu}: {count:,} points of {kernels:,} kernels in {len(by_family):,} families")
        if swept := [family for family in by_family if gpu in swept_gpus(base, family)]:
            log(
                f"{gpu}: the kernel model has its sweep of {', '.join(swept)}, which answers before these points; "
                "predict by them with --tier points-measured"
            )
        unmeasured = [name for name in LOWERED if name not in by_family]
        log(f"{gpu}: not measured, so as without points: {', '.join(unmeasured)}")
        for family, measured in by_family.items():
            source = f"fitted to {measured.inputs.size} points of {gpu}"
            rows += point_rows(family, gpu, fit_points(measured, prior=prior_for(vendor)), source)
    return pa.concat_tables([base, pack_table(rows)])


def _calls_by_family(
    sweeps: Sequence[Path],
    gpu: str,
    families: Iterable[str],
    vendor: str | None,
    pack: pa.Table,
    tables: Tables,
    log: Callable[[str], None],
) -> dict[str, Measured]:
    """Return a GPU's measured calls by family, for families that were fitted to a GPU of its vendor.

    InvalidInput: a family has more than MOST_POINTS calls.
    """
    by_family: dict[str, Measured] = {}
    has_rows = measured_families(sweeps, [gpu])
    for family in (name for name in families if name in has_rows):
        own = f"and points.source = '{OWN_SOURCE}'"
        ways = (
            (training_rows(sweeps, family, [gpu], own), ALONE),
            (training_rows(sweeps, family, [gpu], own, sustained=True), ALONE | AT_SUSTAINED_CLOCK),
            (training_rows(sweeps, family, [gpu], f"and points.source <> '{OWN_SOURCE}'"), {}),
        )
        count = sum(table.num_rows for table, _ in ways)
        if not count:
            continue
        if vendor not in fitted_vendors(pack, family):
            log(f"{family}: no kernel of {(vendor or '').upper()} was fitted, so its points are not used")
            continue
        if count > MOST_POINTS:
            raise InvalidInput(
                f"--few has {count:,} points of {family} on {gpu}, and up to {MOST_POINTS:,} are few; fit them as a "
                "sweep, with --sweep."
            )
        by_family[family] = joined_measured(
            [
                measured_calls(family, table, gpu, pack, tables, known_values)
                for table, known_values in ways
                if table.num_rows
            ]
        )
    return by_family


def floor_rows(
    sweeps: Sequence[Path],
    gpus_wanted: Sequence[str],
    base: pa.Table,
    vendor_of: Mapping[str, str | None],
    log: Callable[[str], None],
) -> list[dict]:
    """Return the floors of GPUs (shortest latency of a launch) as ``eta_coefficients`` rows, from empty launches.

    A floor is a factor on the fitted ones: the GPU's empty launch over the mean of other swept GPUs', where there are
    any, else over EXPECTED_US. InvalidInput: a time is impossible for an empty launch.
    """
    launch_us_of, rows = launches_us(sweeps), []
    least_us, most_us = POSSIBLE_US
    for gpu, launch_us in launch_us_of.items():
        if vendor_of.get(gpu) is None and not least_us <= launch_us <= most_us:
            raise InvalidInput(
                f"an empty launch of {gpu} takes {number(launch_us, 3)} us in the sweep, but in a CUDA graph it takes "
                f"{least_us} to {most_us} us; measure {LAUNCH}, {IN_A_GRAPH} again in microseconds, or leave it out."
            )
    swept = {gpu for family in MEASURED for gpu in swept_gpus(base, family)} & set(launch_us_of)
    for gpu in gpus_wanted:
        others = [launch_us_of[other] for other in sorted(swept - {gpu}) if vendor_of.get(other) is None]
        if gpu not in launch_us_of:
            log(f"{gpu}: no empty launch was measured, so its floors are those of the generations that were fitted")
        elif vendor_of[gpu] is not None:
            log(f"{gpu}: nothing is known to compare its empty launch with, so it is not used")
        else:
            expected_us = float(np.exp(np.mean(np.log(others)))) if others else EXPECTED_US
            rows.append(floor_row(gpu, launch_us_of[gpu], expected_us))
            log(f"{rows[-1]['source']}: floors of all kernels times {number(rows[-1]['value'], 3)}")
    return rows


def joined_measured(measured: Sequence[Measured]) -> Measured:
    """Concatenate the calls of one family that were measured in different ways."""
    if len(measured) == 1:
        return measured[0]
    inputs = CallInputs(*map(np.concatenate, zip(*(each.inputs for each in measured), strict=True)))
    columns = ((each.predicted_us, each.log_error) for each in measured)
    calls = joined_calls([each.calls for each in measured])
    return Measured(inputs, *map(np.concatenate, zip(*columns, strict=True)), calls)


def measured_calls(
    family: str,
    table: pa.Table,
    gpu: str,
    base: pa.Table,
    tables: Tables,
    overrides: Mapping[str, float] = MappingProxyType({}),
) -> Measured:
    """Compare training rows of one GPU with the fit in ``base`` without its generation, or with that of all GPUs.

    ``overrides``: values of coefficients that are known from how the rows were measured.
    """
    latency_model, facts = FAMILIES[family].latency_model, family_facts(family, tables[0], tables[1])
    vendor = facts.vendor.get(gpu)
    without = held_out_fit(base, family, facts, gpu)
    calls = calls_of(
        family, latency_model, table, base, *tables, without=without, measured=False, vendor=vendor, overrides=overrides
    )
    calls = calls._replace(at=with_floors(latency_model.coefficients, calls.at, floor_at(base, gpu) or 0.0))
    predicted = calls.latency_us()
    error = np.log(table["latency_us"].to_numpy() / predicted)
    return Measured(inputs_of(family, table, calls, tables), predicted, error, calls)


def held_out_fit(base: pa.Table, family: str, facts: Facts, gpu: str) -> str | None:
    """Return the name of the fit without a swept GPU's generation; None where no sweep of the GPU was fitted."""
    if gpu not in swept_gpus(base, family):
        return None
    fits = set(pc.unique(rows_of_part(base, family, "constant")["without"]).to_pylist())
    return next((name for name in (facts.generation.get(gpu), gpu) if name in fits), None)


def swept_gpus(base: pa.Table, family: str) -> set[str | None]:
    """Return the GPUs that a family's constants in a pack were fitted to."""
    return set(pc.unique(rows_of_part(base, family, "constant")["gpu"]).to_pylist())


def without_points(base: pa.Table, gpus: Sequence[str]) -> pa.Table:
    """Return a pack without the points of some GPUs, and without the kernel choices that came with them."""
    points = base.filter(pc.and_(pc.equal(base["part"], "points"), pc.is_in(base["gpu"], pa.array(gpus))))
    pairs = set(zip(points["family"].to_pylist(), points["gpu"].to_pylist(), strict=True))
    chosen_by_points = {pair for pair in pairs if pair[1] not in swept_gpus(base, pair[0])}
    row_keys = zip(*(base[name].to_pylist() for name in ("part", "family", "gpu")), strict=True)
    kept = [
        not ((part == "points" and (family, gpu) in pairs) or (part == "choice" and (family, gpu) in chosen_by_points))
        for part, family, gpu in row_keys
    ]
    return base.filter(pa.array(kept, pa.bool_()))
