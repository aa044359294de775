"""A few measured calls of a GPU as a pack's points: what the fit without that GPU's generation leaves of each.

The model is :mod:`kernelsight.kernels.points`. Moves of constants are those of highest probability, by Gauss-Newton
steps; a pack holds them, and of each kernel its points with the weights of what moved constants leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput
from kernelsight.fitting.expressions import Calls, calls_of, fitted_coefficients, joined_calls
from kernelsight.fitting.kernel_choices import choice_rows
from kernelsight.fitting.measured import features_of
from kernelsight.fitting.sweep_files import launches_us
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.families import FAMILIES, LOWERED, MEASURED
from kernelsight.kernels.floors import (
    EXPECTED_US,
    IN_A_GRAPH,
    LAUNCH,
    POSSIBLE_US,
    floor_at,
    floor_row,
    with_floors,
)
from kernelsight.kernels.forms import Form
from kernelsight.kernels.kinds import ALONE
from kernelsight.kernels.pack import pack_table, with_assumed
from kernelsight.kernels.points import (
    PARTS,
    Moves,
    Parts,
    Places,
    PointsOf,
    covariance,
    covariance_of_left,
    levels_of,
    mean_of,
    moved_constants,
    parts_of,
    places,
    size_count,
    sizes_of,
)
from kernelsight.kernels.resolve import Facts, family_facts, fitted_vendors, rows_of_part, vendors_of
from kernelsight.number_format import number

# points of one GPU: more are a sweep, which `calibrate fit` learns from without --few
MOST_POINTS = 3000
# of rows that `calibrate measure` wrote: it times a kernel alone, and takes the gap between replays off
OWN_SOURCE = "kernelsight calibrate measure"
# Gauss-Newton steps to the moves of constants: a constant that moves far needs the later ones
STEPS = 5
# a step goes the whole way, or half of it, down to a sixteenth
HALVINGS = 5
# moves of constants in units of their spreads, by the words of a level
ByLevel = Mapping[tuple[str, ...], np.ndarray]
Tables = tuple[pa.Table, pa.Table, pa.Table]


class _Tried(NamedTuple):
    """Moves of constants, the calls that they make, what these leave of log latencies, and what is to be least."""

    by_level: ByLevel
    calls: Calls
    left: np.ndarray
    cost: float


class Measured(NamedTuple):
    """Measured calls of one family on one GPU: where they lie, predicted us, and log(measured / predicted) of each."""

    places: Places
    predicted_us: np.ndarray
    log_error: np.ndarray
    calls: Calls

    def at(self, rows: np.ndarray) -> Measured:
        """Return some of the calls."""
        return Measured(self.places.at(rows), self.predicted_us[rows], self.log_error[rows], self.calls.taken(rows))

    def latency_us(self, points: PointsOf) -> np.ndarray:
        """Return the latency of each call in us by constants as points move them, and by what these leave."""
        return moved_calls(self.calls, points).latency_us() * np.exp(mean_of(self.places, points))


def places_of(family: str, table: pa.Table, calls: Calls, tables: Tables) -> Places:
    """Return where training rows lie; no latency is read."""
    words = {name: table[name].to_pylist() for name in ("engine", "implementation", "dtype")}
    seen = features_of(family, calls.form, table, *tables)
    return places(words, sizes_of(family, seen), calls.slopes())


def moved_calls(calls: Calls, points: PointsOf) -> Calls:
    """Return calls with their constants as points move them."""
    at = [
        moved_constants(
            points, calls.form.coefficients, leaf, {name: values[number] for name, values in calls.at.items()}
        )
        for number, leaf in enumerate(calls.rows.leaves)
    ]
    return calls._replace(at={name: np.array([float(one[name]) for one in at]) for name in calls.at})


def fit_points(measured: Measured, steps: int = STEPS, parts: Parts = PARTS) -> PointsOf:
    """Return what measured calls of one family say of its constants, and of what these leave.

    Moves m take least |m|^2 + e' (K + noise^2)^-1 e, e what moved constants leave of the calls and m in deviations.
    A step goes to where moves would be if latencies followed their slopes, or half of the way, a quarter and so on,
    until that sum is less: whole steps go to and fro where a constant counts on one side of a maximum alone.
    """
    where, log_us = measured.places, np.log(measured.predicted_us) + measured.log_error
    noise = parts.noise**2 * np.eye(where.size)
    weigh = np.linalg.inv(covariance_of_left(where, where, parts) + noise)
    by_level = {words: np.zeros(where.slopes.shape[1]) for words in _levels(where)}

    def tried(by_level: ByLevel) -> _Tried:
        calls = moved_calls(measured.calls, PointsOf(_by_constant(by_level, measured.calls.form), where, log_us))
        left = log_us - np.log(calls.latency_us())
        far = sum(float(moves @ moves) for moves in by_level.values()) / parts.constant**2
        return _Tried(by_level, calls, left, far + float(left @ weigh @ left))

    best = tried(by_level)
    for _ in range(steps):
        where = where._replace(slopes=best.calls.slopes())
        linear = best.left + (where.slopes * _moves_of(best.by_level, where)).sum(axis=1)
        aim = _moves_by_level(where, np.linalg.solve(covariance(where, where, parts) + noise, linear), parts)
        ways = (tried(_between(best.by_level, aim, 0.5**halving)) for halving in range(HALVINGS))
        better = next((one for one in ways if one.cost < best.cost), None)
        if better is None:
            break
        best = better
    moves = _by_constant(best.by_level, measured.calls.form)
    return PointsOf(moves, measured.places._replace(slopes=best.calls.slopes()), weigh @ best.left)


def _between(here: ByLevel, there: ByLevel, share: float) -> ByLevel:
    return {words: moves + share * (there[words] - moves) for words, moves in here.items()}


def _by_constant(by_level: ByLevel, form: Form) -> Moves:
    """Return moves in units of spreads as logarithms, by the names of constants."""
    fitted = fitted_coefficients(form)
    return {
        words: {one.name: float(move * one.spread) for one, move in zip(fitted, moves, strict=True)}
        for words, moves in by_level.items()
    }


def _levels(where: Places) -> dict[tuple[str, ...], None]:
    words = zip(where.engine, where.implementation, where.dtype, strict=True)
    return dict.fromkeys(level for one in words for level in levels_of(*one))


def _moves_by_level(where: Places, weights: np.ndarray, parts: Parts) -> ByLevel:
    """Return the moves of constants in units of their spreads, by the words of each level that has points."""
    moves = {words: np.zeros(where.slopes.shape[1]) for words in _levels(where)}
    for row, words in enumerate(zip(where.engine, where.implementation, where.dtype, strict=True)):
        for level in levels_of(*words):
            moves[level] += parts.constant**2 * weights[row] * where.slopes[row]
    return moves


def _moves_of(by_level: ByLevel, where: Places) -> np.ndarray:
    words = zip(where.engine, where.implementation, where.dtype, strict=True)
    return np.array([sum(by_level[level] for level in levels_of(*one)) for one in words])


def point_rows(family: str, gpu: str, points: PointsOf, source: str) -> list[dict]:
    """Return the points of a family as ``eta_coefficients`` rows: moves of constants, and one an array."""
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
    kernels, width = points.places.kernels(), size_count(family)
    for kernel in dict.fromkeys(kernels.tolist()):
        of = np.flatnonzero(kernels == kernel)
        engine, implementation, dtype = kernel.split("|")
        arrays = {"features": points.places.features[of, :width], "weights": points.weights[of]}
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
    """Return the pack ``base`` with a few measured calls of some GPUs in place of what points it had of them."""
    tables, rows = (implementations, gpus, fabrics), []
    base = without_points(base, gpus_wanted)
    if families is None:
        floors = floor_rows(sweeps, gpus_wanted, base, vendors_of(gpus), log)
        base = pa.concat_tables([base, pack_table(floors)])
    pack = with_assumed(base)
    for gpu in gpus_wanted:
        vendor = vendors_of(gpus)[gpu]
        asked = (MEASURED if families is None else families, vendor)
        by_family = _calls_by_family(sweeps, gpu, *asked, pack, tables, log)
        rows += [
            row
            for family in by_family
            if gpu not in swept_gpus(base, family)
            for row in choice_rows(sweeps, family, [gpu], implementations)
        ]
        if not by_family:
            continue
        count, kernels = (sum(of(one.places) for one in by_family.values()) for of in (_size, _kernel_count))
        log(f"{gpu}: {count:,} points of {kernels:,} kernels in {len(by_family):,} families")
        unmeasured = [name for name in LOWERED if name not in by_family]
        log(f"{gpu}: not measured, so as without points: {', '.join(unmeasured)}")
        for family, measured in by_family.items():
            source = f"fitted to {measured.places.size} points of {gpu}"
            rows += point_rows(family, gpu, fit_points(measured, parts=parts_of(vendor)), source)
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
    """Return the measured calls of a GPU, of families that a GPU of its vendor was fitted to."""
    by_family: dict[str, Measured] = {}
    for family in families:
        own = training_rows(sweeps, family, [gpu], f"and points.source = '{OWN_SOURCE}'")
        published = training_rows(sweeps, family, [gpu], f"and points.source <> '{OWN_SOURCE}'")
        if not own.num_rows + published.num_rows:
            continue
        if vendor not in fitted_vendors(pack, family):
            log(f"{family}: no kernel of {(vendor or '').upper()} was fitted, so its points are not used")
            continue
        if own.num_rows + published.num_rows > MOST_POINTS:
            raise InvalidInput(
                f"--few has {own.num_rows + published.num_rows:,} points of {family} on {gpu}, and up to "
                f"{MOST_POINTS:,} are few; fit them as a sweep, with --sweep."
            )
        by_family[family] = both(
            [
                measured_calls(family, table, gpu, pack, tables, lone_values)
                for table, lone_values in ((own, ALONE), (published, {}))
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
    """Return what empty launches say of the floors of GPUs, as ``eta_coefficients`` rows.

    Those of other GPUs with a sweep, where there are any, say what is expected of a GPU whose floors are as fitted.
    InvalidInput: no empty launch can take as long, or as short.
    """
    found, rows = launches_us(sweeps), []
    least_us, most_us = POSSIBLE_US
    for gpu, launch_us in found.items():
        if vendor_of.get(gpu) is None and not least_us <= launch_us <= most_us:
            raise InvalidInput(
                f"an empty launch of {gpu} takes {number(launch_us, 3)} us in the sweep, but in a CUDA graph it takes "
                f"{least_us} to {most_us} us; measure {LAUNCH}, {IN_A_GRAPH} again in microseconds, or leave it out."
            )
    swept = {gpu for family in MEASURED for gpu in swept_gpus(base, family)} & set(found)
    for gpu in gpus_wanted:
        others = [found[one] for one in sorted(swept - {gpu}) if vendor_of.get(one) is None]
        if gpu not in found:
            log(f"{gpu}: no empty launch was measured, so its floors are those of the generations that were fitted")
        elif vendor_of[gpu] is not None:
            log(f"{gpu}: nothing is known to compare its empty launch with, so it is not used")
        else:
            expected_us = float(np.exp(np.mean(np.log(others)))) if others else EXPECTED_US
            rows.append(floor_row(gpu, found[gpu], expected_us))
            log(f"{rows[-1]['source']}: floors of all kernels times {number(rows[-1]['value'], 3)}")
    return rows


def _size(where: Places) -> int:
    return where.size


def _kernel_count(where: Places) -> int:
    return len(set(where.kernels().tolist()))


def both(parts: Sequence[Measured]) -> Measured:
    """Return calls of one family that were measured in two ways together."""
    if len(parts) == 1:
        return parts[0]
    where = Places(*map(np.concatenate, zip(*(one.places for one in parts), strict=True)))
    columns = ((one.predicted_us, one.log_error) for one in parts)
    return Measured(where, *map(np.concatenate, zip(*columns, strict=True)), joined_calls([one.calls for one in parts]))


def measured_calls(
    family: str,
    table: pa.Table,
    gpu: str,
    base: pa.Table,
    tables: Tables,
    stated: Mapping[str, float] = MappingProxyType({}),
) -> Measured:
    """Return training rows of one GPU against the fit ``base`` without its generation, or where it has none, of all.

    ``stated``: coefficients that are known of how the rows were measured.
    """
    form, facts = FAMILIES[family].form, family_facts(family, tables[0], tables[1])
    vendor = facts.vendor.get(gpu)
    without = left_out(base, family, facts, gpu)
    calls = calls_of(family, form, table, base, *tables, without=without, measured=False, vendor=vendor, stated=stated)
    calls = calls._replace(at=with_floors(form.coefficients, calls.at, floor_at(base, gpu) or 0.0))
    predicted = calls.latency_us()
    error = np.log(table["latency_us"].to_numpy() / predicted)
    return Measured(places_of(family, table, calls, tables), predicted, error, calls)


def left_out(base: pa.Table, family: str, facts: Facts, gpu: str) -> str | None:
    """Return the name of the fit without a swept GPU's generation; None where no sweep of the GPU was fitted."""
    if gpu not in swept_gpus(base, family):
        return None
    fits = set(pc.unique(rows_of_part(base, family, "constant")["without"]).to_pylist())
    return next((name for name in (facts.generation.get(gpu), gpu) if name in fits), None)


def swept_gpus(base: pa.Table, family: str) -> set[str | None]:
    """Return the GPUs that constants of a family were fitted to."""
    return set(pc.unique(rows_of_part(base, family, "constant")["gpu"]).to_pylist())


def without_points(base: pa.Table, gpus: Sequence[str]) -> pa.Table:
    """Return a pack without what points of some GPUs gave it: the points, and which kernels ran there."""
    pointed = base.filter(pc.and_(pc.equal(base["part"], "points"), pc.is_in(base["gpu"], pa.array(gpus))))
    pairs = set(zip(pointed["family"].to_pylist(), pointed["gpu"].to_pylist(), strict=True))
    counted = {pair for pair in pairs if pair[1] not in swept_gpus(base, pair[0])}
    row_keys = zip(*(base[name].to_pylist() for name in ("part", "family", "gpu")), strict=True)
    kept = [
        not ((part == "points" and (family, gpu) in pairs) or (part == "choice" and (family, gpu) in counted))
        for part, family, gpu in row_keys
    ]
    return base.filter(pa.array(kept, pa.bool_()))
