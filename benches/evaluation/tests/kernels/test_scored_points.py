"""A whole evaluation with a few measured calls: what is measured and scored, what latencies of the target reach."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelsight.evaluation.kernels.evaluate import evaluate
from kernelsight.evaluation.kernels.predict import PointBudget
from kernelsight.fitting.splits import Split
from kernelsight.kernels.few_shot import call_inputs
from kernelsight.laboratory.kernels.scored_points import fitted, planned_of_family, rows_after_points, scored_after
from tests.fitting.measured import gemm, write

TRAIN = ("a100_sxm", "l40s", "h100_sxm")
SHAPES = [(m, n, k) for m in (1, 16, 256, 4096) for n in (1024, 4096, 6144) for k in (1024, 4096)]
RATES = {"a100_sxm": (312e6, 2.0e6), "l40s": (362e6, 0.86e6), "h100_sxm": (989e6, 3.35e6), "gb200": (2500e6, 8e6)}
# intervals are not asked for here
RESTS: dict[int, dict] = {}
SPLIT = Split("test", TRAIN, ("gb200",), "points-measured")


def took_us(gpu: str, m: int, n: int, k: int) -> float:
    """Products at 60 % of the roofline above 3 us; GB200 takes 1.4 times that."""
    flops, moved = RATES[gpu]
    us = 3.0 + max(2.0 * m * n * k / flops, 2.0 * (m * k + n * k + m * n) / moved) / 0.6
    return 1.4 * us if gpu == "gb200" else us


def rows_of(scramble: float = 0.0) -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    rows = [gemm(gpu, *shape, took_us(gpu, *shape)) for gpu in TRAIN for shape in SHAPES]
    us = [took_us("gb200", *shape) * np.exp(scramble * random.normal()) for shape in SHAPES]
    return rows + [gemm("gb200", *shape, one) for shape, one in zip(SHAPES, us, strict=True)]


def shapes_of(table: Any) -> set[tuple]:
    return set(zip(*(table[name].to_pylist() for name in ("m", "n", "k")), strict=True))


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> dict[float, dict]:
    """Fits of a sweep, and of the same with other latencies of GB200."""
    folder, found = tmp_path_factory.mktemp("sweeps"), {}
    for scramble in (0.0, 1.0):
        sweep = write(folder / f"{scramble}.parquet", rows_of(scramble))
        found[scramble] = dict(fitted([sweep], TRAIN, ["gb200"], ["gemm"]))
    return found


def test_points_are_measured_and_the_others_scored(fits: dict[float, dict]) -> None:
    scored, more = scored_after(PointBudget(3), fits[0.0], ["gb200"], RESTS)
    assert more["points"] == 3 and scored["gemm"].num_rows == len(SHAPES) - 3
    before, _ = scored_after(PointBudget(0), fits[0.0], ["gb200"], RESTS)
    errors = [
        np.abs(np.log(rows["predicted_us"].to_numpy() / rows["latency_us"].to_numpy())).mean()
        for rows in (before["gemm"], scored["gemm"])
    ]
    assert errors[1] < 0.5 * errors[0]
    # sites are (n, k): 6 of them, 3 at most with a point
    assert 0 < more["unmeasured_sites"]["grid"]["n"] < len(SHAPES) - 3


def test_latencies_of_the_target_change_no_plan_and_reach_other_points_by_those_measured_alone(
    fits: dict[float, dict],
) -> None:
    chosen = []
    for found in fits.values():
        rest = shapes_of(scored_after(PointBudget(4), found, ["gb200"], RESTS)[0]["gemm"])
        chosen.append(set(SHAPES) - rest)
    assert len(chosen[0]) == 4 and chosen[0] == chosen[1]
    # all latencies are others, but for those of the points
    true, scrambled = (dict(one)["gemm"] for one in fits.values())
    own = true.own["gb200"]
    table = true.test["gb200"].to_pylist()
    is_point = np.array([(row["m"], row["n"], row["k"]) in chosen[0] for row in table])
    error = np.where(is_point, own.log_error, scrambled.own["gb200"].log_error)
    mixed = {"gemm": true._replace(own={"gb200": own._replace(log_error=error)})}
    answers = [scored_after(PointBudget(4), one, ["gb200"], RESTS)[0]["gemm"] for one in (fits[0.0], mixed)]
    assert answers[0]["predicted_us"].equals(answers[1]["predicted_us"])


def test_random_points_are_as_many(fits: dict[float, dict]) -> None:
    assert scored_after(PointBudget(5, "random"), fits[0.0], ["gb200"], RESTS)[1]["points"] == 5


def test_one_call_of_a_family_is_served_and_of_its_heaviest_kernel_in_every_group() -> None:
    words = {"engine": "vllm", "dtype": "bf16", "implementation": np.array(["a", "b", "b", "c", "c"], dtype=object)}
    inputs = call_inputs(words, np.arange(5.0)[:, None], np.zeros((5, 1)))
    weight = np.array([2.0, 1.5, 0.0, 3.0, 4.0])
    assert planned_of_family(inputs, weight)[0] in (3, 4)
    groups = np.array([2, 2, 2, 4, 4])
    first, second = planned_of_family(inputs, weight, groups)
    assert first == 0 and second in (3, 4)


def test_the_report_has_the_points(tmp_path: Path) -> None:
    sweep = write(tmp_path / "sweep.parquet", rows_of())
    found, _ = evaluate([sweep], SPLIT, None, score_rows=partial(rows_after_points, PointBudget(2)))
    assert found["points"] == 2 and found["overall"]["grid"]["n"] == len(SHAPES) - 2
    assert found["split"]["tier"] == "points-measured"
    assert set(found["unmeasured_sites"]) == {"grid", "serving"}
