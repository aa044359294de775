"""From a few measured calls to a pack and its predictions; which calls a plan takes; intervals after points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput
from kernelsight.fitting.few_shot import (
    OWN_SOURCE,
    fit_few,
    joined_measured,
    measured_calls,
    point_rows,
)
from kernelsight.fitting.planned_points import planned
from kernelsight.fitting.point_fit import Measured, fit_points, moved_calls
from kernelsight.fitting.points_intervals import errors_after_points, points_intervals, remaining_errors_of
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.few_shot import calibration_of, prior_for
from kernelsight.kernels.intervals import spread
from kernelsight.kernels.pack import shipped_pack, with_assumed
from tests.fitting.measured import gemm, point, write
from tests.kernels.calls import call_table, price, work

TABLES = (facts("kernel_implementations"), facts("gpus"), facts("fabrics"))
KNOWN = (facts("gpus"), facts("fabrics"), facts("kernel_implementations"))
SHAPES = [(m, n, 4096) for m in (1, 64, 512, 4096) for n in (2048, 8192)]
FACTOR = 1.5


@pytest.fixture(scope="module")
def base() -> pa.Table:
    """The gemm rows of the shipped pack alone."""
    pack = shipped_pack()
    return pack.filter(pc.equal(pack["family"], "gemm"))


def sweep_of(tmp_path: Path, gpu: str, base: pa.Table, shapes: list = SHAPES, factor: float = FACTOR) -> Path:
    """Return a sweep whose products take a factor longer than the fit across generations says."""
    draft = write(tmp_path / "draft.parquet", [gemm(gpu, *shape, 1.0) for shape in shapes])
    table = training_rows([draft], "gemm", [gpu])
    found = measured_calls("gemm", table, gpu, with_assumed(base), TABLES)
    sizes = zip(*(table[name].to_pylist() for name in ("m", "n", "k")), strict=True)
    us = factor * found.predicted_us
    rows = [gemm(gpu, *map(int, shape), float(one)) for shape, one in zip(sizes, us, strict=True)]
    return write(tmp_path / f"{gpu}.parquet", rows)


def answers(gpu: str, pack: pa.Table, tier: str = "auto", size: int = 3000) -> dict[str, Any]:
    sizes = {"m": np.array([256.0]), "n": np.array([float(size)]), "k": np.array([4096.0])}
    calls = call_table({**sizes, **work("gemm", sizes), "format": ["bf16"]}, gpu, "bf16")
    return price("gemm", calls, tier=tier, eta_coefficients=pack).to_pylist()[0]


def test_points_of_a_gpu_without_a_sweep_answer_for_its_other_calls(tmp_path: Path, base: pa.Table) -> None:
    pack = fit_few([sweep_of(tmp_path, "l4", base)], ["l4"], base, *KNOWN)
    before, after = answers("l4", base), answers("l4", pack)
    assert (before["tier"], after["tier"]) == ("cross-generation", "points-measured")
    assert after["latency_us"] / before["latency_us"] == pytest.approx(FACTOR, rel=0.1)
    assert after["evidence"] == "8 points of l4, beside sweeps of other GPUs: cublas"
    # asked not to use them, the fit across generations answers as if they were not there
    assert answers("l4", pack, "cross-generation")["latency_us"] == pytest.approx(before["latency_us"])
    assert answers("l40s", pack, "cross-generation") == answers("l40s", base, "cross-generation")


def test_the_interval_is_what_as_many_points_left_on_other_generations(tmp_path: Path, base: pa.Table) -> None:
    pack = fit_few([sweep_of(tmp_path, "l4", base)], ["l4"], base, *KNOWN)
    named = ("interval", "5 points", None)
    rows = zip(base.to_pylist(), *(base[name].to_pylist() for name in ("part", "dtype", "without")), strict=True)
    curve = next(np.array(row["array"]) for row, *words in rows if tuple(words) == named)
    found = answers("l4", pack)
    assert found["latency_p95_us"] / found["latency_us"] == pytest.approx(
        float(spread(np, np.array([found["latency_us"]]), curve)[0])
    )


def test_a_swept_gpu_with_points_is_asked_for_them_by_name(tmp_path: Path, base: pa.Table) -> None:
    pack = fit_few([sweep_of(tmp_path, "l40s", base)], ["l40s"], base, *KNOWN)
    unused = {"evidence": "sweep of l40s, before its points (--tier points-measured): cublas"}
    assert answers("l40s", pack) == answers("l40s", base) | unused
    across, found = answers("l40s", base, "cross-generation"), answers("l40s", pack, "points-measured")
    assert found["tier"] == "points-measured"
    assert found["latency_us"] / across["latency_us"] == pytest.approx(FACTOR, rel=0.1)


def test_later_points_replace_earlier_ones(tmp_path: Path, base: pa.Table) -> None:
    first = fit_few([sweep_of(tmp_path, "l4", base)], ["l4"], base, *KNOWN)
    again = fit_few([sweep_of(tmp_path, "l4", base, factor=1.2)], ["l4"], first, *KNOWN)
    once = fit_few([sweep_of(tmp_path, "l4", base, factor=1.2)], ["l4"], base, *KNOWN)
    assert again.num_rows == once.num_rows
    assert answers("l4", again) == answers("l4", once)


def test_what_was_timed_alone_is_served_as_it_was_measured(tmp_path: Path) -> None:
    """Published sweeps pay a gap between replays, cache writes and more: `calibrate measure` does not."""
    pack = shipped_pack()
    base = pack.filter(pc.equal(pack["family"], "decode_attention"))
    steps = [(batch, context) for batch in (1, 8, 64) for context in (511, 4095)]
    sizes = dict(zip(("batch", "context"), np.array(steps, float).T, strict=True))
    sizes |= {"heads": np.full(6, 32.0), "kv_heads": np.full(6, 8.0), "head_dim": np.full(6, 128.0)}
    sizes["window"] = np.zeros(6)
    table = call_table({**sizes, **work("decode_attention", sizes), "format": ["bf16"] * 6}, "l4", "bf16")
    table = table.set_column(table.column_names.index("head_dim"), "head_dim", table["head_dim"].cast(pa.int64()))

    def served(pack: pa.Table) -> list[dict[str, Any]]:
        return price("decode_attention", table, eta_coefficients=pack).to_pylist()

    before = served(base)
    kernel = before[0]["evidence"].partition(": ")[2].partition(",")[0]
    rows = [
        point(
            "decode_attention",
            "l4",
            row["latency_us"],
            shape={name: int(values[number]) for name, values in sizes.items()},
            implementation=kernel,
            dtype="bf16/bf16",
            working_set_bytes=10**15,
            source=OWN_SOURCE,
        )
        for number, row in enumerate(before)
    ]
    after = served(fit_few([write(tmp_path / "own.parquet", rows)], ["l4"], base, *KNOWN))
    assert {row["tier"] for row in after} == {"points-measured"}
    assert [row["latency_us"] for row in after] == pytest.approx([row["latency_us"] for row in before], rel=0.01)


def test_without_points_the_tier_is_refused(base: pa.Table) -> None:
    with pytest.raises(InvalidInput, match=r"tier points-measured needs measured points of l4, and there are none"):
        answers("l4", base, "points-measured")


def test_many_points_are_a_sweep(tmp_path: Path, base: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelsight.fitting.few_shot.MOST_POINTS", 7)
    with pytest.raises(InvalidInput, match=r"--few has 8 points of gemm on l4, and up to 7 are few; fit them as a sw"):
        fit_few([sweep_of(tmp_path, "l4", base)], ["l4"], base, *KNOWN)


GRID = [(m, n, k) for m in (1, 16, 128, 1024, 8192) for n in (1024, 4096, 8192) for k in (1024, 2048, 8192)]
KERNELS = (("vllm", "cublas"), ("vllm", "marlin"), ("sglang", "cublas"), ("sglang", "marlin"))


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory, base: pa.Table) -> Measured:
    """Return products of four kernels on a GPU without a sweep, all as the fit across generations says."""
    draft = tmp_path_factory.mktemp("products") / "draft.parquet"
    rows = [
        gemm("l4", *shape, 1.0, engine=engine, implementation=implementation)
        for engine, implementation in KERNELS
        for shape in GRID
    ]
    measured = measured_calls(
        "gemm", training_rows([write(draft, rows)], "gemm", ["l4"]), "l4", with_assumed(base), TABLES
    )
    return measured._replace(log_error=np.zeros(measured.inputs.size))


def scattered(products: Measured, seed: int, scatter: float = 0.05) -> Measured:
    """Return products of a GPU on which all take longer by a factor, and short ones by another."""
    random = np.random.default_rng(seed)
    error = 0.3 - 0.03 * np.log(products.predicted_us) + random.normal(0.0, scatter, products.inputs.size)
    return products._replace(log_error=error)


def test_a_plan_takes_as_many_of_each_kernel_where_other_constants_count(products: Measured) -> None:
    chosen = planned(products.inputs, np.ones(products.inputs.size), 3)
    names = products.inputs.kernels()[chosen]
    assert [int((names == name).sum()) for name in sorted(set(names))] == [3, 3, 3, 3]
    for name in set(names):
        own = products.inputs.slopes[chosen][names == name]
        directions = own / np.linalg.norm(own, axis=1, keepdims=True)
        assert (directions @ directions.T)[~np.eye(3, dtype=bool)].min() < 0.8


def test_a_plan_takes_served_calls_where_there_are_any(products: Measured) -> None:
    short = products.predicted_us < np.median(products.predicted_us)
    weight = np.where(products.inputs.implementation == "cublas", short, 0.0)
    chosen = planned(products.inputs, weight, 4)
    mine = chosen[products.inputs.implementation[chosen] == "cublas"]
    assert chosen.size == 16 and short[mine].all()


def test_a_constant_that_is_another_on_a_gpu_is_found(products: Measured) -> None:
    """Floors that take three times as long move short calls of every kernel, and none that are long."""
    floors = {name: products.calls.at[name] * 3.0 for name in ("floor_us", "floor_clocks")}
    slow = products.calls._replace(at={**products.calls.at, **floors})
    measured = products._replace(log_error=np.log(slow.latency_us() / products.predicted_us))
    kernels = products.inputs.kernels()
    own = np.flatnonzero(kernels == "vllm|cublas|bf16")
    points = own[planned(products.inputs.at(own), np.ones(own.size), 5)]
    found = measured.latency_us(fit_points(measured.at(points)))
    before, after = (np.abs(np.log(us / slow.latency_us())) for us in (products.predicted_us, found))
    short = products.predicted_us < np.quantile(products.predicted_us, 0.3)

    def left(kernel: str) -> float:
        of = short & (kernels == kernel)
        return float(after[of].mean() / before[of].mean())

    assert before[short].mean() > 0.2
    assert left("vllm|cublas|bf16") < 0.3
    assert left("vllm|cublas|bf16") < left("sglang|cublas|bf16") < left("vllm|marlin|bf16") < 0.9


@pytest.mark.parametrize("seed", [3, 5, 9])
def test_more_steps_leave_moves_where_they_are(products: Measured, seed: int) -> None:
    """By whole steps alone calls of these points go to and fro by a fifth to a half, for ever."""
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(products.inputs.size, 6, replace=False))
    measured = products._replace(log_error=random.normal(0.0, 0.6, products.inputs.size))
    default, once_more, twice_more = (
        measured.latency_us(fit_points(measured.at(rows), **steps)) for steps in ({}, {"steps": 11}, {"steps": 12})
    )
    assert np.abs(np.log(twice_more / once_more)).max() < 0.01
    assert np.abs(np.log(twice_more / default)).max() < 0.1


def test_points_of_another_vendor_move_its_constants_less(products: Measured) -> None:
    measured = scattered(products, 5)
    rows = np.arange(0, measured.inputs.size, 30)

    def moved(vendor: str | None) -> float:
        found = fit_points(measured.at(rows), prior=prior_for(vendor))
        return sum(abs(one) for moves in found.moves.values() for one in moves.values())

    assert 0.0 < moved("amd") < moved(None)


def test_a_pack_keeps_what_points_say(products: Measured) -> None:
    measured = scattered(products, 3)
    rows = np.arange(0, measured.inputs.size, 9)
    fitted = fit_points(measured.at(rows))
    again = calibration_of(
        [{"value": None, "array": None, **row} for row in point_rows("gemm", "l4", fitted, "a test")]
    )
    assert np.allclose(measured.latency_us(again), measured.latency_us(fitted), rtol=1e-5)
    assert not np.allclose(moved_calls(measured.calls, again).latency_us(), measured.predicted_us, rtol=0.05)
    counts = [again.count(f"{engine}|{implementation}|bf16") for engine, implementation in KERNELS]
    assert counts == [5, 5, 5, 5] and again.count("trtllm|cublas|bf16") == 0


def test_calls_measured_in_two_ways_are_fitted_together(products: Measured) -> None:
    measured = scattered(products, 4)
    halves = joined_measured([measured.at(np.arange(start, measured.inputs.size, 2)) for start in (0, 1)])
    order = np.concatenate([np.arange(start, measured.inputs.size, 2) for start in (0, 1)])
    together = fit_points(measured.at(order))
    assert np.allclose(halves.latency_us(fit_points(halves)), measured.at(order).latency_us(together))


def test_points_leave_less_than_there_was(products: Measured) -> None:
    measured = scattered(products, 2)
    before = np.abs(measured.log_error).mean()
    left = [np.abs(errors_after_points("gemm", measured, "ada", count).log_error).mean() for count in (0, 1, 3, 10)]
    assert before > left[1] > left[2] and before > left[0]
    assert left[3] < 0.08


def test_intervals_after_points_are_what_other_generations_leave(products: Measured) -> None:
    calls = {gpu: {"gemm": scattered(products, seed, 0.1)} for seed, gpu in enumerate(("a100_sxm", "l40s", "h100_sxm"))}
    calls["b200_sxm"] = {"gemm": scattered(products, 9, 0.8)}
    remaining = remaining_errors_of(calls, (3, 10))
    curves, without = points_intervals(remaining)["gemm"], points_intervals(remaining, without="sm_100")["gemm"]
    assert set(curves) == {"3 points", "10 points"}
    assert (without["3 points"] < curves["3 points"]).all()
    assert without["10 points"].mean() == pytest.approx(1.645 * 0.1, rel=0.4)
