"""A few measured calls of a GPU as a pack's points: what the fit without that GPU's generation leaves of each.

The model is :mod:`kernelsight.kernels.points`. A pack holds of each family the points of its kernels with their
weights, and on a line of times what the points of other families say of the GPU.
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
from kernelsight.fitting.expressions import predict_family
from kernelsight.fitting.kernel_choices import choice_rows
from kernelsight.fitting.measured import features_of
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.families import FAMILIES, MEASURED
from kernelsight.kernels.forms import Form
from kernelsight.kernels.kinds import ALONE
from kernelsight.kernels.pack import pack_table, with_assumed
from kernelsight.kernels.points import Places, PointsOf, joined, shared_by_time, size_count, sizes_of, weights_of
from kernelsight.kernels.resolve import Facts, family_facts, fitted_vendors, rows_of_part, vendors_of

# points of one GPU: more are a sweep, which `calibrate fit` learns from without --few
MOST_POINTS = 3000
# of rows that `calibrate measure` wrote: it times a kernel alone, and takes the gap between replays off
OWN_SOURCE = "kernelsight calibrate measure"
Tables = tuple[pa.Table, pa.Table, pa.Table]


class Measured(NamedTuple):
    """Measured calls of one GPU: where they lie, and log(measured / predicted) of each."""

    places: Places
    log_error: np.ndarray

    def at(self, rows: np.ndarray) -> Measured:
        """Return some of the calls."""
        return Measured(self.places.at(rows), self.log_error[rows])


def places_of(family: str, form: Form, table: pa.Table, predicted_us: np.ndarray, tables: Tables) -> Places:
    """Return where training rows lie, by what a fit across generations predicts of them; no latency is read."""
    words = (np.array(table[name].to_pylist(), dtype=object) for name in ("engine", "implementation", "dtype"))
    names = np.full(table.num_rows, family, dtype=object)
    seen = features_of(family, form, table, *tables)
    return Places(names, *words, np.log(predicted_us), sizes_of(family, seen))


def joined_calls(parts: Sequence[Measured]) -> Measured:
    """Return the calls of several families together."""
    return Measured(joined([one.places for one in parts]), np.concatenate([one.log_error for one in parts]))


def fit_points(measured: Measured) -> dict[str, PointsOf]:
    """Return of each family its points, and what those of other families say of it."""
    weights, family = weights_of(*measured), measured.places.family
    found = {}
    for name in dict.fromkeys(family.tolist()):
        own = family == name
        shared = shared_by_time(measured.places.at(~own), weights[~own])
        found[name] = PointsOf(measured.places.at(own), weights[own], shared)
    return found


def point_rows(family: str, gpu: str, points: PointsOf, source: str) -> list[dict]:
    """Return the points of a family as ``eta_coefficients`` rows, one an array."""
    named = {"family": family, "part": "points", "level": "gpu", "gpu": gpu, "unit": "1", "source": source}
    rows = [{**named, "coefficient": "shared", "array": points.shared.tolist()}]
    width = size_count(family)
    kernels = points.places.kernels()
    for kernel in dict.fromkeys(kernels.tolist()):
        of = np.flatnonzero(kernels == kernel)
        _, engine, implementation, dtype = kernel.split("|")
        where = points.places.at(of)
        arrays = {"log_us": where.log_us, "features": where.features[:, :width], "weights": points.weights[of]}
        rows += [
            {
                **named, "engine": engine, "implementation": implementation, "dtype": dtype, "coefficient": name,
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
    whole = with_assumed(base)
    for gpu in gpus_wanted:
        parts: list[Measured] = []
        for family in MEASURED if families is None else families:
            own = training_rows(sweeps, family, [gpu], f"and points.source = '{OWN_SOURCE}'")
            published = training_rows(sweeps, family, [gpu], f"and points.source <> '{OWN_SOURCE}'")
            if not own.num_rows + published.num_rows:
                continue
            vendor = vendors_of(gpus)[gpu]
            if vendor not in fitted_vendors(whole, family):
                log(f"{family}: no kernel of {(vendor or '').upper()} was fitted, so its points are not used")
                continue
            parts += [
                measured_calls(family, table, gpu, whole, tables, stated)
                for table, stated in ((own, ALONE), (published, {}))
                if table.num_rows
            ]
            if gpu not in swept_gpus(base, family):
                rows += choice_rows(sweeps, family, [gpu], implementations)
        if not parts:
            continue
        measured = joined_calls(parts)
        if measured.places.size > MOST_POINTS:
            raise InvalidInput(
                f"--few has {measured.places.size:,} points of {gpu}, and up to {MOST_POINTS:,} are few; fit them "
                "as a sweep, with --sweep."
            )
        where = measured.places
        kernels, counted = len(set(where.kernels().tolist())), len(set(where.family.tolist()))
        log(f"{gpu}: {where.size:,} points of {kernels:,} kernels in {counted:,} families")
        for family, points in fit_points(measured).items():
            rows += point_rows(family, gpu, points, f"fitted to {points.places.size} points of {gpu}")
    return pa.concat_tables([base, pack_table(rows)])


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
    predicted = predict_family(
        family, form, table, base, *tables, without=without, measured=False, vendor=vendor, stated=stated
    )
    places = places_of(family, form, table, predicted, tables)
    return Measured(places, np.log(table["latency_us"].to_numpy() / predicted))


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
    named = zip(*(base[name].to_pylist() for name in ("part", "family", "gpu")), strict=True)
    kept = [
        not ((part == "points" and (family, gpu) in pairs) or (part == "choice" and (family, gpu) in counted))
        for part, family, gpu in named
    ]
    return base.filter(pa.array(kept, pa.bool_()))
