"""The node of kernel choices: the compared implementations of each row of ``choice_questions``."""

from __future__ import annotations

import pyarrow as pa


def choice_candidates(choice_questions: pa.Table, gpus: pa.Table) -> pa.Table:
    """Compare the implementations of a kernel family at each shape of a GPU, by what others and its own sweeps show."""
    from kernelsight.choices.questions import answer_questions

    return answer_questions(choice_questions, gpus)
