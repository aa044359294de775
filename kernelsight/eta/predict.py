"""Fit families on some measured rows and predict others: what an evaluation scores."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.eta.heads import fit_family, predict_family
from kernelsight.eta.measured import correct, fit_measured, has_correction, rows_of
from kernelsight.eta.pack import pack_table
from kernelsight.roofline.families import FORMS


def fit_and_predict(
    train: Mapping[str, pa.Table], test: Mapping[str, pa.Table], tier: str
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return (latency_us, p05_us, p95_us) of the test rows of each family, fitted on the training rows alone.

    ``tier``: with target-measured, what the training rows hold of a test GPU counts as its own.
    """
    tables = facts("kernel_implementations"), facts("gpus"), facts("fabrics")
    found = {}
    for family, rows in test.items():
        form, taught = FORMS[family], train[family]
        head = pack_table(fit_family(family, form, taught, *tables, "evaluation"))
        measured = tier == "target-measured"
        latency = predict_family(family, form, rows, head, *tables, measured=measured)
        for gpu in sorted(set(pc.unique(rows["gpu"]).to_pylist())) if measured and has_correction(family) else ():
            if not pc.any(pc.equal(taught["gpu"], gpu)).as_py():
                continue
            fit = fit_measured(family, form, taught, gpu, head, *tables)
            mine = np.asarray(pc.equal(rows["gpu"], gpu))
            of_gpu = rows.filter(pa.array(mine))
            latency[mine] = correct(family, form, of_gpu, latency[mine], rows_of(family, gpu, fit), *tables)
        found[family] = (latency, latency / form.spread, latency * form.spread)
    return found
