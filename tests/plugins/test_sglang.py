"""SGLang's predictor, called as its simulator calls it; its classes are stated here with its fields."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

import kernelsight as ks
from kernelsight.plugins.sglang import Predictor


# sgl-project/sglang @ 2f070b1, tools/sglang-simulator/src/sglang_simulator/time_predictor/base.py
@dataclass
class ScheduleRequest:
    extend_length: int = 0
    past_kv_length: int = 0


@dataclass
class ScheduleBatch:
    reqs: list[ScheduleRequest] = field(default_factory=list)


@dataclass
class Stated:
    name: str | None = None
    model_path: str | None = None
    tp_size: int = 1
    backend_version: str | None = None


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor(Stated(model_path="Qwen/Qwen3-8B"), Stated(name="a100_sxm"), Stated(backend_version="0.5.9"))


def test_calls_of_its_own_test(predictor: Predictor) -> None:
    """test_simulation_time_predictor.py @ 04b91ac: one prefill and one decode batch."""
    prefill = [ScheduleRequest(512, 512), ScheduleRequest(1024, 0), ScheduleRequest(512, 0)]
    assert predictor.predict_infer_time(ScheduleBatch(prefill)) > 0
    decode = predictor.predict_infer_time(ScheduleBatch([ScheduleRequest(1, 1024)] * 3))
    assert decode > 0
    flags = {"model": "qwen3-8b", "gpu": "a100_sxm", "engine": "sglang", "engine_version": "0.5.9"}
    own = ks.step_time({**flags, "tensor_parallel_size": 1}, [(1, 1024)] * 3)
    assert decode == own.latency_us / 1e6 == predictor.predict_infer_time([(1, 1024)] * 3)


def test_an_idle_batch_takes_no_time(predictor: Predictor) -> None:
    assert predictor.predict_infer_time(ScheduleBatch()) == 0.0
    assert predictor.get_metrics() == {} and predictor.reset_metrics() is None
