"""Converts timings to rows of ``sweep_points``, in the contract's types."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from kernelsight.dataflow.locations import folder
from kernelsight.dataflow.types import arrow_type
from kernelsight.files.own import own_json, own_text
from kernelsight.measure.device import FLUSH_CACHES, Identity, Kernel
from kernelsight.measure.suite import PAGED_PREFILL, Point, number_formats
from kernelsight.measure.timing import Timing

SOURCE = "kernelsight calibrate measure"
NOT_FITTED = {PAGED_PREFILL: "its products run on CUDA cores, those of engines on tensor cores"}


@cache
def sweep_schema() -> pa.Schema:
    """Return the Arrow schema of ``sweep_points`` from its contract."""
    contract = own_json(own_text(folder("schemas") / "sweep_points.json"))
    return pa.schema(
        pa.field(column["name"], arrow_type(column["type"]), column.get("nullable", False))
        for column in contract["columns"]
    )


def row_of(point: Point, kernel: Kernel, timing: Timing, device: Identity) -> dict[str, Any]:
    """Return one measured point as a row of ``sweep_points``."""
    number_format, math = number_formats(point.family, point.dtype, kernel.implementation)
    # L2 is not flushed between individual launches by the host
    cold = point.cache == "cold" and kernel.captured
    flushed = round(FLUSH_CACHES * device.l2_bytes) if cold else 0
    return {
        "gpu": device.gpu,
        "family": point.family,
        "implementation": kernel.implementation,
        "engine": kernel.engine,
        "engine_version": kernel.engine_version,
        "shape": point.sizes,
        "dtype": point.dtype,
        "format": number_format,
        "math": math,
        "distribution": "balanced" if point.family == "moe" else None,
        "working_set_bytes": flushed + kernel.bytes,
        "latency_us": timing.latency_us,
        "samples": timing.samples,
        "cv": timing.cv,
        "sm_clock_hz": timing.sm_clock_hz,
        "relative_error": timing.relative_error,
        "outliers": timing.outliers,
        "gap_us": None if point.cache == "cold" else timing.gap_us,
        "worked_s": timing.worked_s,
        "memory_clock_hz": timing.memory_clock_hz,
        "temperature_c": timing.temperature_c,
        "limits": " ".join(sorted(timing.limits)) or None,
        "repeated": timing.repeated,
        "power_w": timing.power_w,
        "driver": device.driver,
        "versions": versions_of(device),
        "not_fitted": timing.fault or NOT_FITTED.get(kernel.implementation),
        "source": SOURCE,
    }


def versions_of(device: Identity) -> str:
    """Return the software versions as stored in a row."""
    return " ".join(f"{name}={version}" for name, version in sorted(device.versions.items()))
