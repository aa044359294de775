"""The mark that each kind of cause leaves on TTFT and TPOT, and the seats that a log shows: arrays by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.observed_limits import seats_seen
from kernelsight.comparison.replay import REPLAYED_PARTS, Replayed
from kernelsight.comparison.signature_causes import signature

N = 300
DICE = np.random.default_rng(1)
PROMPTS, OUTPUTS, SENT = DICE.integers(100, 3000, N), DICE.integers(20, 200, N).astype(float), np.arange(N) / 4.0
TTFT_MS, TPOT_MS = 30.0 + 0.02 * PROMPTS, 8.0


def measured(ttft: np.ndarray, tpot: float) -> Measured:
    none, decode = np.full(N, np.nan), tpot * (OUTPUTS - 1.0)
    return Measured(np.ones(N, bool), SENT, PROMPTS, OUTPUTS, ttft, decode, ttft + decode, none, none, False)


def replayed() -> Replayed:
    decode = TPOT_MS * (OUTPUTS - 1.0)
    times = [SENT * 1e3, SENT * 1e3 + 1.0, SENT * 1e3 + TTFT_MS, SENT * 1e3 + TTFT_MS + decode]
    moments = [(each * 1e6).astype(np.int64) for each in times]
    none = np.zeros((1, 0), np.int64)
    return Replayed(np.zeros(N, np.int64), *moments, [none] * len(REPLAYED_PARTS), none)


@pytest.mark.parametrize(
    ("ttft", "tpot", "expected"),
    [
        (TTFT_MS, 8.0, (0.0, 0.0, 0.0)),
        (TTFT_MS + 0.05 * PROMPTS, 8.0, (0.0, 50.0, 0.0)),
        (TTFT_MS + 40.0, 8.0, (40.0, 0.0, 0.0)),
        (TTFT_MS + 6.0, 14.0, (6.0, 0.0, 6.0)),
        (TTFT_MS * 1.5, 12.0, (15.0, 10.0, 4.0)),
    ],
)
def test_causes_leave_their_mark(ttft: np.ndarray, tpot: float, expected: tuple[float, float, float]) -> None:
    found = signature(measured(ttft, tpot), replayed(), np.ones(N, bool))
    assert found[:3] == pytest.approx(expected, abs=0.01)
    assert found.predicted == pytest.approx((30.0, 20.0, 8.0), rel=0.01)
    assert (found.misfit < 1.0) == (expected == (0.0, 0.0, 0.0))


def test_seats_are_a_level_that_is_never_passed_while_others_wait() -> None:
    def served(seats: int) -> Measured:
        free, ttft = np.zeros(seats), np.zeros(N)
        for i in range(N):
            seat = int(np.argmin(free))
            begin = max(SENT[i] + TTFT_MS[i] / 1e3, free[seat])
            ttft[i] = 1e3 * (begin - SENT[i])
            free[seat] = begin + TPOT_MS * 8 * (OUTPUTS[i] - 1.0) / 1e3
        return measured(ttft, TPOT_MS * 8)

    assert seats_seen(served(20), replayed().ttft_ms) == 20
    assert seats_seen(served(200), replayed().ttft_ms) is None
