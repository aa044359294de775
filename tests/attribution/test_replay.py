"""What is kept of a replay."""

from __future__ import annotations

import numpy as np

from kernelsight.attribution.replay import KEPT, Replayed


def test_parts_that_are_not_wanted_take_no_memory() -> None:
    parts = [np.full((2, 3), place) for place in range(len(KEPT))]
    served = Replayed(*np.ones((5, 3), np.int64), parts, np.ones((2, 3)))
    kept = served.only(["moe", "host"])
    assert sum(values.size for values in kept.parts_ns) == 6
    assert kept.part("moe").tolist() == served.part("moe").tolist() and kept.steps.sum() == 6
    assert served.only([]).steps.size == 0
