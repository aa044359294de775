"""Two logs of two engine versions: the kernels of the version are the cause where they explain the change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kernelsight as ks
from kernelsight.comparison.log_changes import _setting_causes
from kernelsight.comparison.signature_causes import with_kernels
from kernelsight.comparison.verdict import cause_sentence
from kernelsight.session import connect

BENCH = Path(__file__).resolve().parents[1] / "logs" / "data" / "sglang_bench.jsonl"
MIXTRAL = {"model": "mixtral-8x7b-v0.1", "gpu": "h200_sxm", "tensor_parallel_size": 8, "max_concurrency": 1}


def rows(factor: float, versions: tuple[str, str] = ("0.19.0", "0.20.0")) -> list[dict]:
    words = {"what": "engine_version", "kind": "setting", "before_word": versions[0], "after_word": versions[1]}
    numbers = {"prompt_tokens": 4096.0, "output_tokens": 512.0, "in_flight": 1.0}
    return [
        words,
        *({"what": name, "kind": "load", "after": value} for name, value in numbers.items()),
        {"what": "decode_at_the_same_load", "kind": "speed", "factor": factor},
    ]


@pytest.mark.parametrize(("factor", "named"), [(1.21, True), (0.8, False), (3.0, False)])
def test_kernels_are_named_where_they_explain_the_change(factor: float, named: bool) -> None:
    """vLLM issue 41306: 2.66 to 3.22 ms a token from 0.19 to 0.20, by the experts' back end."""
    with connect() as session:
        (cause,) = with_kernels(_setting_causes(rows(factor)), rows(factor), MIXTRAL, session)
    sentence = cause_sentence(cause._asdict(), "0.19.0")
    assert sentence.startswith("the log looks like engine_version 0.20.0")
    assert ("moe fused_moe_triton to flashinfer_cutlass_moe" in sentence) == named


def test_without_a_deployment_the_version_alone_is_named() -> None:
    with connect() as session:
        (cause,) = with_kernels(_setting_causes(rows(1.2)), rows(1.2), {}, session)
        (odd,) = with_kernels(
            _setting_causes(rows(1.2, ("0.19.0", "x y"))), rows(1.2, ("0.19.0", "x y")), MIXTRAL, session
        )
    assert (cause.name, cause.value) == ("engine_version", "0.20.0")
    assert odd.value.startswith("x y")


def bench_of(folder: Path, version: str, input_len: int) -> Path:
    """Write what SGLang's client would write of a server of a version, as it is simulated."""
    flags = {"model": "llama-3.1-8b", "gpu": "b200_sxm", "engine": "sglang", "engine_version": version}
    load = {"max_concurrency": 16, "num_prompts": 96, "output_len": 100}
    metrics = ks.simulate(**flags, **load, input_len=input_len).table("request_metrics").to_pylist()
    lists = {
        "input_lens": [row["prompt_tokens"] for row in metrics],
        "output_lens": [row["output_tokens"] for row in metrics],
        "ttfts": [row["ttft_ms"] / 1e3 for row in metrics], "errors": [""] * len(metrics),
        "itls": [[row["tpot_ms"] / 1e3] * (row["output_tokens"] - 1) for row in metrics],
    }  # fmt: skip
    result = json.loads(BENCH.read_text().splitlines()[0]) | lists | {"max_concurrency": 16}
    result |= {"request_rate": float("inf"), "server_info": {"model_path": "llama-3.1-8b", "version": version}}
    path = folder / f"{version}.jsonl"
    path.write_text(json.dumps(result))
    return path


def test_logs_of_two_versions_name_the_kernel_that_was_planted(tmp_path: Path) -> None:
    """SGLang's attention on B200 went from FlashInfer to TRTLLM in 0.5.9: four of ten of a step of long contexts."""
    logs = {version: bench_of(tmp_path, version, 16_000) for version in ("0.5.6", "0.5.14")}
    deployment = {"model": "llama-3.1-8b", "gpu": "b200_sxm", "engine": "sglang", "engine_version": "0.5.14"}
    with connect() as session:
        found = session.compare(deployment=deployment, log=logs["0.5.14"], baseline=logs["0.5.6"]).summary
    assert "engine_version 0.5.14 (decode_attention flashinfer to trtllm_gen_fmha: -" in found["verdict"]
