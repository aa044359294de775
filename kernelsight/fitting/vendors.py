"""Fits of other vendors' kernels, each vendor separately, with NVIDIA's constants as the prior."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.kernels.kernel_constants import vendors_of
from kernelsight.kernels.latency_model import LatencyModel

# with fewer rows of a vendor than ENOUGH_ROWS the prior around NVIDIA's constants is narrower, by SHARE_OF_FEW. Held
# out against each other, MI300X and MI308X (aiter) have a median error of experts, averaged over cells, of 19.6 % with
# a share of 1, 17.3 with 0.25, 14.6 with 0.1
ENOUGH_ROWS, SHARE_OF_FEW = 1000, 0.1
# the gap between launches: tuners of libraries report the time of the kernel alone
GAP = "gap_us"
GAP_SPREAD = 0.02


def by_vendor(table: pa.Table, gpus: pa.Table) -> dict[str | None, np.ndarray]:
    """Return a mask (rows,) of each vendor's rows, by vendor; the first is None, which stands for NVIDIA."""
    vendor_of = vendors_of(gpus)
    names = np.array([vendor_of.get(gpu) or "" for gpu in table["gpu"].to_pylist()], dtype=object)
    return {name or None: names == name for name in sorted(set(names.tolist()))}


def vendor_latency_model(
    family: str, latency_model: LatencyModel, vendor: str | None, rows: int, known: Iterable[Mapping[str, Any]]
) -> LatencyModel:
    """Return the latency model to fit a vendor's rows by: its priors are centred on the first vendor's constants.

    ``known``: ``eta_coefficients`` rows of the first vendor's fit; ``rows``: number of measured rows of the vendor.
    """
    if vendor is None:
        return latency_model
    constants = {
        row["coefficient"]: row["value"]
        for row in known
        if (row["family"], row["part"], row["level"]) == (family, "constant", "family")
        and row.get("without") is None
        and row.get("vendor") is None
    }
    share = 1.0 if rows >= ENOUGH_ROWS else SHARE_OF_FEW
    coefficients = tuple(
        coefficient
        if coefficient.owner == "fixed"
        else coefficient._replace(start=coefficient.low, spread=GAP_SPREAD)
        if coefficient.name == GAP
        else coefficient._replace(
            start=constants.get(coefficient.name, coefficient.start), spread=share * coefficient.spread
        )
        for coefficient in latency_model.coefficients
    )
    return latency_model._replace(coefficients=coefficients)


def onto(base: pa.Table, fitted: pa.Table, gpus: pa.Table) -> pa.Table:
    """Return the pack ``base`` with its rows of the same families and vendors replaced by ``fitted``."""
    vendor_of = vendors_of(gpus)
    replaced = pc.unique(pa.array(_fit_names(fitted, vendor_of)))
    kept = pc.invert(pc.is_in(pa.array(_fit_names(base, vendor_of)), replaced))
    return pa.concat_tables([base.filter(kept), fitted])


def _fit_names(rows: pa.Table, vendor_of: Mapping[str, str | None]) -> list[str]:
    """Return "family|vendor" of each row: the vendor of its fit, or of the GPU that it belongs to."""
    row_keys = zip(rows["family"].to_pylist(), rows["vendor"].to_pylist(), rows["gpu"].to_pylist(), strict=True)
    return [f"{family}|{vendor or vendor_of.get(gpu) or ''}" for family, vendor, gpu in row_keys]
