"""A session that answers many questions holds no more after the last than after the first ones."""

from __future__ import annotations

import gc
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from kernelsight.kernels import step_costs
from kernelsight.session import connect

ROW = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 8, "input_len": 64, "output_len": 4}
# what is read once grows in some windows, what a call leaves behind in all of them
WINDOWS, CALLS = 3, 3


def held() -> tuple[int, int, int]:
    """Return how many objects can hold others, how many blocks Python holds, and the bytes of Arrow."""
    gc.collect()
    return len(gc.get_objects()), sys.getallocatedblocks(), pa.total_allocated_bytes()


@pytest.mark.whole
def test_many_questions_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every call asks for another deployment, whose tables are kept on disk."""
    monkeypatch.setenv("KERNELSIGHT_CACHE", str(tmp_path / "kept"))
    # what the last signatures cost is kept, at most so many; of facts of its own this session has kept none yet
    monkeypatch.setattr(step_costs, "MOST_KNOWN", 1)
    marks = []
    with connect() as session:
        session.extend("gpus", [{**session.table("gpus").to_pylist()[0], "gpu": "unlike"}])
        for number in range((WINDOWS + 1) * CALLS):
            row = ROW | {"max_num_seqs": 8 + number, "max_concurrency": 1 + number}
            assert session.what_if([row]).table("scenario_summary").num_rows == 1
            if number % CALLS == CALLS - 1:
                marks.append(held())
    objects, blocks, arrow = (min(later[kind] - sooner[kind] for sooner, later in pairwise(marks)) for kind in range(3))
    assert objects < CALLS
    assert blocks < 60 * CALLS
    assert arrow < 1000 * CALLS
