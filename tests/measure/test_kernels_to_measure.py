"""``calibrate plan``: a suite that ``calibrate measure`` reads, of kernels that the models run, within its minutes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import kernelsight as ks
from kernelsight.catalog.tables import facts
from kernelsight.cli.main import main
from kernelsight.errors import KernelSightError
from kernelsight.fitting.experimental_design import first_largest
from kernelsight.measure.kernels_to_measure import (
    _positions,
    features_of_points,
    of_families,
    seconds_of,
    served_calls,
)
from kernelsight.measure.points_to_measure import measurable
from kernelsight.measure.suite import SUSTAINED, read_suite


def test_a_plan_is_a_suite_within_its_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "planned.json"
    words = ["calibrate", "plan", "--gpu", "gb200", "--models", "llama-3.1-8b", "-o", str(target), "--format", "json"]
    assert main([*words, "--minutes", "0.2"]) == 0
    rows = {row["family"]: row for row in json.loads(capsys.readouterr().out)}
    short = read_suite(str(target))
    assert short.name == "planned" and sum(row["points"] for row in rows.values()) == len(short.points) - 4
    assert {point.family for point in short.points[:3]} == {"launch"}
    product = next(point for point in short.points if point.cache == SUSTAINED)
    assert sum(row["seconds"] for row in rows.values()) + seconds_of({"latency_us": 1e3, "cache": SUSTAINED}) <= 12.0
    assert product.family == "gemm" and product.sizes["m"] == 8192
    assert rows["gemm"]["expected_error_after"] < rows["gemm"]["expected_error_before"]
    shapes = [point.sizes for point in short.points if point.family == "gemm"]
    # products of Llama-3.1-8B on one, two or four GPUs: some matrix of 4,096 columns or rows, whole or in parts
    assert shapes and all(4096 in (one["n"], one["k"]) for one in shapes)
    assert {point.cache for point in short.points if point.family == "gemm"} == {"cold", SUSTAINED}
    assert main([*words, "--minutes", "1"]) == 0
    whole = read_suite(str(target)).points
    assert {point.sizes["cached_tokens"] for point in whole if point.family == "prefill_attention"} == {0, 8192}
    longer = {point.key for point in whole}
    assert len(longer) > len(short.points)
    assert {point.key for point in short.points} <= longer
    assert (
        "attention will be measured with flashinfer; choose another with --attention flash_attention_vllm|"
        in capsys.readouterr().err
    )
    assert main([*words, "--minutes", "1", "--attention", "flash_attention_vllm"]) == 0
    kernels = {point.implementation for point in read_suite(str(target)).points if "attention" in point.family}
    assert kernels == {"flash_attention_vllm"} and "will be timed through" not in capsys.readouterr().err
    assert main([*words, "--attention", "fa3"]) == 2
    assert "unknown attention library 'fa3'" in capsys.readouterr().err


def test_calls_that_no_suite_can_measure_give_no_point() -> None:
    call = {"family": "gemm", "shape": {"m": 1, "n": 64, "k": 64}, "format": "nvfp4", "math": "fp4", "weight": 1.0}
    more = {"latency_us": 5.0, "half": 0.2}
    assert measurable([{**call, **more, "format": "int4_wo"}]) == []
    assert measurable([{**call, **more, "family": "mla_decode"}]) == []
    latent = {"batch": 8, "context": 63, "heads": 16, "kv_lora_rank": 512, "rope_dim": 64}
    absorbed = {**more, "family": "mla_decode", "shape": latent, "format": "bf16", "math": "bf16", "weight": 1.0}
    kernels = [measurable([absorbed], capability=of)[0]["implementation"] for of in (8.0, 9.0, 10.0)]
    assert kernels == ["flashinfer", "flashmla", "trtllm_gen_mla"]
    routed = {"tokens": 8, "hidden": 64, "intermediate": 64, "experts": 8, "top_k": 2, "moe_tp": 1, "moe_ep": 1}
    experts = {**more, "family": "moe", "shape": routed, "format": "mxfp4", "math": "bf16", "weight": 1.0}
    [point] = measurable([experts], capability=9.0)
    assert (point["implementation"], point["dtype"]) == ("triton_kernels_moe", "w4a16_mxfp4")
    assert measurable([experts], capability=10.0) == []
    blocks = {**call, **more, "format": "fp8_block", "math": "fp8"}
    products = [measurable([blocks], capability=9.0), measurable([{**call, **more}], capability=10.0)]
    assert [point["implementation"] for [point] in products] == ["deepgemm", "cutlass_nvfp4"]
    assert measurable([{**call, **more}], capability=9.0) == []
    windowed = {"batch": 1, "context": 8, "heads": 8, "kv_heads": 8, "head_dim": 64, "window": 128}
    decode = {**call, **more, "family": "decode_attention", "shape": windowed, "format": "bf16", "math": "bf16"}
    assert measurable([{**decode, "format": "fp4"}]) == []
    [point] = measurable([decode])
    assert (point["dtype"], point["cache"], point["shape"]["window"]) == ("bf16/bf16", "cold", 128)
    [point] = measurable([{**decode, "format": "fp8", "math": "fp8"}])
    assert (point["implementation"], point["dtype"]) == ("flashinfer", "bf16/fp8")
    twice = measurable([{**call, **more, "format": "fp8"}] * 2)
    assert len(twice) == 1 and twice[0]["weight"] == 2.0
    assert point["deviation"] == pytest.approx(0.2 / 1.645), "half a 90 % interval is 1.645 standard deviations"


@pytest.mark.parametrize(("latency_us", "seconds"), [(5.0, 0.24), (9000.0, 1.64)])
def test_a_point_takes_its_setup_and_forty_replays(latency_us: float, seconds: float) -> None:
    """A replay lasts a millisecond, and four launches where these take longer."""
    assert seconds_of({"latency_us": latency_us, "cache": "cold"}) == pytest.approx(seconds)
    assert seconds_of({"latency_us": latency_us, "cache": SUSTAINED}) == pytest.approx(seconds + 2.0)


def test_heads_of_a_config_of_ones_own_are_divided_as_those_of_the_catalogue(tmp_path: Path) -> None:
    """Six heads are divided by two GPUs and not by four."""
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 384, "head_dim": 64},
        **{"intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 6},
        **{"vocab_size": 512, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu"},
        **{"torch_dtype": "bfloat16", "tie_word_embeddings": False},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with ks.connect() as session:
        calls = served_calls(session, "l4", [str(tmp_path / "config.json")])
        sizes = session.table("deployments")["tp"].to_pylist()
    assert sizes == [1, 2]
    # the shares of a step's calls add to 1: ten decode steps and eight prefill steps, on one GPU and on two
    assert sum(call["weight"] for call in calls) == pytest.approx(2 * (10 + 8))


def test_points_lie_apart_by_what_a_correction_sees_of_them() -> None:
    """A product of 132 tiles fills an H100's multiprocessors once, one of 133 twice: their sizes hardly differ."""
    shapes = [{"m": 128, "n": 128 * tiles, "k": 4096} for tiles in (66, 131, 132, 133)]
    given = {"family": "gemm", "implementation": "cublas", "dtype": "bf16", "cache": "cold", "latency_us": 9.0}
    points = [{**given, "shape": shape} for shape in shapes]
    points += [{**given, "family": "norm", "implementation": "rms_norm", "shape": {"rows": 8, "columns": 4096}}]
    seen = features_of_points(points, "h100_sxm", facts("gpus"))
    place = _positions(seen, ["gemm"] * 4 + ["norm"])
    apart = np.linalg.norm(place[:4, None] - place[:4], axis=2)
    assert apart[1, 2] < apart[2, 3] and len(seen[4]) < len(seen[0])
    assert not place[4].any()


def test_equal_gains_are_chosen_in_order_whatever_the_rounding_of_their_sums() -> None:
    assert first_largest(np.array([0.1, 0.3, 0.1 + 0.2, 0.3 - 1e-16])) == 1
    assert first_largest(np.array([-1.0, -1.0 + 1e-12, -2.0])) == 0


def test_a_plan_of_some_families_has_points_of_these_alone() -> None:
    points = [{"family": "gemm"}, {"family": "norm"}, {"family": "gemm"}]
    assert of_families(points, "gemm") == [points[0], points[2]]
    assert of_families(points, None) == of_families(points, " gemm, norm") == points
    with pytest.raises(KernelSightError, match=r"^unknown kernel family 'gem'\. Did you mean gemm"):
        of_families(points, "gem")
