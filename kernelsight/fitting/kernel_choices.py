"""Kernel choices of engines: which implementation each ran for which number formats on which GPU, counted in sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from kernelsight.catalog.tables import facts
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.kernel_constants import Facts, family_facts


def choice_rows(
    sweeps: Sequence[Path], family: str, train_gpus: Sequence[str], implementations: pa.Table
) -> list[dict]:
    """Count a sweep's rows by engine, version, GPU, number format (in attention also head width) and implementation.

    A kernel that no engine serves with (``served`` is 0 in ``kernel_implementations``, or ``not_fitted`` has a reason
    in the sweep) has count 0: it is used only where it is named. Returns ``eta_coefficients`` rows.
    """
    kernel_facts = family_facts(family, implementations, facts("gpus"))
    files = ", ".join(f"'{path}'" for path in sweeps)
    wanted = ", ".join(f"'{gpu}'" for gpu in train_gpus)
    position = "coalesce(shape.head_dim, 0)" if FAMILIES[family].by_head_dim else "0"
    counted = duckdb.connect().sql(
        f"""
        select engine, engine_version, gpu, dtype, implementation, {position} as position,
          count(*) filter (where not_fitted is null) as value
        from read_parquet([{files}], union_by_name = true) where family = '{family}' and gpu in ({wanted})
        group by all order by all
        """
    )
    names = counted.columns
    return [
        {
            **(counts := dict(zip(names, row, strict=True))),
            "value": counts["value"] if _serves(kernel_facts, counts["implementation"]) else 0.0,
            "family": family,
            "part": "choice",
            "level": "gpu",
            "coefficient": "rows",
            "unit": "1",
            "source": "rows of the sweeps",
        }
        for row in counted.fetchall()
    ]


def _serves(kernel_facts: Facts, implementation: str) -> bool:
    """Return whether any engine serves with a kernel."""
    return kernel_facts.structure.get((implementation, "served"), 1.0) > 0.0
