"""An upgrade: settings and metrics before and after, and the interval of their change."""

from __future__ import annotations

import json
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
    assert {(row["low"], row["high"]) for row in found.metrics.values()} == {(0.0, 0.0)}


def test_errors_that_versions_share_cancel() -> None:
    flags = {"model": "qwen3-0.6b", "gpu": "h100_sxm", "max_concurrency": 2, "num_prompts": 8}
    flags |= {"input_len": 64, "output_len": 8}
    tpot = ks.upgrade(engine_from="vllm:0.25", engine_to="vllm:0.31", **flags).metrics["tpot_p50_ms"]
    run = ks.simulate(engine_version="0.31", **flags)
    own = next(row for row in run.table("scenario_intervals").to_pylist() if row["metric"] == "tpot_p50_ms")
    # far below the interval of either
    assert 0.0 < tpot["high"] - tpot["change"] < 0.5 * (own["high"] - own["predicted"])


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


SERVE = "docker run vllm/vllm-openai:v0.24.0 --model Qwen/Qwen3-0.6B --max-num-seqs"
LOAD = {"gpu": "h100_sxm", "max_concurrency": 4, "num_prompts": 8, "input_len": 64, "output_len": 8}


def test_a_changed_launch_line_answers_as_an_engine_does() -> None:
    """A flag that is added, one that changes, in Python and as rows of SQL; kernels of equal calls do not differ."""
    lines = {"launch": f"{SERVE} 64", "launch_to": f"{SERVE} 1 --enforce-eager"}
    found = ks.upgrade(**lines, **LOAD)
    assert found.answer.startswith("vllm:0.24.0 to vllm:0.24.0: ")
    assert "Changed: --max-num-seqs 64 to 1, --enforce-eager unset to true." in found.answer
    assert {row["flag"] for row in found.flags} == {"--max-num-seqs 64", "without --enforce-eager"}
    assert {row["name"] for row in found.settings} >= {"max_num_seqs", "graph_max_tokens"}
    tpot = found.metrics["tpot_p50_ms"]
    assert tpot["low"] < tpot["change"] < tpot["high"]  # host times are uncertain, and the change is theirs
    with ks.connect() as session:
        flags = json.dumps({"launch": lines["launch"], **LOAD})
        ends = {"flags": flags, "engine_from": "vllm:0.24.0", "engine_to": "vllm:0.24.0"}
        changes = [{"launch": lines["launch_to"]}, {"max_num_seqs": 1, "enforce_eager": True}, {}]
        rows = [{"question_id": str(number), **ends, "changes": json.dumps(row)} for number, row in enumerate(changes)]
        session.give("upgrade_questions", rows)
        query = "select change from upgrade_metrics where metric = 'tpot_p50_ms' order by question_id"
        assert [row["change"] for row in session.query(query).to_pylist()] == [tpot["change"], tpot["change"], 0.0]


@pytest.mark.parametrize(
    ("ends", "before", "after", "versions"),
    [
        ({}, "vllm serve Qwen/Qwen3-8B", "vllm serve Qwen/Qwen3-8B -tp 2", ("vllm:0.31.0", "vllm:0.31.0")),
        ({}, f"{SERVE} 8", f"{SERVE.replace('0.24', '0.25')} 8", ("vllm:0.24.0", "vllm:0.25.0")),
        ({}, f"{SERVE} 8", "vllm serve Qwen/Qwen3-8B", ("vllm:0.24.0", "vllm:0.24.0")),
        ({"engine_from": "vllm:0.25"}, "vllm serve a/b", "vllm serve a/b", ("vllm:0.25", "vllm:0.25")),
        ({"engine_to": "vllm:latest"}, f"{SERVE} 8", f"{SERVE} 4", ("vllm:0.24.0", "vllm:latest")),
        ({}, f"{SERVE} 8", "python -m sglang.launch_server --model-path a/b", ("vllm:0.24.0", "sglang:0.5.20")),
    ],
)
def test_versions_of_two_launch_lines(ends: dict[str, str], before: str, after: str, versions: tuple[str, str]) -> None:
    stated = {"engine_from": None, "engine_to": None, **ends}
    row = Question.of({"launch": before}, launch_to=after, **stated).as_row("q")
    assert (row["engine_from"], row["engine_to"]) == versions


def test_a_line_after_needs_one_before_and_a_version_beside_another() -> None:
    with pytest.raises(InvalidInput, match="needs --launch, the launch line before"):
        Question.of({"model": "qwen3-8b"}, "vllm:0.24", None, "vllm serve a/b")
    with pytest.raises(InvalidInput, match="the version before is unset"):
        Question.of({"launch": "vllm serve a/b"}, None, None, f"{SERVE} 8")


def test_ends_that_are_not_given_are_the_image_and_the_newest_sweep() -> None:
    image = "docker run vllm/vllm-openai:v0.9.1 --model Qwen/Qwen3-8B"
    row = Question.of({"launch": image, "gpu": "h100_sxm"}, None, None).as_row("q")
    assert (row["engine_from"], row["engine_to"]) == ("vllm:0.9.1", "vllm:0.31.0")
    with pytest.raises(InvalidInput, match="the version before is unset; give --from"):
        Question.of({"model": "qwen3-8b", "gpu": "h100_sxm"}, None, "vllm:0.31")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm", "give ENGINE:VERSION"),
        ("0.24.1", "such as vllm:0.24.1"),
        ("tgi:2.0", "unknown engine 'tgi'"),
        ("rocm/vllm:latest", "is no version of vllm; give vllm:0.31.0"),
        ("vllm/vllm-openai@sha256:ab", "is no version of vllm"),
        ("ghcr.io/huggingface/text-generation-inference:2.0", "unknown engine 'Text Generation Inference'"),
    ],
)
def test_an_engine_without_a_version_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_engine(text)


@pytest.mark.parametrize(
    ("text", "engine", "version"),
    [
        ("vllm/vllm-openai:v0.19", "vllm", "0.19"),
        ("vllm-openai:v0.19.1-cu129", "vllm", "0.19.1"),
        ("registry:5000/vllm/vllm-openai:v0.19@sha256:ab", "vllm", "0.19"),
        ("lmsysorg/sglang:latest", "sglang", "0.5.20"),
        ("vllm:latest", "vllm", "0.31.0"),
    ],
)
def test_an_image_or_the_latest_is_a_version(text: str, engine: str, version: str) -> None:
    assert read_engine(text) == {"engine": engine, "engine_version": version}


def test_versions_without_a_sweep_are_said() -> None:
    for to, words in (("vllm:latest", "vllm:latest is taken as vllm 0.31.0"), ("vllm:0.99", "later than any measured")):
        assert words in ks.upgrade(engine_from="vllm:0.31", engine_to=to, model="qwen3-0.6b", **LOAD).answer


def test_a_sure_limit_is_passed_by_the_whole_interval_alone() -> None:
    row = {"from": 10.0, "change": 1.0, "low": 0.4, "high": 1.6}
    (rise,), (sure,), (surely,) = (
        read_limits(text) for text in ("tpot_p99:+5%", "tpot_p99:+5%:sure", "tpot_p99:+3%:sure")
    )
    assert [limit.is_passed_by(row) for limit in (rise, sure, surely)] == [True, False, True]
    (fall,), (falls,) = (read_limits(text) for text in ("capacity:-5%:sure", "capacity:-3%:sure"))
    down = {"from": 10.0, "change": -1.0, "low": -1.6, "high": -0.4}
    assert [limit.is_passed_by(down) for limit in (fall, falls)] == [False, True]


@pytest.mark.parametrize(
    "text", ["tpot_p99:5%", "tpot_p99", "tpot_p99:+0%", "tpot_p99:+nan%", "tpot_p99:+5", "tpot_p99:+5%:s"]
)
def test_a_limit_without_a_signed_change_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="give METRIC:"):
        read_limits([text])
    with pytest.raises(UnknownName, match="unknown metric 'itl'"):
        read_limits(["itl:+5%"])


def kernel(implementation: str, us: float, version: str = "0.24.0", tier: str = "target-measured") -> dict[str, Any]:
    row = {
        "family": "moe",
        "count": 2,
        "shape": {"m": 8},
        "format": "bf16",
        "latency_us": us,
        "p95_us": 1.5 * us,
        "tier": tier,
    }
    return row | {"implementation": implementation, "measured_version": version}


def step(version: str, *kernels: dict[str, Any]) -> dict[str, Any]:
    return {"phase": "decode", "settings": {"engine_version": version}, "kernels": kernels}


def test_errors_in_common_cancel() -> None:
    """One kernel in two measured versions differs by what versions change; two kernels by errors of their own."""
    same, one, swapped, other = (
        kernel_rows(step("0.24", kernel("a", 10.0)), step(version, after))[0]
        for version, after in (
            ("0.25", kernel("a", 11.0, "0.25.0")),
            ("0.31", kernel("a", 11.0)),
            ("0.24", kernel("b", 11.0)),
            ("0.24", {**kernel("a", 11.0), "shape": {"m": 4}}),
        )
    )
    assert (same["log_sd"], same["measured_to"], same["sweep_to"]) == (BOTH_MEASURED, True, "0.25.0")
    assert other["log_sd"] == swapped["log_sd"]
    assert (one["log_sd"] > ONE_MEASURED, one["measured_to"]) == (True, False)
    assert swapped["log_sd"] > 1.5 * one["log_sd"]
    assert (same["ms_per_step_from"], same["ms_per_step_to"]) == (0.02, 0.022)


def test_the_slow_end_moves_parts_by_their_share_of_the_uncertainty() -> None:
    row = {"phase": "decode", "ms_per_step_to": 2.0, "log_sd": 0.1}
    rows = [row | {"family": "moe"}, row | {"family": "gemm", "log_sd": 0.0}, row | {"family": "host"}]
    factors = part_factors(rows, {"decode": 3.0, "prefill": 1.0}, 1.0)
    assert factors["moe"] == pytest.approx(1.0 / part_factors(rows, {"decode": 3.0, "prefill": 1.0}, -1.0)["moe"])
    assert factors == {"moe": pytest.approx(2.718281828**0.1645), "decode_gemm": 1.0}
