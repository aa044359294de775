"""A whole pack from measured sweeps: every family's constants, and which implementation each engine ran where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from kernelsight.eta.heads import fit_family
from kernelsight.eta.pack import pack_table
from kernelsight.eta.resolve import generation
from kernelsight.eta.training import training_rows
from kernelsight.roofline.families import FORMS
from kernelsight.roofline.latency import BY_HEAD_DIM


def fit_pack(
    sweeps: Sequence[Path],
    train_gpus: Sequence[str],
    gpus: pa.Table,
    fabrics: pa.Table,
    implementations: pa.Table,
    *,
    families: Iterable[str] | None = None,
    leave_out: bool = True,
    told: Callable[[str], None] = lambda line: None,
) -> pa.Table:
    """Fit every measured family on ``train_gpus``; return ``eta_coefficients`` rows.

    ``leave_out``: also fit each family without each generation of the GPUs, for honest cross-generation answers on
    GPUs that were measured. Deterministic: equal sweeps give equal rows.
    """
    capability = dict(zip(gpus["gpu"].to_pylist(), gpus["compute_capability"].to_pylist(), strict=True))
    generations = sorted({name for gpu in train_gpus if (name := generation(capability[gpu]))})
    rows: list[dict] = []
    for family in FORMS if families is None else families:
        table = training_rows(sweeps, family, train_gpus)
        if not table.num_rows:
            continue
        source = f"fitted to measured rows of {', '.join(sorted(set(table['gpu'].to_pylist())))}"
        rows += fit_family(family, FORMS[family], table, implementations, gpus, fabrics, source)
        for left_out in generations if leave_out else ():
            others = [gpu for gpu in train_gpus if generation(capability[gpu]) != left_out]
            rest = table.filter(pa.compute.is_in(table["gpu"], pa.array(others)))
            if rest.num_rows and rest.num_rows < table.num_rows:
                note = f"fitted to measured rows of {', '.join(sorted(set(rest['gpu'].to_pylist())))}"
                rows += fit_family(family, FORMS[family], rest, implementations, gpus, fabrics, note, left_out)
        rows += choice_rows(sweeps, family, train_gpus)
        told(f"{family}: {table.num_rows:,} rows")
    return pack_table(rows)


def choice_rows(sweeps: Sequence[Path], family: str, train_gpus: Sequence[str]) -> list[dict]:
    """Count which implementation each engine ran for which number formats (attention: and head width) on which GPU."""
    files = ", ".join(f"'{path}'" for path in sweeps)
    wanted = ", ".join(f"'{gpu}'" for gpu in train_gpus)
    position = "coalesce(shape.head_dim, 0)" if family in BY_HEAD_DIM else "0"
    counted = duckdb.connect().sql(
        f"""
        select engine, gpu, dtype, implementation, {position} as position, count(*) as value
        from read_parquet([{files}]) where family = '{family}' and gpu in ({wanted})
        group by all order by all
        """
    )
    names = counted.columns
    return [
        {
            **dict(zip(names, row, strict=True)),
            "family": family,
            "part": "choice",
            "level": "gpu",
            "coefficient": "rows",
            "unit": "1",
            "source": "rows of the sweeps",
        }
        for row in counted.fetchall()
    ]
