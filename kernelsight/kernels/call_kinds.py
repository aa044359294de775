"""Distinct configurations of kernel calls (*kinds*): the kernel that runs each, its constants, tier and evidence.

A kind is what decides a call's constants: tier, GPU, engine, number formats, head width, requested kernel. A table of a
million calls has a few dozen, so that constants are looked up once a kind, not once a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import memoised
from kernelsight.catalog.tables import facts as catalogue
from kernelsight.errors import InvalidInput
from kernelsight.kernels.engine_versions import HALF_OF_90, UNVERSIONED, VersionAnswer, version_at
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.few_shot import moved_constants
from kernelsight.kernels.floors import floor_at, with_floors, with_known_floor
from kernelsight.kernels.gpu_distance import GpuDistances
from kernelsight.kernels.intervals import (
    HARNESS,
    KNOTS_US,
    UNMEASURED_HALF,
    group_of,
    group_of_harness,
    growth,
    half_widths_for,
    measured_half_widths,
    points_group,
)
from kernelsight.kernels.kernel_constants import (
    FIRST_VENDOR,
    LAUNCHING,
    ON_CHIP,
    UNKNOWN,
    Facts,
    constants_at,
    family_facts,
    lineage_of,
    relinked,
    siblings,
)
from kernelsight.kernels.kernel_selection import choose, engine_of_vendor, engine_that_ran, measured_dtype
from kernelsight.kernels.pack_contents import (
    FittedTo,
    fitted_to,
    gpus_with_points,
    gpus_with_points_of,
    interval_curves,
    points_at,
    swept_gpus,
    swept_kernels,
    words_of,
)
from kernelsight.kernels.string_columns import combinations

# what differs between a sweep and a served CUDA graph: no gap between two replays; quantisation, rotation and cache
# writes have calls of their own; prompts do not end at whole tiles
ALONE = {"gap_us": 0.0, "quantizes": 0.0, "query_passes": 0.0, "kv_passes": 0.0}
SERVED = {**ALONE, "row_padding": 0.5}
# the power limit has taken hold. Its form was chosen by products of 16 bits; others keep the time of their sweep: with
# it, FP8 and NVFP4 models in TensorRT-LLM's tables run 6 to 9 % too slow on H100, H200 and RTX PRO 6000
SUSTAINED, AT_SUSTAINED_CLOCK = ("bf16", "fp16"), {"throttle_us": 0.0}
TIERS = ("cross-generation", "roofline", "target-measured", "hypothetical", "unmeasured-vendor", "points-measured")
# the GPU was measured, but not this kernel, or not at shapes like these; or a sibling of its die bounds the answer
TIERS += ("gpu-measured",)
# tiers that answer from the fit of one GPU, with its correction
FITTED = ("target-measured", "hypothetical")
# sweeps name the cells of a format that GPUs compute differently by the width of activations as well; that of 8 bits
# (w4a8_mxfp4_mxfp8) makes the tables of TensorRT-LLM on B200 and GB200 worse: 14 to 32 and 18 to 28 % too fast
BY_MATH = {("mxfp4", "bf16"): "w4a16_mxfp4", ("mxfp4", "fp16"): "w4a16_mxfp4"}


def kinds_of(family: str, calls: pa.Table, settings: pa.Table) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return the kinds of calls, and the number of each row's kind, (rows,); ``settings``: ``deployment_settings``.

    Keys of a kind: tier, gpu, engine; harness, engine_version, where stated; format and math, where calls state them;
    head_dim, where it decides the kernel;
    requested_kernel, where the deployment or the calls name one ("": none); dtype, the cell of :func:`dtype_of`.
    """

    def of_call(name: str) -> pa.Array:
        values = settings[name].combine_chunks()
        if len(settings) == 1:
            return pa.repeat(values[0], calls.num_rows)
        return values.take(pc.index_in(calls["deployment_id"], settings["deployment_id"].combine_chunks()))

    key_columns = {"tier": of_call("tier"), "gpu": calls["gpu"], "engine": calls["engine"]}
    if _is_stated("harness", settings):
        key_columns["harness"] = of_call("harness")
    if _is_stated("engine_version", settings):
        key_columns["engine_version"] = of_call("engine_version")
    for name in ("format", "math"):
        if name in calls.column_names:
            key_columns[name] = calls[name]
    if FAMILIES[family].by_head_dim:
        key_columns["head_dim"] = calls["head_dim"].cast(pa.string())
    kernel_column = FAMILIES[family].kernel_column
    if _is_stated(kernel_column, settings):
        key_columns["requested_kernel"] = pc.fill_null(of_call(kernel_column), "")
    elif column := next((name for name in (kernel_column, "implementation") if name in calls.column_names), None):
        key_columns["requested_kernel"] = pc.fill_null(calls[column].cast(pa.string()), "")
    kinds, kind_of_row = combinations(pa.table(key_columns), list(key_columns))
    return [{**kind, "dtype": dtype_of(family, kind)} for kind in kinds], kind_of_row


def _is_stated(name: str, settings: pa.Table) -> bool:
    """Return whether any deployment has a value in a column of ``deployment_settings``."""
    return name in settings.column_names and settings[name].null_count < len(settings)


def dtype_of(family: str, kind: Mapping[str, str | None]) -> str:
    """Return the cell that a call's number formats belong to, as ``sweep_points.dtype`` names it."""
    if family.endswith("attention") or family.startswith("mla_"):
        return f"{kind.get('math')}/{kind.get('format') or kind.get('math')}"
    number_format = kind.get("format") or "bf16"
    number_format = _measured_as().get(number_format, number_format)
    return BY_MATH.get((number_format, kind.get("math") or ""), number_format)


@cache
def _measured_as() -> dict[str, str]:
    """Return the label in kernel sweeps of formats whose kernels no sweep has under their own name."""
    rows = catalogue("number_formats").to_pylist()
    return {row["format"]: row["measured_as"] for row in rows if row["measured_as"]}


def answering_dtype(facts: Facts, implementation: str, kind: Mapping[str, str | None]) -> str:
    """Return the cell whose constants a kernel takes: its own, or its format's where ``answers_<cell>`` is 0."""
    dtype = kind["dtype"] or ""
    has_constants = facts.structure.get((implementation, f"answers_{dtype}"), 1.0)
    return dtype if has_constants else kind.get("format") or dtype


def constants_of(
    family: str,
    kinds: list[dict[str, Any]],
    implementations: pa.Table,
    gpus: pa.Table,
    coefficients: pa.Table,
    distances: GpuDistances,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return constants by coefficient, (kinds,), and one sentence of evidence per kind; extends the dicts of ``kinds``.

    A catalogue GPU without a sweep takes the fit of its measured twin, if any (``distances`` of the same ``gpus``). A
    hypothetical GPU takes the fit of its ``gpus.measured_as``; its collectives, where PCIe replaces that GPU's link or
    a link its PCIe, those of no measured GPU. InvalidInput: a tier needs a sweep or points that the GPU does not have.

    Keys added to a kind: ``expanded``, whether the GPU lacks its math; ``fit``, the GPU whose fit it takes, and
    ``twin``, the same where it is a twin; ``relinked``, PCIe and link exchanged; ``vendor``; ``hardware``, its
    ``gpus.kind``; ``is_fitted``, whether a GPU of its vendor and kind was; ``kernel_engine``, the
    engine whose kernels answer; ``kernel``, as engine|implementation|dtype; ``kernel_swept``, whether that GPU's sweep
    ran it; ``other_format``, whether another cell's constants answer; ``answer_tier``; ``corrected``, the GPU of the
    correction; ``without``, the generation left out of the fit; ``interval_group``; ``log_floor`` and ``point_count``,
    None where nothing was measured; ``implementation``; ``version``, a :class:`VersionAnswer`.
    """

    def read() -> tuple[list[dict[str, Any]], dict[str, np.ndarray], list[str]]:
        resolved_kinds = [dict(kind) for kind in kinds]
        facts = family_facts(family, implementations, gpus)
        measured_as = dict(zip(gpus["gpu"].to_pylist(), gpus["measured_as"].to_pylist(), strict=True))
        is_relinked, catalogue_gpus = relinked(family, gpus), set(catalogue("gpus")["gpu"].to_pylist())
        for kind in resolved_kinds:
            rate = gpus.filter(pc.equal(gpus["gpu"], kind["gpu"])).column(f"{kind.get('math') or 'bf16'}_flops_per_s")
            kind["expanded"] = rate.null_count > 0
            kind["fit"] = measured_as.get(kind["gpu"]) or kind["gpu"]
            kind["relinked"] = is_relinked(kind["gpu"], kind["fit"])
            kind["twin"] = None
            measured = swept_gpus(coefficients, family)
            with_points = gpus_with_points_of(family, coefficients)
            # a GPU of the user's own states its twin itself: measured_as
            is_unmeasured = kind["fit"] in catalogue_gpus - measured - with_points
            if kind["tier"] == "auto" and is_unmeasured and not kind["relinked"]:
                kind["twin"] = distances.twin(kind["gpu"], siblings(facts, kind["gpu"], measured))
                kind["fit"] = kind["twin"] or kind["fit"]
        return resolved_kinds, *_constants_of(family, resolved_kinds, facts, coefficients, measured_as)

    key = (family, tuple(tuple(kind.items()) for kind in kinds))
    resolved_kinds, at, evidence = memoised((implementations, gpus, coefficients), key, read)
    for kind, resolved in zip(kinds, resolved_kinds, strict=True):
        kind.update(resolved)
    return at, evidence


def _constants_of(
    family: str,
    kinds: Sequence[dict[str, Any]],
    facts: Facts,
    coefficients: pa.Table,
    measured_as: Mapping[str, str | None],
) -> tuple[dict[str, np.ndarray], list[str]]:
    latency_model = FAMILIES[family].latency_model
    if not kinds:
        return {declared.name: np.array([declared.start]) for declared in latency_model.coefficients}, [""]
    fits = fitted_to(family, coefficients)
    for kind in kinds:
        kind["vendor"] = facts.vendor.get(kind["fit"])
        kind["hardware"] = facts.kind.get(kind["gpu"], LAUNCHING)
        kind["is_fitted"] = kind["vendor"] in fits.vendors and kind["hardware"] == LAUNCHING
        kind["dtype"] = measured_dtype(coefficients, family, kind["dtype"])
        engine = engine_that_ran(coefficients, family, kind["engine"], kind["fit"])
        kind["kernel_engine"] = engine_of_vendor(facts, coefficients, family, engine, kind["fit"])
    chosen_kernels = choose(facts, coefficients, family, [_as_call(kind) for kind in kinds])
    values: dict[str, np.ndarray] = {}
    evidence = []
    for row, (kind, (implementation, ran_on_generation)) in enumerate(zip(kinds, chosen_kernels, strict=True)):
        _refuse_tier_without_fit(kind, fits, coefficients)
        dtype = answering_dtype(facts, implementation, kind)
        stands_in = kind.get("format") in _measured_as()
        kind["other_format"], kind["dtype"] = stands_in or dtype != kind["dtype"], dtype
        hypothetical = bool(measured_as.get(kind["gpu"]))
        uses_own_fit = _note_answer(family, kind, implementation, facts, coefficients, fits, hypothetical)
        path = {
            **kind,
            "gpu": kind["gpu"] if kind["relinked"] else kind["fit"],
            "engine": kind["kernel_engine"],
            "implementation": implementation,
            "lineage": lineage_of(facts, implementation),
        }
        # a vendor without a fit, or what is no GPU, takes constants of no kernel, GPU or engine: those of the family
        path = path if kind["is_fitted"] else dict.fromkeys(path, UNKNOWN)
        vendor = kind["vendor"] if kind["is_fitted"] else None
        at = constants_at(
            facts, coefficients, family, latency_model.coefficients, [path], kind["without"], uses_own_fit, vendor
        )
        kind["log_floor"] = None if uses_own_fit or hypothetical else _log_floor(kind, coefficients)
        if kind["log_floor"]:
            at = with_floors(latency_model.coefficients, at, kind["log_floor"])
        if kind["point_count"] is not None:
            points = points_at(coefficients, family, kind["fit"])
            at = moved_constants(points, latency_model.coefficients, words_of(kind["kernel"]), at)
        for name, value in at.items():
            values.setdefault(name, np.empty(len(kinds)))[row] = value[0]
        kind["implementation"] = implementation
        kind["version"] = _version_of(kind, family, path, coefficients)
        evidence.append(_evidence(kind, implementation, ran_on_generation, fits.measured))
    for name in SERVED.keys() & values.keys():
        values[name] = np.full(len(kinds), SERVED[name])
    for name in AT_SUSTAINED_CLOCK.keys() & values.keys():
        is_sustained = [(kind.get("math") or "bf16") in SUSTAINED or kind["expanded"] for kind in kinds]
        values[name][is_sustained] = AT_SUSTAINED_CLOCK[name]
    return values, evidence


def _version_of(
    kind: Mapping[str, Any], family: str, kernel: Mapping[str, str], coefficients: pa.Table
) -> VersionAnswer:
    """Return what the version of a kind's engine changes; a fit that left the GPU's generation out knows none."""
    if kind["without"] or kind["answer_tier"] in ("roofline", "unmeasured-vendor", "points-measured"):
        return UNVERSIONED
    asked = kind.get("engine_version") if kernel["engine"] == kind["engine"] else None
    return version_at(coefficients, family, kernel, kernel["gpu"], asked)


def _log_floor(kind: Mapping[str, Any], coefficients: pa.Table) -> float | None:
    """Return the log factor on a GPU's launch floors, where an empty launch was measured and the tier may use it."""
    may_count = kind["tier"] != "cross-generation" and kind["answer_tier"] in ("cross-generation", "points-measured")
    return floor_at(coefficients, kind["fit"]) if may_count else None


def _as_call(kind: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kind as a call for which :func:`choose` selects a kernel."""
    return {
        "engine": kind["kernel_engine"],
        "gpu": kind["fit"],
        "dtype": kind["dtype"],
        "head_dim": int(kind.get("head_dim") or 0),
        "engine_version": kind.get("engine_version") if kind["kernel_engine"] == kind["engine"] else None,
        "implementation": kind.get("requested_kernel") or None,
    }


def _refuse_tier_without_fit(kind: Mapping[str, Any], fits: FittedTo, coefficients: pa.Table) -> None:
    """Raise InvalidInput where a tier needs a sweep, or points, that the GPU does not have."""
    if kind["tier"] == "target-measured" and kind["fit"] not in fits.swept:
        raise InvalidInput(
            f"tier target-measured needs a fitted sweep of {kind['fit']}, and there is none; fit one with "
            "`kernelsight calibrate fit`, or use --tier auto, cross-generation or roofline."
        )
    if kind["tier"] == "points-measured" and kind["fit"] not in gpus_with_points(coefficients):
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
    fits: FittedTo,
    hypothetical: bool,
) -> bool:
    """Add to a kind which tier answers, with which correction and points; return whether its GPU's own fit does."""
    swept = kind["fit"] in fits.measured
    kernels = swept_kernels(family, kind["fit"], coefficients)
    engines = (kind["kernel_engine"], implementation)
    names = [(engine, "|".join((engine, implementation, kind["dtype"]))) for engine in engines]
    # a library that was measured by itself runs the same kernels in every engine
    kind["kernel_engine"], kind["kernel"] = next((name for name in names if name[1] in kernels), names[0])
    kind["kernel_swept"] = kind["kernel"] in kernels
    ran_here = swept and (kind["vendor"] is None or kind["kernel"] in kernels)
    has_points = kind["fit"] in fits.with_points and not hypothetical
    kind["answer_tier"] = _answer_tier(kind["tier"], ran_here, hypothetical, kind["is_fitted"], has_points)
    kind["unused_points"] = has_points and kind["answer_tier"] == "target-measured"
    if (kind["relinked"] or kind["twin"]) and kind["answer_tier"] in (*FITTED, "points-measured"):
        kind["answer_tier"] = "cross-generation"
    # a pack without a correction of the GPU does not say which kernels its sweep ran
    kind["kernel_swept"] |= not kernels
    runs_requested = (kind.get("requested_kernel") or implementation) == implementation
    kind["kernel_swept"] &= runs_requested and not kind["other_format"]
    kind["point_count"] = None
    if kind["answer_tier"] == "points-measured":
        kind["point_count"] = points_at(coefficients, family, kind["fit"]).count(kind["kernel"])
    here = kind["answer_tier"] in FITTED or bool(kind["twin"])
    kind["corrected"] = kind["fit"] if here and kind["fit"] in fits.corrected else None
    # a tier that may not use the GPU's own sweep takes the fit that left out its whole generation
    ignores_sweep = swept and kind["tier"] in ("cross-generation", "points-measured") and not kind["relinked"]
    held_out = (facts.generation.get(kind["fit"]), kind["fit"]) if ignores_sweep else ()
    left_out = {(vendor, name) for vendor, name, _ in fits.kernels}
    kind["without"] = next((name for name in held_out if (kind["vendor"], name) in left_out), None)
    is_fitted_kernel = (kind["vendor"], kind["without"], implementation) in fits.kernels
    kind["interval_group"] = group_of(kind["dtype"], is_fitted_kernel)
    uses_own_fit = here or (swept and not ignores_sweep)
    return uses_own_fit


def interval_half_widths(family: str, kinds: Sequence[Mapping[str, Any]], coefficients: pa.Table) -> np.ndarray:
    """Return half widths of the logarithm of 90 % intervals, (kinds, 2, knots): of each kind at KNOTS_US of latency.

    The first: at sizes of its sweep; the second: beyond them. ``kinds`` with ``octaves``: the distance of each GPU to
    the nearest fitted one; ``coefficients``: ``eta_coefficients``. What the sweep of a measured GPU does not hold, a
    kernel, format or size, has at least the interval of a GPU without a sweep.
    """
    half_widths = np.full((len(kinds), 2, len(KNOTS_US)), np.log(FAMILIES[family].latency_model.spread))
    for number, kind in enumerate(kinds):
        # errors of a sweep on its own GPU say nothing about a hypothetical GPU
        is_measured = kind["answer_tier"] == "target-measured"
        own_curves = interval_curves(family, coefficients, kind["gpu"], None, None) if is_measured else {}
        of_fit = interval_curves(family, coefficients, None, kind["vendor"], kind["without"])
        # what a harness adds is no interval: a family may have it without a fit
        of_harness = {group: half for group, half in of_fit.items() if group.endswith(f"|{HARNESS}")}
        fit_curves = {group: half for group, half in of_fit.items() if group not in of_harness}
        if kind["answer_tier"] == "roofline":
            half_widths[number] = 0.0
        elif kind["answer_tier"] == "unmeasured-vendor":
            half_widths[number] = UNMEASURED_HALF
        elif own_curves:
            half = measured_half_widths(own_curves, fit_curves, kind["kernel"], kind["interval_group"])
            unmeasured = half_widths_for(fit_curves, [kind["interval_group"]])[0] if fit_curves else half
            half_widths[number] = np.maximum(half, unmeasured)
            if kind["kernel_swept"]:
                half_widths[number, 0] = half
            if kind.get("harness") == HARNESS and kind["kernel"] in own_curves and of_harness:
                added = half_widths_for(of_harness, [group_of_harness(kind["dtype"])])[0]
                half_widths[number] = np.hypot(half_widths[number], added)
        elif fit_curves and not is_measured:
            group = kind["interval_group"] if kind["point_count"] is None else points_group(kind["point_count"])
            # a pack without intervals of points has those of no point
            half = half_widths_for(fit_curves, [group if group in fit_curves else kind["interval_group"]])[0]
            # a vendor's own fit, however few its GPUs, is no worse than none
            half = half if kind["vendor"] is None else np.minimum(half, UNMEASURED_HALF)
            half_widths[number] = half if kind["point_count"] else half * growth(kind["octaves"])
        if kind["version"].log_sd:
            half_widths[number] = np.hypot(half_widths[number], HALF_OF_90 * kind["version"].log_sd)
        if kind["log_floor"] is not None and not kind["point_count"]:
            half_widths[number] = with_known_floor(half_widths[number], kind["log_floor"])
    return half_widths


def _answer_tier(tier: str, kernel_measured: bool, hypothetical: bool, is_fitted: bool, has_points: bool) -> str:
    """Return the tier that answers where ``tier`` is wanted.

    ``kernel_measured``: the GPU's sweep ran the kernel; ``is_fitted``: a GPU of the vendor was fitted;
    ``has_points``: a few calls of the family were measured on the GPU.
    """
    if tier == "roofline":
        return tier
    if not is_fitted:
        return "unmeasured-vendor"
    if has_points and (tier == "points-measured" or (tier != "cross-generation" and not kernel_measured)):
        return "points-measured"
    if tier in ("cross-generation", "points-measured") or not kernel_measured:
        return "cross-generation"
    return "hypothetical" if hypothetical else "target-measured"


def _evidence(kind: Mapping[str, Any], implementation: str, ran_on_generation: bool, measured: set[str]) -> str:
    """Return the sentence of ``kernel_latencies.evidence``; it ends with the version, where another was measured."""
    sentence, version = _data_behind(kind, implementation, ran_on_generation, measured), kind["version"]
    requested = kind.get("requested_kernel") or implementation
    if requested != implementation and requested not in sentence and kind["answer_tier"] != "roofline":
        sentence += f", for {requested}, which no sweep holds"
    if version.measured or version.version is None or kind.get("engine_version") is None:
        return sentence
    return f"{sentence}, measured in {kind['engine']} {version.version}, not {kind['engine_version']}"


def _data_behind(kind: Mapping[str, Any], implementation: str, ran_on_generation: bool, measured: set[str]) -> str:
    if kind["answer_tier"] == "roofline":
        return "lower bound"
    if kind["answer_tier"] == "unmeasured-vendor":
        vendor = (kind["vendor"] or FIRST_VENDOR).upper()
        if kind["hardware"] == ON_CHIP:
            return f"no kernel of {vendor} was measured: 4 times its roofline, by a factor of 4 either way"
        floors = "" if kind["hardware"] == LAUNCHING else ", without the floor of a launch"
        return f"no GPU of {vendor} was measured: general constants of the family{floors}"
    if not measured:
        return "analytic terms with assumed constants"
    if kind["answer_tier"] == "points-measured":
        return f"{kind['point_count']} points of {kind['fit']}, beside sweeps of other GPUs: {implementation}"
    if kind["other_format"]:
        return f"sweeps of other layers: {implementation}"
    if kind["answer_tier"] == "target-measured":
        kernel = " ".join((kind["kernel_engine"], kind.get("requested_kernel") or implementation, kind["dtype"]))
        missing = "" if kind["kernel_swept"] else f", without {kernel}"
        engine = "" if kind["kernel_engine"] in (kind["engine"], implementation) else f" of {kind['kernel_engine']}"
        unused = ", before its points (--tier points-measured)" if kind["unused_points"] else ""
        return f"sweep of {kind['gpu']}{unused}{missing}: {implementation}{engine}"
    if kind["twin"]:
        return f"fit of {kind['twin']}, whose twin {kind['gpu']} is: {implementation}"
    if kind["answer_tier"] == "hypothetical":
        return f"fit of {kind['fit']}, hypothetical: {implementation}"
    where = "" if ran_on_generation else ", not seen on this generation"
    launch = "" if kind["log_floor"] is None else f", an empty launch of {kind['fit']}"
    return f"sweeps of other GPUs{launch}: {implementation}{where}"
