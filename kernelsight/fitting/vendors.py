"""Fits of other vendors' kernels, each apart: NVIDIA's constants are what is expected before their rows are seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.kernels.latency_model import Form
from kernelsight.kernels.resolve import vendors_of

# with few rows of a vendor (below ROWS_OF_ITS_OWN) its constants may leave those of NVIDIA by this share only of what
# they may leave their start. Held out against each other, MI300X and MI308X (aiter) have a median error of experts,
# averaged over cells, of 19.6 % with a share of 1, 17.3 with 0.25, 14.6 with 0.1
ROWS_OF_ITS_OWN, SHARE_OF_FEW = 1000, 0.1
# tuners of libraries report the time of the kernel alone
GAP = "gap_us"
GAP_SPREAD = 0.02


def by_vendor(table: pa.Table, gpus: pa.Table) -> dict[str | None, np.ndarray]:
    """Return of each vendor whether a row is of its GPUs; None: the first one, whose rows come first."""
    vendor_of = vendors_of(gpus)
    names = np.array([vendor_of.get(gpu) or "" for gpu in table["gpu"].to_pylist()], dtype=object)
    return {name or None: names == name for name in sorted(set(names.tolist()))}


def vendor_form(family: str, form: Form, vendor: str | None, rows: int, known: Iterable[Mapping[str, Any]]) -> Form:
    """Return the form by which a vendor's rows are fitted: its constants start at those ``known`` of the first vendor.

    ``known``: ``eta_coefficients`` rows; ``rows``: measured rows of the vendor.
    """
    if vendor is None:
        return form
    constants = {
        row["coefficient"]: row["value"]
        for row in known
        if (row["family"], row["part"], row["level"]) == (family, "constant", "family")
        and row.get("without") is None
        and row.get("vendor") is None
    }
    share = 1.0 if rows >= ROWS_OF_ITS_OWN else SHARE_OF_FEW
    coefficients = tuple(
        one
        if one.owner == "fixed"
        else one._replace(start=one.low, spread=GAP_SPREAD)
        if one.name == GAP
        else one._replace(start=constants.get(one.name, one.start), spread=share * one.spread)
        for one in form.coefficients
    )
    return form._replace(coefficients=coefficients)


def onto(base: pa.Table, fitted: pa.Table, gpus: pa.Table) -> pa.Table:
    """Return a pack with what was fitted anew in place of what it held of the same families and vendors."""
    vendor_of = vendors_of(gpus)
    key = pa.array(_places(fitted, vendor_of))
    kept = pc.invert(pc.is_in(pa.array(_places(base, vendor_of)), pc.unique(key)))
    return pa.concat_tables([base.filter(kept), fitted])


def _places(rows: pa.Table, vendor_of: Mapping[str, str | None]) -> list[str]:
    """Return "family|vendor" of each row: the vendor of its fit, or of the GPU that it belongs to."""
    row_keys = zip(rows["family"].to_pylist(), rows["vendor"].to_pylist(), rows["gpu"].to_pylist(), strict=True)
    return [f"{family}|{vendor or vendor_of.get(gpu) or ''}" for family, vendor, gpu in row_keys]
