"""Figures and tables of the paper: which shapes and deployments they show, and over which rows errors are taken."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from kernelsight.laboratory.paper.kernels import along, dominant, errors_by_region
from kernelsight.laboratory.paper.serving import points_of
from kernelsight.laboratory.paper.sources import DEPLOYMENT, most_loads
from kernelsight.laboratory.paper.tables import families, mean_over, scores


def products(*rows: tuple[str, str, float, float]) -> pl.DataFrame:
    """Rows of products: GPU, dtype, m and n; work as the bytes of the weight."""
    columns = [dict(zip(("gpu", "dtype", "m", "n"), row, strict=True)) for row in rows]
    return pl.DataFrame([{**row, "engine": "vllm", "k": 1.0, "bytes": row["n"]} for row in columns])


def test_the_dominant_shape_is_the_one_that_most_gpus_measured_in_16_bit_with_the_median_work() -> None:
    both = [
        (gpu, dtype, m, n) for gpu in "ab" for dtype in ("bf16", "fp8") for m in (1.0, 2.0) for n in (4.0, 8.0, 9.0)
    ]
    lone = [("a", "bf16", m, 99.0) for m in (1.0, 2.0, 3.0, 4.0, 5.0)]
    rows = products(*both, *lone)
    fixed = dominant("gemm", rows, "m")
    assert fixed == {"engine": "vllm", "dtype": "bf16", "n": 8.0, "k": 1.0}
    with_eta = rows.with_columns(eta=pl.col("m") * 2.0)
    assert [(row["gpu"], row["size"], row["eta"]) for row in along(with_eta, fixed, "m", "eta")] == [
        ("a", 1.0, 2.0), ("a", 2.0, 4.0), ("b", 1.0, 2.0), ("b", 2.0, 4.0),
    ]  # fmt: skip


def scored(measured: list[float], predicted: list[float], **more: Any) -> pa.Table:
    """Scored rows whose every prediction is the same."""
    names = ("unmeasured_us", "predicted_us", "roofline_us", "affine_roofline_us", "nearest_gpu_us")
    always = {"serving": [True] * len(measured), "covered": [True] * len(measured)} | more
    return pa.table({"latency_us": measured, **dict.fromkeys(names, predicted), **always})


def test_collectives_weigh_as_one_family_and_time_as_it_was_measured() -> None:
    cells = {("gemm", "bf16"): scored([10.0, 90.0], [11.0, 45.0])}
    cells |= {(name, "fp16"): scored([1.0], [2.0]) for name in ("all_reduce", "all_gather", "all_to_all")}
    grouped = families(cells)
    assert list(grouped) == ["gemm", "collectives"] and len(grouped["collectives"]) == 3
    overall = mean_over(grouped.values())["nothing known"]
    assert overall["mape"] == pytest.approx((0.3 + 1.0) / 2) and overall["n"] == 5
    assert scores(grouped["gemm"])["roofline"]["time_weighted_ape"] == pytest.approx(0.46)


def test_errors_go_to_the_region_of_the_kernel_that_ran_else_of_its_family() -> None:
    table = scored([1.0, 1.0, 1.0], [1.1, 1.5, 9.0], implementation=["old", "new", "new"])
    table = table.set_column(table.column_names.index("serving"), "serving", pa.array([True, True, False]))
    found = errors_by_region({"moe": table}, {("moe", "old"): "safe", ("moe", None): "danger"})
    assert [(row["region"], row["n"], round(row["mape"], 3)) for row in found] == [("danger", 1, 0.5), ("safe", 1, 0.1)]


def test_a_run_has_an_error_and_the_ends_of_its_interval_for_each_metric() -> None:
    run = {"run_id": "r", "gpu": "gb200", "max_concurrency": 4, "osl": 11, "prefill_workers": None, "status": "served"}
    run |= {"ttft_ms": 100.0, "tpot_ms": 10.0, "ttft_mean_ms": 120.0, "tpot_mean_ms": 8.0}
    points = {point["metric"]: point for point in points_of(run | {"interval_factors": {"ttft": [0.5, 2.0]}})}
    assert points["ttft"]["error"] == 20.0 and (points["ttft"]["low"], points["ttft"]["high"]) == (-40.0, 140.0)
    assert points["throughput"]["measured"] == 220.0 and points["throughput"]["error"] == 0.0
    assert points_of(run | {"status": "refused"}) == [] and points_of(run | {"tpot_ms": None}) == []


def test_the_deployments_of_figure_12_are_those_with_most_loads() -> None:
    def runs(model: str, tp: int, loads: int, **more: Any) -> list[dict[str, Any]]:
        fixed = dict.fromkeys(DEPLOYMENT, 1) | {"model": model, "tp": tp, "isl": 8, "osl": 8}
        return [
            fixed | {"max_concurrency": 2**n, "prefill_workers": None, "scored_separately": None} | more
            for n in range(loads)
        ]

    rows = [*runs("Qwen3-8B", 1, 2), *runs("Qwen3-8B", 1, 3, osl=4), *runs("Qwen3-8B", 2, 5), *runs("Llama", 8, 6)]
    rows += runs("Split", 1, 9, prefill_workers=2)
    found = [dict(zip(DEPLOYMENT, deployment, strict=True)) for deployment in most_loads(rows)]
    assert [(row["model"], row["tp"], row["osl"]) for row in found] == [("Qwen3-8B", 1, 4), ("Llama", 8, 8)]
