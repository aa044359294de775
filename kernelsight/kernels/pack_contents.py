"""What a pack holds of one kernel family: GPUs with sweeps, corrections and points, their kernels, interval curves.

Every look-up reads ``eta_coefficients`` (a pack) and is kept as long as the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import memoised
from kernelsight.dataflow.python_nodes import produces
from kernelsight.kernels.few_shot import FewShotCalibration, calibration_of
from kernelsight.kernels.kernel_constants import fitted_vendors, parts_there, rows_of_part
from kernelsight.kernels.nearby import Nearby, nearby_of
from kernelsight.kernels.network import Network, network_of


class FittedTo(NamedTuple):
    """What the constants of a family were fitted to: GPUs, vendors and kernels."""

    measured: set[str]  # GPUs with a sweep of the family
    corrected: set[str | None]  # GPUs with a correction of the family
    with_points: set[str | None]  # GPUs with a few measured points of the family
    swept: set[str]  # GPUs with a sweep of any family
    vendors: set[str | None]
    kernels: set[tuple[str | None, ...]]  # (vendor, generation left out of the fit, implementation)


def fitted_to(family: str, coefficients: pa.Table) -> FittedTo:
    """Return what the constants of a family were fitted to."""
    return FittedTo(
        swept_gpus(coefficients, family),
        _gpus_in(rows_of_part(coefficients, family, "correction")),
        gpus_with_points_of(family, coefficients),
        swept_gpus(coefficients),
        fitted_vendors(coefficients, family),
        memoised((coefficients,), ("fitted kernels", family), lambda: _fitted_kernels(coefficients, family)),
    )


def _fitted_kernels(coefficients: pa.Table, family: str) -> set[tuple[str | None, ...]]:
    rows = rows_of_part(coefficients, family, "constant")
    return set(zip(*(rows[name].to_pylist() for name in ("vendor", "without", "implementation")), strict=True))


def swept_gpus(coefficients: pa.Table, family: str | None = None) -> set[str]:
    """Return the GPUs with a sweep of a family (None: of any); a few points, or counted kernels, are no sweep."""

    def is_of_sweep(row_family: str, part: str) -> bool:
        return part not in ("points", "choice") and family in (None, row_family)

    return memoised((coefficients,), ("swept", family), lambda: _gpus_of_parts(coefficients, is_of_sweep))


def gpus_with_points(coefficients: pa.Table) -> set[str]:
    """Return the GPUs with a few measured points of any family."""
    return _gpus_of_parts(coefficients, lambda row_family, part: part == "points")


def gpus_with_points_of(family: str, coefficients: pa.Table) -> set[str | None]:
    """Return the GPUs with a few measured points of a family."""
    return _gpus_in(rows_of_part(coefficients, family, "points"))


def _gpus_of_parts(coefficients: pa.Table, is_wanted: Callable[[str, str], bool]) -> set[str]:
    gpus: set[str | None] = set()
    for family, part in parts_there(coefficients):
        if is_wanted(family, part):
            gpus |= _gpus_in(rows_of_part(coefficients, family, part))
    return {gpu for gpu in gpus if gpu}


def _gpus_in(rows: pa.Table) -> set[str | None]:
    return memoised((rows,), "gpus", lambda: set(pc.unique(rows["gpu"]).to_pylist()))


def swept_kernels(family: str, gpu: str, coefficients: pa.Table) -> set[str]:
    """Return the kernels that the sweep of a GPU ran, as engine|implementation|dtype."""

    def read() -> set[str]:
        return set(_rows_of_gpu(coefficients, "interval", family, gpu)["dtype"].to_pylist())

    return memoised((coefficients,), ("kernels", family, gpu), read)


def interval_curves(
    family: str, coefficients: pa.Table, gpu: str | None, vendor: str | None, without: str | None
) -> dict[str, np.ndarray]:
    """Return interval half widths (knots,) by group of rows: of one GPU's sweep, or of a vendor's fit (``gpu`` None).

    ``without``: the generation that the fit left out.
    """
    interval_rows = rows_of_part(coefficients, family, "interval")
    rows: list[Mapping[str, Any]] = memoised((coefficients,), ("curves", family), interval_rows.to_pylist)
    wanted = (gpu, vendor, without)
    return {
        row["dtype"]: np.array(row["array"]) for row in rows if (row["gpu"], row["vendor"], row["without"]) == wanted
    }


def network_at(coefficients: pa.Table, family: str, gpu: str) -> tuple[Network, list[str]]:
    """Return the correction of a measured GPU, and the kernels that its sweep ran, in the order of its nodes."""

    def read() -> tuple[Network, list[str]]:
        rows = _rows_of_gpu(coefficients, "correction", family, gpu)
        # a hundred thousand numbers: as Python objects they would take a tenth of a second
        arrays = rows["array"].combine_chunks()
        bounds, numbers = arrays.offsets.to_numpy(), arrays.values.to_numpy()
        words = rows.select(["coefficient", "engine", "implementation", "dtype"]).to_pylist()
        spans = zip(words, bounds[:-1], bounds[1:], strict=True)
        return network_of({**row, "array": numbers[start:stop]} for row, start, stop in spans)

    return memoised((coefficients,), ("network", family, gpu), read)


@produces("assumed_families")
def families_assumed(eta_coefficients: pa.Table) -> list[dict[str, str]]:
    """Kernel families with an assumed constant: no sweep contains their kernels."""
    names = [family for family, part in parts_there(eta_coefficients) if part == "constant"]
    rows = {family: rows_of_part(eta_coefficients, family, "constant")["assumed"] for family in names}
    return [{"family": family} for family, assumed in rows.items() if assumed.null_count < len(assumed)]


@produces("eta_portability")
def portability_of_kernels(eta_coefficients: pa.Table) -> list[dict[str, Any]]:
    """How η of measured kernels varies between GPUs: safe, or the danger region."""
    table = eta_coefficients.filter(pc.equal(eta_coefficients["part"], "portability"))
    rows = table.select(["family", "implementation", "vendor", "coefficient", "value"]).to_pylist()
    found: dict[tuple[str, str | None], dict[str, float]] = {}
    # a kernel of two vendors, and a family over all its kernels: of NVIDIA's GPUs, whose rows have no vendor
    for row in sorted(rows, key=lambda row: (row["family"], row["implementation"] or "~", row["vendor"] or "")):
        of_kernel = found.setdefault((row["family"], row["implementation"]), {"vendor": row["vendor"]})
        if row["vendor"] == of_kernel["vendor"]:
            of_kernel[row["coefficient"]] = row["value"]
    return [
        {
            "family": family,
            "implementation": implementation,
            "geometric_mean": (mean := values["geometric_mean"]),
            "spread": (spread := values.get("spread")),
            "region": "danger" if mean >= 2.0 and (spread is None or spread >= 2.0) else "safe",
        }
        for (family, implementation), values in found.items()
    ]


def largest_groups(coefficients: pa.Table, family: str, gpu: str) -> dict[str, float]:
    """Return the number of GPUs of the largest group in which a GPU's sweep ran each kernel of a collective.

    Group sizes are the first feature: of the sweep's points of the kernel, where the pack has these, else of all.
    """

    def read() -> dict[str, float]:
        network, nodes = network_at(coefficients, family, gpu)
        scale, centre = float(network.scale[0]), float(network.centre[0])
        logs = dict.fromkeys(nodes, float(network.high[0]))
        near_points = nearby_at(coefficients, family, gpu)
        logs |= {kernel: float(near.points[:, 0].max()) * scale + centre for kernel, near in near_points.items()}
        # features are stored in 16 bits
        return {kernel: float(round(2.0**log)) for kernel, log in logs.items()}

    return memoised((coefficients,), ("groups", family, gpu), read)


def nearby_at(coefficients: pa.Table, family: str, gpu: str) -> dict[str, Nearby]:
    """Return the points of a GPU's small sweep by kernel; empty where the pack has none."""

    def read() -> dict[str, Nearby]:
        return nearby_of(_rows_of_gpu(coefficients, "nearby", family, gpu).to_pylist())

    return memoised((coefficients,), ("nearby", family, gpu), read)


def points_at(coefficients: pa.Table, family: str, gpu: str) -> FewShotCalibration:
    """Return the few measured points of a family on a GPU."""

    def read() -> FewShotCalibration:
        return calibration_of(_rows_of_gpu(coefficients, "points", family, gpu).to_pylist())

    return memoised((coefficients,), ("points", family, gpu), read)


def words_of(kernel: str) -> dict[str, str]:
    """Return engine, implementation and dtype of a kernel's name.

    >>> words_of("vllm|cublas|bf16")
    {'engine': 'vllm', 'implementation': 'cublas', 'dtype': 'bf16'}
    """
    return dict(zip(("engine", "implementation", "dtype"), kernel.split("|"), strict=True))


def _rows_of_gpu(coefficients: pa.Table, part: str, family: str, gpu: str) -> pa.Table:
    rows = rows_of_part(coefficients, family, part)
    return rows.filter(pc.fill_null(pc.equal(rows["gpu"], gpu), False))
