"""Test rows as for an unmeasured GPU: without its sweep, and without the kernel names that its sweep states.

The kernel is the one that serving would assume on an unmeasured GPU, from the other GPUs' sweeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.fitting.kernel_choices import choice_rows
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.kernel_constants import family_facts
from kernelsight.kernels.kernel_selection import choose
from kernelsight.kernels.pack import pack_table
from kernelsight.kernels.string_columns import combinations

# families whose kernel name also says what is computed (a part of an indexer or of an exchange, a kind of recurrence):
# the model determines that, so the name is kept
STATED = ("quantize", "linear_attention", "sparse_attention", "all_to_all")


def as_unmeasured(family: str, sweeps: Sequence[Path], train: pa.Table, test: pa.Table) -> pa.Table:
    """Return the test rows with the kernels, and their arithmetic, that the training GPUs make likely.

    ``train``, ``test``: rows as ``fitting.training`` makes them; order and all other columns of ``test`` stay.
    """
    implementations = facts("kernel_implementations")
    choice_counts = pack_table(choice_rows(sweeps, family, pc.unique(train["gpu"]).to_pylist(), implementations))
    by_width = FAMILIES[family].by_head_dim
    width = test["head_dim"] if by_width else pa.nulls(test.num_rows, pa.float64())
    kernels = test.select(["engine", "gpu", "dtype", "implementation", "math"]).append_column(
        "head_dim", pc.cast(pc.cast(width, pa.int64()), pa.string())
    )
    distinct, of_row = combinations(kernels, kernels.column_names)
    calls = [
        {**combination, "head_dim": int(combination["head_dim"] or 0)}
        | ({} if family in STATED else {"implementation": None})
        for combination in distinct
    ]
    chosen = [
        name for name, _ in choose(family_facts(family, implementations, facts("gpus")), choice_counts, family, calls)
    ]
    trained = (
        train.select(["dtype", "implementation", "math"]).group_by(["dtype", "implementation", "math"]).aggregate([])
    )
    math_of = dict(sorted(((row["dtype"], row["implementation"]), row["math"]) for row in trained.to_pylist()))
    maths = [
        math_of.get((combination["dtype"], name), combination["math"])
        for combination, name in zip(distinct, chosen, strict=True)
    ]
    renamed = test
    for column, distinct_values in (("implementation", chosen), ("math", maths)):
        values = pa.array(np.array(distinct_values, dtype=object)[of_row].tolist(), pa.string())
        renamed = renamed.set_column(renamed.column_names.index(column), column, values)
    return renamed
