"""What happened along a log, from times alone: worlds by hand, in which requests overlap and the truth is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kernelsight.comparison.incidents import incidents_of
from kernelsight.comparison.lost_time import lost_time
from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import REPLAYED_PARTS, Replayed

N, TOKENS, TPOT_S, TTFT_S = 600, 150, 0.01, 0.05


def world(stretch: Callable[[float], float]) -> tuple[Measured, Replayed]:
    """Requests of 1.5 s, six a second; ``stretch`` moves every moment of the prediction to when it was measured."""
    dice = np.random.default_rng(4)
    sent = np.cumsum(dice.exponential(1 / 6.0, N))
    output = dice.integers(TOKENS // 2, TOKENS * 2, N).astype(float)
    first, last = sent + TTFT_S, sent + TTFT_S + TPOT_S * (output - 1)
    moved_first, moved_last = (np.array([stretch(at) for at in times]) for times in (first, last))
    ttft, decode = (moved_first - sent) * 1e3, (moved_last - moved_first) * 1e3 * np.exp(0.01 * dice.normal(size=N))
    none = np.full(N, np.nan)
    prompts = dice.integers(100, 900, N)
    measured = Measured(*(np.ones(N, bool), sent, prompts, output, ttft, decode, ttft + decode, none, none), False)
    moments = [(each * 1e9).astype(np.int64) for each in (sent, sent + 0.001, first, last)]
    zero = np.zeros(N, np.int64)
    return measured, Replayed(
        zero, *moments, [np.zeros((1, 0), np.int64)] * len(REPLAYED_PARTS), np.zeros((1, 0), np.int64)
    )


def slower(factor: float, begin: float, end: float = 1e9) -> Callable[[float], float]:
    """Time goes slower between two measured moments."""

    def stretch(at: float) -> float:
        inside = min(max(at - begin, 0.0), (end - begin) / factor)
        return at + inside * (factor - 1.0)

    return stretch


def test_a_log_as_predicted_has_no_incident() -> None:
    assert incidents_of(*world(lambda at: at)) == []


def test_pauses_are_counted_and_sized() -> None:
    stops = np.arange(5.0, 95.0, 12.0)
    (found,) = incidents_of(*world(lambda at: at + 0.45 * float(np.any((at > stops) & (at < stops + 1.4)))))
    assert (found.kind, found.name) == ("incident", "pause") and found.value > 0.2


def test_long_prompts_of_the_log_itself_are_no_pauses() -> None:
    """The same stops, each of which ends with a prompt whose prefill was predicted to take as long."""
    stops = np.arange(5.0, 95.0, 12.0)
    measured, base = world(lambda at: at + 0.45 * float(np.any((at > stops) & (at < stops + 1.4))))
    for stop in stops:
        row = int(np.argmin(np.abs(measured.first_s - stop - 0.45)))
        base.scheduled_ns[row] = base.first_ns[row] - 450_000_000
    assert "pause" not in [incident.name for incident in incidents_of(measured, base)]


def test_time_is_lost_where_the_engine_was_slow() -> None:
    measured, base = world(slower(1.6, 40.0, 60.0))
    lost = lost_time(measured, base)
    at = lost.start_s + lost.width_s * np.arange(lost.share.size)
    inside, outside = (at > 42.0) & (at < 56.0), (at < 37.0)
    assert lost.log_factor[inside].mean() > 0.3 > 0.05 > abs(lost.log_factor[outside].mean())


@pytest.mark.parametrize(("end", "kind"), [(1e9, "change"), (62.0, "incident")])
def test_an_engine_that_slows_down_is_dated_and_sized(end: float, kind: str) -> None:
    found = incidents_of(*world(slower(1.5, 50.0, end)))
    assert found[0].kind == kind and found[0].from_s == pytest.approx(50.0, abs=3.0)
    assert found[0].value == pytest.approx(1.5, rel=0.35)


def test_a_slower_gpu_that_first_tokens_contradict_is_no_cause() -> None:
    measured, base = world(slower(1.5, 50.0, 62.0))
    assert "gpu" in [incident.name for incident in incidents_of(measured, base)]
    inside = (measured.sent_s > 50.0) & (measured.sent_s < 62.0)
    sooner = measured._replace(ttft_ms=np.where(inside, 0.7 * base.ttft_ms, measured.ttft_ms))
    assert "gpu" not in [incident.name for incident in incidents_of(sooner, base)]


def test_an_outage_is_no_slow_engine() -> None:
    measured, base = world(lambda at: max(at, 70.0) if 50.0 < at < 70.0 else at)
    (found, *_) = incidents_of(measured, base)
    assert (found.kind, found.name) == ("incident", "restart")
    assert (found.from_s, found.to_s) == (pytest.approx(50.0, abs=1.5), pytest.approx(70.0, abs=1.5))


def test_a_slow_front_end_hides_no_slower_gpu() -> None:
    measured, base = world(lambda at: at)
    factor = np.where(measured.sent_s >= 50.0, 1.6, 1.0)
    ttft, decode = 100.0 + measured.ttft_ms * factor, measured.decode_ms * factor
    found = incidents_of(measured._replace(ttft_ms=ttft, decode_ms=decode, e2e_ms=ttft + decode), base)
    assert (found[0].kind, found[0].name) == ("change", "gpu")
    # where the fastest requests are as fast as before it is other load
    found = incidents_of(measured._replace(decode_ms=decode, e2e_ms=measured.ttft_ms + decode), base)
    assert (found[0].kind, found[0].name) == ("change", "other_load")
