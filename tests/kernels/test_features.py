"""Features of every family are finite, named, blind to rates."""

import numpy as np
import pytest

from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.features import features, names_of

COLUMNS = (
    "m n k batch new_tokens cached_tokens context keys heads kv_heads head_dim window tokens hidden intermediate top_k "
    "moe_ep rank_rows active_experts rows columns sequences queries visible_pairs width group_size flops bytes even"
).split()


def _calls(family: str, rows: int = 20) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: np.floor(2.0 ** random.uniform(0.0, 14.0, rows)) for name in COLUMNS}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_features_are_finite_named_and_blind_to_rates(family):
    call = _calls(family)
    call["window"] = call["cached_tokens"] = np.zeros(20)
    found = features(np, family, call, {"sm_count": np.full(20, 132.0)})
    assert found.shape == (20, len(names_of(family)))
    assert np.isfinite(found).all()
    gpu = {"sm_count": np.full(20, 132.0), "memory_bytes_per_us": np.full(20, 1e9)}
    assert np.array_equal(features(np, family, call, gpu), found)


def test_a_full_tile_loses_nothing_and_one_row_more_rounds_up():
    call = {
        name: np.array(values) for name, values in {"m": [64.0, 65.0], "n": [8192.0] * 2, "k": [4096.0] * 2}.items()
    }
    call = {**call, "flops": 2.0 * call["m"] * call["n"] * call["k"], "bytes": call["m"]}
    found = dict(zip(names_of("gemm"), features(np, "gemm", call, {"sm_count": np.full(2, 128.0)}).T, strict=True))
    assert found["m to 64"].tolist() == [0.0, pytest.approx(np.log2(128 / 65))]
    assert found["waves of m/64*n/64"].tolist() == [0.0, 1.0]
    assert found["rest of m/64*n/64"].tolist() == [0.0, 0.0]
