"""The kinds of calls in a table: which kernel runs each, with which constants, and what they rest on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts as catalogue
from kernelsight.dataflow.cache import remembered
from kernelsight.errors import InvalidInput
from kernelsight.kernels.chosen import choose, engine_of_vendor, engine_that_ran, measured_dtype
from kernelsight.kernels.columns import combinations
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.floors import floor_at, with_floors, with_known_floor
from kernelsight.kernels.intervals import (
    KNOTS_US,
    UNMEASURED_HALF,
    group_of,
    growth,
    half_widths_for,
    measured_half_widths,
    points_group,
)
from kernelsight.kernels.likeness import Likeness
from kernelsight.kernels.nearby import Nearby, nearby_of
from kernelsight.kernels.network import Network, network_of
from kernelsight.kernels.points import PointsOf, moved_constants, points_of
from kernelsight.kernels.resolve import (
    UNKNOWN,
    Facts,
    constants_at,
    family_facts,
    fitted_vendors,
    lineage_of,
    parts_there,
    relinked,
    rows_of_part,
    siblings,
)

# what differs between a sweep and a served graph: no gap between two replays; quantisation, rotation and cache writes
# have calls of their own; prompts do not end at whole tiles
ALONE = {"gap_us": 0.0, "quantizes": 0.0, "query_passes": 0.0, "kv_passes": 0.0}
SERVED = {**ALONE, "row_padding": 0.5}
TIERS = ("cross-generation", "roofline", "target-measured", "hypothetical", "unmeasured-vendor", "points-measured")
# the GPU was measured, but not this kernel, or not at shapes like these
TIERS += ("gpu-measured",)
# tiers that answer from the fit of one GPU, with its correction
FITTED = ("target-measured", "hypothetical")


# sweeps name the cells of a format that GPUs compute differently by the width of activations as well; that of 8 bits
# (w4a8_mxfp4_mxfp8) makes the tables of TensorRT-LLM on B200 and GB200 worse: 14 to 32 and 18 to 28 % too fast
BY_MATH = {("mxfp4", "bf16"): "w4a16_mxfp4", ("mxfp4", "fp16"): "w4a16_mxfp4"}


def kinds_of(family: str, calls: pa.Table, settings: pa.Table) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return the different (tier, gpu, engine, dtype, head_dim, asked) of the calls, and the number of each row's.

    ``asked``: the kernel that the deployment or the engine asks for.
    """
    tiers = settings["tier"].combine_chunks()
    if len(settings) != 1:
        tiers = tiers.take(pc.index_in(calls["deployment_id"], settings["deployment_id"].combine_chunks()))
    else:
        tiers = pa.repeat(tiers[0], calls.num_rows)
    key_columns = {"tier": tiers, "gpu": calls["gpu"], "engine": calls["engine"]}
    for name in ("format", "math"):
        if name in calls.column_names:
            key_columns[name] = calls[name]
    if FAMILIES[family].by_head_dim:
        key_columns["head_dim"] = calls["head_dim"].cast(pa.string())
    asked = FAMILIES[family].kernel_column
    if asked in settings.column_names and settings[asked].null_count < len(settings):
        kernels = pc.fill_null(settings[asked].combine_chunks(), "")
        setting_row = pc.index_in(calls["deployment_id"], settings["deployment_id"].combine_chunks())
        key_columns["asked"] = (
            kernels.take(setting_row) if len(settings) != 1 else pa.repeat(kernels[0], calls.num_rows)
        )
    elif column := next((name for name in (asked, "implementation") if name in calls.column_names), None):
        key_columns["asked"] = pc.fill_null(calls[column].cast(pa.string()), "")
    kinds, kind_of_row = combinations(pa.table(key_columns), list(key_columns))
    return [{**kind, "dtype": dtype_of(family, kind)} for kind in kinds], kind_of_row


def dtype_of(family: str, kind: Mapping[str, str | None]) -> str:
    """Return the cell that a call's number formats belong to, as ``sweep_points.dtype`` names it."""
    if family.endswith("attention") or family.startswith("mla_"):
        return f"{kind.get('math')}/{kind.get('format') or kind.get('math')}"
    number_format = kind.get("format") or "bf16"
    return BY_MATH.get((number_format, kind.get("math") or ""), number_format)


def answering_dtype(facts: Facts, implementation: str, kind: Mapping[str, str | None]) -> str:
    """Return the cell whose constants a kernel takes; where ``answers_<cell>`` is 0, the format: no cell, so all."""
    dtype = kind["dtype"] or ""
    answers = facts.structure.get((implementation, f"answers_{dtype}"), 1.0)
    return dtype if answers else kind.get("format") or dtype


def constants_of(
    family: str,
    kinds: list[dict[str, Any]],
    implementations: pa.Table,
    gpus: pa.Table,
    coefficients: pa.Table,
    alike: Likeness,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return each coefficient at each kind, and what the kind's numbers rest on; notes in the kind what answers.

    A catalogue GPU that no sweep holds has the fit of its measured twin, if any (``alike``, of the same tables). A
    hypothetical GPU has the fit of the one that it stands for (``gpus.measured_as``); its collectives, where PCIe was
    stated for that one's link or a link for its PCIe, are those of no measured GPU.
    """

    def read() -> tuple[list[dict[str, Any]], dict[str, np.ndarray], list[str]]:
        noted = [dict(kind) for kind in kinds]
        facts = family_facts(family, implementations, gpus)
        stands_for = dict(zip(gpus["gpu"].to_pylist(), gpus["measured_as"].to_pylist(), strict=True))
        moved, sold = relinked(family, gpus), set(catalogue("gpus")["gpu"].to_pylist())
        for kind in noted:
            kind["fit"] = stands_for.get(kind["gpu"]) or kind["gpu"]
            kind["relinked"] = moved(kind["gpu"], kind["fit"])
            kind["twin"] = None
            measured = _measured_gpus(family, coefficients)
            pointed = _gpus_of(rows_of_part(coefficients, family, "points"))
            # of a GPU of one's own, measured_as says whose fit it has
            if kind["tier"] == "auto" and kind["fit"] in sold - measured - pointed and not kind["relinked"]:
                kind["twin"] = alike.twin(kind["gpu"], siblings(facts, kind["gpu"], measured))
                kind["fit"] = kind["twin"] or kind["fit"]
        return noted, *_constants_of(family, noted, facts, coefficients, stands_for)

    key = (family, tuple(tuple(kind.items()) for kind in kinds))
    noted, at, evidence = remembered((implementations, gpus, coefficients), key, read)
    for kind, constants in zip(kinds, noted, strict=True):
        kind.update(constants)
    return at, evidence


class _Fits(NamedTuple):
    """What the constants of a family were fitted to.

    ``measured``, ``corrected``, ``pointed``: GPUs with a sweep, a correction, a few points of the family; ``swept``:
    GPUs with a sweep of any family; ``kernels``: (vendor, generation that was left out, implementation) of constants.
    """

    measured: set[str]
    corrected: set[str | None]
    pointed: set[str | None]
    swept: set[str]
    vendors: set[str | None]
    kernels: set[tuple[str | None, ...]]


def _fits_of(family: str, coefficients: pa.Table) -> _Fits:
    return _Fits(
        _measured_gpus(family, coefficients),
        _gpus_of(rows_of_part(coefficients, family, "correction")),
        _gpus_of(rows_of_part(coefficients, family, "points")),
        _swept_gpus(coefficients),
        fitted_vendors(coefficients, family),
        remembered((coefficients,), ("fitted kernels", family), lambda: _fitted(coefficients, family)),
    )


def _fitted(coefficients: pa.Table, family: str) -> set[tuple[str | None, ...]]:
    """Return vendor, generation that was left out, and kernel of all constants."""
    rows = rows_of_part(coefficients, family, "constant")
    return set(zip(*(rows[name].to_pylist() for name in ("vendor", "without", "implementation")), strict=True))


def _constants_of(
    family: str,
    kinds: Sequence[dict[str, Any]],
    facts: Facts,
    coefficients: pa.Table,
    stands_for: Mapping[str, str | None],
) -> tuple[dict[str, np.ndarray], list[str]]:
    form = FAMILIES[family].form
    if not kinds:
        return {one.name: np.array([one.start]) for one in form.coefficients}, [""]
    fits = _fits_of(family, coefficients)
    for kind in kinds:
        kind["vendor"] = facts.vendor.get(kind["fit"])
        kind["dtype"] = measured_dtype(coefficients, family, kind["dtype"])
        ran = engine_that_ran(coefficients, family, kind["engine"], kind["fit"])
        kind["ran"] = engine_of_vendor(facts, coefficients, family, ran, kind["fit"])
    chosen = choose(facts, coefficients, family, [_as_call(kind) for kind in kinds])
    values: dict[str, np.ndarray] = {}
    evidence = []
    for row, (kind, (implementation, seen)) in enumerate(zip(kinds, chosen, strict=True)):
        _refuse_tier_without_fit(kind, fits, coefficients)
        answering = answering_dtype(facts, implementation, kind)
        kind["unlike"], kind["dtype"] = answering != kind["dtype"], answering
        hypothetical = bool(stands_for.get(kind["gpu"]))
        own = _note_answer(family, kind, implementation, facts, coefficients, fits, hypothetical)
        path = {
            **kind,
            "gpu": kind["gpu"] if kind["relinked"] else kind["fit"],
            "engine": kind["ran"],
            "implementation": implementation,
            "lineage": lineage_of(facts, implementation),
        }
        # a vendor without a fit takes the constants of no kernel, GPU or engine: those of the family
        vendor_is_fitted = kind["vendor"] in fits.vendors
        path = path if vendor_is_fitted else dict.fromkeys(path, UNKNOWN)
        vendor = kind["vendor"] if vendor_is_fitted else None
        at = constants_at(facts, coefficients, family, form.coefficients, [path], kind["without"], own, vendor)
        kind["floor"] = None if own or hypothetical else _floor_of(kind, coefficients)
        if kind["floor"]:
            at = with_floors(form.coefficients, at, kind["floor"])
        if kind["points"] is not None:
            points = points_at(coefficients, family, kind["fit"])
            at = moved_constants(points, form.coefficients, words_of(kind["kernel"]), at)
        for name, value in at.items():
            values.setdefault(name, np.empty(len(kinds)))[row] = value[0]
        evidence.append(_evidence(kind, implementation, seen, fits.measured))
    for name in SERVED.keys() & values.keys():
        values[name] = np.full(len(kinds), SERVED[name])
    return values, evidence


def _floor_of(kind: Mapping[str, Any], coefficients: pa.Table) -> float | None:
    """Return the logarithm of the factor on a GPU's floors where an empty launch is known and may count."""
    across = kind["tier"] != "cross-generation" and kind["answers"] in ("cross-generation", "points-measured")
    return floor_at(coefficients, kind["fit"]) if across else None


def _as_call(kind: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kind as a call for which a kernel is chosen."""
    return {
        "engine": kind["ran"],
        "gpu": kind["fit"],
        "dtype": kind["dtype"],
        "head_dim": int(kind.get("head_dim") or 0),
        "implementation": kind.get("asked") or None,
    }


def _refuse_tier_without_fit(kind: Mapping[str, Any], fits: _Fits, coefficients: pa.Table) -> None:
    if kind["tier"] == "target-measured" and kind["fit"] not in fits.swept:
        raise InvalidInput(
            f"tier target-measured needs a fitted sweep of {kind['fit']}, and there is none; fit one with "
            "`kernelsight calibrate fit`, or use --tier auto, cross-generation or roofline."
        )
    if kind["tier"] == "points-measured" and kind["fit"] not in _pointed_gpus(coefficients):
        raise InvalidInput(
            f"tier points-measured needs measured points of {kind['fit']}, and there are none; fit them with "
            "`kernelsight calibrate fit --few`, or use --tier auto, cross-generation or roofline."
        )


def _note_answer(
    family: str,
    kind: dict[str, Any],
    implementation: str,
    facts: Facts,
    coefficients: pa.Table,
    fits: _Fits,
    hypothetical: bool,
) -> bool:
    """Note in a kind which tier answers, with which correction and points; return whether its GPU's own fit does."""
    swept, corrected = kind["fit"] in fits.measured, fits.corrected
    kernels = _kernels_of(family, kind["fit"], coefficients)
    names = [(engine, "|".join((engine, implementation, kind["dtype"]))) for engine in (kind["ran"], implementation)]
    # a library that was measured by itself runs the same kernels in every engine
    kind["ran"], kind["kernel"] = next((name for name in names if name[1] in kernels), names[0])
    kind["kernel_swept"] = kind["kernel"] in kernels
    ran_here = swept and (kind["vendor"] is None or kind["kernel"] in kernels)
    has_points = kind["fit"] in fits.pointed and not hypothetical
    kind["answers"] = _answering_tier(kind["tier"], ran_here, hypothetical, kind["vendor"] in fits.vendors, has_points)
    if (kind["relinked"] or kind["twin"]) and kind["answers"] in (*FITTED, "points-measured"):
        kind["answers"] = "cross-generation"
    # a pack without a correction of the GPU does not say which kernels its sweep held
    kind["kernel_swept"] |= not kernels
    kind["kernel_swept"] &= (kind.get("asked") or implementation) == implementation and not kind["unlike"]
    kind["points"] = None
    if kind["answers"] == "points-measured":
        kind["points"] = points_at(coefficients, family, kind["fit"]).count(kind["kernel"])
    here = kind["answers"] in FITTED or bool(kind["twin"])
    kind["corrected"] = kind["fit"] if here and kind["fit"] in corrected else None
    # asked not to use what was measured there, the expression fitted without its whole generation answers
    forgets = swept and kind["tier"] in ("cross-generation", "points-measured") and not kind["relinked"]
    held_out = (facts.generation.get(kind["fit"]), kind["fit"]) if forgets else ()
    without = {(vendor, name) for vendor, name, _ in fits.kernels}
    kind["without"] = next((name for name in held_out if (kind["vendor"], name) in without), None)
    kind["group"] = group_of(kind["dtype"], (kind["vendor"], kind["without"], implementation) in fits.kernels)
    own = here or (swept and not forgets)
    return own


def interval_half_widths(family: str, kinds: Sequence[Mapping[str, Any]], coefficients: pa.Table) -> np.ndarray:
    """Return (kinds, knots): half widths of the logarithm of each kind's 90 % interval, at the knots of latency.

    ``kinds`` with ``octaves``: how far each GPU lies from those that were fitted.
    """
    curves_of = rows_of_part(coefficients, family, "interval")
    rows = remembered((coefficients,), ("curves", family), curves_of.to_pylist)
    half_widths = np.full((len(kinds), len(KNOTS_US)), np.log(FAMILIES[family].form.spread))
    for number, kind in enumerate(kinds):
        # what a sweep shows of its own GPU's errors says nothing of a GPU that nobody built
        own = _curves(rows, kind["gpu"], None, None) if kind["answers"] == "target-measured" else {}
        others = _curves(rows, None, kind["vendor"], kind["without"])
        if kind["answers"] == "roofline":
            half_widths[number] = 0.0
        elif kind["answers"] == "unmeasured-vendor":
            half_widths[number] = UNMEASURED_HALF
        elif own:
            half_widths[number] = measured_half_widths(own, others, kind["kernel"], kind["group"])
        elif others and kind["answers"] != "target-measured":
            group = kind["group"] if kind["points"] is None else points_group(kind["points"])
            # a pack without intervals of points has those of no point
            half = half_widths_for(others, [group if group in others else kind["group"]])[0]
            # a vendor's own fit, however few its GPUs, is no worse than none
            half = half if kind["vendor"] is None else np.minimum(half, UNMEASURED_HALF)
            half_widths[number] = half if kind["points"] else half * growth(kind["octaves"])
        if kind["floor"] is not None and not kind["points"]:
            half_widths[number] = with_known_floor(half_widths[number], kind["floor"])
    return half_widths


def _curves(
    rows: Sequence[Mapping[str, Any]], gpu: str | None, vendor: str | None, without: str | None
) -> dict[str, np.ndarray]:
    """Return the curves of one GPU, or of a vendor's fit that left out ``without``, by group."""
    wanted = (gpu, vendor, without)
    return {
        row["dtype"]: np.array(row["array"]) for row in rows if (row["gpu"], row["vendor"], row["without"]) == wanted
    }


def network_at(coefficients: pa.Table, family: str, gpu: str) -> tuple[Network, list[str]]:
    """Return the correction of a GPU that was measured, and the kernels that its sweep ran."""

    def read() -> tuple[Network, list[str]]:
        rows = _part_of(coefficients, "correction", family, gpu)
        # a hundred thousand numbers: rows of Python's would take a tenth of a second
        held = rows["array"].combine_chunks()
        bounds, numbers = held.offsets.to_numpy(), held.values.to_numpy()
        words = rows.select(["coefficient", "engine", "implementation", "dtype"]).to_pylist()
        spans = zip(words, bounds[:-1], bounds[1:], strict=True)
        return network_of({**row, "array": numbers[start:stop]} for row, start, stop in spans)

    return remembered((coefficients,), ("network", family, gpu), read)


def nearby_at(coefficients: pa.Table, family: str, gpu: str) -> dict[str, Nearby]:
    """Return by kernel the points of a small sweep of a GPU, where there are any."""
    return remembered(
        (coefficients,),
        ("nearby", family, gpu),
        lambda: nearby_of(_rows_of(coefficients, "nearby", family, gpu)),
    )


def points_at(coefficients: pa.Table, family: str, gpu: str) -> PointsOf:
    """Return the few measured points of a family on a GPU."""
    return remembered(
        (coefficients,), ("points", family, gpu), lambda: points_of(_rows_of(coefficients, "points", family, gpu))
    )


def words_of(kernel: str) -> dict[str, str]:
    """Return engine, implementation and dtype of a kernel that is named by all three."""
    return dict(zip(("engine", "implementation", "dtype"), kernel.split("|"), strict=True))


def _rows_of(coefficients: pa.Table, part: str, family: str, gpu: str) -> list[dict[str, Any]]:
    return _part_of(coefficients, part, family, gpu).to_pylist()


def _part_of(coefficients: pa.Table, part: str, family: str, gpu: str) -> pa.Table:
    rows = rows_of_part(coefficients, family, part)
    return rows.filter(pc.fill_null(pc.equal(rows["gpu"], gpu), False))


def _measured_gpus(family: str, coefficients: pa.Table) -> set[str]:
    return _swept_gpus(coefficients, family)


def _swept_gpus(coefficients: pa.Table, family: str | None = None) -> set[str]:
    """Return the GPUs that constants (of a family) were fitted to; of one with a few points alone, what ran there is
    known."""

    def is_asked(own: str, part: str) -> bool:
        return part not in ("points", "choice") and family in (None, own)

    return remembered((coefficients,), ("swept", family), lambda: _gpus_of_parts(coefficients, is_asked))


def _pointed_gpus(coefficients: pa.Table) -> set[str]:
    return _gpus_of_parts(coefficients, lambda own, part: part == "points")


def _gpus_of_parts(coefficients: pa.Table, is_asked: Callable[[str, str], bool]) -> set[str]:
    fitted_gpus: set[str | None] = set()
    for family, part in parts_there(coefficients):
        if is_asked(family, part):
            fitted_gpus |= _gpus_of(rows_of_part(coefficients, family, part))
    return {gpu for gpu in fitted_gpus if gpu}


def _gpus_of(coefficients: pa.Table) -> set[str | None]:
    return remembered((coefficients,), "gpus", lambda: set(pc.unique(coefficients["gpu"]).to_pylist()))


def _kernels_of(family: str, gpu: str, coefficients: pa.Table) -> set[str]:
    """Return the kernels that the sweep of a GPU held, as engine|implementation|dtype."""

    def read() -> set[str]:
        rows = _rows_of(coefficients, "interval", family, gpu)
        return {row["dtype"] for row in rows}

    return remembered((coefficients,), ("kernels", family, gpu), read)


def _answering_tier(asked: str, measured: bool, hypothetical: bool, vendor_is_fitted: bool, points: bool) -> str:
    """``measured``: whether the GPU's sweep held the kernel; ``vendor_is_fitted``: whether a GPU of the vendor was;
    ``points``: whether a few calls of the family were measured on the GPU."""
    if asked == "roofline":
        return asked
    if not vendor_is_fitted:
        return "unmeasured-vendor"
    if points and (asked == "points-measured" or (asked != "cross-generation" and not measured)):
        return "points-measured"
    if asked in ("cross-generation", "points-measured") or not measured:
        return "cross-generation"
    return "hypothetical" if hypothetical else "target-measured"


def _evidence(kind: Mapping[str, Any], implementation: str, seen: bool, measured: set[str]) -> str:
    if kind["answers"] == "roofline":
        return "lower bound"
    if kind["answers"] == "unmeasured-vendor":
        return f"no GPU of {kind['vendor'].upper()} was measured: general constants of the family"
    if not measured:
        return "analytic terms with assumed constants"
    if kind["answers"] == "points-measured":
        return f"{kind['points']} points of {kind['fit']}, beside sweeps of other GPUs: {implementation}"
    if kind["unlike"]:
        return f"sweeps of other layers: {implementation}"
    if kind["answers"] == "target-measured":
        without = " ".join((kind["ran"], kind.get("asked") or implementation, kind["dtype"]))
        missing = "" if kind["kernel_swept"] else f", without {without}"
        engine = "" if kind["ran"] in (kind["engine"], implementation) else f" of {kind['ran']}"
        return f"sweep of {kind['gpu']}{missing}: {implementation}{engine}"
    if kind["twin"]:
        return f"fit of {kind['twin']}, whose twin {kind['gpu']} is: {implementation}"
    if kind["answers"] == "hypothetical":
        return f"fit of {kind['fit']}, hypothetical: {implementation}"
    where = "" if seen else ", not seen on this generation"
    launch = "" if kind["floor"] is None else f", an empty launch of {kind['fit']}"
    return f"sweeps of other GPUs{launch}: {implementation}{where}"
