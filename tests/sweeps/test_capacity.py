"""Users in flight: bounded by seats, by the KV cache where nobody may wait, and by waits that an objective shows."""

from __future__ import annotations

import pytest

from kernelsight.scenario.objectives import objectives_of
from kernelsight.sweeps.capacity import _most_in_flight


@pytest.mark.parametrize(
    ("slo", "split", "most"),
    [
        # nobody is to wait: as many as the cache holds
        ({"tpot_p90_ms": 40.0}, False, 12.0),
        # 64 run, and twice as many wait as finish in half a second
        ({"tpot_p90_ms": 40.0, "ttft_p95_ms": 500.0}, False, 64.0 + 2 * 10 * 0.5),
        # behind prefill replicas TTFT and percentiles of ITL show no wait for a decode replica, TPOT and E2E do
        ({"itl_p95_ms": 40.0, "ttft_p95_ms": 500.0}, True, 12.0 + 2 * 10 * 0.5),
        ({"tpot_p90_ms": 40.0, "ttft_p95_ms": 500.0}, True, 64.0 + 2 * 10 * 0.5),
        ({"e2e_p90_ms": 2000.0, "ttft_p95_ms": 500.0}, True, 64.0 + 2 * 10 * 0.5),
    ],
)
def test_users_in_flight(slo: dict[str, float], split: bool, most: float) -> None:
    assert _most_in_flight(64, 10.0, objectives_of(slo), 12.0, split) == most
