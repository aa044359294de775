"""Test rows as a user states them who has nothing of a GPU: neither its sweep, nor the names of the kernels in it.

The kernel is the one that serving would take on a GPU that nobody measured: what the other GPUs' sweeps count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.fitting.kernel_choices import choice_rows
from kernelsight.kernels.columns import combinations
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.kernel_selection import choose
from kernelsight.kernels.pack import pack_table
from kernelsight.kernels.resolve import family_facts

# families in which a name also says what is computed (a part of an indexer or of an exchange, a kind of recurrence):
# the model says that, so a name that another GPU's sweep holds is kept
STATED = ("quantize", "linear_attention", "sparse_attention", "all_to_all")


def as_unmeasured(family: str, sweeps: Sequence[Path], train: pa.Table, test: pa.Table) -> pa.Table:
    """Return the test rows with the kernels, and their arithmetic, that the GPUs of the training rows make likely.

    Both tables are training rows (:mod:`.training`); order and all other columns stay those of ``test``.
    """
    implementations = facts("kernel_implementations")
    counted = pack_table(choice_rows(sweeps, family, pc.unique(train["gpu"]).to_pylist(), implementations))
    by_width = FAMILIES[family].by_head_dim
    width = test["head_dim"] if by_width else pa.nulls(test.num_rows, pa.float64())
    kernels = test.select(["engine", "gpu", "dtype", "implementation", "math"]).append_column(
        "head_dim", pc.cast(pc.cast(width, pa.int64()), pa.string())
    )
    combined, of_row = combinations(kernels, kernels.column_names)
    calls = [
        {**kind, "head_dim": int(kind["head_dim"] or 0)} | ({} if family in STATED else {"implementation": None})
        for kind in combined
    ]
    chosen = [name for name, _ in choose(family_facts(family, implementations, facts("gpus")), counted, family, calls)]
    ran = train.select(["dtype", "implementation", "math"]).group_by(["dtype", "implementation", "math"]).aggregate([])
    math_of = dict(sorted(((row["dtype"], row["implementation"]), row["math"]) for row in ran.to_pylist()))
    maths = [math_of.get((kind["dtype"], name), kind["math"]) for kind, name in zip(combined, chosen, strict=True)]
    renamed = test
    for column, words in (("implementation", chosen), ("math", maths)):
        values = pa.array(np.array(words, dtype=object)[of_row].tolist(), pa.string())
        renamed = renamed.set_column(renamed.column_names.index(column), column, values)
    return renamed
