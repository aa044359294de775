"""Answers the questions of kernel choices: from rows of ``choice_questions`` to ``choice_candidates``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from kernelsight.catalog.gpu_names import gpu_named, plain_gpus
from kernelsight.catalog.tables import contracts
from kernelsight.choices.candidates import Choice
from kernelsight.choices.choices import choice_candidates, contrasts
from kernelsight.choices.inputs import choice_of
from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.dataflow.python_nodes import produces
from kernelsight.forward.call_files import read_calls
from kernelsight.scenario.flag import options_of

TOLERANCE = options_of("choice_questions")["tolerance"][0].default


def choice_of_question(row: Mapping[str, Any], gpus: pa.Table) -> Choice:
    """Return the choice of a row of ``choice_questions``; ``gpus``: the catalogue with the GPU's row."""
    gpu = gpu_named(row["gpu"], gpus["gpu"].to_pylist(), "Give a row for it with --gpus.")
    calls = read_calls(Path(row["calls"]), gpu, contracts()["kernel_calls"]) if row["calls"] else None
    return choice_of(
        [Path(name) for name in row["sweeps"]], row["family"], gpu, gpus, plain_gpus(row["sources"]) or None, calls
    )


@produces("choice_candidates")
def answer_questions(choice_questions: pa.Table, gpus: pa.Table) -> pa.Table:
    """Compare the implementations of a kernel family at each shape of a GPU, by what others and its own sweeps show."""
    tables = [contracts()["choice_candidates"].schema.empty_table()]
    with one_blas_thread():
        for row in choice_questions.to_pylist():
            choice = choice_of_question(row, gpus)
            tolerance = TOLERANCE if row["tolerance"] is None else row["tolerance"]
            tables.append(choice_candidates(choice, contrasts(choice)[0], tolerance))
    return pa.concat_tables(tables)
