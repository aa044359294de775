"""Points of a small sweep: answered by what was measured there, without a say far from all of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.fitting.expressions import fit_family, predict_family
from kernelsight.fitting.measured import MOST_POINTS, correct, fit_measured, fit_nearby, rows_of
from kernelsight.fitting.pack_rows import nearby_rows
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.nearby import nearby_delta, nearby_of
from kernelsight.kernels.pack import pack_table
from tests.fitting.measured import gemm, write

KERNEL = "vllm|cublas|bf16"
TABLES = (facts("kernel_implementations"), facts("gpus"), facts("fabrics"))


def grid() -> tuple[np.ndarray, np.ndarray]:
    """Return points on a plane, and a smooth function of them with a bump at every one."""
    points = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), axis=-1).reshape(-1, 2)
    bumps = np.random.default_rng(0).normal(0.0, 0.01, points.shape[0])
    return points, 0.2 * np.sin(points[:, 0]) + 0.1 * np.cos(points[:, 1]) + bumps


def test_measured_points_are_answered_up_to_their_noise() -> None:
    points, left = grid()
    near = fit_nearby(points, left, [KERNEL] * left.size)
    found = nearby_delta(points, [KERNEL] * left.size, near)
    assert np.abs(found - left).max() < 0.02
    assert np.abs(left).max() > 0.2


def test_between_points_both_neighbours_count_and_far_away_none() -> None:
    points, left = grid()
    near = fit_nearby(points, left, [KERNEL] * left.size)
    between = nearby_delta(np.array([[5.0, 5.5]]), [KERNEL], near)[0]
    sides = left[(points[:, 0] == 5.0) & np.isin(points[:, 1], (5.0, 6.0))]
    assert sides.min() - 0.05 < between < sides.max() + 0.05
    assert abs(nearby_delta(np.array([[500.0, 5.0]]), [KERNEL], near)[0]) < 1e-6


def test_repeats_of_a_point_count_as_their_mean() -> None:
    points, left = grid()
    near = fit_nearby(np.tile(points, (2, 1)), np.concatenate([left - 0.1, left + 0.1]), [KERNEL] * 2 * left.size)
    assert near[KERNEL].weights.size == left.size
    assert np.abs(nearby_delta(points, [KERNEL] * left.size, near) - left).max() < 0.05


def test_kernels_do_not_teach_each_other() -> None:
    points, left = grid()
    near = fit_nearby(points, left, [KERNEL] * left.size)
    assert not nearby_delta(points, ["sglang|cublas|bf16"] * left.size, near).any()


def test_a_large_sweep_has_no_points() -> None:
    count = MOST_POINTS + 1
    assert fit_nearby(np.arange(count)[:, None], np.zeros(count), [KERNEL] * count) == {}


def test_rows_of_a_pack_hold_the_points() -> None:
    points, left = grid()
    near = fit_nearby(points, left, [KERNEL] * left.size)
    rows = pack_table(nearby_rows("gemm", "l4", near, "a test")).to_pylist()
    kernels = [KERNEL] * left.size
    np.testing.assert_allclose(
        nearby_delta(points, kernels, nearby_of(rows)), nearby_delta(points, kernels, near), atol=1e-5
    )


@pytest.fixture(scope="module")
def small_sweep(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Two GPUs; every product of the second takes a time of its own, up to a half longer than the physics would."""
    random, rows = np.random.default_rng(1), []
    for gpu, scale in (("h100_sxm", 1.0), ("l4", 6.0)):
        for m in (1, 8, 64, 512, 4096):
            for n, k in ((1024, 1024), (4096, 1024), (4096, 4096), (8192, 8192), (1024, 8192), (2048, 512)):
                quirk = 1.0 if gpu == "h100_sxm" else random.uniform(1.0, 1.5)
                rows.append(gemm(gpu, m, n, k, scale * quirk * (3.0 + n * k / 1.2e6 + m * n * k / 3e8)))
    path = write(tmp_path_factory.mktemp("sweep") / "mine.parquet", rows)
    return training_rows([path], "gemm", ["h100_sxm", "l4"])


@pytest.mark.whole
def test_a_users_own_sweep_is_exact_at_its_points(small_sweep: pa.Table) -> None:
    constants = pack_table(fit_family("gemm", FAMILIES["gemm"].latency_model, small_sweep, *TABLES, "a test"))
    own = fit_measured("gemm", FAMILIES["gemm"].latency_model, small_sweep, "l4", constants, *TABLES, effort=0.05)
    mine = small_sweep.filter(pa.array([gpu == "l4" for gpu in small_sweep["gpu"].to_pylist()]))
    base = predict_family("gemm", FAMILIES["gemm"].latency_model, mine, constants, *TABLES)
    found = correct("gemm", FAMILIES["gemm"].latency_model, mine, base, rows_of("gemm", "l4", own), *TABLES)
    error = np.abs(found / mine["latency_us"].to_numpy() - 1.0)
    assert np.abs(base / mine["latency_us"].to_numpy() - 1.0).max() > 0.1
    assert np.median(error) < 0.02
    assert error.max() < 0.1
