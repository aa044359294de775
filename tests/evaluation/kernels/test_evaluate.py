"""A whole evaluation of sweeps of a few rows: who is scored, against what, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.errors import ContractBroken, InvalidInput, UnknownName
from kernelsight.evaluation.kernels.evaluate import REJECTED_KEY, evaluate
from kernelsight.fitting.splits import Split
from kernelsight.laboratory.kernels.baselines import baseline_columns
from kernelsight.laboratory.kernels.remeasurement import remeasurement_floors
from tests.fitting.measured import gemm, point, write

SPLIT = Split("test", ("l40s", "h100_sxm"), ("gb200",))
SHAPES = [(1, 1024, 1024), (64, 1024, 1024), (1, 512, 512)]  # the last is no serving shape


def twice_the_first(train, test, tier):
    """Predict twice the shortest training row of each family, between half and double."""
    found = {}
    for family, rows in test.items():
        latency = np.full(rows.num_rows, 2.0 * min(train[family]["latency_us"].to_pylist()))
        found[family] = (latency, latency / 2.0, latency * 2.0)
    return found


def one_answer(train, test, tier):
    """Predict 10 us for everything."""
    return {
        f: (np.full(t.num_rows, 10.0), np.full(t.num_rows, 9.0), np.full(t.num_rows, 11.0)) for f, t in test.items()
    }


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    rows = [gemm(gpu, *shape, 5.0) for gpu in SPLIT.train_gpus for shape in SHAPES]
    rows += [gemm("gb200", *shape, latency) for shape, latency in zip(SHAPES, (8.0, 20.0, 10.0), strict=True)]
    rows += [gemm("h100_sxm", *SHAPES[0], 4.0, dtype="fp8"), gemm("gb200", *SHAPES[0], 8.0, dtype="fp8")]
    rows += [gemm("gb200", *SHAPES[1], 40.0, implementation="brand_new")]
    return write(tmp_path / "sweep.parquet", rows)


def test_covered_uncovered_seen_and_unseen_rows_are_reported_apart(sweep: Path):
    found, _ = evaluate([sweep], SPLIT, one_answer)
    (cell,) = found["families"]
    assert (cell["family"], cell["dtype"], cell["train_gpus"]) == ("gemm", "bf16", ["h100_sxm", "l40s"])
    assert [row["dtype"] for row in found["uncovered"]] == ["fp8"]
    # all rows of the cell; its seen rows: 25 %, 50 % and nothing off; its unseen one 75 %
    assert [cell[part]["grid"]["n"] for part in ("seen", "unseen")] == [3, 1]
    assert cell["grid"]["n"] == 4
    assert cell["grid"]["mape"] == pytest.approx((0.25 + 0.5 + 0.0 + 0.75) / 4)
    assert found["overall"]["grid"]["mape"] == pytest.approx((0.25 + 0.5 + 0.0) / 3)
    assert found["overall"]["serving"]["mape"] == pytest.approx((0.25 + 0.5) / 2)
    assert found["unseen_implementation"]["serving"]["mape"] == pytest.approx(0.75)
    assert found["overall"]["grid"]["coverage_90"] == pytest.approx(1 / 3)
    assert found["overall"]["grid"]["width_90"] == pytest.approx(11 / 9)


def test_overall_is_the_mean_of_cells_and_pooled_that_of_rows(tmp_path: Path):
    quantised = {"shape": {"rows": 1, "columns": 4096}, "dtype": "fp8", "format": "fp8", "implementation": "static"}
    rows = [gemm(gpu, *shape, 5.0) for gpu in (*SPLIT.train_gpus, "gb200") for shape in SHAPES]
    rows += [point("quantize", gpu, 40.0, **quantised) for gpu in (*SPLIT.train_gpus, "gb200")]
    found, _ = evaluate([write(tmp_path / "two.parquet", rows)], SPLIT, one_answer)
    assert found["overall"]["grid"]["mape"] == pytest.approx((1.0 + 0.75) / 2)
    assert found["pooled"]["grid"]["mape"] == pytest.approx((1.0 * 3 + 0.75) / 4)
    assert {row["family"]: row["grid"]["mape"] for row in found["by_family"]} == {"gemm": 1.0, "quantize": 0.75}


def test_baselines_stand_beside_each_cell(sweep: Path):
    (without,) = evaluate([sweep], SPLIT, one_answer)[0]["families"]
    found, scored = evaluate([sweep], SPLIT, one_answer, baselines=baseline_columns)
    (cell,) = found["families"]
    assert without["baselines"] == {} and without["grid"] == cell["grid"]
    assert set(cell["baselines"]) == {"roofline", "roofline_waves", "affine_roofline", "nearest_gpu"}
    rows = scored["gemm"].to_pylist()
    assert all(row["roofline_us"] < row["latency_us"] for row in rows)
    # the H100 took 5 us; GB200 has 8 / 3.35 times its bandwidth, and every one of these shapes waits for it
    assert rows[0]["nearest_gpu_us"] == pytest.approx(5.0 * 3.35 / 8.0)
    # all training rows took 5 us: nothing to gain from a slope
    assert rows[0]["affine_roofline_us"] == pytest.approx(5.0, rel=1e-3)


def test_the_model_never_sees_the_target_without_a_budget(sweep: Path):
    def model(train, test, tier):
        assert set(train["gemm"]["gpu"].to_pylist()) == set(SPLIT.train_gpus)
        assert set(test["gemm"]["gpu"].to_pylist()) == {"gb200"}
        return one_answer(train, test, tier)

    evaluate([sweep], SPLIT, model)


def kernels_that_differ(train, test, tier):
    """Predict 4 us for Triton's kernel, 10 us for any other, of each test row."""
    found = {}
    for family, rows in test.items():
        latency = np.where(np.array(rows["implementation"].to_pylist()) == "fused_moe_triton", 4.0, 10.0)
        found[family] = (latency, latency - 1.0, latency + 1.0)
    return found


def experts(gpu: str, implementation: str, tokens: int, latency_us: float, **stated: object) -> dict:
    shape = {"tokens": tokens, "hidden": 2048, "intermediate": 768, "experts": 128, "top_k": 8, "expert_matrices": 3}
    shape |= {"moe_tp": 1, "moe_ep": 1}
    return point("moe", gpu, latency_us, shape=shape, implementation=implementation, **stated)


def test_with_nothing_of_the_target_the_kernel_is_that_of_the_other_gpus(tmp_path: Path):
    rows = [experts(gpu, "fused_moe_triton", tokens, 5.0) for gpu in SPLIT.train_gpus for tokens in (1, 2, 4)]
    rows += [experts("h100_sxm", "cutlass_moe", 1, 5.0)]
    # on the target the engine runs its own kernel, and Triton's once
    rows += [experts("gb200", "trtllm_gen_moe", tokens, 5.0) for tokens in (1, 2)]
    rows += [experts("gb200", "cutlass_moe", 1, 5.0), experts("gb200", "fused_moe_triton", 4, 5.0)]
    found, scored = evaluate([write(tmp_path / "s.parquet", rows)], SPLIT, kernels_that_differ)
    assert sorted(scored["moe"]["predicted_us"].to_pylist()) == [4.0, 10.0, 10.0, 10.0]
    assert scored["moe"]["unmeasured_us"].to_pylist() == [4.0] * 4
    nothing = found["nothing_of_target"]
    assert found["covered"]["grid"]["mape"] == pytest.approx((1.0 + 1.0 + 1.0 + 0.2) / 4)
    assert nothing["covered"]["grid"]["mape"] == pytest.approx(0.2)
    assert nothing["covered"]["grid"]["coverage_90"] == 1.0
    # of the rows whose kernel training GPUs ran: CUTLASS's and Triton's
    assert found["overall"]["grid"]["mape"] == pytest.approx((1.0 + 0.2) / 2)
    assert nothing["overall"]["grid"]["n"] == nothing["pooled"]["grid"]["n"] == 2


def test_what_a_model_states_stays_with_nothing_of_the_target(tmp_path: Path):
    quantised = {"shape": {"rows": 1, "columns": 4096}, "dtype": "fp8", "format": "fp8", "math": None}
    names = ("static_quant_fp8", "static_quant_fp8", "dynamic_quant_per_token")
    rows = [point("quantize", gpu, 5.0, implementation=name, **quantised) for gpu in SPLIT.train_gpus for name in names]
    rows += [point("quantize", "gb200", 5.0, implementation=name, **quantised) for name in (*names, "brand_new")]
    asked = []

    def model(train, test, tier):
        asked.extend(test["quantize"]["implementation"].to_pylist())
        return one_answer(train, test, tier)

    evaluate([write(tmp_path / "s.parquet", rows)], SPLIT, model)
    # only what no other GPU ran gives way, to the commonest of the others
    assert sorted(asked) == sorted([*names, "brand_new", "static_quant_fp8"])


def test_a_measured_target_is_never_asked_as_if_it_were_not(sweep: Path):
    sizes = ((1024, 1024), (512, 512), (2048, 1024))
    rows = [gemm(gpu, 1, n, k, 5.0) for gpu in (*SPLIT.train_gpus, "gb200") for n, k in sizes]
    split = SPLIT._replace(tier="target-measured", budget=0.1)
    found, _ = evaluate([write(sweep.with_name("more.parquet"), rows)], split, one_answer)
    assert found["overall"]["grid"]["n"] == 1
    assert found["nothing_of_target"]["overall"]["grid"]["n"] == 0


def test_a_budget_teaches_sites_that_are_not_scored(sweep: Path):
    taught = {}

    def model(train, test, tier):
        taught[tier] = [row for row in train["gemm"].to_pylist() if row["gpu"] == "gb200"]
        sites = {(row["n"], row["k"]) for row in taught[tier]}
        assert not sites & {(row["n"], row["k"]) for row in test["gemm"].to_pylist()}
        return one_answer(train, test, tier)

    sizes = ((1024, 1024), (512, 512), (2048, 1024))
    rows = [gemm(gpu, 1, n, k, 5.0) for gpu in (*SPLIT.train_gpus, "gb200") for n, k in sizes]
    more = write(sweep.with_name("more.parquet"), rows)
    split = SPLIT._replace(tier="target-measured", budget=0.1)
    found, _ = evaluate([more], split, model)
    assert len(taught["target-measured"]) == 2
    assert found["overall"]["grid"]["n"] == 1


def test_a_family_whose_sites_are_all_taught_says_so(sweep: Path):
    found, _ = evaluate([sweep], SPLIT._replace(tier="target-measured", budget=0.1), one_answer)
    assert found["families"] == found["uncovered"] == []
    assert found["overall"]["grid"]["n"] == 0
    assert found["rejected"] == [{"reason": "every site of the family gemm is in the budget", "n": 5}]


def test_rows_that_are_not_fitted_do_not_teach(tmp_path: Path):
    rows = [gemm(gpu, *SHAPES[0], 6.0) for gpu in (*SPLIT.train_gpus, "gb200")]
    rows += [gemm("l40s", *SHAPES[1], 1.0, not_fitted="a broken link")]
    found, _ = evaluate([write(tmp_path / "s.parquet", rows)], SPLIT, twice_the_first)
    assert found["overall"]["grid"]["bias"] == pytest.approx(1.0)


def test_rejected_rows_are_those_that_the_import_noted_for_these_gpus(tmp_path: Path):
    noted = [{"gpu": gpu, "reason": "host_bound", "n": 7} for gpu in ("gb200", "l40s", "t4")]
    rows = [gemm(gpu, *SHAPES[0], 6.0) for gpu in (*SPLIT.train_gpus, "gb200")]
    rows += [point("softmax", "gb200", 3.0, shape={"rows": 1, "columns": 64})]
    path = write(tmp_path / "s.parquet", rows, {REJECTED_KEY: json.dumps(noted).encode()})
    found, _ = evaluate([path], SPLIT, one_answer)
    assert found["rejected"] == [
        {"reason": "host_bound", "n": 14},
        {"reason": "no expression for the family softmax", "n": 1},
    ]


def test_two_measurements_of_a_kernel_show_how_far_they_lie_apart(tmp_path: Path):
    rows = [gemm(gpu, *SHAPES[0], 10.0, engine=engine) for gpu in ("l40s", "h100_sxm") for engine in ("vllm", "sglang")]
    rows += [gemm("gb200", *SHAPES[0], 10.0), gemm("gb200", *SHAPES[0], 9.0, engine="sglang")]
    (floor,) = remeasurement_floors([write(tmp_path / "s.parquet", rows)], SPLIT.test_gpus)
    assert floor["family"] == "gemm"
    assert floor["grid"]["n"] == 1
    assert floor["grid"]["mape"] == pytest.approx(0.1)


def test_several_test_gpus_are_scored_together_and_apart(sweep: Path):
    split = Split("leave one out", ("gb200",), ("l40s", "h100_sxm"))
    found, _ = evaluate([sweep], split, one_answer)
    assert [row["gpu"] for row in found["by_gpu"]] == ["h100_sxm", "l40s"]
    assert not found["families"]  # one generation covers nothing
    assert sum(cell["grid"]["n"] for cell in found["uncovered"]) == 7


def test_sealed_gpus_are_refused_without_the_flag(tmp_path: Path):
    path = write(tmp_path / "s.parquet", [gemm(gpu, *SHAPES[0], 6.0) for gpu in ("l40s", "h100_sxm", "gb300")])
    split = SPLIT._replace(test_gpus=("gb300",))
    with pytest.raises(InvalidInput, match="gb300 is held out for the final evaluation"):
        evaluate([path], split, one_answer)
    found, _ = evaluate([path], split, one_answer, final=True)
    assert found["overall"]["grid"]["n"] == 1


@pytest.mark.parametrize("gpus", [("gb300",), ("l40s", "b300_sxm")])
def test_sealed_gpus_may_not_teach_either(sweep: Path, gpus: tuple[str, ...]):
    with pytest.raises(InvalidInput, match="held out for the final evaluation"):
        evaluate([sweep], SPLIT._replace(train_gpus=gpus), one_answer)


def test_words_that_fit_no_row_are_refused(sweep: Path):
    with pytest.raises(UnknownName, match="unknown GPU 'h100'. Did you mean h100_sxm"):
        evaluate([sweep], SPLIT._replace(train_gpus=("h100",)), one_answer)
    with pytest.raises(InvalidInput, match="gb200 is both a training and a test GPU"):
        evaluate([sweep], SPLIT._replace(train_gpus=("gb200", "l40s")), one_answer)
    with pytest.raises(UnknownName, match="unknown kernel family 'gem'. Did you mean gemm"):
        evaluate([sweep], SPLIT, one_answer, families=["gem"])


def test_scored_rows_come_with_what_a_plot_needs(sweep: Path):
    _, scored = evaluate([sweep], SPLIT, one_answer, baselines=baseline_columns)
    assert isinstance(scored["gemm"], pa.Table)
    assert {"flops", "bytes", "latency_us", "predicted_us", "roofline_us"} <= set(scored["gemm"].column_names)


def test_files_that_are_no_sweep_are_refused(tmp_path: Path):
    text, other = tmp_path / "text.parquet", tmp_path / "other.parquet"
    text.write_text("gpu,family\n", encoding="utf-8")
    pq.write_table(pa.table({"gpu": ["gb200"], "family": ["gemm"]}), other)
    for path, error, sentence in (
        (tmp_path / "absent.parquet", InvalidInput, r"file .*absent\.parquet does not exist"),
        (text, InvalidInput, "cannot be read as Parquet"),
        (other, ContractBroken, "missing column implementation; missing column engine;"),
    ):
        with pytest.raises(error, match=sentence):
            evaluate([path], SPLIT, one_answer)
