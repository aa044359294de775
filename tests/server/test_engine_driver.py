"""What receivers get of requests whose tokens are known before they are due."""

from __future__ import annotations

import asyncio

import pytest

import kernelsight as ks
from kernelsight.server.engine_driver import MOST_US, Delivery, EngineDriver
from kernelsight.server.live_engines import LiveEngines
from kernelsight.server.start import engines_of
from kernelsight.serving.runs.step_times import deploy


class Receiver:
    def __init__(self) -> None:
        self.got: list[Delivery] = []

    def give(self, tokens: Delivery) -> None:
        self.got.append(tokens)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def until_known(driver: EngineDriver, clock: Clock) -> None:
    """Advance to where a step runs, whose tokens are known and not due."""
    while not driver._waiting:
        clock.now_s = driver.engines.next_us / 1e6 + 1e-6
        driver.turn()


@pytest.fixture
def engines() -> LiveEngines:
    with ks.connect() as session:
        return engines_of(deploy(session, {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 1}), 1)


def test_a_cancelled_request_gets_no_token_of_the_step_that_runs(engines: LiveEngines) -> None:
    """Its engine is said, so that it is counted there; a request that has all its tokens is not cancelled."""

    async def main() -> tuple[Receiver, list[int | None]]:
        clock, gone, stays = Clock(), Receiver(), Receiver()
        driver = EngineDriver(engines, 1.0, clock)
        assert driver.send(30, 5000, [], 0, gone) and driver.send(40, 3, [], 0, stays)
        until_known(driver, clock)
        before = list(gone.got)
        cancelled = [driver.cancel(gone), driver.cancel(gone)]
        clock.now_s = 10.0
        driver.turn()
        assert 0 < len(before) < 5000 and gone.got == before
        return stays, [*cancelled, driver.cancel(stays)]

    stays, cancelled = asyncio.run(main())
    assert cancelled == [0, None, None]
    assert sum(tokens.count for tokens in stays.got) == 3 and not engines.active
    assert {tokens.sent_us for tokens in stays.got} == {float(engines.requests["sent_us"][1])}


def test_a_turn_ends_however_late_it_is(engines: LiveEngines) -> None:
    """Hours behind the clock, each turn simulates a second at most, and the next one goes on where it ended."""

    async def main() -> None:
        clock, receiver = Clock(), Receiver()
        driver = EngineDriver(engines, 1000.0, clock)
        assert driver.send(30, 4000, [], 0, receiver)
        turns = reached_us = 0
        while engines.active and turns < 1000:
            clock.now_s += 3600.0
            driver.turn()
            turns += 1
            assert engines.reached_us - reached_us <= MOST_US + 1e5  # of a step that ends later
            reached_us = engines.reached_us
        times_us = [tokens.time_us for tokens in receiver.got]
        assert 5 < turns < 1000 and times_us == sorted(times_us)

    asyncio.run(main())
