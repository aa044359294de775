"""Defaults that go by the engine's version: vLLM schedules a step ahead from 0.14 on, unless a flag says otherwise."""

from __future__ import annotations

from kernelsight.session import connect
from tests.asked import give_plan

LOAD = {"model": "qwen3-0.6b", "gpu": "l4", "max_concurrency": 2, "num_prompts": 4, "input_len": 8, "output_len": 2}
AHEAD = [
    ({}, True),
    ({"engine_version": "0.11.0"}, False),
    ({"engine_version": "v0.13.2+cu128"}, False),
    ({"engine_version": "0.14"}, True),
    ({"engine_version": "0.14.0rc1"}, True),
    ({"engine_version": "1.0"}, True),
    ({"engine_version": "0.9", "async_scheduling": True}, True),
    ({"engine": "sglang", "engine_version": "0.5.6"}, True),
]


def test_asynchronous_scheduling() -> None:
    with connect() as session:
        names = give_plan(session, [LOAD | flags for flags, _ in AHEAD])
        found = dict(
            session.sql(
                "select scenario_id, settings.async_scheduling from scenarios "
                "join deployment_settings as settings using (deployment_id)"
            ).fetchall()
        )
    assert [(flags, found[name]) for (flags, _), name in zip(AHEAD, names, strict=True)] == AHEAD
