"""The CPU of a server: named or that of the GPU, and what host times it gives."""

from __future__ import annotations

import pytest

from kernelsight.errors import UnknownName
from kernelsight.session import connect

LOAD = {"model": "qwen3-0.6b", "max_concurrency": 4, "num_prompts": 8, "input_len": 64, "output_len": 8}


def host(session, **flags):
    """Return the host settings of a deployment that is served."""
    return session.simulate(**LOAD, **flags).table("host_settings").to_pylist()[0]


def test_a_gpu_brings_its_cpu_and_another_can_be_named():
    with connect() as session:
        own, named, usual = (
            host(session, **flags) for flags in ({"gpu": "gb200"}, {"gpu": "gb200", "cpu": "x86"}, {"gpu": "l4"})
        )
    assert (own["cpu"], named["cpu"], usual["cpu"]) == ("grace", "x86", "x86")
    assert own["per_request_us"] * own["cpu_speed"] == pytest.approx(named["per_request_us"])
    assert own["launch_gap_us"] == named["launch_gap_us"]


def test_an_unknown_cpu_is_refused():
    with connect() as session, pytest.raises(UnknownName, match="cpus"):
        session.simulate(**LOAD, gpu="l4", cpu="abacus")
