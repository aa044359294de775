"""An upgrade: settings and metrics before and after, and the interval of their change."""

from __future__ import annotations

from typing import Any

import pytest

import kernelsight as ks
from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.upgrades.differences import BOTH_MEASURED, ONE_MEASURED, kernel_rows, part_factors
from kernelsight.upgrades.question import Question, read_engine, read_limits


def test_nothing_changes_within_a_version() -> None:
    flags = {"model": "qwen3-0.6b", "gpu": "h100_sxm", "max_concurrency": 2, "num_prompts": 8}
    flags |= {"input_len": 64, "output_len": 8}
    found = ks.upgrade(engine_from="vllm:0.31", engine_to="vllm:0.31.0", **flags)
    assert {row["change"] for row in found.metrics.values()} == {0.0}
    assert found.settings == [] == found.flags
    tpot = found.metrics["tpot_p50_ms"]
    run = ks.simulate(engine_version="0.31", **flags)
    own = next(row for row in run.table("scenario_intervals").to_pylist() if row["metric"] == "tpot_p50_ms")
    # errors that both share cancel: far below the interval of either
    assert 0.0 < tpot["high"] < 0.5 * (own["high"] - own["predicted"])


def test_between_engines_their_own_kernels_and_defaults_answer() -> None:
    flags = {"model": "llama-3.1-8b", "gpu": "h100_sxm", "max_concurrency": 2, "num_prompts": 8}
    flags |= {"input_len": 64, "output_len": 8, "moe_backend": "fused_moe_triton"}
    found = ks.upgrade(engine_from="vllm:0.31", engine_to="sglang:0.5.20", **flags)
    assert {row["name"] for row in found.settings} >= {"block_size", "capacity_policy"}
    before, after = Question(flags, "vllm:0.31", "sglang:0.5.20").sides
    assert (before["moe_backend"], "moe_backend" in after) == ("fused_moe_triton", False)


def test_questions_are_a_table() -> None:
    flags = '{"model": "qwen3-0.6b", "gpu": "h100_sxm", "request_rate": 4, "num_prompts": 8, "input_len": 64, '
    flags += '"output_len": 8}'
    with ks.connect() as session:
        rows = [
            {"question_id": to, "flags": flags, "engine_from": "vllm:0.24", "engine_to": f"vllm:{to}"}
            for to in ("0.25", "0.31")
        ]
        session.give("upgrade_questions", rows)
        query = "select question_id, change from upgrade_metrics where metric = 'tpot_p50_ms' order by all"
        found = session.query(query).to_pylist()
        alone = ks.upgrade(
            engine_from="vllm:0.24", engine_to="vllm:0.25", model="qwen3-0.6b", gpu="h100_sxm", request_rate=4,
            num_prompts=8, input_len=64, output_len=8,
        )  # fmt: skip
    assert [row["question_id"] for row in found] == ["0.25", "0.31"]
    assert found[0]["change"] == alone.metrics["tpot_p50_ms"]["change"] != found[1]["change"]


def test_ends_that_are_not_given_are_the_image_and_the_newest_sweep() -> None:
    image = "docker run vllm/vllm-openai:v0.9.1 --model Qwen/Qwen3-8B"
    row = Question.of({"launch": image, "gpu": "h100_sxm"}, None, None).as_row("q")
    assert (row["engine_from"], row["engine_to"]) == ("vllm:0.9.1", "vllm:0.31.0")
    with pytest.raises(InvalidInput, match="the version before is unset; give --from"):
        Question.of({"model": "qwen3-8b", "gpu": "h100_sxm"}, None, "vllm:0.31")


@pytest.mark.parametrize(
    ("text", "words"),
    [("vllm", "give ENGINE:VERSION"), ("0.24.1", "such as vllm:0.24.1"), ("tgi:2.0", "unknown engine 'tgi'")],
)
def test_an_engine_without_a_version_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_engine(text)


@pytest.mark.parametrize("text", ["tpot_p99:5%", "tpot_p99", "tpot_p99:+0%", "tpot_p99:+nan%", "tpot_p99:+5"])
def test_a_limit_without_a_signed_change_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="give METRIC:"):
        read_limits([text])
    with pytest.raises(UnknownName, match="unknown metric 'itl'"):
        read_limits(["itl:+5%"])


def kernel(implementation: str, us: float, version: str = "0.24.0", tier: str = "target-measured") -> dict[str, Any]:
    row = {"family": "moe", "count": 2, "latency_us": us, "p95_us": 1.5 * us, "tier": tier}
    return row | {"implementation": implementation, "measured_version": version}


def step(version: str, *kernels: dict[str, Any]) -> dict[str, Any]:
    return {"phase": "decode", "settings": {"engine_version": version}, "kernels": kernels}


def test_errors_in_common_cancel() -> None:
    """One kernel in two measured versions differs by what versions change; two kernels by errors of their own."""
    same, one, swapped = (
        kernel_rows(step("0.24", kernel("a", 10.0)), step(version, after))[0]
        for version, after in (
            ("0.24.0", kernel("a", 11.0)),
            ("0.31", kernel("a", 11.0)),
            ("0.24", kernel("b", 11.0)),
        )
    )
    assert (same["log_sd"], same["measured_to"]) == (BOTH_MEASURED, True)
    assert (one["log_sd"] > ONE_MEASURED, one["measured_to"]) == (True, False)
    assert swapped["log_sd"] > 1.5 * one["log_sd"]
    assert (same["ms_per_step_from"], same["ms_per_step_to"]) == (0.02, 0.022)


def test_the_slow_end_moves_parts_by_their_share_of_the_uncertainty() -> None:
    row = {"phase": "decode", "ms_per_step_to": 2.0, "log_sd": 0.1}
    rows = [row | {"family": "moe"}, row | {"family": "gemm", "log_sd": 0.0}, row | {"family": "host"}]
    factors = part_factors(rows, {"decode": 3.0, "prefill": 1.0}, 1.0)
    assert factors["moe"] == pytest.approx(1.0 / part_factors(rows, {"decode": 3.0, "prefill": 1.0}, -1.0)["moe"])
    assert factors == {"moe": pytest.approx(2.718281828**0.1645), "decode_gemm": 1.0}
