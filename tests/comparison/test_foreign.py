"""Logs of a server that shares nothing with the simulator: one of each world of ``benches/foreign.py``, or some."""

from __future__ import annotations

import foreign
import numpy as np
import pytest

from kernelsight.session import connect
from tests.conftest import WORLDS_PERCENT

SEED, REQUESTS = 2, 260
# each third world below 100 percent; the worlds whose cause may be missed
EACH, MOST_WRONG = (1, 3) if WORLDS_PERCENT >= 100 else (3, 1)


@pytest.mark.whole
def test_first_causes_of_a_foreign_server() -> None:
    with connect() as session:
        names = list(foreign.worlds(np.random.default_rng(0), 100.0))
        assert len(names) == 15
        rows = [foreign.compared(session, SEED, name, REQUESTS, "none") for name in names[::EACH]]
    wrong = {row["world"]: row["cause"] for row in rows if not foreign.is_named(row)}
    assert "nothing" not in wrong and len(wrong) <= MOST_WRONG, wrong
    sized = [right for row in rows if (right := foreign.is_sized(row)) is not None]
    assert np.mean(sized) >= 0.65
    assert not any(row["written"] for row in rows), "what is not fitted is not corrected"
