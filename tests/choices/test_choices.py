"""Choosing implementations: other GPUs teach, own measurements overrule them, and intervals say how sure that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from kernelsight.catalog.tables import contracts, facts
from kernelsight.choices.candidates import (
    SITES_PER_GPU,
    Choice,
    existing_candidates,
    hidden_octaves,
    measured_rows,
    spread_sites,
)
from kernelsight.choices.choices import LEAST_LEVELS, REPEATED, SIGMAS, Contrasts, choice_candidates, contrasts
from kernelsight.choices.contrasts import Candidates
from kernelsight.choices.inputs import candidates_like, choice_of
from kernelsight.choices.shapes_to_measure import budget_of, plan, planned_rows, suite_of_plan
from kernelsight.dataflow.contract import conform
from kernelsight.errors import InvalidInput
from kernelsight.measure.suite import suite_of
from kernelsight.session import connect
from tests.asked import refusals
from tests.choices.made_choices import SIZES, TARGET, fastest, rows, sweep
from tests.fitting.measured import gemm, point, write


def choice(path: Path, gpu: str = TARGET, **more: Any) -> Choice:
    return choice_of([path], "gemm", gpu, facts("gpus"), **more)


def choices(found: Choice, known: Contrasts | None = None, tolerance: float = 0.02) -> pl.DataFrame:
    with connect() as session:
        session.give("choice_candidates", choice_candidates(found, known or contrasts(found)[0], tolerance))
        return pl.from_arrow(session.table("choices"))


def right(picks: pl.DataFrame, turned: bool = False) -> float:
    return float(np.mean([row["engine"] == fastest(row["shape"], turned) for row in picks.iter_rows(named=True)]))


@pytest.fixture(scope="module")
def never(tmp_path_factory: pytest.TempPathFactory) -> Choice:
    return choice(sweep(tmp_path_factory.mktemp("never")))


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> tuple[Choice, Contrasts]:
    """A third of the shapes were measured."""
    found = choice(sweep(tmp_path_factory.mktemp("some"), rows(TARGET, SIZES[::3])))
    return found, contrasts(found)[0]


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Choice, Contrasts]:
    """A third of the shapes were measured, where the target's engines lead the other way round."""
    found = choice(sweep(tmp_path_factory.mktemp("turned"), rows(TARGET, SIZES[::3], turned=True)))
    return found, contrasts(found)[0]


def test_a_gpu_that_was_never_measured_is_chosen_for_by_what_others_show(never: Choice) -> None:
    picks = choices(never).filter(~pl.col("shape").str.contains('"m": 64,'))  # at 64 two engines tie
    assert picks.height == len(SIZES) * 4 // 5
    assert right(picks) > 0.9
    assert set(picks["tier"]) == {"cross-generation"}
    assert picks["evidence"][0] == "no measurement of l40s; contrasts of other GPUs: a100_sxm, h100_sxm"
    assert picks["regret"].is_null().all()


def test_own_measurements_overrule_the_others(turned: tuple[Choice, Contrasts]) -> None:
    """A few measured shapes turn the choice at the others."""
    picks = choices(*turned).filter(~pl.col("shape").str.contains('"m": 64,'))
    rest = picks.filter(pl.col("decision") != "measured")
    assert rest.height < picks.height
    assert right(rest, turned=True) > 0.9
    assert set(picks["tier"]) == {"target-measured"}


def test_a_shape_that_was_measured_whole_is_not_guessed(some: tuple[Choice, Contrasts]) -> None:
    picks = choices(*some).filter(pl.col("decision") == "measured")
    assert picks.height == len(SIZES[::3])
    assert picks["regret"].to_list() == [0.0] * picks.height
    whole = choice_candidates(*some, 0.02).to_pylist()
    known = [row for row in whole if row["measured_us"] is not None]
    assert [row["latency_us"] for row in known] == pytest.approx([row["measured_us"] for row in known])


def test_contrast_intervals_hold_the_true_ratios(turned: tuple[Choice, Contrasts]) -> None:
    truth = {(json.dumps(row["shape"]), row["engine"]): row["latency_us"] for row in rows(TARGET, turned=True)}
    table = choice_candidates(*turned, 0.02)
    conform(table, contracts()["choice_candidates"])
    picked = {row["shape"]: row["engine"] for row in table.to_pylist() if row["log_ratio"] == 0.0}
    inside = []
    for row in table.to_pylist():
        if row["engine"] != picked[row["shape"]]:
            ratio = np.log(truth[row["shape"], row["engine"]] / truth[row["shape"], picked[row["shape"]]])
            inside.append(row["log_ratio_p05"] <= ratio <= row["log_ratio_p95"])
    assert np.mean(inside) > 0.85


def test_chances_of_a_shape_sum_to_one_and_the_pick_is_not_the_dearest(never: Choice) -> None:
    found, _ = contrasts(never)
    site = never.candidates.site - never.candidates.site.min()
    assert np.bincount(site, found.fastest) == pytest.approx(np.ones(site.max() + 1))
    pick = found.ratio == 0.0
    assert (found.regret[pick] <= np.bincount(site, found.regret)[site[pick]] / 2.0).all()


def test_the_choice_does_not_depend_on_the_order_of_the_sweep(some: tuple[Choice, Contrasts], tmp_path: Path) -> None:
    every = [*rows("a100_sxm"), *rows("h100_sxm"), *rows(TARGET, SIZES[::3])]
    assert choices(*some).equals(choices(choice(write(tmp_path / "sweep.parquet", every[::-1]))))


def test_of_several_versions_the_newest_counts(tmp_path: Path) -> None:
    versions = [
        gemm(TARGET, 1, 1024, 1024, time, engine_version=name) for name, time in (("0.9.1", 5.0), ("0.10", 7.0))
    ]
    found = measured_rows([write(tmp_path / "sweep.parquet", versions)], "gemm", [TARGET])
    assert found["latency_us"].to_list() == [7.0]


def test_a_plan_spreads_by_chance_first_and_goes_where_regret_is_expected_then(tmp_path: Path, never: Choice) -> None:
    assert budget_of(never, 0.1) == 3
    sites = plan(never, 10)
    assert len(set(sites.tolist())) == 10
    assert sites.tolist() == plan(never, 10).tolist()
    assert sites[:5].tolist() == plan(never, 5).tolist(), "a larger budget measures what a smaller one does"
    half = [size for size in SIZES if size[0] in (1, 4096)][::2]
    found = choice(sweep(tmp_path, rows(TARGET, half)))
    known, _ = contrasts(found)
    more = plan(found, len(half) + 3)
    assert len(more) == 3
    site = found.candidates.site
    whole = np.unique(site[np.isfinite(found.candidates.log_us)])
    assert not set(more.tolist()) & set(whole.tolist())
    regret = {int(one): known.regret[(site == one) & (known.ratio == 0.0)].max() for one in np.unique(site)}
    left = [value for one, value in regret.items() if one not in set(whole.tolist())]
    assert regret[int(more[0])] == max(left)


def test_nothing_is_planned_twice(some: tuple[Choice, Contrasts]) -> None:
    found, _ = some
    assert plan(found, budget_of(found, 0.1)).size == 0


def test_a_plan_is_a_suite_that_measure_takes(never: Choice) -> None:
    planned = planned_rows(never, plan(never, 4).tolist())
    suite = suite_of(suite_of_plan(never, planned, "first"), "first.json")
    assert len(suite.points) == 4, "one cuBLAS product, whichever engine calls it"
    assert {(point.family, point.implementation, point.dtype) for point in suite.points} == {("gemm", "cublas", "bf16")}
    assert planned["measured_as"].to_list() == ["cublas"] * 12


def test_kernels_that_measure_cannot_run_are_named(tmp_path: Path) -> None:
    kernels = [
        {**row, "implementation": f"{row['engine']}_gemm"} for gpu in ("a100_sxm", "h100_sxm") for row in rows(gpu)
    ]
    found = choice(write(tmp_path / "sweep.parquet", kernels))
    planned = planned_rows(found, plan(found, 2).tolist())
    with pytest.raises(InvalidInput, match=r"cannot run any gemm kernel of this plan \(sglang_gemm, trtllm_gemm"):
        suite_of_plan(found, planned, "first")


def test_kernels_take_the_names_that_engines_give_them_on_the_gpu(tmp_path: Path) -> None:
    shape = {"batch": 8, "context": 1024, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}
    sizes = {"dtype": "bf16/fp8", "format": "fp8", "math": "bf16", "shape": shape}
    path = write(
        tmp_path / "sweep.parquet",
        [
            point("decode_attention", "h100_sxm", 20.0, engine="trtllm", implementation="xqa_wgmma", **sizes),
            point("decode_attention", "h100_sxm", 21.0, engine="vllm", implementation="flash_attention_3", **sizes),
            point("decode_attention", "a100_sxm", 21.0, engine="trtllm", implementation="xqa", **sizes),
        ],
    )
    others = measured_rows([path], "decode_attention", ["h100_sxm", "a100_sxm"])
    like = candidates_like("decode_attention", "gb200", others.clear(), others, facts("gpus"))
    names = like.select("engine", "implementation", "math").rows()
    assert ("trtllm", "trtllm_gen_fmha", "fp8") in names, "what torch_flow runs on sm_100 with an 8-bit cache"
    assert ("vllm", "trtllm_gen_fmha", "fp8") in names, "flash attention 3 was never counted on sm_100"
    assert "xqa" not in like["implementation"].to_list(), "the nearest GPU below, not every one"


def test_kernels_come_from_the_nearest_gpu_where_the_gpu_has_none_of_a_number_format(tmp_path: Path) -> None:
    """An L4 has the capability of an L40S, 8.9, and an A100 8.0: the L4's fp8 kernels run on the L40S, no bf16 one."""
    path = write(
        tmp_path / "sweep.parquet",
        [
            gemm("l40s", 1, 1024, 1024, 5.0, engine="vllm"),
            *(gemm("l4", 1, 1024, 1024, 5.0, engine="sglang", dtype=name) for name in ("bf16", "fp8")),
            gemm("a100_sxm", 1, 1024, 1024, 5.0, engine="trtllm", dtype="fp8"),
        ],
    )
    measured, others = (measured_rows([path], "gemm", gpus) for gpus in (["l40s"], ["l4", "a100_sxm"]))
    like = candidates_like("gemm", "l40s", measured, others, facts("gpus"))
    assert like.select("gpu", "dtype", "engine").rows() == [("l40s", "bf16", "vllm"), ("l4", "fp8", "sglang")]


def test_calls_name_the_shapes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = sweep(tmp_path)
    size = {"m": 32, "n": 2048, "k": 4096}
    shape = dict.fromkeys(field.name for field in contracts()["kernel_calls"].schema.field("shape").type) | size
    call = {
        **{"deployment_id": "d", "step_shape_id": 0, "call": "1", "family": "gemm", "name": "up", "gpu": TARGET},
        **{"engine": "vllm", "count": 1, "shape": shape, "format": "bf16", "math": "bf16", "flops": 1.0, "bytes": 1.0},
    }
    calls = pa.Table.from_pylist([call], contracts()["kernel_calls"].schema)
    strange = pa.Table.from_pylist([call, {**call, "call": "2", "format": "fp8", "math": "fp8"}], calls.schema)
    with caplog.at_level("INFO", "kernelsight"):
        picks = choices(choice(path, calls=strange))
    assert "1 shapes of the calls are left out" in caplog.text
    assert [json.loads(text) for text in picks["shape"]] == [size]
    assert picks["candidates"].to_list() == [3]
    with pytest.raises(InvalidInput, match="the calls hold no gemm kernel"):
        choice(path, calls=calls.slice(1))


@pytest.mark.parametrize(
    ("given", "error", "sentence"),
    refusals("choices/test_choices::test_what_cannot_be_chosen_is_refused"),
)
def test_what_cannot_be_chosen_is_refused(tmp_path: Path, given: dict, error: type[Exception], sentence: str) -> None:
    family, gpu = given.pop("family", "gemm"), given.pop("gpu", TARGET)
    with pytest.raises(error) as found:
        choice_of([sweep(tmp_path)], family, gpu, facts("gpus"), **given)
    assert sentence in str(found.value)


def test_one_engine_alone_is_no_choice(tmp_path: Path) -> None:
    alone = [row for gpu in ("a100_sxm", "h100_sxm") for row in rows(gpu) if row["engine"] == "vllm"]
    with pytest.raises(InvalidInput, match="no shape of gemm has two implementations to choose from on l40s"):
        choice(write(tmp_path / "sweep.parquet", alone))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_budgets_that_are_no_share_are_refused(never: Choice, share: float) -> None:
    with pytest.raises(InvalidInput, match="give the share of shapes to measure, above 0 and at most 1"):
        budget_of(never, share)


def decodes(windows: list[int], contexts: list[int], **fields: Any) -> pl.DataFrame:
    """Return call columns of decode attention of one sequence."""
    sizes = {"batch": 1.0, "heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0}
    rows = [sizes | {"context": float(context), "window": float(window)} for context in contexts for window in windows]
    named = {"dtype": "bf16/bf16", "distribution": None, "gpu": "h100_sxm", "math": "bf16", "format": "bf16"}
    frame = pl.DataFrame([named | row | {"latency_us": 9.0} for row in rows])
    return frame.with_columns(**{name: pl.lit(value) for name, value in fields.items()})


def test_implementations_exist_with_windows_or_without() -> None:
    """Of which width a window is does not matter, and a new token is a key too."""
    like = pl.concat(
        [
            decodes([0], [4095], engine="vllm", implementation="a"),
            decodes([1024], [4095], engine="sglang", implementation="b"),
        ]
    )
    shapes = decodes([0, 512], [4095, 255])
    found = existing_candidates("decode_attention", shapes, like, "h100_sxm")
    kernels = {(row["context"], row["window"], row["implementation"], row["latency_us"]) for row in found.to_dicts()}
    assert kernels == {(4095, 0, "a", 9.0), (4095, 512, "b", None), (255, 0, "a", None), (255, 512, "b", None)}
    assert hidden_octaves(shapes).tolist() == [0.0, 3.0, 0.0, 0.0]


def test_training_sites_are_thinned_by_gpu_and_number_format() -> None:
    counts = {("h100_sxm", "bf16"): 3 * SITES_PER_GPU, ("h100_sxm", "fp8"): SITES_PER_GPU, ("l4", "bf16"): 9}
    sites = [
        {"gpu": gpu, "dtype": dtype, "distribution": None, "m": float(m), "n": 1024.0, "k": 1024.0}
        for (gpu, dtype), count in counts.items()
        for m in range(1, count + 1)
    ]
    found = spread_sites("gemm", pl.DataFrame([site | {"engine": engine} for site in sites for engine in ("a", "b")]))
    kept = {key: part["m"].to_list() for key, part in found.filter(pl.col("engine") == "b").group_by("gpu", "dtype")}
    assert {key: len(ms) for key, ms in kept.items()} == {key: min(n, SITES_PER_GPU) for key, n in counts.items()}
    assert set(np.diff(kept["h100_sxm", "bf16"])) == {3.0}, "evenly spaced"
    assert found.height == 2 * (2 * SITES_PER_GPU + 9)


@pytest.mark.parametrize("measured_sites", [LEAST_LEVELS, LEAST_LEVELS - 1])
def test_guessed_latencies_have_the_level_of_the_measured_ones(measured_sites: int) -> None:
    """The GPU takes twice what the model says, give or take up to 5 % from site to site; half were measured."""
    sites, sd = 2 * LEAST_LEVELS, 0.1
    site, contrast = np.repeat(np.arange(sites), 2), np.tile([-0.2, 0.2], sites)
    level = np.log(2.0) + np.linspace(-0.05, 0.05, measured_sites)
    log_us = np.full(2 * sites, np.nan)
    log_us[: 2 * measured_sites] = np.repeat(level, 2) + contrast[: 2 * measured_sites]
    known, none = np.isfinite(log_us), np.zeros(2 * sites)
    mean = np.where(known, log_us, contrast)
    posterior = Contrasts(mean, np.tile([0.0, 0.4], sites), np.tile([0.0, sd], sites), none, none)
    shapes = pl.DataFrame({"m": site + 1, "n": 64, "k": 64, "engine": ["a", "b"] * sites})
    rows = shapes.select(pl.lit("l4").alias("gpu"), pl.lit("bf16").alias("dtype"), pl.lit("").alias("distribution"),
                         "m", "n", "k", "engine", pl.lit("x").alias("implementation"),
                         pl.Series("latency_us", 10.0 * np.exp(log_us), nan_to_null=True))  # fmt: skip
    labelled = Candidates(**dict.fromkeys(Candidates._fields, none) | {"site": site, "log_us": log_us})
    model_us, model_errors = np.full(2 * sites, 10.0), np.linspace(-0.5, 0.5, 11)
    found = Choice("gemm", "l4", (), rows, model_us, labelled, labelled, model_errors)
    table = pl.from_arrow(choice_candidates(found, posterior, 0.02))
    shift, errors = (np.log(2.0), level - np.log(2.0)) if measured_sites == LEAST_LEVELS else (0.0, model_errors)
    half = float(np.quantile(abs(errors), 0.9))
    assert table["latency_us"].to_numpy() == pytest.approx(10.0 * np.exp(np.where(known, mean, contrast + shift)))
    halves = np.where(known, SIGMAS * REPEATED, np.hypot(half, 1.645 * np.tile([0.0, sd], sites)))
    assert np.log(table["p95_us"] / table["latency_us"]).to_numpy() == pytest.approx(halves)
    assert np.log(table["latency_us"] / table["p05_us"]).to_numpy() == pytest.approx(halves)
    assert set(table["tier"]) == {"target-measured"}
    assert set(table["evidence"]) == {f"{measured_sites} shapes measured on l4; contrasts of other GPUs: none"}
    ends = (table[name].to_numpy() for name in ("log_ratio_p05", "log_ratio_p95"))
    for end, sigmas in zip(ends, (-1.645, 1.645), strict=True):
        assert end == pytest.approx(np.tile([0.0, 0.4 + sigmas * sd], sites))
