"""Logs of a server that shares nothing with the simulator: one log of each world of ``benches/foreign.py``, small."""

from __future__ import annotations

import foreign
import numpy as np

from kernelsight.session import connect

SEED, REQUESTS = 2, 260
LEAST_RIGHT = 12


def test_first_causes_of_a_foreign_server() -> None:
    with connect() as session:
        names = list(foreign.worlds(np.random.default_rng(0), 100.0))
        rows = [foreign.compared(session, SEED, name, REQUESTS, "none") for name in names]
    wrong = {row["world"]: row["cause"] for row in rows if not foreign.is_named(row)}
    assert len(rows) == 15 and "nothing" not in wrong
    assert len(rows) - len(wrong) >= LEAST_RIGHT, wrong
    sized = [right for row in rows if (right := foreign.is_sized(row)) is not None]
    assert np.mean(sized) >= 0.7
    assert not any(row["written"] for row in rows), "what is not fitted is not corrected"
