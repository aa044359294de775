"""Dynamo's mocker, called as its scheduler calls its times; its interpolation is stated here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

import kernelsight as ks
from kernelsight.plugins.dynamo import write_profile_data

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 8192}


# ai-dynamo/dynamo @ 0894f5c, lib/mocker/src/common/perf_model.rs
class PerfModel:
    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            assert {values.dtype for values in arrays.values()} == {np.dtype("float64")}
            self.isl, self.ttft_ms = arrays["prefill_isl"], arrays["prefill_ttft_ms"]
            axes = arrays["decode_active_kv_tokens"], arrays["decode_context_length"]
            self.decode = RegularGridInterpolator(axes, arrays["decode_itl"], bounds_error=False, fill_value=None)

    def predict_prefill_time(self, batch_size: int, isl: int, prefix: int) -> float:
        tokens = batch_size * (isl - prefix)
        return float(np.interp(tokens, self.isl, self.ttft_ms)) if tokens > 0 else 0.0

    def predict_decode_time(self, active_kv_tokens: int, context_length: int) -> float:
        return max(float(self.decode((active_kv_tokens, context_length))), 1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PerfModel:
    file = write_profile_data(tmp_path_factory.mktemp("mocker") / "l4", FLAGS)
    assert file.name == "l4.npz"
    return PerfModel(file)


def test_times_are_those_of_steps(model: PerfModel) -> None:
    dice = np.random.default_rng(4)
    for size, context in zip(dice.integers(1, 65, 200), np.exp(dice.uniform(3.0, 9.0, 200)).astype(int), strict=True):
        own_ms = ks.step_time(FLAGS, [(1, int(context))] * int(size)).latency_us / 1e3
        theirs_ms = model.predict_decode_time(int(size * context), int(context))
        assert theirs_ms == pytest.approx(max(own_ms, 1.0), rel=0.05), (size, context)
    for tokens in dice.integers(1, 2049, 50).tolist():
        own_ms = ks.step_time(FLAGS, [(tokens, 0)]).latency_us / 1e3
        assert model.predict_prefill_time(1, tokens + 64, 64) == pytest.approx(own_ms, rel=0.05), tokens


def test_its_grid_can_be_read(model: PerfModel) -> None:
    for axis in (model.isl, *model.decode.grid):
        assert (np.diff(axis) > 0).all()
    assert (model.isl[0], model.isl[-1], model.decode.grid[1][-1]) == (1, 2048, 8191)
    assert model.decode.grid[0][-1] == 64 * 8191
    assert np.isfinite(model.ttft_ms).all() and (model.decode.values > 0).all()
    assert model.predict_prefill_time(2, 64, 64) == 0.0
