"""Labels of deployments over their step shapes: the tier of their kernels, and the data behind each component."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from kernelsight.dataflow.python_nodes import produces
from kernelsight.kernels.labels import FOREIGN, GPU_MEASURED, MEASURED, Label, component_rows, label_of
from kernelsight.kernels.string_columns import combinations

# smallest share of the GPU time of a family that is listed as not measured
LEAST_SHARE = 0.02


@produces("deployment_tiers")
def tier_rows(
    deployment_settings: pa.Table,
    gpus: pa.Table,
    gpu_engines: pa.Table,
    kernel_evidence: pa.Table,
    assumed_families: pa.Table,
    corrections: pa.Table,
    host_settings: pa.Table,
) -> list[dict[str, Any]]:
    """Label of the kernels of each deployment over its step shapes, and what was not measured."""
    vendors = dict(zip(gpus["gpu"].to_pylist(), gpus["vendor"].to_pylist(), strict=True))
    says = {(row["gpu"], row["engine"]): row["says"] for row in gpu_engines.to_pylist()}
    hosts = dict(zip(*(host_settings[name].to_pylist() for name in ("deployment_id", "assumed")), strict=True))
    corrected = set(corrections["deployment_id"].to_pylist())
    kernels, assumed = rows_of(kernel_evidence), set(assumed_families["family"].to_pylist())
    made = []
    for row in deployment_settings.select(["deployment_id", "gpu", "engine", "tier"]).to_pylist():
        name, gpu = row["deployment_id"], row["gpu"]
        own = kernels.get(name, [])
        label = _label(own) if own else Label(row["tier"], 0.0)
        families = ", ".join(sorted({kernel["family"] for kernel in own} & assumed)) or None
        bound = row["tier"] == "roofline"
        foreign = sorted({kernel["family"] for kernel in own if kernel["tier"] == FOREIGN})
        missing = [
            says.get((gpu, row["engine"])),
            _hardware(gpu, vendors.get(gpu), label.tier, foreign, bound),
            _others(own, label.tier, assumed),
            None if bound or foreign else families,
            "host time" if hosts.get(name) is not None and not bound else None,
        ]
        made.append(
            {
                "deployment_id": name,
                "tier": "log-corrected" if name in corrected else "roofline" if bound else label.tier,
                "measured_share": label.measured_share,
                "assumed_families": families,
                "not_measured": "; ".join(filter(None, missing)) or None,
            }
        )
    return made


@produces("deployment_evidence")
def evidence_rows(
    kernel_evidence: pa.Table, host_evidence: pa.Table, assumed_families: pa.Table
) -> list[dict[str, Any]]:
    """Data behind each component of a deployment's steps, over its step shapes: kernels used, and host times."""
    kernels, assumed = rows_of(kernel_evidence), set(assumed_families["family"].to_pylist())
    made = []
    for host in host_evidence.to_pylist():
        rows = [*component_rows(kernels.get(host["deployment_id"], ()), assumed), {**host, "component": "host"}]
        made += [{"deployment_id": host["deployment_id"], **row} for row in rows]
    return made


@produces("deployment_families")
def families_of(kernel_evidence: pa.Table) -> list[dict[str, Any]]:
    """Kernel families that each deployment launches."""
    # grouping by Arrow would import its data sets, in a tenth of the time of a prediction
    return combinations(kernel_evidence, ["deployment_id", "family"])[0]


def rows_of(kernel_evidence: pa.Table) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of ``kernel_evidence`` by deployment."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in kernel_evidence.to_pylist():
        rows.setdefault(row["deployment_id"], []).append(row)
    return rows


def _label(kernels: Iterable[Mapping[str, Any]]) -> Label:
    time_of_tier: dict[str, float] = {}
    for row in kernels:
        time_of_tier[row["tier"]] = time_of_tier.get(row["tier"], 0.0) + row["gpu_us"]
    return label_of(time_of_tier)


def _hardware(gpu: str, vendor: str | None, tier: str, foreign: Collection[str], bound: bool) -> str | None:
    """Return what was not measured of the GPU as a whole; ``foreign``: families with general constants."""
    if bound:
        return "kernels and host time: bounds of the hardware alone"
    if foreign:
        return f"{', '.join(foreign)} on a GPU of {(vendor or '').upper()}: general constants stand in"
    if tier == "cross-generation":
        return f"kernels on {gpu}"
    return f"kernels on {gpu} beside a few points" if tier == "points-measured" else None


def _others(kernels: Iterable[Mapping[str, Any]], tier: str, assumed: Collection[str]) -> str | None:
    """Return the families of which the GPU's sweep does not hold the kernels or sizes; None: little of the time."""
    missing = (GPU_MEASURED, "cross-generation") if tier in (MEASURED, GPU_MEASURED) else (GPU_MEASURED,)
    total, times = 0.0, dict[str, float]()
    for row in kernels:
        total += row["gpu_us"]
        if row["tier"] in missing and row["family"] not in assumed:
            times[row["family"]] = times.get(row["family"], 0.0) + row["gpu_us"]
    listed = sorted(family for family, time_us in times.items() if time_us >= LEAST_SHARE * total)
    return f"{', '.join(listed)} with these kernels or sizes" if listed else None
