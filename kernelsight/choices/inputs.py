"""Builds a choice from sweeps, a GPU and shapes: finds the implementations that run there, and checks the inputs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import contracts, facts
from kernelsight.choices.candidates import (
    Choice,
    existing_candidates,
    measured_rows,
    shared_sites,
    site_columns,
    with_expectations,
)
from kernelsight.errors import InvalidInput, unknown
from kernelsight.fitting.cells import source_names
from kernelsight.fitting.sweep_files import check_sweeps, measured_gpus
from kernelsight.fitting.training import call_rows
from kernelsight.kernels.call_kinds import dtype_of
from kernelsight.kernels.families import MEASURED
from kernelsight.kernels.kernel_constants import capability_number, family_facts, rows_of_part
from kernelsight.kernels.kernel_selection import choose
from kernelsight.kernels.pack import default_pack

_LOG = logging.getLogger(__name__)
IDENTITY_OF_KERNELS = ["engine", "implementation", "dtype", "gpu"]


def choice_of(
    sweeps: Sequence[Path],
    family: str,
    gpu: str,
    gpus: pa.Table,
    sources: Sequence[str] | None = None,
    calls: pa.Table | None = None,
) -> Choice:
    """Return the choice of a family on a GPU, at the shapes of the sweeps or at those of ``calls``.

    ``gpus``: the catalogue with the GPU's row; ``sources``: GPUs to learn from (None: all others of the sweeps);
    ``calls``: rows of ``kernel_calls``. UnknownName: no such family or GPU. InvalidInput: sweeps without other GPUs to
    learn from, or without two implementations to choose from.
    """
    if family not in MEASURED:
        raise unknown("kernel family", family, MEASURED, f"Families that sweeps hold: {', '.join(MEASURED)}.")
    gpu_names = gpus["gpu"].to_pylist()
    if gpu not in gpu_names:
        raise unknown("GPU", gpu, gpu_names, "Give a row for it with --gpus.")
    check_sweeps(sweeps)
    rows_elsewhere = _rows_elsewhere(sweeps, family, gpu, sources)
    _check_vendor(gpu, rows_elsewhere, gpus, family)
    measured = measured_rows(sweeps, family, [gpu])
    like = candidates_like(family, gpu, measured, rows_elsewhere, gpus)
    shapes = pl.concat([measured, rows_elsewhere], how="diagonal") if calls is None else shapes_of_calls(family, calls)
    candidates = shared_sites(family, existing_candidates(family, shapes, like, gpu))
    if not candidates.height:
        raise InvalidInput(
            f"no shape of {family} has two implementations to choose from on {gpu}; give sweeps of several engines, or "
            "calls in number formats that they hold."
        )
    dropped = shapes.select(site_columns(family)).n_unique() - candidates.select(site_columns(family)).n_unique()
    if calls is not None and dropped:
        _LOG.info(
            f"{dropped:,} shapes of the calls are left out: the sweeps hold no two implementations in their number "
            "formats, head size and kind of window"
        )
    return with_expectations(family, gpu, candidates, rows_elsewhere, gpus)


def _rows_elsewhere(sweeps: Sequence[Path], family: str, gpu: str, sources: Sequence[str] | None) -> pl.DataFrame:
    """Return the measured rows of other GPUs; InvalidInput or UnknownName where there are none."""
    gpus_measured = sorted(measured_gpus(sweeps) - {gpu})
    for name in sources or ():
        if name == gpu:
            raise InvalidInput(f"--sources names {gpu}, the GPU to choose for; name other GPUs of the sweeps.")
        if name not in gpus_measured:
            raise unknown("GPU", name, gpus_measured, f"The sweeps hold {', '.join(gpus_measured)}.")
    rows = measured_rows(sweeps, family, sources or gpus_measured) if gpus_measured else None
    if rows is None or not rows.height:
        raise InvalidInput(
            f"the sweeps hold no {family} kernel of a GPU other than {gpu} to learn from; "
            "`kernelsight calibrate import aiconfigurator` writes such sweeps."
        )
    return rows


def _check_vendor(gpu: str, rows_elsewhere: pl.DataFrame, gpus: pa.Table, family: str) -> None:
    """Raise InvalidInput where no other GPU is of the GPU's vendor."""
    vendor = dict(zip(gpus["gpu"].to_pylist(), gpus["vendor"].to_pylist(), strict=True))
    if vendor[gpu] not in {vendor.get(name) for name in rows_elsewhere["gpu"].unique().to_list()}:
        raise InvalidInput(
            f"{gpu} is a GPU of {vendor[gpu]}, of which the sweeps hold no {family} kernel; kernels of another vendor "
            "do not run there, so measure some of its shapes first."
        )


def candidates_like(
    family: str, gpu: str, measured: pl.DataFrame, rows_elsewhere: pl.DataFrame, gpus: pa.Table
) -> pl.DataFrame:
    """Return measured rows whose kernels run on the GPU: its own, and in other number formats those of the nearest GPU.

    The nearest has the highest compute capability that is not above the GPU's own. Kernels that engines choose by
    compute capability are renamed to those that they choose on this GPU (table ``kernel_sources``).
    """
    missing = rows_elsewhere.filter(~pl.col("dtype").is_in(measured["dtype"].unique().implode()))
    capability = {
        name: capability_number(text)
        for name, text in zip(gpus["gpu"].to_pylist(), gpus["compute_capability"].to_pylist(), strict=True)
    }
    nearest = []
    for (_,), rows in missing.group_by("dtype", maintain_order=True):
        levels = {capability.get(name, 0.0) for name in rows["gpu"].unique().to_list()}
        below = [level for level in levels if level <= capability[gpu]]
        level = max(below) if below else min(levels)
        names = [name for name in rows["gpu"].unique().to_list() if capability.get(name, 0.0) == level]
        nearest.append(_renamed(family, gpu, rows.filter(pl.col("gpu").is_in(names)), gpus))
    return pl.concat([measured, *nearest], how="diagonal")


def _renamed(family: str, gpu: str, rows: pl.DataFrame, gpus: pa.Table) -> pl.DataFrame:
    """Return rows with the implementations and arithmetic that their engines choose on this GPU.

    By the table ``kernel_sources``, where a name is that of another kernel on this GPU; otherwise a kernel that the
    shipped pack has on other generations only becomes the one that it has of the same engine on this generation.
    """
    known_facts = family_facts(family, facts("kernel_implementations"), gpus)
    capability = dict(zip(gpus["gpu"].to_pylist(), gpus["compute_capability"].to_pylist(), strict=True))[gpu]
    sources = facts("kernel_sources").to_pylist()
    sources = [row for row in sources if row["family"] == family]
    sources_here = {
        (row["engine"], row["kernel_source"], row["dtype"]): row
        for row in sources
        if row["compute_capability"] == capability
    }
    pack = default_pack()
    counted = rows_of_part(pack, family, "choice").to_pylist()
    generation = known_facts.generation.get(gpu)
    on_any = {(row["engine"], row["implementation"]) for row in counted}
    on_generation = {
        (row["engine"], row["implementation"])
        for row in counted
        if known_facts.generation.get(row["gpu"]) == generation
    }
    renamed = []
    for (engine, name, dtype, like), kernel_rows in rows.group_by(IDENTITY_OF_KERNELS, maintain_order=True):
        names = sorted(source_names(family, engine, name, like))
        keys = [(engine, source, text) for source in names for text in (dtype, "*")]
        row = next((sources_here[key] for key in keys if key in sources_here), None)
        if row is None and (engine, name) in on_any - on_generation:
            chosen, was_counted = choose(known_facts, pack, family, [{"engine": engine, "gpu": gpu, "dtype": dtype}])[0]
            if was_counted and (engine, chosen) in on_generation:
                row = {"implementation": chosen, "math": _math(sources, engine, chosen, dtype)}
        if row is not None:
            math = pl.lit(row["math"]) if row["math"] else pl.col("math")
            kernel_rows = kernel_rows.with_columns(implementation=pl.lit(row["implementation"]), math=math)
        renamed.append(kernel_rows)
    return pl.concat(renamed)


def _math(sources: Sequence[dict], engine: str, implementation: str, dtype: str) -> str | None:
    rows = [row for row in sources if (row["engine"], row["implementation"]) == (engine, implementation)]
    return next((row["math"] for text in (dtype, "*") for row in rows if row["dtype"] == text and row["math"]), None)


def shapes_of_calls(family: str, calls: pa.Table) -> pl.DataFrame:
    """Return a family's shapes among rows of ``kernel_calls``, with the columns of training rows."""
    calls = calls.filter(pc.equal(calls["family"], family))
    if not calls.num_rows:
        raise InvalidInput(f"the calls hold no {family} kernel; name a family that they hold with --family.")
    fields = [field.name for field in contracts()["sweep_points"].schema.field("shape").type]
    rows = [
        {
            "gpu": "none",
            "family": family,
            "implementation": "none",
            "engine": "none",
            "engine_version": "0",
            "shape": {name: size for name, size in row["shape"].items() if name in fields},
            "dtype": dtype_of(family, row),
            "format": row["format"],
            "math": row["math"],
            "latency_us": 1.0,
            "samples": 1,
            "source": "calls",
        }
        for row in calls.select(["shape", "format", "math"]).to_pylist()
    ]
    points = pa.Table.from_pylist(rows, contracts()["sweep_points"].schema)
    return pl.from_arrow(call_rows(points, family))
