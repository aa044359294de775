"""The probe of an engine's host time, on an engine whose steps are known."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.measure.host import SEQUENCES, need_vllm, probe, probe_vllm

BASE_US, EACH_US, START_S = 1400.0, 6.5, 0.35


def engine(noise: float):
    random = np.random.default_rng(0)

    def run(sequences: int, tokens: int) -> float:
        seconds = START_S + 2e-4 * sequences + tokens * (BASE_US + EACH_US * sequences) * 1e-6
        return seconds * (1.0 + noise * random.standard_normal())

    return run


def test_a_step_is_split_into_its_base_and_its_requests() -> None:
    found = probe(engine(0.0))
    assert found["step_base_us"] == pytest.approx(BASE_US) and found["per_request_us"] == pytest.approx(EACH_US)
    assert [one["sequences"] for one in found["steps"]] == list(SEQUENCES)
    loud = probe(engine(0.01))
    assert loud["step_base_us"] == pytest.approx(BASE_US, rel=0.1)


def test_one_slow_run_shifts_no_step() -> None:
    """The first of a batch, and one of three long ones, take a second longer."""
    quiet, calls = engine(0.0), []

    def run(sequences: int, tokens: int) -> float:
        calls.append(sequences)
        return quiet(sequences, tokens) + (1.0 if calls.count(sequences) in (1, 6) else 0.0)

    assert probe(run)["step_base_us"] == pytest.approx(BASE_US)


def test_what_was_found_is_written(tmp_path: Path) -> None:
    found = probe_vllm(tmp_path / "host.json", engine(0.0), "0.24.0")
    assert json.loads((tmp_path / "host.json").read_text()) == found
    assert (found["engine"], found["engine_version"]) == ("vllm", "0.24.0")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_probe_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--host-probe needs vLLM, which is not installed"):
        need_vllm()


def test_an_engine_that_gives_up_is_one_sentence(tmp_path: Path) -> None:
    def run(sequences: int, tokens: int) -> float:
        raise AssertionError("Engine core initialization failed.\nSee root cause above.")

    with pytest.raises(
        RunFailed, match=r"vLLM failed \(Engine core initialization failed.\); .*host.json was not written"
    ):
        probe_vllm(tmp_path / "host.json", run, "0.33.0")
    assert not list(tmp_path.iterdir())
